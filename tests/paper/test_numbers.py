"""The paper's numbers: every row of Tables 1 and 2 is there, once, and is read the right way round."""

from collections import Counter

import pytest

from multint.paper.exploratory.recipes import RECIPES
from multint.paper.numbers import (
    ALPHAS,
    BETAS,
    BY_RECIPE,
    CLAIMS,
    METRICS,
    PANELS,
    PTB,
    ROWS,
    VARIANTS,
    grid,
    printed,
    verdict,
)


def values(panel, **wanted):
    return [row.value for row in ROWS if row.panel == panel and all(getattr(row, key) == value for key, value in wanted.items())]


def test_every_panel_has_the_printed_number_of_rows():
    in_paper = Counter(row.panel for row in ROWS if (row.value is not None or row.cited) and not row.repeats)
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
        ("scale", {"metric": "std"}, [0.06, 0.008]),
        ("wsj", {"metric": "cer"}, [10.0, 6.4, 9.2, None, 6.5, 6.0]),
        ("wsj", {"metric": "wer"}, [14.1, 9.3, 8.7, 7.3, 8.7, 8.2]),
        ("ptb", {"cited": True}, [1.42, 1.41, 1.48]),
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


def test_a_recipe_and_a_metric_name_one_number():
    own = [row for row in ROWS if row.recipe]
    assert sum(len(rows) for rows in BY_RECIPE.values()) == len(own)
    assert all(not row.cited for row in own)
    assert all(sum(not row.repeats for row in rows) == 1 for rows in BY_RECIPE.values())
    assert all(len({row.value for row in rows}) == 1 for rows in BY_RECIPE.values())


@pytest.mark.parametrize("model", ["rnn", "mirnn"])
def test_the_runs_of_the_smallest_scale_fill_both_panels(model):
    assert [row.panel for row in BY_RECIPE[PTB + model, "bpc"]] == ["scale", "ptb"]


def test_what_is_said_of_section_3_1_names_recipes_that_are_there():
    named = {row.recipe for row in ROWS if row.recipe and row.recipe.startswith(PTB)}
    named |= {PTB + name for claim in CLAIMS for name in claim.needs} | {grid(alpha, beta) for alpha in ALPHAS for beta in BETAS}
    assert named == {name for name in RECIPES if not name.startswith(PTB + "b-")}
    for name, recipe in RECIPES.items():
        if recipe.corpus in VARIANTS:
            assert name.replace(recipe.corpus, VARIANTS[recipe.corpus].named) in named
        else:
            assert recipe.paper == BY_RECIPE[name, "bpc"][0].value if (name, "bpc") in BY_RECIPE else recipe.paper is None


def test_cited_rows_say_from_where_and_rows_without_a_number_say_why():
    assert all(row.note for row in ROWS if row.cited or row.value is None)


def test_rows_name_known_panels_and_metrics():
    assert all(row.table == PANELS[row.panel].table and row.metric in METRICS for row in ROWS)


def test_the_spread_rows_name_the_four_scales_that_make_them():
    for row in ROWS:
        if row.over:
            assert [BY_RECIPE[recipe, "bpc"][0].panel for recipe in row.over] == ["scale"] * 4


def test_numbers_keep_the_papers_decimals():
    assert printed(BY_RECIPE["exploratory/ptb-mirnn-rw0.3", "bpc"][0]) == "1.40"
    assert printed(BY_RECIPE["skipthought/uni-skip", "acc"][0]) == "74.0"
    assert printed(BY_RECIPE["charlm/text8-gru", "bpc"][0]) == "—"


@pytest.mark.parametrize(
    "recipe, metric, ours, word",
    [
        ("exploratory/ptb-mirnn", "bpc", 1.3949, "met"),
        ("exploratory/ptb-mirnn", "bpc", 1.3951, "miss"),
        ("exploratory/ptb-mirnn", "bpc", 1.3849, "better"),
        ("skipthought/mi-uni-skip", "r", 0.8600, "better"),
        ("skipthought/mi-uni-skip", "r", 0.8500, "miss"),
        ("charlm/text8-gru", "bpc", 1.5, ""),
        ("charlm/text8-milstm", "bpc", float("nan"), "miss"),
    ],
)
def test_a_verdict_follows_the_direction_of_its_metric(recipe, metric, ours, word):
    assert verdict(BY_RECIPE[recipe, metric][0], ours) == word
