"""§3.2 as an experiment."""

from multint.paper.charlm import commands, corpus, report, task
from multint.paper.charlm.recipes import RECIPES
from multint.paper.experiment import Experiment

EXPERIMENT = Experiment(
    name="charlm",
    recipes=RECIPES,
    prepare=task.data,  # type: ignore[arg-type]
    task=task.CharTask,
    model=task.model,
    options=commands.OPTIONS,
    own=RECIPES["demo-milstm"],
    commands=commands.COMMANDS,
    sections=report.sections,
    check=task.check,  # type: ignore[arg-type]
    size=task.count,  # type: ignore[arg-type]
    shelf=corpus.SHELF,
)
