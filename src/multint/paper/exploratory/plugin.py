"""§3.1 as an experiment: character models, seen from inside."""

from multint.paper.charlm import task as charlm
from multint.paper.experiment import Experiment
from multint.paper.exploratory import report
from multint.paper.exploratory.recipes import RECIPES
from multint.paper.exploratory.task import ProbedTask, check

EXPERIMENT = Experiment(
    name="exploratory",
    recipes=RECIPES,
    prepare=charlm.data,  # type: ignore[arg-type]
    task=ProbedTask,
    model=charlm.model,
    sections=report.sections,
    check=check,  # type: ignore[arg-type]
    size=charlm.count,  # type: ignore[arg-type]
)
