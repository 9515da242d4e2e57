"""§3.5 as an experiment."""

from multint.paper.experiment import Experiment
from multint.paper.reader import commands, model, shelf, task
from multint.paper.reader.recipes import OWN, RECIPES

EXPERIMENT = Experiment(
    name="reader",
    recipes=RECIPES,
    prepare=task.data,  # type: ignore[arg-type]
    task=task.ReaderTask,
    model=model.described,
    options=commands.OPTIONS,
    own=OWN,
    commands=commands.COMMANDS,
    check=task.check,  # type: ignore[arg-type]
    size=task.count,  # type: ignore[arg-type]
    shelf=shelf.SHELF,
)
