"""The report: nothing invented, nothing lost, nothing run. All records here are made up."""

import builtins
import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reporting import BPC, EVIL, HEADER, Page, explored, line, made, part, read, write

from multint.paper import figures, record, report
from multint.paper.numbers import ROWS
from multint.paper.records import gather, label, selected
from multint.paper.report import against, claims, drawing, focus, page, section


@pytest.fixture
def results(tmp_path):
    """A little of everything: seeds, a miss, a stand-in, twins outside the paper, and a name that would like to be a script."""
    return write(
        tmp_path / "results",
        [
            made("exploratory/ptb-mirnn", 1.400, 0, curve="curves/a.csv"),
            made("exploratory/ptb-mirnn", 1.410, 1, curve="curves/b.csv"),
            *(made("exploratory/ptb-linmirnn", 1.42, seed) for seed in (0, 1)),
            made("charlm/text8-74M-milstm", 1.43, corpus="text8-74M", stands_for="text8", curve="curves/c.csv"),
            made("charlm/demo-lstm", 2.10, corpus="python-docs"),
            made("charlm/demo-milstm", 2.00, corpus="python-docs"),
            made(EVIL, 2.50, corpus="python-docs", curve="curves/d.csv"),
        ],
    )


def demo(kind, value, seed=0, **more):
    return made(f"charlm/demo-{kind}", value, seed, "python-docs", **more)


def own(kind, value, seed=0, corpus="tale.txt", *, config=(), **more):
    """A run on the user's own data."""
    mi = kind.startswith("mi")
    settings = {"corpus": corpus, "integration": "general" if mi else "additive", **dict(config)}
    said = {"own": True, "twin": f"charlm/own-{kind.removeprefix('mi')}" if mi else None}
    return made(f"charlm/own-{kind}", value, seed, corpus, config=settings, **said | more)


# --- rows ---


def test_every_row_of_both_tables_is_shown_when_nothing_was_run(tmp_path):
    result = report.build(tmp_path / "none", tmp_path / "page.html")
    none = {"better": 0, "met": 0, "miss": 0, "1 seed": 0}
    assert result.rows == {"MI": none | {"not run": 23}, "additive": none | {"not run": 18}}
    text = result.page.read_text()
    view = against.look(tmp_path / "none")
    sections = claims.sections(view)
    mine = sum(len(one.claims) for one in sections), sum(len(one.rows) for one in sections), 10
    assert text.count('<th scope="row"') == len(ROWS) + 2 * mine[0] + mine[1] + mine[2]
    assert text.count("<details>") == 9 + 2, "the panels, and MI beside its twins at two sizes"
    assert "Of the 41 numbers that the paper reports as its own, none has been run at its size." in text
    assert result.warnings == ("runs.jsonl: not there yet; nothing has been run",)
    assert [path.name for path in result.figures if path.suffix == ".png"] == ["figure-1.png", "figure-2a.png", "figure-2b.png"]


def test_every_section_of_the_papers_experiments_has_claims(tmp_path):
    sections = claims.sections(against.look(tmp_path))
    assert [one.number for one in sections] == ["§3.1", "§3.2", "§3.3", "§3.4", "§3.5"]
    assert all(one.claims and claim.paper.verdict.text == "not run" for one in sections for claim in one.claims)
    text = report.markdown(tmp_path)
    assert "MI-LSTM+CTC+WFST is ahead of LSTM+CTC+WFST: CER % 6.0 against 6.5, WER % 8.2 against 8.7." in text


def test_a_row_shows_mean_std_seeds_gap_and_a_miss_as_a_miss(results):
    cells = line(report.markdown(results), "MI-RNN")
    assert cells[2:7] == ["1.39", "1.405 ± 0.007", "+0.015", "✗ miss", "reset: 1.425 ✗ miss"]
    assert cells[8:11] == ["2 (0, 1)", "1.400 to 1.410", "1,234"]


def test_a_better_row_says_better(results):
    assert line(report.markdown(results), "linear MI-RNN")[3:6] == ["1.420 ± 0.000", "−0.060", "✓ better"]


@pytest.mark.parametrize("value, word", [(1.42, "better"), (1.48, "met"), (1.5, "miss")])
def test_one_seed_gets_neither_a_tick_nor_a_cross(tmp_path, value, word):
    text = report.markdown(write(tmp_path, [made("exploratory/ptb-linmirnn", value)]))
    assert line(text, "linear MI-RNN")[5] == f"{word} (1 seed)" and "✓" not in text and "✗" not in text
    assert against.tally(against.look(tmp_path))["MI"] == {"better": 0, "met": 0, "miss": 0, "1 seed": 1, "not run": 22}


def test_mi_rows_and_additive_baselines_are_counted_apart(tmp_path):
    rows = [made(f"exploratory/ptb-{name}", value, seed) for name, value in (("rnn", 1.7), ("mirnn", 1.3)) for seed in (0, 1)]
    result = report.build(write(tmp_path, rows), tmp_path / "page.html")
    assert [(side, count["better"], count["miss"]) for side, count in result.rows.items()] == [("MI", 1, 0), ("additive", 0, 1)]
    assert "for its MI models, 1 has been run at its size: 1 better" in result.page.read_text()


def test_the_summary_says_how_many_rows_stay_better_by_the_other_protocol(tmp_path):
    rows = [made("exploratory/ptb-mirnn", 1.38, seed) for seed in (0, 1)]
    rows += [made("exploratory/ptb-linmirnn", 1.4, seed) for seed in (0, 1)]
    text = report.markdown(write(tmp_path, rows))
    assert "By the protocol “reset” 1 of the 2 that are better or met stay so" in text
    assert line(text, "MI-RNN")[5:7] == ["✓ better", "reset: 1.400 ✗ miss"]


def test_a_stand_in_never_fills_the_papers_row(results):
    lines = report.markdown(results).splitlines()
    (place,) = [i for i, text in enumerate(lines) if text.startswith("| ↳ MI-LSTM, stand-in |")]
    row, beside = ([cell.strip() for cell in text.strip("|").split(" | ")] for text in lines[place - 1 : place + 1])
    assert row[:6] == ["MI-LSTM", "BPC ↓", "1.44", "not run", "—", "not run"]
    assert beside[1:6] == ["BPC ↓", "—", "1.430", "—", "stand-in"]
    assert "text8-74M" in beside[-1] and "the rate falls linearly over 10 epochs" in beside[-1]


def test_a_claim_may_be_judged_on_a_stand_in_and_says_so(tmp_path):
    where = {"corpus": "text8-74M", "stands_for": "text8"}
    rows = [
        made(f"charlm/text8-74M-{kind}", value, seed, **where)
        for kind, value in (("lstm", 1.5), ("milstm", 1.4))
        for seed in (0, 1)
    ]
    text = report.markdown(write(tmp_path, rows), brief=True)
    assert "| MI-LSTM is ahead of LSTM: BPC 1.44 against 1.51. | ✓ confirmed (2 seeds), on text8-74M, reset too | not run |" in text
    assert "| MI-LSTM has a test BPC of 1.44 on text8. | not run |" in text, "a stand-in has other test text"


OTHERS = [{"corpus": "ptb-b"}, {"split": "valid"}, {"corpus": "ptb-b", "stands_for": "ptb-a"}, {"scale": "laptop"}, {"scale": ""}]


@pytest.mark.parametrize("change", [*OTHERS, {"changed": ["hidden=9"]}, {"own": True}], ids=str)
def test_another_corpus_split_size_or_setting_never_fills_the_papers_row(tmp_path, change):
    write(tmp_path, [made("exploratory/ptb-mirnn", 1.0, **change)])
    assert line(report.markdown(tmp_path), "MI-RNN")[3] == "not run"
    assert sum(count["not run"] for count in against.tally(against.look(tmp_path)).values()) == 41


def test_laptop_runs_stand_in_a_column_and_a_table_of_their_own(tmp_path):
    rows = [
        made(f"exploratory/laptop-ptb-{kind}", value, seed) for kind, value in (("rnn", 1.8), ("mirnn", 1.6)) for seed in (0, 1, 2)
    ]
    text = report.markdown(write(tmp_path, rows))
    assert line(text, "MI-RNN")[3:8] == ["not run", "—", "not run", "—", "1.600 ± 0.000 (3 seeds)"]
    pair = "| exploratory/laptop-ptb-rnn | 1.800 ± 0.000 | exploratory/laptop-ptb-mirnn | 1.600 ± 0.000 | −0.200 | — | ✓ MI ahead |"
    assert pair in part(text, "MI and its additive twin, laptop size")
    assert "ptb-rnn" not in part(text, "MI and its additive twin")
    assert drawing.pairs(against.look(tmp_path)) == []
    assert all(not chart["marks"] for chart in drawing.charts(against.look(tmp_path)))


def test_a_searched_rate_fills_the_row(tmp_path):
    rows = [made("exploratory/ptb-mirnn", 1.39, seed, changed=["schedule.lr=0.002"]) for seed in (0, 1)]
    assert line(report.markdown(write(tmp_path, rows)), "MI-RNN")[5] == "✓ met"


def test_of_several_settings_validation_selects(tmp_path):
    fast = made("exploratory/ptb-mirnn", 1.45, config={"schedule": {"lr": 0.002}}, run="fast", valid=1.40)
    lucky = made("exploratory/ptb-mirnn", 1.30, run="lucky", valid=1.50)
    text = report.markdown(write(tmp_path, [lucky, fast]))
    assert line(text, "MI-RNN")[3] == "1.450"
    other = line(text, "↳ MI-RNN, other setting")
    assert other[3] == "1.300"
    assert "schedule.lr 0.001 (selected: 0.002)" in other[-1]


HITS = {"name": "hits", "unit": "right %", "lower": False}


def test_validation_orders_by_the_direction_of_the_metric_that_selected_the_checkpoint(tmp_path):
    """Here hits, of which more is better, select the checkpoint, and the result is in BPC, of which less is better."""
    worse, better = (
        made("tally/mi", value, config={"schedule": {"lr": value}}, run=f"run-{hits}", selected_by={"metric": HITS, "value": hits})
        for value, hits in ((1.1, 60.0), (1.2, 90.0))
    )
    groups, _ = gather(read(write(tmp_path, [worse, better])).runs)
    assert selected(groups).one.run == "run-90.0"
    trials = part(report.markdown(tmp_path), "Trials")
    assert "schedule.lr=1.1" in trials and "schedule.lr=1.2" not in trials


def test_best_and_worst_follow_the_direction_of_the_result(tmp_path):
    rows = [made("tally/mi", value, seed, metric=HITS) for seed, value in enumerate((60.0, 90.0))]
    (group,), _ = gather(read(write(tmp_path, rows)).runs)
    assert (group.main.best, group.main.worst) == (90.0, 60.0)
    low = [made("tally/mi", value, seed) for seed, value in enumerate((60.0, 90.0))]
    (group,), _ = gather(read(write(tmp_path, low)).runs)
    assert (group.main.best, group.main.worst) == (60.0, 90.0)


def test_a_record_with_several_metrics_has_a_line_for_each(tmp_path):
    rows = []
    for name, value in (("plain", 1.5), ("mi", 1.25)):
        one = made(f"tally/{name}", value, twin="tally/plain" if name == "mi" else None)
        one["results"].append({"metric": HITS, "value": 100 / value, "dataset": "tally", "split": "valid", "n": 9})
        rows.append(one)
    others = part(report.markdown(write(tmp_path, rows)), "Other runs")
    assert "| BPC ↓ | tally/plain | 1.500 | tally/mi | 1.250 | −0.250 | — | MI ahead (1 seed) |" in others
    assert "| right % ↑ | tally/plain | 66.667 | tally/mi | 80.000 | +13.333 | — | MI ahead (1 seed) |" in others


def test_a_seed_run_twice_counts_once_and_is_named(tmp_path):
    first, second = made("exploratory/ptb-mirnn", 1.5), made("exploratory/ptb-mirnn", 1.4, run="again")
    result = report.build(write(tmp_path, [first, second]), tmp_path / "page.html")
    assert line(report.markdown(tmp_path), "MI-RNN")[3] == "1.400"
    assert any("one run was repeated with the same seed and setting" in text for text in result.warnings)


def test_recipes_and_seeds_are_in_order_whatever_the_order_of_records(tmp_path):
    order = [
        ("exploratory/ptb-mirnn", 2),
        ("exploratory/ptb-linrnn", 1),
        ("exploratory/ptb-mirnn", 0),
        ("exploratory/ptb-linrnn", 0),
    ]
    groups, _ = gather(read(write(tmp_path, [made(name, 1.4, seed) for name, seed in order])).runs)
    assert [[(run.recipe, run.seed) for run in group.runs] for group in groups] == [sorted(order)[:2], sorted(order)[2:]]


def test_a_diverged_run_is_a_miss(tmp_path):
    rows = [made("exploratory/ptb-mirnn", float("nan"), seed, curve=f"curves/{seed}.csv") for seed in (0, 1)]
    text = report.markdown(write(tmp_path, [*rows, *(made("exploratory/ptb-rnn", 1.5, seed) for seed in (0, 1))]))
    assert line(text, "MI-RNN")[3:6] == ["diverged (2 of 2)", "—", "✗ miss"]
    assert "✗ diverged" in text
    report.build(tmp_path, tmp_path / "page.html")


def test_both_standard_deviations_over_the_scales_are_given_and_the_fitting_one_is_judged(tmp_path):
    printed = dict(zip(("", "-rw0.1", "-rw0.3", "-rw0.6"), (1.69, 1.65, 1.57, 1.54), strict=True))
    rows = [made(f"exploratory/ptb-rnn{r}", value, seed) for r, value in printed.items() for seed in (0, 1)]
    text = report.markdown(write(tmp_path, rows))
    cells = line(text, "RNN, all four")
    assert cells[2:6] == ["0.06", "0.0602 (population), 0.0695 (sample)", "+0.000", "✓ met"]
    assert "judged by the population formula" in cells[-1]
    assert line(text, "MI-RNN, all four")[3] == "not run"
    three = report.markdown(write(tmp_path, rows[:6]))
    assert line(three, "RNN, all four")[3] == "not run (3 of 4)"


def test_the_runs_of_one_recipe_fill_two_rows_and_count_once(tmp_path):
    write(
        tmp_path,
        [made(f"exploratory/ptb-{name}", value, seed) for name, value in (("mirnn", 1.39), ("rnn", 1.6)) for seed in (0, 1)],
    )
    text = report.markdown(tmp_path)
    assert line(text, "MI-RNN, r_W = 0.02")[3:6] == line(text, "MI-RNN")[3:6] == ["1.390 ± 0.000", "+0.000", "✓ met"]
    assert line(text, "RNN, r_W = 0.02")[5] == "✓ better"
    pair = "| exploratory/ptb-rnn | 1.600 ± 0.000 | exploratory/ptb-mirnn | 1.390 ± 0.000 | −0.210 | −0.30 | ✓ MI ahead |"
    assert pair in text
    rows = report.build(tmp_path, tmp_path / "page.html").rows
    assert rows["MI"]["met"] == rows["additive"]["better"] == 1 and rows["MI"]["not run"] + rows["additive"]["not run"] == 39
    assert [pair.label for pair in drawing.pairs(against.look(tmp_path))] == ["PTB RNN, r_W = 0.02", "PTB MI-RNN, r_W = 0.02"]


PEARSON = {"name": "r", "unit": "r", "lower": False}


def test_higher_is_better_where_it_is(tmp_path):
    said = {"row": "mi-uni-skip", "scale": "paper", "metric": PEARSON, "corpus": "bookcorpus"}
    rows = [made("skipthought/mi-uni-skip", value, seed, **said) for seed, value in enumerate((0.85, 0.87))]
    cells = line(report.markdown(write(tmp_path, rows)), "MI-uni-skip")
    assert cells[1:6] == ["r ↑", "0.8588", "0.86000 ± 0.01414", "+0.00120", "✓ better"]
    assert cells[8:10] == ["2 (0, 1)", "0.87000 to 0.85000"]


# --- twins ---


def test_twins_stand_side_by_side_with_the_papers_difference_and_both_protocols(tmp_path):
    rows = [
        made(f"charlm/text8-{kind}", value, seed, "text8") for kind, value in (("lstm", 1.5), ("milstm", 1.46)) for seed in (0, 1)
    ]
    text = report.markdown(write(tmp_path, rows))
    pair = "| charlm/text8-lstm | 1.500 ± 0.000 | charlm/text8-milstm | 1.460 ± 0.000 | −0.040 | −0.07 | ✓ MI ahead |"
    assert f"{pair} reset: −0.040, ✓ MI ahead |" in text


def test_a_twin_is_the_recipe_that_the_record_names(tmp_path):
    """No name is parsed: what is called milstm has no twin unless its record says so."""
    rows = [made("mine/text8-lstm", 1.5), made("mine/text8-milstm", 1.4), made("mine/other", 1.3, twin="mine/text8-lstm")]
    others = part(report.markdown(write(tmp_path, rows)), "Other runs")
    assert "| mine/text8-lstm | 1.500 | mine/other | 1.300 | −0.200 |" in others
    assert "| mine/text8-milstm | 1.400 | not run |" in others


def test_runs_outside_the_paper_are_other_runs(results):
    other = part(report.markdown(results), "Other runs")
    assert "| charlm/demo-lstm | 2.100 | charlm/demo-milstm | 2.000 | −0.100 | — | MI ahead (1 seed) |" in other


def test_an_mi_run_without_its_twin_says_so(tmp_path):
    assert "| not run | — | charlm/demo-milstm | 2.000 | — | — | no twin run |" in report.markdown(
        write(tmp_path, [demo("milstm", 2.0)])
    )


def test_a_difference_inside_the_spread_over_seeds_is_no_lead(tmp_path):
    rows = [
        demo(kind, value, seed)
        for kind, values in (("lstm", (2.0, 2.1)), ("milstm", (1.99, 2.09)))
        for seed, value in enumerate(values)
    ]
    assert "−0.010 | — | = level |" in report.markdown(write(tmp_path, rows))


def test_more_seeds_outweigh_a_better_single_run(tmp_path):
    grid = [demo("milstm", 2.0, config={"schedule": {"lr": 2}}, valid=1.0, run="lucky")]
    best = [demo("milstm", 2.1, seed, valid=1.1) for seed in (0, 1)]
    assert "| 2.100 ± 0.000 |" in part(report.markdown(write(tmp_path, grid + best)), "Other runs")


def test_mi_behind_its_twin_is_shown_as_such(tmp_path):
    write(tmp_path, [demo(kind, value, seed) for kind, value in (("lstm", 2.0), ("milstm", 2.1)) for seed in (0, 1)])
    assert "✗ MI behind" in report.markdown(tmp_path)


def test_a_selection_by_validation_is_named_only_where_there_was_a_choice(tmp_path):
    one = [demo(kind, 2.0) for kind in ("lstm", "milstm")]
    assert "validation score selected" not in report.markdown(write(tmp_path, one))
    two = [*one, demo("milstm", 1.9, valid=1.9, run="fast", config={"schedule": {"lr": 0.1}})]
    text = report.markdown(write(tmp_path, two))
    assert "validation score selected" in part(text, "Other runs")
    assert "| charlm/demo-lstm | 2.000 | charlm/demo-milstm, schedule.lr=0.1 of 2 | 1.900 |" in text
    assert "validation score selected" not in part(text, "MI and its additive twin")


def test_changed_twins_stand_side_by_side(tmp_path):
    same = {"changed": ["hidden=512", "schedule.lr=0.1"], "corpus": "enwik8"}
    rows = [made("charlm/enwik8-lstm", 1.6, **same), made("charlm/enwik8-milstm", 1.5, **same | {"changed": ["hidden=512"]})]
    rows += [made("charlm/enwik8-lstm-drop", 1.9, **same), made("charlm/enwik8-milstm-drop", 1.4, corpus="enwik8")]
    text = report.markdown(write(tmp_path, rows))
    assert "| enwik8; with hidden=512 | BPC ↓ | charlm/enwik8-lstm | 1.600 | charlm/enwik8-milstm | 1.500 |" in text
    assert "| charlm/enwik8-lstm-drop | 1.900 | not run | — |" in text
    assert "| not run | — | charlm/enwik8-milstm-drop | 1.400 |" in text


def test_a_setting_that_does_nothing_in_the_twin_is_no_change_of_it(tmp_path):
    """Where the vectors start is such a setting: an additive model has none. What it has, such as its units, is a change."""
    start = {"changed": ["hidden=9", "start.beta1=0.5"], "corpus": "enwik8", "config": {"start": {"beta1": 0.5}}}
    rows = [made("charlm/enwik8-milstm", 1.5, **start)]
    rows.append(made("charlm/enwik8-lstm", 1.6, corpus="enwik8", changed=["hidden=9"], config={"integration": "additive"}))
    rows.append(made("charlm/enwik8-milstm", 1.7, corpus="enwik8", changed=["hidden=9"]))
    text = report.markdown(write(tmp_path, rows))
    pair = "| BPC ↓ | charlm/enwik8-lstm | 1.600 | charlm/enwik8-milstm |"
    assert f"| enwik8; with hidden=9, start.beta1=0.5 {pair} 1.500 | −0.100 |" in text
    assert f"| enwik8; with hidden=9 {pair} 1.700 | +0.100 |" in text
    rows[1]["changed"] = ["hidden=10"]
    assert pair not in report.markdown(write(tmp_path, rows))


def test_a_form_changed_by_hand_is_a_trial_and_no_twin(tmp_path):
    rows = [made("charlm/enwik8-lstm", 1.475, corpus="enwik8"), made("charlm/enwik8-milstm", 1.495, corpus="enwik8")]
    other = {"corpus": "enwik8", "changed": ["integration=additive"], "config": {"integration": "additive"}}
    text = report.markdown(write(tmp_path, [*rows, made("charlm/enwik8-milstm", 1.470, **other)]))
    assert "| charlm/enwik8-lstm | 1.475 | charlm/enwik8-milstm | 1.495 | +0.020 |" in text
    assert "| charlm/enwik8-milstm | enwik8 | integration=additive, schedule.lr=0.001 |" in part(text, "Trials")


def test_a_start_of_its_own_has_the_twin_of_its_recipe(tmp_path):
    names = {"charlm/enwik8-lstm": 1.6, "charlm/enwik8-milstm": 1.7, "charlm/enwik8-milstm-a1-b0.5": 1.5}
    names |= {"charlm/enwik8-lstm-drop": 1.45, "charlm/enwik8-milstm-a1-b0.5-drop": 1.4}
    text = report.markdown(write(tmp_path, [made(name, value, corpus="enwik8") for name, value in names.items()]))
    rows, others = part(text, "MI and its additive twin"), part(text, "Other runs")
    assert "| charlm/enwik8-lstm | 1.600 | charlm/enwik8-milstm | 1.700 | +0.100 |" in rows
    assert "| charlm/enwik8-lstm | 1.600 | charlm/enwik8-milstm-a1-b0.5 | 1.500 | −0.100 |" in others
    assert "| charlm/enwik8-lstm-drop | 1.450 | charlm/enwik8-milstm-a1-b0.5-drop | 1.400 | −0.050 |" in others
    assert others.count("| enwik8 |") == 2 and "a1-b0.5" not in rows


# --- data of the user's ---


def test_a_text_of_the_users_fills_no_row_whatever_it_is_called(tmp_path):
    same = {"corpus": "enwik8", "form": "bytes"}
    text = report.markdown(
        write(tmp_path, [own(kind, value, seed, **same) for kind, value in (("milstm", 0.1), ("lstm", 0.2)) for seed in (0, 1)])
    )
    assert "✓ better" not in text and "✓ met" not in text
    assert "### MI and its additive twin" not in text
    others = part(text, "Other runs")
    pair = "| charlm/own-lstm | 0.200 ± 0.000 | charlm/own-milstm | 0.100 ± 0.000 | −0.100 | — | ✓ MI ahead |"
    assert f"| enwik8, bytes | BPC ↓ {pair}" in others


DIFFERENT = [
    {"data": {"name": "tale.txt", "sha256": "11", "own": True}},
    {"form": "bytes"},
    {"precision": "bf16"},
    {"config": {"hidden": 9}},
    {"config": {"length": 9}},
]


@pytest.mark.parametrize("other", DIFFERENT, ids=lambda other: str(*other.items()))
def test_runs_on_other_data_or_of_other_models_are_no_twins(tmp_path, other):
    twins = [own("lstm", 2.0), own("milstm", 1.9, config={"start": {"alpha": 2.0}})]
    assert "MI ahead" in part(report.markdown(write(tmp_path, twins)), "Other runs")
    others = part(report.markdown(write(tmp_path, [twins[0], own("milstm", 1.9, **other)])), "Other runs")
    assert "MI ahead" not in others and others.count("no twin run") == 2


def test_a_file_that_was_moved_renamed_or_copied_is_the_same_data(tmp_path):
    rows = [own("milstm", 2.0, 0), own("milstm", 2.1, 1, corpus="copy.txt"), own("lstm", 2.2, 0, corpus="renamed.txt")]
    groups, warnings = gather(read(write(tmp_path, rows)).runs)
    assert sorted(len(group.runs) for group in groups) == [1, 2] and not warnings
    assert "| charlm/own-lstm | 2.200 | charlm/own-milstm | 2.050 ± 0.071 | −0.150 |" in report.markdown(tmp_path)


def test_a_seed_on_other_data_is_not_the_same_seed_again(tmp_path):
    rows = [own("lstm", 2.0 + k, data={"name": "tale.txt", "sha256": str(k), "own": True}) for k in range(2)]
    assert len(gather(read(write(tmp_path, rows)).runs)[0]) == 2


def test_what_is_only_said_of_a_recipe_does_not_part_its_seeds(tmp_path):
    rows = [demo("lstm", 2.0, seed, config={"note": f"{seed}", "cite": f"{seed}"}) for seed in range(3)]
    (group,) = gather(read(write(tmp_path, rows)).runs)[0]
    assert len(group.runs) == 3


def test_precisions_are_settings(tmp_path):
    rows = [made("exploratory/ptb-mirnn", 1.4 + i / 100, precision=p, run=p) for i, p in enumerate(("fp32", "bf16"))]
    groups, warnings = gather(read(write(tmp_path, rows)).runs)
    assert len(groups) == 2 and not warnings


def test_runs_without_a_validation_score_are_selected_last(tmp_path):
    silent = made("exploratory/ptb-mirnn", 1.3, config={"hidden": 9}, valid=None)
    groups, _ = gather(read(write(tmp_path, [silent, made("exploratory/ptb-mirnn", 1.4)])).runs)
    assert selected(groups).main.mean == 1.4


# --- trials ---


def test_a_trial_is_no_result(tmp_path):
    """It has a line among trials, which says what was changed; it fills no row, is no twin, and a README does not have it."""
    stand_in = {"corpus": "text8-74M", "stands_for": "text8"}
    trial = {"changed": ["schedule.updates=9"], "config": {"schedule": {"lr": 0.001, "updates": 9}}, **stand_in}
    rows = [made("charlm/text8-74M-lstm", 2.9, **trial), made("charlm/text8-74M-milstm", 2.7, **trial)]
    better = trial | {"changed": ["schedule.updates=9", "schedule.lr=0.1"], "config": {"schedule": {"lr": 0.1, "updates": 9}}}
    rows += [made("charlm/text8-74M-milstm", 2.6, **better), made("charlm/text8-74M-milstm", 1.5, **stand_in)]
    text = report.markdown(write(tmp_path, rows))
    trials = part(text, "Trials")
    where = "| charlm/text8-74M-milstm | text8-74M (stand-in for text8) | schedule.updates=9"
    assert f"{where}, schedule.lr=0.1 | BPC ↓ | 2.650 | 2.600 | 1 (0) |" in trials
    first, second = trials.index("2.650"), trials.index("2.750")
    assert f"{where}, schedule.lr=0.001 | BPC ↓ | 2.750 | 2.700 |" in trials and first < second, "best first"
    assert "text8-74M-lstm" not in trials, "its recipe was not run otherwise"
    assert "| ↳ LSTM, stand-in | BPC ↓ | — | 2.900 |" in text and "the recipe with schedule.updates=9 |" in text
    assert "MI ahead" not in text and "| ↳ MI-LSTM, stand-in | BPC ↓ | — | 1.500 |" in text
    tables = text.partition("### Trials")[0]
    assert "2.700" not in tables and "2.600" not in tables
    costs = part(text, "Hardware and cost")
    assert costs.count("| charlm/text8-74M-milstm") == 3 and costs.count("| charlm/text8-74M-lstm") == 1
    write(tmp_path, [*rows, made("charlm/text8-74M-lstm", 1.6, **stand_in)])
    assert "| charlm/text8-74M-lstm | 1.600 | charlm/text8-74M-milstm | 1.500 | −0.100 |" in report.markdown(tmp_path)


def test_a_chart_has_trials_only_of_recipes_that_were_not_run_as_they_stand(tmp_path):
    names = [("charlm/text8-milstm", []), ("charlm/text8-milstm", ["batch=9"]), ("charlm/text8-lstm", ["batch=9"])]
    rows = [
        made(name, 1.5, k, "text8", changed=changed, curve=f"curves/{k}.csv", run=f"run-{k}", config={"batch": len(changed)})
        for k, (name, changed) in enumerate(names)
    ]
    (chart,) = drawing.charts(against.look(write(tmp_path, rows)))
    assert [(g["recipe"], [r["run"] for r in g["runs"]]) for g in chart["groups"]] == [
        ("charlm/text8-lstm; with batch=9", ["run-2"]),
        ("charlm/text8-milstm", ["run-0"]),
    ]


def test_seeds_of_one_setting_of_which_one_calls_it_a_change_are_shown(tmp_path):
    rows = [demo("lstm", 2.0, seed, changed=["batch=8"][seed:]) for seed in (0, 1)]
    assert "2.000 ± 0.000" in report.markdown(write(tmp_path, rows))


# --- labels ---


def test_settings_have_lines_of_their_own_in_a_chart(tmp_path):
    rows = [
        own("milstm", 2.0, changed=changed, curve=f"curves/{k}.csv", run=f"run-{k}", config={"hidden": 9, **more})
        for k, (changed, more) in enumerate(((["hidden=9"], {}), (["hidden=9", "start.beta1=0.5"], {"start": {"beta1": 0.5}})))
    ]
    (chart,) = drawing.charts(against.look(write(tmp_path, rows)))
    assert [g["recipe"] for g in chart["groups"]] == [
        "charlm/own-milstm; with hidden=9",
        "charlm/own-milstm; with hidden=9, start.beta1=0.5",
    ]


def test_after_a_search_over_the_rate_legends_and_rows_name_it(tmp_path):
    rates = ("0.004", "0.008")
    rows = [
        demo(
            "milstm",
            2.0 + k,
            changed=[f"schedule.lr={rate}"],
            curve=f"curves/{k}.csv",
            run=f"r{k}",
            config={"schedule": {"lr": float(rate)}},
        )
        for k, rate in enumerate(rates)
    ]
    result = report.build(write(tmp_path, rows), tmp_path / "page.html")
    labels = [f"charlm/demo-milstm; with schedule.lr={rate}" for rate in rates]
    (chart,) = drawing.charts(against.look(tmp_path))
    assert [group["recipe"] for group in chart["groups"]] == labels
    svg = next(path for path in result.figures if path.name == "curves-python-docs-bpc.svg").read_text()
    assert all(f"<!-- {name} -->" in svg for name in labels)
    text = report.markdown(tmp_path)
    assert all(name in part(text, "Hardware and cost") for name in labels)
    assert "charlm/demo-milstm, schedule.lr=0.004 of 2" in part(text, "Other runs")
    assert "| schedule.lr=0.008 | BPC ↓ |" in part(text, "Trials")
    assert "| r1 | python-docs | schedule.lr=0.008 |" in part(text, "All runs")


def test_a_recipe_run_with_one_setting_is_named_by_itself(tmp_path):
    (group,) = gather(read(write(tmp_path, [demo("milstm", 2.0, config={"schedule": {"lr": 5}})])).runs)[0]
    assert label(group, [group]) == "charlm/demo-milstm"


# --- records that are not as they should be ---


def test_torn_and_foreign_lines_are_named_and_the_rest_is_read(tmp_path):
    tail = 'not json\n[1]\n{"run": "x"}\n' + json.dumps({**made("exploratory/ptb-rnn", 1.5), "surprise": 1, "seconds": "long"})
    records = read(write(tmp_path, [made("exploratory/ptb-mirnn", 1.4)], tail + '\n{"run": "to'))
    assert [run.recipe for run in records.runs] == ["exploratory/ptb-mirnn", "exploratory/ptb-rnn"]
    said = "\n".join(records.warnings)
    assert "runs.jsonl line 2: not JSON" in said
    assert "line 3: expected an object, got list" in said
    assert "line 4 (x): no recipe" in said
    assert "unknown field surprise" in said and "cannot read seconds = 'long'" in said
    assert "line 6: torn" in said


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    max_leaves=5,
)
PARTS = st.dictionaries(st.sampled_from(["histogram", "saturated", "near_zero", "flows"]), JUNK)
DATA = st.dictionaries(st.sampled_from(["name", "sha256", "stands_for", "own", "form"]), JUNK)
JUNK_FIELDS = st.dictionaries(st.sampled_from(sorted(made("x", 1.0))), JUNK, min_size=1)


@given(changes=JUNK_FIELDS | st.fixed_dictionaries({"measured": PARTS}) | st.fixed_dictionaries({"data": DATA}))
def test_no_record_stops_the_report(tmp_path_factory, changes):
    folder = write(
        tmp_path_factory.mktemp("junk"),
        [made("exploratory/ptb-mirnn", 1.4)],
        json.dumps(made("exploratory/ptb-mirnn", 1.3) | changes),
    )
    report.markdown(folder)
    view = against.look(folder)
    names = [run.run for run in view.records.runs]
    assert page.html_page(view, claims.sections(view), drawing.charts(view), {}, view.warnings, focus.Focus(names))
    assert any(run.main.value == 1.4 for run in view.records.runs)
    assert report.compare(view.records.runs)


def test_half_a_character_and_a_number_without_end_are_survived(tmp_path):
    one = json.dumps(made("x", 12345.5, config={"a": "\ud800"}, run="\ud800")).replace("12345.5", "1" + "0" * 400)
    assert "diverged" in report.build(write(tmp_path, [], one), tmp_path / "page.html").page.read_text()


def test_warnings_are_on_the_page(tmp_path):
    result = report.build(write(tmp_path, [made("exploratory/ptb-mirnn", 1.4)], "<b>torn"), tmp_path / "page.html")
    assert "Warnings (1)" in (text := result.page.read_text())
    assert "<b>torn" not in text


def test_an_experiment_that_cannot_be_imported_is_named_and_the_rest_is_shown(tmp_path, monkeypatch):
    from multint.paper import experiments

    monkeypatch.setattr(experiments, "added", [])
    monkeypatch.setitem(experiments.BUILT_IN, "gone", "multint.no_such_module")
    result = report.build(write(tmp_path, [demo("lstm", 2.0)]), tmp_path / "page.html")
    assert any("multint.no_such_module" in text for text in result.warnings)
    assert "charlm/demo-lstm" in result.page.read_text()


@pytest.mark.parametrize(
    "curve, body, said",
    [
        ("curves/gone.csv", None, "is missing"),
        ("../outside.csv", HEADER + "1,0,0,0,1,1,1\n", "outside the results folder"),
        ("curves/x.csv", "a,b\n1,2\n", "no column named update"),
        ("curves/x.csv", HEADER + "10,0,1,0,2.0,2.1,1\n20,0,1,0,oops", "line 3: cannot be read"),
        ("curves/x.csv", "", "no column named update"),
        (
            "curves/x.csv",
            "update,valid,mean_log_dh1\n10,2.1,-3\n20,2.0,oops\n30,1.9,oops\n",
            "line 3 and 1 more: cannot read mean_log_dh1",
        ),
    ],
)
def test_a_bad_curve_is_named(tmp_path, curve, body, said):
    folder = write(tmp_path / "results", [made("exploratory/ptb-mirnn", 1.4)])
    (folder / record.RECORDS).write_text(json.dumps({**made("exploratory/ptb-mirnn", 1.4), "curve": curve}) + "\n")
    if body is not None:
        (folder / curve).write_text(body)
    (warning,) = report.build(folder, tmp_path / "page.html").warnings
    assert said in warning


def test_a_resumed_curve_keeps_the_later_line(tmp_path):
    write(tmp_path, [made("exploratory/ptb-mirnn", 1.4, curve="curves/x.csv")])
    (tmp_path / "curves/x.csv").write_text(HEADER + "10,0,1,0,3,3,1\n20,0,2,0,2.5,2.5,1\n10,0,5,0,2.9,2.8,1\n")
    (points,) = read(tmp_path).curves.values()
    assert [(p.update, p.valid) for p in points] == [(10, 2.8), (20, 2.5)]


def test_the_other_columns_of_a_curve_are_kept(tmp_path):
    write(tmp_path, [made("exploratory/ptb-mirnn", 1.4, curve="curves/x.csv")])
    (tmp_path / "curves/x.csv").write_text(
        "update,epoch,valid,mean_log_dh0,log_mean_dh0\n10,1,2.1,-inf,-3.5\n20,2,2.0,,nan\n30,3,1.9\n"
    )
    (points,) = read(tmp_path).curves.values()
    assert [p.extra for p in points] == [{"mean_log_dh0": -math.inf, "log_mean_dh0": -3.5}, {}, {}]


@pytest.mark.parametrize("shared", [0, -1, "two", float("nan"), 1e30, True])
def test_a_device_is_shared_by_one_run_at_least(tmp_path, shared):
    assert read(write(tmp_path, [made("exploratory/ptb-mirnn", 1.4, shared=shared)])).runs[0].device_seconds == 61.2


# --- records of before ---


ROOT = Path(__file__).parents[2]


def test_records_of_version_1_are_read_and_give_the_numbers_they_gave():
    """The lines written before this version: the values below were in docs/results.md then."""
    if not (ROOT / "results" / record.RECORDS).exists():
        pytest.skip("no records")
    text = report.markdown(ROOT / "results")
    assert line(text, "MI-RNN, r_W = 0.3")[2:5] == ["1.40", "1.359 ± 0.002", "−0.041"]
    assert line(text, "RNN, r_W = 0.6")[8:11] == ["3 (0, 1, 2)", "1.427 to 1.458", "4,401,202"]
    assert line(text, "RNN, all four")[3] == "0.0292 (population), 0.0337 (sample)"
    assert "| exploratory/ptb-rnn | 1.523 ± 0.001 | exploratory/ptb-mirnn | 1.361 ± 0.000 | −0.162 | −0.30 | ✓ MI ahead |" in text
    assert line(part(text, "Gradient norms, Figure 1a"), "exploratory/ptb-linrnn")[2:4] == ["−5.11 (6.0e-03)", "−5.08 (6.2e-03)"]


# --- costs ---


def test_device_time_is_the_share_of_the_wall_time(tmp_path):
    rows = [made("exploratory/ptb-mirnn", 1.4, seed, seconds=240.0, shared=4) for seed in range(3)]
    rows += [made("exploratory/ptb-b-mirnn", 1.4, corpus="ptb-b", seconds=30.0), demo("lstm", 2.0)]
    rows += [made("exploratory/laptop-ptb-mirnn", 1.4, seconds=10.0)]
    text = report.markdown(write(tmp_path, rows))
    assert line(text, "MI-RNN")[11] == "4.0 min (60 s)"
    cost = part(text, "Hardware and cost")
    assert line(cost, "exploratory/ptb-mirnn")[5:11] == ["4.0 min", "2 s", "60 s", "12.0 min", "3.0 min", "1,000,000 characters/s"]
    assert line(cost, "PTB in all")[1:3] == ["ptb-b, ptb-a", "4"] or line(cost, "PTB in all")[1:3] == ["ptb-a, ptb-b", "4"]
    assert line(cost, "PTB in all")[8:10] == ["12.5 min", "3.5 min"]
    assert line(cost, "PTB, laptop size in all")[9] == "10 s" and line(cost, "python-docs in all")[9] == "61 s"
    assert "Corpus ptb-a, test split. In all: 4 runs, 3.5 min of device time (12.5 min of wall time)." in text


def test_throughput_has_its_own_unit(tmp_path):
    rows = [made("tally/mi", 1.0, throughput={"value": 12.4, "unit": "sequences"}), demo("lstm", 2.0)]
    cost = part(report.markdown(write(tmp_path, rows)), "Hardware and cost")
    assert "| 12 sequences/s |" in cost and "| 1,000,000 characters/s |" in cost


def test_device_time_is_summed_over_sessions_that_shared_differently(tmp_path):
    sessions = [{"from": 0, "to": 9, "seconds": 100.0, "shared": 10}, {"from": 9, "to": 12, "seconds": 20.0, "shared": 1}]
    rows = [made("exploratory/ptb-mirnn", 1.4, seconds=120.0, shared=1, history=sessions)]
    assert read(write(tmp_path, rows)).runs[0].device_seconds == pytest.approx(30.0)
    rows[0]["history"][0]["shared"] = 0
    assert read(write(tmp_path, rows)).runs[0].device_seconds == 120.0


# --- the page ---


def test_the_page_reaches_for_nothing_and_runs_only_its_own_script(results, tmp_path):
    text = report.build(results, tmp_path / "out" / "page.html").page.read_text()
    seen = Page(text)
    assert seen.running == 1
    assert not [
        value for name, value in seen.attributes if name in ("src", "href", "srcset") and not value.startswith(("data:", "#"))
    ]
    assert not re.search(r"@import|url\((?!#)", text.replace("url(#${id})", ""))
    assert "Content-Security-Policy" in text and "@@" not in text


def test_every_link_on_the_page_leads_somewhere_and_no_place_is_named_twice(results, tmp_path):
    seen = Page(report.build(explored(tmp_path / "x"), tmp_path / "page.html", [f"{EVIL}-s0-made-up"]).page.read_text())
    places = [value for name, value in seen.attributes if name == "id"]
    assert len(places) == len(set(places))
    assert {value[1:] for name, value in seen.attributes if name == "href" and value.startswith("#")} <= set(places)


def test_what_records_say_cannot_leave_its_place(results, tmp_path):
    evil = f"{EVIL}-s0-made-up"
    shown = report.Focus([evil], {evil: EVIL}, EVIL)
    for look in ((), shown):
        text = report.build(results, tmp_path / "page.html", look).page.read_text()
        assert "<script>alert" not in text
        data = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1]
        assert any(group["recipe"] == EVIL for chart in json.loads(data) for group in chart["groups"])


def test_markdown_cells_hold_any_name(results):
    text = report.markdown(results)
    assert "<script>" not in text
    (row,) = [row for row in part(text, "Other runs").splitlines() if "alert" in row]
    assert len(re.findall(r"(?<!\\)\|", row)) == 12


def test_tables_have_scoped_headers_and_images_a_text(results, tmp_path):
    text = report.build(results, tmp_path / "page.html").page.read_text()
    assert not re.search(r"<th(?! scope)[ >]", text)
    assert all(" alt=" in tag for tag in re.findall(r"<img [^>]*>", text))


def test_the_same_results_give_the_same_bytes(results, tmp_path):
    one, two = report.build(results, tmp_path / "1" / "page.html"), report.build(results, tmp_path / "2" / "page.html")
    assert one.page.read_bytes() == two.page.read_bytes()
    assert [path.name for path in one.figures] == [path.name for path in two.figures]
    for a, b in zip(one.figures, two.figures, strict=True):
        assert a.read_bytes() == b.read_bytes()


def test_long_training_curves_are_averaged_and_validation_is_kept(tmp_path):
    write(tmp_path, [made("exploratory/ptb-mirnn", 1.4, curve="curves/x.csv")])
    body = "".join(f"{k},0,{k},0,2.0,{'2.1' if k % 100 == 0 else ''},1\n" for k in range(1, 5001))
    (tmp_path / "curves/x.csv").write_text(HEADER + body)
    text = report.build(tmp_path, tmp_path / "page.html").page.read_text()
    (chart,) = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    (run,) = chart["groups"][0]["runs"]
    assert len(run["train"]) == 200 and len(run["valid"]) == 50


def test_without_matplotlib_the_page_is_written_and_says_so(results, tmp_path, monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest, **more):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    result = report.build(results, tmp_path / "page.html")
    assert result.figures == ()
    assert "figures left out: matplotlib is not installed" in result.warnings[-1]


def test_a_panel_with_nothing_run_is_folded(results, tmp_path):
    text = report.build(results, tmp_path / "page.html").page.read_text()
    folded = re.findall(r"<summary[^>]*><b>(.*?)</b>", text)
    assert "Table 1: Speech recognition, WSJ" in folded
    assert not {"Table 1: Penn Treebank", "Table 1: text8"} & set(folded), "the second has a stand-in"


def test_the_page_starts_with_the_claims(results, tmp_path):
    text = report.build(results, tmp_path / "page.html").page.read_text()
    assert text.index('id="claim-by-claim"') < text.index('id="table-1-penn-treebank"') and "Your runs" not in text
    assert text.count("<h1>") == 1


# --- the runs that were just made ---


def test_runs_in_focus_are_the_first_screen(tmp_path):
    rows = [demo("lstm", 2.1, curve="curves/a.csv"), demo("milstm", 2.0, curve="curves/b.csv")]
    write(tmp_path, [*rows, made("exploratory/ptb-mirnn", 1.4, curve="curves/c.csv")])
    names = [row["run"] for row in rows]
    shown = report.Focus(names, {names[1]: "The <tuple> is"}, "MI is ahead.")
    text = report.build(tmp_path, tmp_path / "page.html", shown).page.read_text()
    first, _, rest = text.partition("<header>")
    first = first.partition("<body>")[2]
    assert "<h1>Your runs</h1>" in first and "MI is ahead." in first and "The &lt;tuple&gt; is" in first
    assert first.count('<th scope="row"') == 2 and 'data-chart="0"' in first and "ptb-mirnn" not in first
    assert "not run" not in first and "Claim by claim" in rest and text.count("<h1>") == 1
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert [group["runs"][0]["run"] for group in data[0]["groups"]] == names


def test_names_alone_are_a_focus_and_give_its_sentence(tmp_path):
    names = [demo("lstm", 2.1)["run"], demo("milstm", 2.0)["run"]]
    write(tmp_path, [demo("lstm", 2.1), demo("milstm", 2.0)])
    text = report.build(tmp_path, tmp_path / "page.html", names).page.read_text()
    assert "charlm/demo-milstm is ahead of charlm/demo-lstm by 0.100: 2.000 against 2.100 BPC (1 seed each)." in text
    folded = re.findall(r"<summary[^>]*><b>(.*?)</b>", text)
    assert {"Claim by claim", "Table 1: text8", "§3.1 Exploratory experiments", "§3.4 Skip-thought vectors"} <= set(folded)


@pytest.mark.parametrize("value, words", [(2.0, "is ahead of"), (2.2, "is behind"), (2.1, "are level")])
def test_one_line_for_the_terminal_says_who_is_ahead(tmp_path, value, words):
    runs = read(write(tmp_path, [demo("lstm", 2.1), demo("milstm", value)])).runs
    assert words in focus.meaning(gather(runs)[0]) and "\n" not in focus.meaning(gather(runs)[0])


def test_one_line_for_runs_without_twins_gives_their_results(tmp_path):
    runs = read(write(tmp_path, [demo("lstm", 2.1, seed) for seed in (0, 1)])).runs
    assert focus.meaning(gather(runs)[0]) == "charlm/demo-lstm: 2.100 ± 0.000 BPC (2 seeds each)."


# --- sections of experiments ---


def test_a_section_of_an_experiment_beside_the_paper_is_shown(tmp_path, monkeypatch):
    from multint.paper.report.markup import Cell, Table

    rows = ((Cell("one", "head"), Cell("1", "number")),)
    finding = section.Finding("90 of 100", True, (3, 3))
    claim = section.Claim("Theorem 1", "Sums are positive.", "more than half", finding, None)
    drawn = section.Picture("tallies", "Tallies drawn", "Tallies.", lambda form, dark: figures.empty("t", "x", "y", form, dark))
    mine = section.Section(
        "Tallies", "Of sums.", claims=(claim,), tables=(Table("Sums", "", ("Sum", "n"), rows),), pictures=(drawn,)
    )
    view = against.look(tmp_path)
    charlm = view.experiments["charlm"]
    monkeypatch.setitem(charlm.__dict__, "sections", lambda view: [mine])
    text = report.markdown(tmp_path)
    assert line(text, "Sums are positive.")[1:] == ["✓ confirmed (3 seeds)", "—", "Tallies, Theorem 1"]
    assert line(text, "Theorem 1")[2:5] == ["more than half", "90 of 100", "✓ confirmed (3 seeds)"]
    assert line(part(text, "Sums"), "one")[1] == "1"
    result = report.build(tmp_path, tmp_path / "page.html")
    assert "tallies.svg" in {path.name for path in result.figures} and 'aria-label="Tallies drawn"' in result.page.read_text()
    assert "MI-LSTM is ahead of LSTM: BPC 1.44 against 1.51." in text, "the general claim, where no section has its own"


@pytest.mark.parametrize(
    "finding, text, kind",
    [
        (section.Finding("x"), "not judged", "none"),
        (section.Finding("not run: y"), "not run", "none"),
        (section.Finding("x", True, (1, 3)), "1 to 3 seeds: holds", "single"),
        (section.Finding("x", False, (1, 1)), "1 seed: does not hold", "single"),
        (section.Finding("x", True, (2, 2), {"reset": True}), "✓ confirmed (2 seeds), reset too", "better"),
        (section.Finding("x", False, (3,), {"reset": True, "other": None}), "✗ refuted (3 seeds); reset: confirmed", "miss"),
    ],
)
def test_a_verdict_says_its_seeds_and_its_protocols(finding, text, kind):
    assert (finding.verdict.text, finding.verdict.kind) == (text, kind)


# --- figures ---


def test_figures_are_pictures_without_a_date():
    lines = [figures.Line("a", [1.0, 2.0, 3.0], [3.0, 2.0, 1.5]), figures.Line("_b $", [1.0], [2.0])]
    svg = figures.curves("made up", "BPC", lines, [figures.Mark("1.40", 1.4)])
    assert svg == figures.curves("made up", "BPC", lines, [figures.Mark("1.40", 1.4)])
    assert b"<svg" in svg and b"dc:date" not in svg
    assert figures.pairs([figures.Pair("row", "BPC", 1.4, 1.5, 1.45, 1.55, "✗ miss", True)], "png").startswith(b"\x89PNG")
    assert b"not run" in figures.empty("a frame", "updates", "MSE")


def test_an_unknown_form_of_figure_is_refused():
    with pytest.raises(ValueError, match="svg or png, got 'gif'"):
        figures.curves("made up", "BPC", [], form="gif")


# --- markdown in place ---


def test_refresh_writes_between_the_markers_and_settles(results, tmp_path):
    path = tmp_path / "README.md"
    path.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    assert report.refresh(path, results)
    text = path.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert not report.refresh(path, results)
    assert text == report.refreshed(text, report.markdown(results, brief=True), "README.md")


@pytest.mark.parametrize(
    "text, said",
    [
        ("nothing", "README.md must contain the marker <!-- results:begin --> once, it is there 0 times"),
        (report.BEGIN, "README.md must contain the marker <!-- results:end --> once, it is there 0 times"),
        (report.BEGIN * 2 + report.END, "it is there 2 times"),
        (report.END + report.BEGIN, "swap them"),
    ],
)
def test_missing_markers_are_named(text, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        report.refreshed(text, "body", "README.md")


def test_brief_is_one_table_of_claims(tmp_path):
    text = report.markdown(explored(tmp_path), brief=True)
    assert text.count("\n### ") == 1 and "### Claim by claim" in text and "✓ confirmed" in text and "All runs" not in text
    assert len(text.splitlines()) < 60


# --- compare ---


def test_compare_shows_results_cost_and_only_what_differs(tmp_path):
    runs = read(write(tmp_path, [demo("lstm", 2.1), demo("milstm", 2.0, config={"integration": "general"})])).runs
    text = report.compare(runs)
    assert line(text, "BPC test, carried")[1:] == ["2.1000", "2.0000"] and line(text, "BPC test, reset")[1:] == ["2.1200", "2.0200"]
    assert line(text, "setting: integration")[1:] == ["—", "general"]
    assert line(text, "parameters")[1:] == ["1,234", "1,234"] and line(text, "throughput")[1] == "1,000,000 characters/s"
    assert "setting: hidden" not in text


def test_compare_takes_a_record_with_holes_and_refuses_none():
    result = record.Result(record.Metric(**BPC), 1.0, "x", "test", 1)
    assert "—" in report.compare([record.Record("bare", "a/b", record.Data("x"), (result,))])
    with pytest.raises(ValueError, match="at least one run"):
        report.compare([])
