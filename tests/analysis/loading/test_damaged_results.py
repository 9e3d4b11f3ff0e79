"""Whatever is wrong with one run folder or file is a reported problem, and the other runs are loaded."""

import json
import os
from pathlib import Path

import pytest

from analysis import ResultsError, load_results, write_report
from analysis.caveats import caveats
from experiments.probing import probe_run as probing


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
