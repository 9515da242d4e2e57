"""The demo runs from beginning to end, and says what is wrong with its arguments."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"


def demo(*arguments):
    return subprocess.run([sys.executable, DEMO, *arguments], capture_output=True, text=True, check=False)


def test_demo_prints_both_models_with_their_bits_per_character():
    ran = demo("--updates", "2", "--hidden", "4")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    rows = {name: row.split() for name, row in re.findall(r"^(LSTM|MI-LSTM) +([\d,]+ .*)$", ran.stdout, re.MULTILINE)}
    assert rows.keys() == {"LSTM", "MI-LSTM"}
    parameters = {name: int(row[0].replace(",", "")) for name, row in rows.items()}
    assert parameters["MI-LSTM"] - parameters["LSTM"] == 3 * 4 * 4
    for _, valid, test, _ in rows.values():
        assert 4 < float(valid) < 8
        assert 4 < float(test) < 8
    assert "bits per character" in ran.stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--updates", "0"], "argument --updates: must be a whole number of at least 1, got '0'"),
        (["--hidden", "many"], "argument --hidden: must be a whole number of at least 1, got 'many'"),
        (["--seed", "-1"], "argument --seed: must be a whole number of at least 0, got '-1'"),
        (["--layers", "2"], "unrecognized arguments: --layers 2"),
    ],
)
def test_demo_explains_bad_arguments(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(DEMO), *arguments])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(DEMO), run_name="__main__")
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
