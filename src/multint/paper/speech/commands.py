"""What can be typed about speech alone: an option for data of the user's."""

from pathlib import Path

import click

OPTIONS = (
    click.Option(
        ["--speech"], type=click.Path(path_type=Path), help="Train on this data folder of Kaldi instead of the recipe's corpus."
    ),
)
