"""What do the figures and the page's charts show?"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from multint.paper import figures
from multint.paper.numbers import BY_RECIPE, GRADIENT, PANELS, PTB, STEPS, metric, printed, verdict
from multint.paper.records import Group, Point
from multint.paper.report import against, claims, markup, spelling
from multint.paper.report.against import Standing, View, rows_of

TRAIN_POINTS = 200  # of a training curve kept for the page, as means; validation points are kept as they are


def _figure_1(view: View) -> Callable[[str, bool], bytes] | None:
    """Draws Figure 1 in a given form, light or dark; None if there is nothing to draw."""
    linear = {"lin-RNN": against.picked(view, PTB + "linrnn"), "lin-MI-RNN": against.picked(view, PTB + "linmirnn")}
    norms = {label: _norm_lines(view, group) for label, group in linear.items()}
    named = {"vanilla RNN (Eq. 1)": "rnn", "MI-RNN-simple (Eq. 2)": "simple", "MI-RNN-general (Eq. 4)": "mirnn"}
    valid = {label: _valid_lines(view, label, against.picked(view, PTB + name)) for label, name in named.items()}
    both = {
        "vanilla RNN": _activations(against.picked(view, PTB + "rnn")),
        "MI-RNN": _activations(against.picked(view, PTB + "mirnn")),
    }
    if not any([*norms.values(), *valid.values(), *both.values()]):
        return None
    level = figures.Mark("≈ 10⁻⁴\n(lin-RNN)", math.log(GRADIENT))
    rows = [BY_RECIPE[PTB + name, "bpc"][0] for name in ("mirnn", "rnn")]
    marks = [figures.Mark(printed(row), row.value) for row in rows if row.value is not None]
    return lambda form, dark: figures.figure_1(norms, valid, both, level, marks, form, dark)


def _norm_lines(view: View, group: Group | None) -> list[figures.Norm]:
    found = []
    for run in group.runs if group else ():
        for t in STEPS:
            points = [p for p in view.records.curves.get(run.run, ()) if p.epoch is not None and f"mean_log_dh{t}" in p.extra]
            if points:
                found.append(figures.Norm(t, [p.epoch or 0.0 for p in points], [p.extra[f"mean_log_dh{t}"] for p in points]))
    return found


def _valid_lines(view: View, label: str, group: Group | None) -> list[figures.Line]:
    curves = (view.records.curves.get(run.run, ()) for run in (group.runs if group else ()))
    kept = ([(p.epoch, p.valid) for p in points if p.epoch is not None and p.valid is not None] for points in curves)
    return [figures.Line(label, [x for x, _ in points], [y for _, y in points]) for points in kept if points]


def _activations(group: Group | None) -> figures.Activations | None:
    bars = [run.measured.histogram for run in group.runs if run.measured.histogram] if group else []
    if not group or not bars:
        return None
    shares = (claims.measured(group, name) for name in ("saturated", "near_zero"))
    return figures.Activations([bar.counts for bar in bars], [bar.reach for bar in bars], *shares)


def charts(view: View) -> list[dict[str, Any]]:
    """One chart per corpus and metric, as the page's script and the figures take it, without trials."""
    charts: dict[tuple[str, str], dict[str, Any]] = {}
    whole = against.whole(view.records.runs)
    for run in view.records.runs:
        if against.is_trial(run, whole):
            continue
        points = view.records.curves.get(run.run, ())
        if not any(p.valid is not None or p.train is not None for p in points):
            continue
        unit = metric(run.metric).label
        corpus = spelling.corpus(run.corpus, run.stands_for)
        chart = charts.setdefault(
            (corpus, unit), {"title": f"{corpus}: {unit} over training", "name": corpus, "unit": unit, "groups": {}, "marks": {}}
        )
        label = "; with ".join(filter(None, (run.recipe, against.changed(run))))
        chart["groups"].setdefault(label, []).append({"run": run.run, "seed": run.seed, **_series(points)})
        for row in rows_of(run):
            if row.value is not None and against.fills(PANELS[row.panel], run):
                chart["marks"].setdefault((row.value, printed(row)), []).append(row.model)
    for chart in charts.values():
        chart["groups"] = [{"recipe": recipe, "runs": runs} for recipe, runs in chart["groups"].items()]
        levels = sorted(chart["marks"].items())
        chart["marks"] = [
            {"value": value, "text": text, "label": ", ".join(dict.fromkeys(models))} for (value, text), models in levels
        ]
    return list(charts.values())


def _series(points: Sequence[Point]) -> dict[str, list[list[float | None]]]:
    """[update, epoch, seconds, result] of validation as measured, of training averaged down to a few hundred points."""
    valid = [[p.update, p.epoch, p.seconds, p.valid] for p in points if p.valid is not None]
    train = [p for p in points if p.train is not None]
    size = max(1, -(-len(train) // TRAIN_POINTS))
    bins = [train[i : i + size] for i in range(0, len(train), size)]
    means = [[b[-1].update, b[-1].epoch, b[-1].seconds, round(sum(p.train or 0.0 for p in b) / len(b), 5)] for b in bins]
    return {"valid": valid, "train": means}


def draw(view: View, charts: Sequence[Mapping[str, Any]]) -> tuple[dict[str, bytes], list[str]]:
    """The figures by file name; without matplotlib none, and a warning says so."""
    drawn: dict[str, bytes] = {}
    rows, first = pairs(view.standings), _figure_1(view)
    try:
        if rows:
            drawn["paper-dark.svg"] = figures.pairs(rows, dark=True)
        if first:
            drawn["figure-1-dark.svg"] = first("svg", True)
        for form in ("svg", "png"):
            if rows:
                drawn[f"paper.{form}"] = figures.pairs(rows, form)
            if first:
                drawn[f"figure-1.{form}"] = first(form, False)
            for chart in charts:
                lines, marks = _lines(chart)
                if lines:
                    drawn[f"curves-{markup.slug(chart['name'])}-{markup.slug(chart['unit'])}.{form}"] = figures.curves(
                        chart["title"], chart["unit"], lines, marks, form
                    )
    except ModuleNotFoundError as error:
        return {}, [f"figures left out: {error.name} is not installed; pip install 'multint[paper]'"]
    return drawn, []


def pairs(standings: Iterable[Standing]) -> list[figures.Pair]:
    found = []
    for s in standings:
        if s.group is None or s.row.value is None or s.row.repeats or not math.isfinite(s.group.mean):
            continue
        label = f"{PANELS[s.row.panel].short} {s.row.model}".strip()
        values = s.group.values
        word = verdict(s.row, s.group.mean)
        found.append(figures.Pair(label, metric(s.row.metric).label, s.row.value, s.group.mean, min(values), max(values), word))
    return found


def _lines(chart: Mapping[str, Any]) -> tuple[list[figures.Line], list[figures.Mark]]:
    lines = [
        figures.Line(group["recipe"], [p[0] for p in run["valid"]], [p[3] for p in run["valid"]])
        for group in chart["groups"]
        for run in group["runs"]
        if run["valid"]
    ]
    return lines, [figures.Mark(mark["text"], mark["value"]) for mark in chart["marks"]]
