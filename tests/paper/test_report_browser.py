"""The page in a real browser: headless Chromium, where there is one.

The page is shown in a frame of the wanted width inside a page that tries it out and writes down what it saw; Chromium prints that
page when it is done, and its log holds whatever the console said.
"""

import html
import json
import os
import re
import shutil
import subprocess

import pytest
from reporting import EVIL, explored, made, write

from multint.paper import report
from multint.paper.numbers import ROWS

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = next((path for path in map(shutil.which, NAMES) if path), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync", "--enable-logging=stderr", "--dump-dom", "--virtual-time-budget=5000"]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

TRIAL = """<!doctype html><meta charset="utf-8"><body>
<iframe id="page" style="width:%(width)dpx;height:900px;border:0" srcdoc="%(page)s"></iframe>
<script>
const saw = {};
function curves(doc, run) { return [...doc.querySelectorAll("path.curve")].filter(p => p.dataset.run === run).length; }
function attempt() {
  const view = document.getElementById("page").contentWindow, doc = view.document;
  saw.alerted = view.alerted === true;
  saw.rows = doc.querySelectorAll("th[scope=row]").length;
  saw.misses = [...doc.querySelectorAll("td.miss")].map(cell => cell.textContent);
  saw.width = view.innerWidth;
  saw.overflow = doc.documentElement.scrollWidth - doc.documentElement.clientWidth;
  saw.pictures = [...doc.querySelectorAll("figure img")].map(image => [image.naturalWidth > 0, image.offsetWidth]);
  saw.links = [...doc.querySelectorAll("nav a")].filter(link => !doc.getElementById(link.getAttribute("href").slice(1))).length;
  saw.scrolling = [...doc.querySelectorAll(".box")].some(box => box.scrollWidth > box.clientWidth);
  const toggle = doc.querySelector("button[data-run]"), run = toggle.dataset.run;
  saw.before = [curves(doc, run), toggle.getAttribute("aria-pressed")];
  toggle.focus();
  saw.focused = doc.activeElement === toggle;
  toggle.click();
  saw.hidden = [curves(doc, run), toggle.getAttribute("aria-pressed")];
  toggle.click();
  saw.again = [curves(doc, run), toggle.getAttribute("aria-pressed")];
  const recipe = doc.querySelector("button[data-recipe]");
  recipe.click();
  saw.all = recipe.parentElement.querySelectorAll("button[aria-pressed=true]").length;
  recipe.click();
  const plot = doc.querySelector(".plot svg"), tip = doc.querySelector(".tip");
  const frame = plot.getBoundingClientRect();
  const hover = {clientX: frame.left + frame.width / 2, clientY: frame.top + frame.height / 2};
  plot.dispatchEvent(new view.PointerEvent("pointermove", hover));
  saw.tip = tip.hidden ? "" : tip.textContent;
  plot.dispatchEvent(new view.PointerEvent("pointerleave"));
  saw.left = tip.hidden;
  plot.dispatchEvent(new view.KeyboardEvent("keydown", {key: "ArrowRight"}));
  saw.keyed = tip.hidden ? "" : tip.textContent;
  doc.getElementById("only-run").click();
  saw.claims = doc.getElementById("claim-by-claim").getBoundingClientRect().top + view.scrollY;
  saw.folded = [...doc.querySelectorAll("details")].filter(one => one.open).length;
  saw.samples = [...doc.querySelectorAll("pre")].map(one => one.textContent);
  saw.first = doc.querySelector("h1").textContent;
  saw.charted = doc.querySelector("[data-chart]").getBoundingClientRect().top + view.scrollY;
  saw.shown = [...doc.querySelectorAll("tr.idle")].filter(row => row.offsetHeight > 0).length;
}
document.getElementById("page").addEventListener("load", () => {
  try { attempt(); } catch (error) { saw.error = String(error); }
  const out = document.createElement("pre");
  out.id = "saw";
  out.textContent = JSON.stringify(saw);
  document.body.append(out);
});
</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    records = [
        made("exploratory/ptb-mirnn", 1.40, 0, curve="curves/a.csv"),
        made("exploratory/ptb-mirnn", 1.42, 1, curve="curves/b.csv"),
        made("charlm/demo-lstm", 2.1, corpus="python-docs", curve="curves/c.csv"),
        made("charlm/" + "a-very-long-name-" * 8, 2.2, corpus="python-docs"),
        made(EVIL.replace("alert(1)", "parent.alerted=window.alerted=true"), 2.5, corpus="python-docs", curve="curves/d.csv"),
    ]
    return report.build(write(folder, records, "torn"), folder / "page.html").page.read_text()


def show(page, width, folder):
    trial = folder / "trial.html"
    trial.write_text(TRIAL % {"width": width, "page": html.escape(page)}, encoding="utf-8")
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", f"--window-size={max(width, 600)},1000", trial.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "HOME": str(folder)})
    found = re.search(r'<pre id="saw">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, f"the page never loaded; Chromium said: {done.stderr[-2000:]}"
    saw = json.loads(html.unescape(found[1]))
    assert "error" not in saw, saw["error"]
    saw["console"] = [text for text in done.stderr.splitlines() if "CONSOLE" in text]
    return saw


@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_works(page, tmp_path, width):
    saw = show(page, width, tmp_path)
    assert saw["console"] == []
    assert saw["width"] == width
    assert saw["overflow"] <= 0, "the body scrolls sideways"
    assert saw["rows"] > len(ROWS)
    assert "✗ miss" in saw["misses"]
    assert not saw["alerted"]
    assert saw["before"] == [1, "true"] and saw["hidden"] == [0, "false"] and saw["again"] == [1, "true"]
    assert saw["focused"] and saw["all"] == 0
    assert "update" in saw["tip"] and "BPC" in saw["tip"] and saw["left"]
    assert "update" in saw["keyed"]
    assert saw["shown"] == 0


def test_wide_tables_scroll_in_their_box_on_a_phone(page, tmp_path):
    assert show(page, 360, tmp_path)["scrolling"]


def test_the_trial_notices_a_broken_page(page, tmp_path):
    broken = page.replace("</main>", '<div style="width:2000px">wide</div></main><script>parent.x</script>')
    saw = show(broken, 360, tmp_path)
    assert saw["overflow"] > 0
    assert any("Content Security Policy" in text for text in saw["console"])


@pytest.fixture(scope="module")
def demo_page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    lines = [
        made(f"charlm/demo-{kind}", 2.1 - 0.1 * i, corpus="python-docs", curve=f"curves/{i}.csv")
        for i, kind in enumerate(("lstm", "milstm"))
    ]
    focus = report.Focus([one["run"] for one in lines], {lines[1]["run"]: "The <b>tuple</b> is"})
    return report.build(write(folder, lines), folder / "page.html", focus).page.read_text()


@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_starts_with_the_runs_that_were_just_made(demo_page, tmp_path, width):
    saw = show(demo_page, width, tmp_path)
    assert saw["console"] == [] and saw["overflow"] <= 0
    assert saw["first"] == "Your runs" and saw["charted"] < 600 < saw["claims"]
    assert saw["samples"] == ["The <b>tuple</b> is"] and saw["folded"] == 0


@pytest.fixture(scope="module")
def explored_page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explored")
    return report.build(explored(folder), folder / "page.html").page.read_text()


@pytest.mark.parametrize("width", [360, 1200])
def test_section_3_1_is_on_the_page(explored_page, tmp_path, width):
    saw = show(explored_page, width, tmp_path)
    assert saw["console"] == []
    assert saw["overflow"] <= 0, "the body scrolls sideways"
    assert "✗ refuted (2 seeds), reset too" in saw["misses"]
    assert len(saw["pictures"]) == 4 and all(loaded for loaded, _ in saw["pictures"])
    assert saw["claims"] < (700 if width > 1000 else 1400), "the claims are the first screen"
    assert saw["pictures"][1][1] >= 700, "figure 1 is too small to be read"
    assert saw["links"] == 0 and saw["shown"] == 0
