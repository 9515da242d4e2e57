"""§3.4 as an experiment."""

from multint.paper.experiment import Experiment
from multint.paper.skipthought import commands, model, report, shelf, task
from multint.paper.skipthought.recipes import OWN, RECIPES

EXPERIMENT = Experiment(
    name="skipthought",
    recipes=RECIPES,
    prepare=task.data,  # type: ignore[arg-type]
    task=task.SkipThoughtTask,
    model=model.described,
    options=commands.OPTIONS,
    own=OWN,
    commands=commands.COMMANDS,
    sections=report.sections,
    check=task.check,  # type: ignore[arg-type]
    size=task.count,  # type: ignore[arg-type]
    shelf=shelf.SHELF,
)
