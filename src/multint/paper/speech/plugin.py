"""§3.3 as an experiment."""

from multint.paper.experiment import Experiment
from multint.paper.speech import commands, model, report, shelf, task
from multint.paper.speech.recipes import OWN, RECIPES

EXPERIMENT = Experiment(
    name="speech",
    recipes=RECIPES,
    prepare=task.data,  # type: ignore[arg-type]
    task=task.SpeechTask,
    model=model.described,
    options=commands.OPTIONS,
    commands=commands.COMMANDS,
    sections=report.sections,
    own=OWN,
    check=task.check,  # type: ignore[arg-type]
    size=task.count,  # type: ignore[arg-type]
    shelf=shelf.SHELF,
)
