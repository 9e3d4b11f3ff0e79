"""The page in a real browser, where there is one."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from analysis import gallery, write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr"),
    "--virtual-time-budget=5000",
]

# Continuous integration sets it: there a missing browser is a failure, elsewhere a test that is named as not run.
REQUIRED = os.environ.get("ARCHZOO_BROWSER") == "required"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None and not REQUIRED,
        reason="chromium is not on PATH (Debian: apt-get install chromium)",
    ),
]


def browse(page: Path, profile: Path, *options: str, fragment: str = "") -> subprocess.CompletedProcess:
    assert CHROMIUM, (
        "ARCHZOO_BROWSER=required, but chromium is not on PATH (Debian: apt-get install chromium)"
    )
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *options, page.as_uri() + fragment]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)


def console(log: str) -> list[str]:
    """Messages of the page itself; the browser's own complaints about the machine carry no CONSOLE mark."""
    return [line for line in log.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def page(quickstart_and_latencies: Path, tmp_path_factory) -> Path:
    """A report with three figures: drawing all would take most of the time."""
    drawn = [x for x in gallery.listed() if x.name in ("comparison", "crossover", "loss_against_tokens")]
    quickstart = tmp_path_factory.mktemp("browsed") / "quickstart"
    shutil.copytree(quickstart_and_latencies, quickstart)
    for run in quickstart.glob("*/summary.json"):
        (run.parent / "probes").mkdir()
        row = {"prompt": "p" * 90, "text": "a b\n" + "x" * 300, "temperature": 0.0, "sample_seed": 0}
        samples = pd.DataFrame([{**row, "tokens_per_second": 99.0}])
        samples.to_parquet(run.parent / "probes" / "samples.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gallery, "listed", lambda: drawn)
        return write_report(quickstart)


def test_figures_load_and_nothing_is_logged(page, tmp_path):
    done = browse(page, tmp_path / "profile", "--dump-dom", fragment="#run-2")
    (root,) = re.findall(r"<html[^>]*>", done.stdout)
    assert 'data-ready="true"' in root
    assert 'data-images="3"' in root
    assert 'data-broken="0"' in root
    assert "data-errors" not in root
    assert console(done.stderr) == []
    assert len(re.findall(r'<details id="run-\d+" open', done.stdout)) == 1


def test_tables_sort_and_figures_enlarge_by_click(page, tmp_path):
    click = (
        '<script>const loss = [...document.querySelectorAll("#comparison th button")]'
        '.find((button) => button.textContent.startsWith("test loss"));'
        "loss.click(); loss.click();"
        'document.querySelector(".enlarge").click();</script></body>'
    )
    clicked = page.with_name("clicked.html")
    clicked.write_text(page.read_text().replace("</body>", click))
    done = browse(clicked, tmp_path / "profile", "--dump-dom")
    assert console(done.stderr) == []
    comparison = done.stdout.split('id="comparison"')[1].split("</section>")[0]
    names = [name.rstrip(" †‡§") for name in re.findall(r"</svg>([^<]+)</th>", comparison)]
    assert names == ["hypergraph bookend", "hypergraph late_full", "hypergraph interlaced_sf", "transformer"]
    assert 'aria-sort="descending"' in comparison
    (dialog,) = re.findall(r"<dialog[^>]*>", done.stdout)
    assert " open" in dialog


def test_pointing_at_a_model_lights_it_in_every_figure_and_a_click_hides_it(page, tmp_path):
    act = (
        '<script>const row = document.querySelector("#comparison [data-model]");'
        'row.dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));'
        "const figures = [...document.querySelectorAll('.enlarge')];"
        "root.dataset.litIn = figures.filter((one) => one.querySelector('.lit')).length;"
        "const legend = document.querySelector(`.enlarge [id*='-legend.${row.dataset.model}.']`);"
        'legend.dispatchEvent(new MouseEvent("click", { bubbles: true }));'
        "root.dataset.hiddenIn = figures.filter((one) => one.querySelector('.hidden')).length;"
        "root.dataset.rowHidden = row.classList.contains('hidden');"
        "root.dataset.enlarged = document.getElementById('large').open;"
        'legend.dispatchEvent(new MouseEvent("click", { bubbles: true }));'
        "root.dataset.left = document.querySelectorAll('.hidden').length;</script></body>"
    )
    acted = page.with_name("acted.html")
    acted.write_text(page.read_text().replace("</body>", act))
    done = browse(acted, tmp_path / "profile", "--dump-dom")
    assert console(done.stderr) == []
    (root,) = re.findall(r"<html[^>]*>", done.stdout)
    assert 'data-lit-in="3"' in root
    assert 'data-hidden-in="3"' in root
    assert 'data-row-hidden="true"' in root
    assert 'data-enlarged="false"' in root
    assert 'data-left="0"' in root


@pytest.mark.long
def test_the_page_of_the_quickstart_with_all_its_figures(eleven, tmp_path):
    """The stored runs of `make run`, all eleven architectures: what its report shows is there and loads."""
    figures = len(list((eleven.parent / "figures").glob("*.png")))
    assert figures >= 20
    done = browse(eleven, tmp_path / "profile", "--dump-dom", "--window-size=1280,1000")
    assert f'data-images="{figures}"' in done.stdout
    assert 'data-broken="0"' in done.stdout
    assert "data-errors" not in done.stdout
    assert console(done.stderr) == []


def test_an_error_in_a_page_would_be_noticed(tmp_path):
    broken = tmp_path / "broken.html"
    broken.write_text("<html><body><script>missing()</script></body></html>")
    assert len(console(browse(broken, tmp_path / "profile", "--dump-dom").stderr)) == 1


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_the_window_and_its_tables_sort(page, tmp_path, width):
    # A frame gives the page the width of a phone, which the browser's own window cannot have.
    frame = page.with_name("frame.html")
    measure = """<script>{
      const heading = document.querySelectorAll("#comparison th")[4];
      heading.querySelector("button").click();
      const images = [...document.querySelectorAll(".enlarge > svg")];
      const widest = Math.max(...images.map((image) => image.getBoundingClientRect().right));
      const said = [document.documentElement.scrollWidth, Math.ceil(widest), images.length];
      top.document.title = [...said, heading.getAttribute("aria-sort")].join(" ");
    }</script></body>"""
    page.with_name("inner.html").write_text(page.read_text().replace("</body>", measure))
    frame.write_text(
        f'<body style="margin:0"><iframe src="inner.html" width={width} height=900></iframe></body>'
    )
    done = browse(
        frame,
        tmp_path / "profile",
        "--allow-file-access-from-files",
        "--dump-dom",
        f"--window-size={max(width, 500)},1000",
    )
    assert console(done.stderr) == []
    (title,) = re.findall(r"<title>([^<]+)</title>", done.stdout)
    page_width, widest, images, order = title.split()
    assert int(page_width) <= width
    assert int(widest) <= width
    assert (images, order) == ("3", "ascending")
