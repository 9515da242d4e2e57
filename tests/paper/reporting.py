"""What the tests of the report share: made-up records and curves in a results folder, and what a browser would see of the page."""

import json
import math
import random
from html.parser import HTMLParser

from multint.paper import experiments, record, records

HEADER = "update,epoch,seconds,lr,train,valid,grad_norm\n"
EVIL = "charlm/</script><script>alert(1)</script>|`x`$y$"
BPC = {"name": "bpc", "unit": "BPC", "lower": True}
RECIPES = experiments.recipes()


def made(recipe, value, seed=0, corpus="ptb-a", *, metric=BPC, split="test", stands_for=None, own=False, form="", **more):
    """A line of the records; row, twin and scale are those of the recipe, if there is one of that name."""
    known = RECIPES.get(recipe)
    said = {"row": known.row, "twin": known.twin, "scale": known.scale} if known else {"row": None, "twin": None, "scale": ""}
    results = [
        {"metric": metric, "value": value + more_, "dataset": corpus, "split": split, "n": 9, "protocol": protocol}
        for protocol, more_ in (("carried", 0.0), ("reset", 0.02))
    ]
    config = {"hidden": 8, "schedule": {"lr": 0.001}, **more.pop("config", {})}
    valid = more.pop("valid", value + 0.05)
    return {
        "version": record.VERSION,
        "run": f"{recipe}-s{seed}-made-up",
        "recipe": recipe,
        **said,
        "data": {"name": corpus, "sha256": "00", "stands_for": stands_for, "own": own, "form": form},
        "results": results,
        "selected_by": None if valid is None else {"metric": metric, "value": valid},
        "seed": seed,
        "precision": "fp32",
        "changed": [],
        "commit": "0000000",
        "dirty": False,
        "device": "imaginary",
        "shared": 1,
        "versions": {"torch": "0"},
        "parameters": 1234,
        "updates": 100,
        "epochs": 2,
        "ended": "2 epochs",
        "seconds": 61.2,
        "scoring_seconds": 2.0,
        "throughput": {"value": 1e6, "unit": "characters"},
        "measured": {},
        "config": config,
        "history": [],
        "curve": None,
        **more,
    }


def write(folder, lines, tail=""):
    """A results folder with these records; a curve that is named is made up."""
    (folder / "curves").mkdir(parents=True, exist_ok=True)
    for one in lines:
        if one["curve"]:
            steps = ((k * 10, one["results"][0]["value"] + 1 / k) for k in range(1, 11))
            body = "".join(f"{u},{u / 50},{u / 2},0.001,{y:.4f},{f'{y + 0.1:.4f}' if u % 20 == 0 else ''},1\n" for u, y in steps)
            (folder / one["curve"]).write_text(HEADER + body)
    (folder / record.RECORDS).write_text("".join(json.dumps(one) + "\n" for one in lines) + tail)
    return folder


def read(folder):
    return records.read(folder, RECIPES)


def line(text, start):
    """Cells of the first Markdown table row that begins so."""
    row = next(row for row in text.splitlines() if row.startswith(f"| {start} |"))
    return [cell.strip() for cell in row.strip("|").split(" | ")]


def part(text, title):
    """The text under a heading, up to the next one."""
    return text.partition(f"# {title}\n")[2].partition("\n#")[0]


class Page(HTMLParser):
    """What a browser would see: elements by tag, and scripts that would run."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.running, self.attributes = [], 0, []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.running += tag == "script" and ("type", "application/json") not in attrs


# ---- §3.1 ----

NORMS = [f"{average}_dh{t}" for average in ("mean_log", "log_mean") for t in (0, 1, 5, 10)]
# by model: test result, rate of its curve, log norm at the end, share of |h| > 0.9 and of |h| < 0.1
MODELS = {
    "rnn": (1.68, 6, None, 0.62, 0.03),
    "rnn-rw0.1": (1.64, 6, None, None, None),
    "rnn-rw0.3": (1.58, 5, None, None, None),
    "rnn-rw0.6": (1.55, 5, None, None, None),
    "mirnn": (1.41, 3, None, 0.02, 0.34),
    "mirnn-rw0.1": (1.415, 3, None, None, None),
    "mirnn-rw0.3": (1.42, 3, None, None, None),
    "mirnn-rw0.6": (1.41, 3, None, None, None),
    "simple": (1.46, 5, None, 0.05, 0.3),
    "linrnn": (2.3, 8, -9.8, None, None),
    "linmirnn": (1.5, 5, -4.0, None, None),
}


def counts(saturated):
    """A histogram with its mass at the ends, or in the middle."""
    heights = [abs((i + 0.5) / 100 - 1) for i in range(200)]
    return [int(1e6 / (1.01 - h) if saturated else 1e8 * math.exp(-5 * h)) for h in heights]


def explored(folder, seeds=2, epochs=12, without=(), laptop="", **measured):
    """Results of all of §3.1, made up; ``measured`` replaces parts of what was seen inside every model."""
    lines, curves = [], {}
    for name, (value, rate, last, high, low) in MODELS.items():
        for seed in range(seeds):
            one = made(f"exploratory/{laptop}ptb-{name}", value + 0.002 * seed, seed, shared=4, seconds=240.0)
            if high is not None:
                flow = {"wx": [1.5], "uh": [0.01]}, {"wx": [2.0], "uh": [20.0 + seed]}
                seen = {"histogram": {"reach": 1.0, "counts": counts(high > 0.5)}, "saturated": high, "near_zero": low}
                one["measured"] = {**seen, "flows": {"gates": ["h"], "start": flow[0], "end": flow[1]}, **measured}
            one["curve"] = f"curves/{laptop}{name}-{seed}.csv"
            curves[one["curve"]] = curve(random.Random(seed), one["selected_by"]["value"], rate, last, epochs)
            lines.append(one)
    lines += [made(f"exploratory/ptb-mirnn-a{a}-b{b}", 1.43 + 0.01 * float(b)) for a, b in (("1", "0.5"), ("4", "1"))]
    lines += [made("exploratory/ptb-b-mirnn", 1.42, corpus="ptb-b", shared=4, seconds=240.0)]
    kept = [one for one in lines if one["recipe"].removeprefix("exploratory/ptb-") not in without]
    write(folder, [{**one, "curve": None} for one in kept])
    for path, body in curves.items():
        (folder / path).write_text(body)
    (folder / record.RECORDS).write_text("".join(json.dumps(one) + "\n" for one in kept))
    return folder


def curve(chance, best, rate, last, epochs):
    lines = []
    for epoch in range(1, epochs + 1):
        valid = best + 2 * math.exp(-epoch / rate) - 2 * math.exp(-epochs / rate) + chance.uniform(0, 0.003)
        norms = [""] * 8 if last is None else [last - 12 * math.exp(-epoch / 0.6) + chance.uniform(0, 0.1) for _ in NORMS]
        lines.append(",".join(map(str, [epoch * 10, epoch, epoch, 1e-4, valid - 0.05, valid, 1, *norms])))
    return HEADER.strip() + "," + ",".join(NORMS) + "\n" + "\n".join(lines) + "\n"
