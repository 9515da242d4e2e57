"""What do the figures and the page's charts show?"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from multint.paper import figures
from multint.paper.numbers import PANELS, ROWS, Row, printed, printing
from multint.paper.records import Group, Point, label
from multint.paper.report import against, markup, spelling
from multint.paper.report.against import View, outcome, standing
from multint.paper.report.section import Section
from multint.paper.report.tables import verdict_cell

TRAIN_POINTS = 200  # of a training curve kept for the page, as means; validation points are kept as they are


def charts(view: View, groups: Sequence[Group] | None = None) -> list[dict[str, Any]]:
    """One chart per data and unit, as the page's script and the figures take it: of some groups, or of all that are no trials."""
    charts: dict[tuple[str, str], dict[str, Any]] = {}
    shown = view.groups if groups is None else groups
    for group in shown:
        series = [(run, _series(view.records.curves.get(run.run, ()))) for run in group.runs]
        kept = [{"run": run.run, "seed": run.seed, **one} for run, one in series if any(one.values())]
        if not kept:
            continue
        unit = spelling.how(group.one.selected_by.metric if group.one.selected_by else group.main.metric).label
        data = spelling.data(group.one.data)
        new = {"title": f"{data}: {unit} over training", "name": data, "unit": unit, "groups": [], "marks": {}}
        chart = charts.setdefault((data, unit), new)
        chart["groups"].append({"recipe": label(group, shown), "runs": kept})
        for row in _marked(group, unit):
            chart["marks"].setdefault((row.value, printed(row)), []).append(row.model)
    for chart in charts.values():
        levels = sorted(chart["marks"].items())
        chart["marks"] = [
            {"value": value, "text": text, "label": ", ".join(dict.fromkeys(models))} for (value, text), models in levels
        ]
    return list(charts.values())


def _marked(group: Group, unit: str) -> list[Row]:
    """The rows of the paper whose numbers are levels in the chart."""
    mine = [row for row in ROWS if row.key and row.key == group.one.row and row.value is not None]
    return [row for row in mine if printing(row.metric).label == unit and against.fills(PANELS[row.panel], group.one)]


def _series(points: Sequence[Point]) -> dict[str, list[list[float | None]]]:
    """[update, epoch, seconds, result] of validation as measured, of training averaged down to a few hundred points."""
    valid = [[p.update, p.epoch, p.seconds, p.valid] for p in points if p.valid is not None]
    train = [p for p in points if p.train is not None]
    size = max(1, -(-len(train) // TRAIN_POINTS))
    bins = [train[i : i + size] for i in range(0, len(train), size)]
    means = [[b[-1].update, b[-1].epoch, b[-1].seconds, round(sum(p.train or 0.0 for p in b) / len(b), 5)] for b in bins]
    return {"valid": valid, "train": means}


def draw(view: View, charts: Sequence[Mapping[str, Any]], sections: Iterable[Section]) -> tuple[dict[str, bytes], list[str]]:
    """The figures by file name; without matplotlib none, and a warning says so."""
    rows = pairs(view)
    makers: dict[str, Callable[[str, bool], bytes]] = {one.name: one.draw for section in sections for one in section.pictures}
    if rows:
        makers["paper"] = lambda form, dark: figures.pairs(rows, form, dark)
    drawn: dict[str, bytes] = {}
    try:
        for name, make in makers.items():
            drawn |= {f"{name}-dark.svg": make("svg", True), f"{name}.svg": make("svg", False), f"{name}.png": make("png", False)}
        for chart in charts:
            lines, marks = _lines(chart)
            for form in ("svg", "png") if lines else ():
                body = figures.curves(chart["title"], chart["unit"], lines, marks, form)
                drawn[f"curves-{markup.slug(chart['name'])}-{markup.slug(chart['unit'])}.{form}"] = body
    except ModuleNotFoundError as error:
        return {}, [f"figures left out: {error.name} is not installed; pip install 'multint[paper]'"]
    return drawn, []


def pairs(view: View) -> list[figures.Pair]:
    """The rows that were run, with the paper's numbers."""
    found = []
    for row in ROWS:
        s, ours = standing(view, row), outcome(view, row)
        scores = s.scores
        if row.value is None or row.repeats or not ours or not scores or not math.isfinite(scores.mean):
            continue
        name = f"{PANELS[row.panel].short} {row.model}".strip()
        low, high = min(scores.values), max(scores.values)
        text = verdict_cell(ours).text
        found.append(figures.Pair(name, printing(row.metric).label, row.value, scores.mean, low, high, text, ours.word == "miss"))
    return found


def _lines(chart: Mapping[str, Any]) -> tuple[list[figures.Line], list[figures.Mark]]:
    lines = [
        figures.Line(group["recipe"], [p[0] for p in run["valid"]], [p[3] for p in run["valid"]])
        for group in chart["groups"]
        for run in group["runs"]
        if run["valid"]
    ]
    return lines, [figures.Mark(mark["text"], mark["value"]) for mark in chart["marks"]]
