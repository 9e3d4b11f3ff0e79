"""A stranger's results say where they belong; they are published below the published studies, and nowhere else."""

import json

import pytest

from analysis import ResultsError, load_results
from analysis.publishing import Publication, publish

ASKED = Publication("Does it work?")


@pytest.fixture
def house(tmp_path, write_run):
    """A results folder with a run; beside it what nobody may touch."""
    write_run(tmp_path / "results" / "exp")
    victim = tmp_path / "victim"
    victim.mkdir()
    for name in ("runs.parquet", "maps.parquet", "sinks.png"):
        (victim / name).write_text("mine")
    return tmp_path


def everything(house):
    return {str(path): path.read_bytes() for path in house.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "name",
    [
        *("../../victim", "../victim", "..", ".", "", "a/b", "a\\b", ".hidden", "_kept", "report"),
        "published",
        *("new\nline", " blank", "x" * 300),
    ],
)
def test_an_experiment_that_is_no_plain_folder_name_is_refused(house, name):
    (run,) = (house / "results" / "exp").iterdir()
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "experiment": name}))
    before = everything(house)
    with pytest.raises(ResultsError, match="not a plain folder name, so nothing was published") as error:
        publish(load_results(run), house / "results" / "published", ASKED)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400
    assert everything(house) == before


@pytest.mark.parametrize("place", ["published", "published/exp"])
@pytest.mark.parametrize("there", [True, False])
def test_nothing_is_written_through_links(house, place, there):
    link = house / "results" / place
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(house / "victim" if there else house / "nothing")
    before = everything(house)
    with pytest.raises(ResultsError, match="nothing is written through links"):
        publish(load_results(house / "results" / "exp"), house / "results" / "published", ASKED)
    assert everything(house) == before
    assert not (house / "nothing").exists()


@pytest.mark.slow
def test_a_provenance_of_a_stranger_deletes_nothing_elsewhere(house):
    place = house / "results" / "published" / "exp"
    place.mkdir(parents=True)
    files = ["../../../victim/sinks.png", str(house / "victim" / "sinks.png"), "notes.md", "own.txt", ".."]
    (place / "provenance.json").write_text(json.dumps({"question": "?", "command": "", "files": files}))
    for name in ("notes.md", "own.txt"):
        (place / name).write_text("words")
    publish(load_results(house / "results" / "exp"), house / "results" / "published", ASKED)
    assert (house / "victim" / "sinks.png").read_text() == "mine"
    assert (place / "notes.md").exists()
    assert not (place / "own.txt").exists()


def test_two_experiments_are_not_one_study(house, write_run):
    write_run(house / "results" / "other")
    with pytest.raises(ResultsError, match=r"of 2 experiments.*publish one"):
        publish(load_results(house / "results"), house / "results" / "published", ASKED)


@pytest.mark.slow
def test_words_of_a_summary_are_no_markup(house):
    (run,) = (house / "results" / "exp").iterdir()
    summary = json.loads((run / "summary.json").read_text())
    summary["command"] = "python run.py\n# title\n<script>alert(1)</script>"
    summary["data"]["train"] = "<img src=x>\n# another"
    (run / "summary.json").write_text(json.dumps(summary))
    folder = publish(load_results(run), house / "results" / "published", ASKED)
    page = (folder / "README.md").read_text()
    assert "\\<img src=x\\> # another" in page
    lines = [line for line in page.splitlines() if "script" in line]
    assert lines
    assert all(line.startswith("    ") for line in lines)
    assert [line for line in page.splitlines() if line.startswith("# ")] == ["# exp"]
