"""Folders that a stranger made decide no place; whatever is wrong with one run is told, and the others are loaded."""

import json
import os
import shutil
from pathlib import Path

import pandas as pd
import pytest

from analysis import ResultsError, load_results, write_report
from analysis.caveats import caveats
from analysis.files import remove_partials, write_atomically
from experiments.probing import probe_run as probing

SECRET = "token-of-somebody-else"
MEASURE = {"step": 300, "layer": 0, "part": "mixer", "block": "attention", "head": 1, "axis": "position"}
MEASURE |= {"start": 0.0, "end": 16.0, "measure": "top_mass", "value": 0.5, "count": 64}


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


def change(folder: Path, **values) -> None:
    """Give keys of a summary other values."""
    path = folder / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def close(folder: Path, monkeypatch) -> None:
    """Take away the right to enter a folder, also from a test that runs as root."""
    folder.chmod(0)
    stat, access = os.stat, os.access

    def guarded(path, *args, **options):
        if Path(folder) in Path(os.fspath(path)).parents:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *args, **options)

    monkeypatch.setattr(os, "stat", guarded)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder and access(path, mode))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"run": None}, "summary.json has no run"),
        ({"experiment": None}, "summary.json has no experiment"),
        ({"seed": 10**30}, "seed is 1000000000000000000000000000000, not a whole number"),
        ({"tokens": 10**400}, "tokens is 10000"),
        ({"tokens": 1e300}, "tokens is 1e+300, not a whole number"),
        ({"seconds": 10**400}, "seconds is 10000"),
        ({"name": "half \ud800"}, "which is not text"),
    ],
)
def test_a_summary_that_no_table_can_hold_is_broken(tmp_path, write_run, values, said):
    write_run(tmp_path / "exp", seed=0)
    folder = write_run(tmp_path / "exp", seed=1)
    change(folder, **values)
    results = load_results(tmp_path / "exp")
    assert list(results.runs["seed"]) == [0]
    (problem,) = results.problems
    assert problem.startswith(f"exp/{folder.name}: broken: summary.json")
    assert said in problem
    assert len(problem) < 300
    problem.encode()


def test_a_curve_that_ends_too_early_is_shown_and_named(tmp_path, write_run):
    _, half, torn, silent = (write_run(tmp_path / "exp", seed=seed) for seed in range(4))
    early = write_run(tmp_path / "exp", seed=4, steps=200, stopped="early")
    text = (half / "metrics.csv").read_text().splitlines(keepends=True)
    (half / "metrics.csv").write_text("".join(text[:10]))
    (torn / "metrics.csv").write_text("".join(text)[:-45])
    (silent / "metrics.csv").write_text(text[0])
    (early / "metrics.csv").write_text("".join(text[:13]))
    results = load_results(tmp_path / "exp")
    rows = results.metrics.groupby("seed").size().to_dict()
    assert rows == {0: 18, 1: 9, 2: 17, 4: 12}
    assert set(results.problems) == {
        f"exp/{half.name}: its metrics end at step 150 of 300: its curve is short",
        f"exp/{torn.name}: metrics.csv: its last row is cut off and was left out",
        f"exp/{silent.name}: its metrics have no row: it has no curve",
    }
    assert any(half.name in text and "its curve is short" in text for text in caveats(results))


def test_a_folder_that_may_not_be_entered_is_named(tmp_path, write_run, monkeypatch):
    write_run(tmp_path / "exp", seed=0)
    closed = write_run(tmp_path / "exp", seed=1)
    half = write_run(tmp_path / "exp", seed=2)
    (half / "probes").mkdir()
    close(closed, monkeypatch)
    close(half / "probes", monkeypatch)
    try:
        results = load_results(tmp_path / "exp")
        assert list(results.runs["seed"]) == [0, 2]
        assert results.problems == [f"exp/{closed.name}: broken: cannot be opened: no permission"]
        assert results.table("measures").empty
        assert f"exp/{half.name}: measures.parquet cannot be read" in results.problems[-1]
        assert probing._problem(closed) == "cannot be opened: no permission"
        assert closed in list(probing._folders(tmp_path / "exp", 2))
    finally:
        monkeypatch.undo()
        for folder in (closed, half / "probes"):
            folder.chmod(0o755)


@pytest.mark.parametrize("place", ["report", "report/deeper"])
def test_a_file_in_the_place_of_a_report_is_an_error_for_people(tmp_path, write_run, place):
    write_run(tmp_path / "exp")
    (tmp_path / "exp" / "report").write_text("notes")
    with pytest.raises(ResultsError, match=r"exp/report is a file; move or rename it"):
        write_report(tmp_path / "exp", tmp_path / "exp" / place)
