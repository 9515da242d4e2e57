"""What is the life of a run? Job, lock, training, final scores, record; and opening it again afterwards."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import multint
from multint.paper import engine, experiments, processes, products, record
from multint.paper.experiment import Job, Metric, Recipe, Result, Task, Team
from multint.paper.obtain import DataError
from multint.paper.overrides import RecipeError, apply, effective, rebuilt
from multint.paper.record import Data, Record, Selected, Throughput
from multint.paper.runs import Clock, Progress, Run, RunError, digest, environment, read_json, write_json

ABOUT = "model.json"  # what a run's model is built from without its data
WEIGHTS = "weights.safetensors"  # of a finished run


# ---- a job ----


def job(
    name: str,
    seed: int = 0,
    changes: Sequence[str] = (),
    given: Mapping[str, Any] | None = None,
    data: Path | None = None,
    precision: str = "fp32",
) -> Job:
    """The job a command line describes: a recipe by name with some settings changed, or an experiment with the user's own data.

    ``given`` are the options of the experiment's own. A wrong value is refused before any data is read.
    """
    given = {key: value for key, value in (given or {}).items() if value not in (None, False)}
    full, base = experiments.find(name)
    experiment = experiments.load(full.partition("/")[0])
    if full == experiment.name and not given:
        wanted = " or ".join(option.opts[0] for option in experiment.options)
        raise RecipeError(f"train {name} needs data of yours ({wanted}); recipes with a corpus: multint recipes '{name}/*'")
    recipe = apply(base, changes)
    changed = effective(base, changes)
    experiment.check(recipe)
    dataset = experiment.prepare(recipe, data, given)
    if dataset.own:
        full, recipe = _on_own_data(experiment.name, recipe, changed)
    return Job(full, recipe, seed, precision, dataset, changed, given)


def _on_own_data(experiment: str, recipe: Recipe, changed: Sequence[str]) -> tuple[str, Recipe]:
    """The recipe as a run on the user's data has it: no row of the paper. Its name does not depend on the names of files."""
    if any(change.startswith("corpus=") for change in changed):
        raise RecipeError("corpus=... changes nothing beside data of your own; leave one of them out")
    twin = recipe.twin_label and f"{experiment}/own-{recipe.twin_label}"
    said: dict[str, Any] = {"row": None, "twin": twin, "scale": "", "cite": "", "note": "data of the user's"}
    return f"{experiment}/own-{recipe.label}", replace(recipe, **said)


def config(job: Job) -> dict[str, Any]:
    """What a run is: two jobs with equal configurations are one run. Names and places of files are no part of it."""
    data = {"data": f"sha256:{job.data.sha256}", "form": job.data.form}
    settings = record.settings(job.recipe)
    if job.data.own:
        settings.pop("corpus", None)
    return {"recipe": job.name, "seed": job.seed, "precision": job.precision, **data, "settings": settings}


def run_name(job: Job) -> str:
    return f"{job.name}-s{job.seed}-{digest(config(job))}"


# ---- training ----


def train(
    job: Job,
    runs: Path,
    results: Path,
    *,
    device: str = "auto",
    devices: int = 1,
    nodes: int = 1,
    watcher: engine.Watcher | None = None,
    **settings: Any,
) -> Record | None:
    """Train, or continue, or if the run is finished just read its record; None in processes other than the first."""
    multint.backends()  # compiles the CPU loop, if at all, before the clock starts
    fabric = processes.make_fabric(device, devices, nodes, job.precision)
    first = fabric.global_rank == 0
    watcher = watcher if watcher is not None and first else engine.Silent()
    run = Run(runs, run_name(job), config(job))
    if run.record_file.exists():
        watcher.say(f"{run.folder} is finished; delete it to train again")
        if first:
            run.publish(run.record_file.read_text(), results)
        return read(run.folder) if first else None
    if first:
        run.__enter__()
    fabric.barrier()
    try:
        if run.pending():
            fabric.barrier()  # all processes have seen it
            if first:
                run.settle(results)
        elif found := _trained(job, run, fabric, watcher, settings):
            run.finish(record.line(found), results)
        return read(run.folder) if first else None
    finally:
        run.__exit__()


def _trained(job: Job, run: Run, fabric: Any, watcher: engine.Watcher, settings: Mapping[str, Any]) -> Record | None:
    """Train to the end, score, and write the weights; the record on the first process."""
    team = processes.team(fabric)
    experiment = experiments.load(job.experiment)
    task = experiment.task(job, fabric.device)
    if team.rank == 0:
        given = {key: str(value.resolve()) if isinstance(value, Path) else value for key, value in job.given.items()}
        about = {"experiment": job.experiment, "recipe": job.name, "model": task.description(), "given": given}
        write_json(run.folder / ABOUT, about)
    progress, model = engine.fit(task, job.recipe.schedule, run, fabric, watcher, **settings)
    clock = Clock()
    inner = processes.bare(model)
    task.after_training(inner)
    model.eval()
    with torch.no_grad():
        results = task.results(model, team)
    _refuse_nan(results, progress, task)
    if team.rank != 0:
        return None
    measured = task.measure(inner)
    run.write_weights(WEIGHTS, inner.state_dict())
    return _record(job, run, task, progress, results, measured, inner, clock())


def _refuse_nan(results: Sequence[Result], progress: Progress, task: Task) -> None:
    """Refuse to record NaN or inf."""
    for one in results:
        if not math.isfinite(one.value):
            unit = selecting(task).unit
            best = f"the weights of update {progress.best_update}, {unit} {progress.best:.3f} on the validation data"
            which = ", ".join(filter(None, (one.dataset, one.split, one.protocol)))
            raise RunError(
                f"{best}, give {one.metric.unit} {one.value} on {which}; no record was written, the checkpoints are complete: "
                "try a smaller rate (--set schedule.lr=...) or --precision fp32 in another --runs folder"
            )


def selecting(task: Task) -> Metric:
    """The metric that picks the best checkpoint."""
    return next(metric for metric in task.metrics if metric.name == task.select)


def _record(
    job: Job,
    run: Run,
    task: Task,
    progress: Progress,
    results: Sequence[Result],
    measured: Mapping[str, Any],
    model: nn.Module,
    scoring: float,
) -> Record:
    where = environment()
    assert progress.best is not None
    return Record(
        run=run.name,
        recipe=job.name,
        data=Data(job.data.name, job.data.sha256, job.data.stands_for, job.data.own, job.data.form),
        results=tuple(replace(one, value=round(one.value, 5)) for one in results),
        row=job.recipe.row,
        twin=job.recipe.twin,
        scale=job.recipe.scale,
        seed=job.seed,
        precision=job.precision,
        changed=job.changed,
        **{key: where[key] for key in ("commit", "dirty", "device", "shared")},
        versions={key: where[key] for key in ("python", "torch")},
        parameters=sum(p.numel() for p in model.parameters()),
        updates=progress.update,
        epochs=progress.epoch,
        ended=progress.done,
        seconds=round(progress.seconds + scoring, 2),
        scoring_seconds=round(scoring, 2),
        throughput=Throughput(round(progress.work / progress.work_seconds, 1), task.work_unit) if progress.work_seconds else None,
        selected_by=Selected(selecting(task), progress.best),
        measured=measured,
        config=run.config["settings"],
        history=tuple(progress.history),
        curve=run.curve_name,
    )


# ---- afterwards ----


def read(folder: Path) -> Record:
    """The record of a finished run."""
    value = read_json(folder / "record.json")
    found, warnings = record.parse(value, str(folder / "record.json"), _recipes_of(str(value.get("recipe"))))
    if found is None:
        raise RunError(warnings[-1])
    return found


def _recipes_of(name: str) -> dict[str, Recipe]:
    try:
        return experiments.recipes([name.partition("/")[0]])
    except RecipeError:
        return {}


def experiment(folder: Path) -> str:
    """The experiment that a run's folder belongs to."""
    return str(read_json(folder / ABOUT)["experiment"])


def reopen(folder: Path, data: Path | None = None, given: Mapping[str, Any] | None = None) -> Job:
    """The job of a run's folder, with its data; ``given`` overrules where the run says its data is."""
    about, there = read_json(folder / ABOUT), read_json(folder / "config.json")
    experiment = experiments.load(about["experiment"])
    name = there["recipe"].partition("/")[2]
    base = experiment.recipes.get(name) or experiment.own or next(iter(experiment.recipes.values()))
    try:
        recipe = rebuilt(base, there["settings"])
        seed, precision, expected, form = (there[key] for key in ("seed", "precision", "data", "form"))
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{folder / 'config.json'} is not the configuration of a run of {about['experiment']}: {error}") from error
    hints = {**about["given"], **{key: value for key, value in (given or {}).items() if value not in (None, False)}}
    try:
        dataset = experiment.prepare(recipe, data, hints)
    except DataError as error:
        moved = [option.opts[0] for option in experiment.options if option.name in about["given"]]
        raise RunError(f"{error}; if it moved, name it with {' or '.join(moved)}" if moved else str(error)) from error
    if (f"sha256:{dataset.sha256}", dataset.form) != (expected, form):
        raise RunError(f"{folder} was trained on {expected[:19]}..., but {dataset.name} is sha256:{dataset.sha256[:12]}...")
    return Job(there["recipe"], recipe, seed, precision, dataset, given=hints)


def load(folder: Path | str, device: str = "cpu") -> nn.Module:
    """The trained model of a run or of an exported folder, in evaluation mode; needs no data.

    An unfinished run has the weights of its best evaluation so far.
    """
    folder = Path(folder)
    about = read_json(folder / ABOUT)
    model = experiments.load(about["experiment"]).model(about["model"])
    model.load_state_dict(_weights(folder))
    processes.check_device(device)
    where = "cuda" if device == "auto" and torch.cuda.is_available() else device.replace("auto", "cpu")
    return model.to(where).eval()


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    best = folder / "checkpoints" / "best.safetensors"
    path = next((path for path in (folder / WEIGHTS, best) if path.exists()), None)
    if path is None:
        raise RunError(f"{folder} has no weights yet: it was never evaluated")
    try:
        found = load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"refused {path}: it cannot be read ({error})") from error
    return engine.under("model.", found) if path == best else found


def evaluate(folder: Path, data: Path | None, device: str, given: Mapping[str, Any] | None = None) -> list[Result]:
    """The scores of a run's weights on the validation data, and its results, taken again."""
    job = reopen(folder, data, given)
    model = load(folder, device)
    where = next(model.parameters()).device
    task = experiments.load(job.experiment).task(job, where)
    wrong = products.fault(model, task.product_rows(1), where) if where.type == "cuda" else None
    if wrong:
        raise RunError(wrong)
    team = Team()
    with torch.no_grad():
        scores = task.scores(model, "valid", team)
        valid = [
            Result(metric, team.mean(scores[metric.name]), job.data.name, "valid", int(scores[metric.name].count))
            for metric in task.metrics
        ]
        return [*valid, *task.results(model, team)]
