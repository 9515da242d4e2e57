"""What the documentation shows runs, its commands exist, every page can be found, and the build has no warnings."""

import dataclasses
import doctest
import importlib
import itertools
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import torch
from test_architecture import LIBRARY, MAY_IMPORT

import multint
from multint.paper import experiments, overrides, record, report, reproduce, session
from multint.paper.__main__ import main, own_options
from multint.paper.charlm.recipes import RECIPES as CHARLM
from multint.paper.experiment import Metric, Result
from multint.paper.overrides import RecipeError

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)")  # the target of [words](target#part)
TRACES = re.compile(r"torch\.(compile|export|onnx)\b\.?\w*\(")


def python_blocks(page: Path) -> list[tuple[int, str]]:
    """The code of a page, with the line each piece begins on."""
    text = page.read_text()
    return [(text.count("\n", 0, found.start(1)), found[1]) for found in BLOCK.finditer(text)]


# the exporters warn of torch's own habits, not of anything a page does
TRACED = [
    pytest.mark.traced,
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


def with_code() -> list:
    pages = [page for page in (ROOT / "README.md", *PAGES) if python_blocks(page)]
    traced = {page: any(TRACES.search(code) for _, code in python_blocks(page)) for page in pages}
    return [pytest.param(page, id=page.name, marks=TRACED if traced[page] else []) for page in pages]


@pytest.mark.parametrize("page", with_code())
def test_code_on_the_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # what a page saves goes there
    monkeypatch.setenv("MULTINT_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(0)
    names = {"__name__": "__page__"}
    for line, code in python_blocks(page):
        exec(compile("\n" * line + code, str(page), "exec"), names)


# ---- commands ----


SHOWN = [ROOT / "README.md", *PAGES]


def commands(page: Path) -> list[list[str]]:
    """The words after ``multint``, or ``-m multint.paper``, of every line of a page's shell blocks."""
    lines = [line for block in SHELL.findall(page.read_text()) for line in block.replace("\\\n", " ").splitlines()]
    found = []
    for words in (shlex.split(line, comments=True) for line in lines):
        if words[:1] == ["multint"]:
            found.append(words[1:])
        elif "multint.paper" in words:
            found.append(words[words.index("multint.paper") + 1 :])
    return found


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The experiment of docs/own-experiment.md where ``--experiment parity`` can import it."""
    ((_, code), *_) = python_blocks(DOCS / "own-experiment.md")
    (tmp_path / "parity.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(experiments, "added", [])


def parsed(words: list[str]) -> click.Context:
    """What click makes of a command line, short of running it; a word it does not know is a UsageError."""
    command: click.Command = main
    name: str | None = "multint"
    while isinstance(command, click.Group):
        context = click.Context(command)
        given, words, _ = command.make_parser(context).parse_args(list(words))
        experiments.added += given.get("experiment", [])
        name, found, words = command.resolve_command(context, words)
        command = found or command
    return command.make_context(name, list(words))


def understood(words: list[str]) -> None:
    """Refuse a command line with an option, a recipe, a row or a setting that does not exist or that does nothing."""
    given = parsed(words).params
    further = list(given.get("words", ()))
    more = list(itertools.takewhile(lambda word: not word.startswith("-"), further))  # further recipes of a sweep
    options = further[len(more) :]
    if "run" in given and options:
        own_options("charlm", options)
    if "scale" in given:
        reproduce.rows(given["row"], given["scale"])
    patterns = [given["recipe"], *more] if "recipe" in given else [given["pattern"]] if "pattern" in given else []
    for recipe in [name for pattern in patterns for name in experiments.matching(pattern)]:
        own_options(experiments.of(recipe), options)
        _, base = experiments.find(recipe)
        changes = given.get("changes", ())
        overrides.effective(base, changes)
        for axis in given.get("grid", ()):
            key, _, values = axis.partition("=")
            for value in values.split(","):
                overrides.effective(base, [*changes, f"{key}={value}"])


def subcommands(group: click.Group) -> dict[str, click.Command]:
    """The commands of a group, those of the experiments among them."""
    context = click.Context(group)
    return {name: group.get_command(context, name) for name in group.list_commands(context)}


def all_options(command: click.Command = main) -> set[str]:
    """The options of a command and of those below it, and the experiments' own options of train, sweep and evaluate."""
    own = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    own |= {name for one in experiments.names() for option in experiments.load(one).options for name in option.opts}
    inner = subcommands(command).values() if isinstance(command, click.Group) else ()
    return own.union({"--help"}, *(all_options(one) for one in inner))


TYPED = [pytest.param(words, id=f"{page.stem}: {' '.join(words)}") for page in SHOWN for words in commands(page)]


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("words", TYPED)
def test_commands_on_the_pages_are_understood(words):
    understood(words)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    "words",
    [
        ["trian", "ptb-rnn"],
        ["train", "ptb-rnn", "--sede", "1"],
        ["train"],
        ["train", "ptb-rnn", "--device", "tpu"],
        ["train", "ptb-rrn"],
        ["train", "ptb-rnn", "--text", "tale.txt"],
        ["train", "ptb-rnn", "--set", "hiden=8"],
        ["train", "charlm", "--text", "tale.txt", "--set", "nonlinearity=relu"],
        ["sweep", "ptb-rnn", "text9-rnn"],
        ["sweep", "ptb-rnn", "--grid", "rate=0.1,0.2"],
        ["evaluate", "RUN", "--txt", "tale.txt"],
        ["reproduce", "ptb-rrn"],
        ["--experiment", "parrity", "train", "parity/mi"],
    ],
    ids=" ".join,
)
def test_a_command_that_does_not_exist_would_be_noticed(words):
    with pytest.raises((click.UsageError, RecipeError)):
        understood(words)


TORCHRUN = {"--nproc-per-node", "--nnodes", "--rdzv-endpoint", "--max-restarts"}


PROSE = [
    ROOT / "README.md",
    *(DOCS / f"{n}.md" for n in ("experiments", "own-experiment", "exploratory", "charlm", "errata", "results")),
]


@pytest.mark.parametrize("page", PROSE, ids=lambda p: p.name)
def test_options_named_in_the_prose_exist(page):
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page.read_text()))
    assert named <= all_options() | TORCHRUN


def test_commands_are_all_in_the_table_of_commands():
    text = (DOCS / "experiments.md").read_text()
    listed = set(re.findall(r"^\| `multint ([a-z]+(?: list| get| verify| train| fit| build)?)", text, re.MULTILINE))
    there = {name for name, command in subcommands(main).items() if not isinstance(command, click.Group)}
    inner = {
        f"{name} {one}" for name, group in subcommands(main).items() if isinstance(group, click.Group) for one in subcommands(group)
    }
    assert listed == there | inner


PARTS = {
    "": record.Record,
    "data.": record.Data,
    "results.": Result,
    "results.metric.": Metric,
    "throughput.": record.Throughput,
    "selected_by.": record.Selected,
}


def test_every_setting_and_every_field_of_a_record_is_explained():
    explained = set(re.findall(r"`([\w.]+)`", (DOCS / "experiments.md").read_text()))
    assert set(overrides.keys(CHARLM["demo-milstm"])) <= explained
    assert {f"{prefix}{field.name}" for prefix, kind in PARTS.items() for field in dataclasses.fields(kind)} <= explained


def test_environment_variables_named_on_the_pages_are_read_by_the_code():
    named = {name for page in SHOWN for name in re.findall(r"\bMULTINT_[A-Z]+", page.read_text())}
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    assert {"MULTINT_DATA", "MULTINT_CACHE"} <= named
    assert all(f'"{name}"' in source for name in named)


def test_every_recipe_is_on_its_page_with_its_size():
    for name, recipe in experiments.recipes(experiments.BUILT_IN).items():
        experiment, _, short = name.partition("/")
        text = (DOCS / f"{experiment}.md").read_text()
        assert f"`{short}`" in text, name
        row = next((line for line in text.splitlines() if line.startswith("|") and f"`{short}`" in line), "")
        size = experiments.load(experiment).size(recipe)
        if row and size:
            assert f"| {recipe.hidden} | {size:,} |" in row, name


@pytest.mark.usefixtures("own")
def test_the_experiment_on_its_page_trains_and_its_model_loads(tmp_path):
    experiments.added.append("parity")
    job = session.job("parity/mi", changes=["epochs=1"])
    trained = session.train(job, tmp_path / "runs", tmp_path / "results", device="cpu")
    assert trained.twin == "parity/plain" and trained.main.metric.name == "right" and trained.updates == 100
    assert session.load(tmp_path / "runs" / trained.run)(torch.ones(3, 4, 1)).shape == (3, 2)


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "results.md"], ids=lambda page: page.name)
def test_results_are_those_of_the_records(page):
    text = page.read_text()
    body = report.markdown(ROOT / "results", brief=page.name == "README.md")
    renewed = report.refreshed(text, body, page.name)  # also that the markers are there
    if (ROOT / "results" / record.RECORDS).exists():
        assert text == renewed, "run: make results"


def test_the_figure_on_the_pages_is_that_of_the_records(tmp_path):
    report.build(ROOT / "results", tmp_path / "report.html")
    assert (tmp_path / "figures" / "figure-1.svg").read_bytes() == (DOCS / "_static" / "figure-1.svg").read_bytes(), (
        "run: make results"
    )


# ---- pages ----


def test_the_rooms_on_the_page_are_those_that_the_architecture_test_holds():
    """Room by room: what it may import. "The library" stands for the public names of multint."""
    rows = re.findall(r"^\| `([\w/]+?)(?:\.py|/)` \| .*? \| (.*?) \|", (DOCS / "design.md").read_text(), re.MULTILINE)
    shown = {room: set(may.split(", ")) - {"–"} for room, may in rows}
    held = {
        room.removeprefix("paper."): {"the library" if one == "public" else one.removeprefix("paper.") for one in may}
        for room, may in MAY_IMPORT.items()
        if room in LIBRARY or room.startswith("paper.")
    }
    del held["__init__"]
    assert shown == held


MODULES = [multint.__name__, *(found.name for found in pkgutil.walk_packages(multint.__path__, "multint."))]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_give_what_they_show(name):
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert result.failed == 0, f"{result.failed} of {result.attempted} examples in {name}"


def test_every_public_layer_and_function_is_on_the_api_page():
    text = (DOCS / "api.md").read_text()
    missing = [name for name in multint.__all__ if not re.search(rf"\b{name}\b", text)]
    assert not missing


def test_every_page_is_in_the_table_of_contents():
    trees = re.findall(r"^```\{toctree\}\n(.*?)^```", (DOCS / "index.md").read_text(), re.MULTILINE | re.DOTALL)
    listed = {line for tree in trees for line in tree.split() if not line.startswith(":")}
    pages = {page.stem for page in PAGES} - {"index"}
    assert pages <= listed, f"not in docs/index.md: {sorted(pages - listed)}"


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CHANGELOG.md", *PAGES], ids=lambda page: page.name)
def test_links_lead_to_files_that_exist(page):
    prose = BLOCK.sub("", page.read_text())
    targets = [target for target in LINK.findall(prose) if "://" not in target]
    gone = [target for target in targets if not (page.parent / target).exists()]
    assert not gone


def test_the_documentation_builds_without_warnings(tmp_path):
    options = ["-W", "--keep-going", "-q", "-b", "html", "-d", tmp_path / "trees"]
    pytest.importorskip("furo")
    command = [sys.executable, "-m", "sphinx", *options, DOCS, tmp_path / "html"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    for page in PAGES:
        assert (tmp_path / "html" / f"{page.stem}.html").exists()
