"""Folders of results that a stranger made: what they point at is neither read nor written."""

import os
import shutil
from pathlib import Path

import pandas as pd
import pytest

from analysis import ResultsError, load_results, write_report
from analysis.caveats import caveats
from analysis.files import remove_partials, write_atomically

SECRET = "token-of-somebody-else"
MEASURE = {
    "step": 300,
    "layer": 0,
    "part": "mixer",
    "block": "attention",
    "head": 1,
    "axis": "position",
    "start": 0.0,
    "end": 16.0,
    "measure": "top_mass",
    "value": 0.5,
    "count": 64,
}


@pytest.fixture
def few_figures(monkeypatch):
    """A report of two figures: what is tested is what stands around them."""
    import analysis.gallery

    listed = analysis.gallery.listed
    monkeypatch.setattr(analysis.gallery, "listed", lambda: listed()[:2])


def link(place: Path, target: Path) -> Path:
    """Put a link in the place of a file or folder, whose content goes to the target."""
    if place.exists():
        shutil.move(place, target)
    place.symlink_to(target)
    return target


def all_text(folder: Path) -> str:
    return "\n".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", ["config.yaml", "probes/probes.json"])
@pytest.mark.slow
def test_a_report_carries_no_text_from_outside(tmp_path, write_run, few_figures, name):
    run = write_run(tmp_path / "exp")
    (run / "probes").mkdir()
    (tmp_path / "secret").write_text(SECRET)
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(tmp_path / "secret")
    folder = write_report(tmp_path / "exp").parent
    assert SECRET not in all_text(folder)
    assert f"exp/{run.name}: {name} cannot be read (it is a link out of its folder" in all_text(folder)


@pytest.mark.parametrize("name", ["summary.json", "metrics.csv", "identity.json", "failure.json"])
@pytest.mark.slow
def test_files_that_are_links_out_are_not_read(tmp_path, write_run, name):
    write_run(tmp_path / "exp", seed=0)
    run = write_run(tmp_path / "exp", seed=1, option="told by its identity alone")
    if name == "failure.json":
        shutil.move(run / "summary.json", run / name)
    setting = dict(
        zip(*[load_results(tmp_path / "exp").runs[column] for column in ("seed", "setting")], strict=True)
    )
    link(run / name, tmp_path / "outside")
    results = load_results(tmp_path / "exp")
    said = "\n".join(results.problems)
    if name == "identity.json":
        assert results.runs.set_index("seed")["setting"][1] != setting[1]
    else:
        assert f"{name} cannot be read (it is a link out of its folder, to {tmp_path / 'outside'}" in said
        assert (1 in set(results.runs["seed"])) == (name == "metrics.csv")
        assert 1 not in set(results.metrics["seed"])


@pytest.mark.slow
def test_a_run_that_is_a_link_out_is_named_and_read_only_where_it_is_asked_for(tmp_path, write_run):
    write_run(tmp_path / "exp", seed=0)
    other = write_run(tmp_path / "other", seed=1)
    (tmp_path / "exp" / "guest").symlink_to(other)
    results = load_results(tmp_path / "exp")
    assert list(results.runs["seed"]) == [0]
    assert results.problems == [
        f"exp/guest: foreign: is a link to {other}; to read that too, name it as well"
    ]
    assert any("exp/guest" in text for text in caveats(results))
    for places in ([tmp_path / "exp", other], [other, tmp_path / "exp"]):
        both = load_results(places)
        assert sorted(both.runs["seed"]) == [0, 1]
        assert both.problems == []
    assert sorted(load_results(tmp_path).runs["seed"]) == [0, 1], "inside of what was asked for"


@pytest.mark.slow
def test_the_folders_of_an_export_are_anyones_word(tmp_path, write_run, few_figures):
    run = write_run(tmp_path / "exp")
    load_results(tmp_path / "exp").to_parquet(tmp_path / "out")
    private = tmp_path / "private"
    (private / "probes").mkdir(parents=True)
    for name in ("config.yaml", "probes/probes.json"):
        (private / name).write_text(SECRET)
    pd.DataFrame([MEASURE]).to_parquet(private / "probes" / "measures.parquet")
    frame = pd.read_parquet(tmp_path / "out" / "runs.parquet").assign(folder=str(private))
    frame.to_parquet(tmp_path / "out" / "runs.parquet")
    assert SECRET not in all_text(write_report(tmp_path / "out").parent)
    results = load_results(tmp_path / "out")
    assert results.run_folders() == [None]
    assert results.table("measures").empty
    assert load_results([tmp_path / "out", run]).run_folders() == [run], "the run itself is read"


def test_pipes_and_huge_files_are_no_files_of_a_run(tmp_path, write_run):
    pipe, huge = (write_run(tmp_path / "exp", seed=seed) for seed in range(2))
    for name in ("summary.json", "metrics.csv", "config.yaml"):
        shutil.copy(pipe / name, tmp_path / name)
    for name in ("metrics.csv", "config.yaml"):
        (pipe / name).unlink()
        os.mkfifo(pipe / name)
        os.truncate(huge / name, 2**40)  # a hole: it takes no room on the disk
    results = load_results(tmp_path / "exp")
    assert results.metrics.empty
    assert results.texts("config.yaml") == [None, None]
    said = "\n".join(results.problems)
    for name in ("metrics.csv", "config.yaml"):
        assert f"exp/{pipe.name}: {name} cannot be read (it is not a regular file)" in said
        assert f"exp/{huge.name}: {name} cannot be read (it has 1,099,511,627,776 bytes" in said
    for run in (pipe, huge):
        (run / "summary.json").unlink()
    os.mkfifo(pipe / "summary.json")
    os.truncate(huge / "config.yaml", 0)
    shutil.copy(tmp_path / "summary.json", huge)
    assert load_results(tmp_path / "exp").unfinished["reason"].tolist() == [
        "summary.json cannot be read (it is not a regular file)"
    ]


@pytest.mark.parametrize("part", ["report", "report/figures", "report/tables"])
def test_a_report_is_not_written_through_a_link(tmp_path, write_run, few_figures, part):
    write_run(tmp_path / "exp")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "runs.parquet").write_text("somebody's")
    (tmp_path / "exp" / part).parent.mkdir(exist_ok=True)
    (tmp_path / "exp" / part).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ResultsError, match=rf"exp/{part} is a link to {tmp_path}/elsewhere, .*; remove it"):
        write_report(tmp_path / "exp")
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["runs.parquet"]
    assert (tmp_path / "elsewhere" / "runs.parquet").read_text() == "somebody's"
    if part == "report":  # whoever names a link knows where it leads
        assert write_report(tmp_path / "exp", tmp_path / "exp" / part).is_file()


@pytest.mark.slow
def test_what_a_killed_report_left_goes_and_what_is_being_written_stays(tmp_path, write_run, few_figures):
    write_run(tmp_path / "exp")
    report = tmp_path / "exp" / "report"
    kept: list[Path] = []

    def killed(temporary: Path) -> None:
        temporary.write_text("half")
        left = temporary.with_name(temporary.name.replace(".partial", "x.partial"))
        shutil.copy(temporary, left)
        kept.append(left)
        remove_partials(temporary.parent)
        assert temporary.is_file(), "it is being written"
        assert not left.exists(), "nobody writes it"
        shutil.copy(temporary, left)

    places = [report / "page.html", report / "figures" / "a.svg", report / "tables" / "b.tex"]
    for place in places:
        write_atomically(place, killed)
    (report / "figures" / ".mine.svg").write_text("not of a report")
    (report / ".link.partial.csv").symlink_to(tmp_path / "exp")
    assert all(path.is_file() for path in kept)
    write_report(tmp_path / "exp")
    assert [path for path in report.rglob(".*") if path.name != ".mine.svg"] == []
    assert (report / "figures" / ".mine.svg").is_file()
    assert all(place.read_text() == "half" for place in places)
