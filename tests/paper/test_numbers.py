"""The paper's numbers: every row of Tables 1 and 2 is there, once, and is read in the right direction."""

from collections import Counter

import pytest

from multint.paper import experiments
from multint.paper.numbers import BY_KEY, METRICS, PANELS, PICTURES, ROWS, SECTIONS, printed, printed_for, printing, verdict


def values(panel, **wanted):
    return [row.value for row in ROWS if row.panel == panel and all(getattr(row, key) == value for key, value in wanted.items())]


def test_every_panel_has_the_printed_number_of_rows():
    in_paper = Counter(row.panel for row in ROWS if not row.repeats)
    # std columns count as rows; Eesen's missing CER too; MI-RNN's 1.39 at bottom left is that of r_W = 0.02 at top left
    assert in_paper == {
        "scale": 10,
        "wsj": 12,
        "ptb": 4,
        "text8": 5,
        "hutter": 4,
        "sick": 15,
        "msrp": 10,
        "classification": 20,
        "reader": 7,
    }


@pytest.mark.parametrize(
    "panel, wanted, expected",
    [
        ("scale", {"metric": "bpc"}, [1.69, 1.65, 1.57, 1.54, 1.39, 1.40, 1.40, 1.41]),
        ("scale", {"metric": "std"}, [0.06, 0.008]),
        ("wsj", {"metric": "cer"}, [10.0, 6.4, 9.2, None, 6.5, 6.0]),
        ("wsj", {"metric": "wer"}, [14.1, 9.3, 8.7, 7.3, 8.7, 8.2]),
        ("ptb", {"cited": True}, [1.42, 1.41, 1.48]),
        ("text8", {"cited": False}, [1.52, 1.51, 1.44]),
        ("hutter", {"cited": True}, [1.67, 1.58, 1.47]),
        ("sick", {"metric": "r"}, [0.8477, 0.8405, 0.8584, 0.8436, 0.8588]),
        ("sick", {"metric": "rho"}, [0.7780, 0.7696, 0.7916, 0.7735, 0.7952]),
        ("sick", {"metric": "mse"}, [0.2872, 0.2995, 0.2687, 0.2946, 0.2679]),
        ("msrp", {"metric": "acc"}, [73.0, 71.2, 73.0, 74.0, 74.0]),
        ("msrp", {"metric": "f1"}, [81.9, 81.2, 82.0, 81.9, 82.1]),
        ("classification", {"model": "MI-uni-skip"}, [77.9, 82.3, 93.3, 88.1]),
        ("reader", {}, [0.5033, 0.4951, 0.5000, 0.5053, 0.4721, 0.4685, 0.4644]),
    ],
)
def test_rows_are_as_printed(panel, wanted, expected):
    assert values(panel, **wanted) == expected


def test_only_the_papers_own_numbers_are_here():
    assert [row.model for row in ROWS if row.value is None] == ["Eesen"], "whose CER the paper does not print"


def test_a_key_and_a_metric_name_one_number():
    own = [row for row in ROWS if row.key]
    assert sum(len(rows) for rows in BY_KEY.values()) == len(own)
    assert all(not row.cited for row in own)
    assert all(sum(not row.repeats for row in rows) == 1 for rows in BY_KEY.values())
    assert all(len({row.value for row in rows}) == 1 for rows in BY_KEY.values())


@pytest.mark.parametrize("model", ["rnn", "mirnn"])
def test_the_runs_of_the_smallest_scale_fill_both_panels(model):
    assert [row.panel for row in BY_KEY[f"ptb-{model}", "bpc"]] == ["scale", "ptb"]


def test_recipes_repeat_rows_that_are_there_and_agree_on_their_twins():
    recipes = experiments.recipes()
    keys = {key for key, _ in BY_KEY}
    repeated = {recipe.row for recipe in recipes.values() if recipe.scale == "paper" and recipe.row}
    assert {key for key in keys if key.startswith(("ptb-", "text8-", "enwik8-"))} <= repeated
    for recipe in recipes.values():
        rows = [row for (key, _), found in BY_KEY.items() for row in found if key == recipe.row]
        for row in rows:
            assert (recipe.twin and recipes[recipe.twin].row) == row.twin


def test_cited_rows_say_from_where():
    assert all(row.note for row in ROWS if row.cited or row.value is None)


def test_rows_name_known_panels_and_metrics_and_panels_known_sections():
    assert all(row.panel in PANELS and row.metric in METRICS for row in ROWS)
    assert {panel.section for panel in PANELS.values()} | {picture.section for picture in PICTURES} == set(SECTIONS)


def test_the_spread_rows_name_the_four_scales_that_make_them():
    spreads = [row for row in ROWS if row.over]
    assert len(spreads) == 2
    for row in spreads:
        assert [BY_KEY[key, "bpc"][0].panel for key in row.over] == ["scale"] * 4


def test_numbers_keep_the_papers_decimals():
    assert printed(BY_KEY["ptb-mirnn-rw0.3", "bpc"][0]) == "1.40"
    assert printed(BY_KEY["uni-skip", "acc"][0]) == "74.0"
    assert [printed(row) for row in ROWS if row.over] == ["0.06", "0.008"]
    assert printed_for("reader-milstm") == ["0.4721"] and printed_for("text8-gru") == []
    assert printed_for("mi-uni-skip")[:2] == ["r 0.8588", "ρ 0.7952"]


@pytest.mark.parametrize(
    "key, metric, ours, word",
    [
        ("ptb-mirnn", "bpc", 1.3949, "met"),
        ("ptb-mirnn", "bpc", 1.3951, "miss"),
        ("ptb-mirnn", "bpc", 1.3849, "better"),
        ("mi-uni-skip", "r", 0.8600, "better"),
        ("mi-uni-skip", "r", 0.8500, "miss"),
        ("text8-milstm", "bpc", float("nan"), "miss"),
    ],
)
def test_a_verdict_follows_the_direction_of_its_metric(key, metric, ours, word):
    assert verdict(BY_KEY[key, metric][0], ours) == word


@pytest.mark.parametrize("ours, word", [(0.064, "met"), (0.054, "better"), (0.066, "miss")])
def test_a_standard_deviation_is_judged_at_the_decimals_it_is_printed_with(ours, word):
    row = next(row for row in ROWS if row.over)
    assert verdict(row, ours) == word


def test_a_metric_that_the_paper_does_not_use_keeps_its_unit_and_direction():
    assert printing("hits", "right %", lower=False).arrow == "right % ↑"
    assert printing("bpc", "bits", lower=True).arrow == "BPC ↓"
