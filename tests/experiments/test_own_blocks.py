"""blocks=[FOLDER]: blocks and figures of one's own, in no room of the checkout; another package called kernels."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.program import RUN, TINY, write_text
from support.tree_copy import shown

PROGRAM = (sys.executable, RUN)
MIXER = shown("README.md")["zoo/mixers/ema.py"]
FIGURE = """
from analysis.figure_entry import Entry
from analysis.plotting.style import new_figure

FIGURES = (Entry("own_losses", "Losses as I like them", section="Quality"),)


def table(results):
    return results.runs[["run", "label"]]


def draw(table):
    return new_figure(1.0)[0]


def caption(table):
    return "Drawn by a file of one's own."
"""


@pytest.fixture
def own(tmp_path) -> Path:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "ema_of_mine.py").write_text(MIXER)
    (folder / "losses_of_mine.py").write_text(FIGURE)
    (folder / "notes.py").write_text("raise RuntimeError('registers nothing, so that nobody imports it')")
    return folder


def run(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "ARCHZOO_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1", **more}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_a_block_and_a_figure_of_ones_own_train_and_are_drawn(own, tmp_path):
    text = write_text(tmp_path / "text.txt")
    words = [word for word in TINY if not word.startswith("model=")]
    listed = (*words, "model.pattern=EF", f"data.path={text}", f"blocks=[{own}]", "sweep.engine=list")
    done = run(tmp_path, *PROGRAM, *listed)
    assert done.returncode == 0, done.stderr
    (line,) = (tmp_path / "results/default/cells.txt").read_text().splitlines()
    assert shlex.split(line)[-1] == f"blocks=['{own}']"
    done = run(tmp_path, *shlex.split(line))
    assert done.returncode == 0, done.stderr
    done = run(tmp_path, *PROGRAM, "job=report", "runs=results/default", "blocks=[own]")
    assert done.returncode == 0, done.stderr
    assert "Drawn by a file of one" in (tmp_path / "results/default/report/index.html").read_text()
    (recorded,) = (tmp_path / "results/default").glob("*/config.yaml")
    assert yaml.safe_load(recorded.read_text())["model"]["mixers"]["ema"] == {"memory": 256.0}
    without = run(tmp_path, *PROGRAM, *words, "model.pattern=EF", f"data.path={text}")
    assert without.returncode == 2
    assert "is not a known mixer" in without.stderr


def test_a_file_of_ones_own_with_a_mistake_is_named_and_left_out(own, tmp_path):
    (own / "ema_of_mine.py").write_text(MIXER + "\nundefined\n")
    done = run(tmp_path, *PROGRAM, "job=list", "show=mixers", f"blocks=[{own}]")
    assert done.returncode == 0
    assert re.search(r"ema_of_mine\.py, line \d+: NameError: name 'undefined' is not defined", done.stderr)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("blocks=nowhere", "blocks=nowhere must be a list of folders; write blocks=[FOLDER]"),
        ("blocks=[nowhere]", "blocks: nowhere has no file with a block or a figure"),
        ("blocks=[taken]", "json.py has the name of another module; rename it"),
    ],
)
def test_folders_that_have_no_blocks_are_refused_in_a_line(tmp_path, word, said):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/json.py").write_text("# register_mixer")
    done = run(tmp_path, *PROGRAM, word)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_another_package_called_kernels_is_told_in_one_line(tmp_path):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/__init__.py").touch()
    done = run(tmp_path, *PROGRAM, "blocks=nowhere", PYTHONPATH=str(tmp_path))
    notice, error = done.stderr.splitlines()
    assert notice.startswith(f"notice: another package named kernels ({tmp_path}/kernels)")
    assert "make wheel" in notice
    assert error.startswith("error: ")
