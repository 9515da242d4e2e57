"""What the documentation shows runs, every page can be found, and the build has no warnings."""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import multint

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
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
    torch.manual_seed(0)
    names = {"__name__": "__page__"}
    for line, code in python_blocks(page):
        exec(compile("\n" * line + code, str(page), "exec"), names)


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
