"""Speeds in a report: no share above the peak, and what ran beside the runs that were timed."""

from pathlib import Path

import pandas as pd
import pytest

from analysis import load_results
from analysis.caveats import caveats, conditions
from analysis.comparing.tables import compare
from analysis.report import content, latex
from analysis.report.columns import COMPARISON, rows

PUBLISHED = Path(__file__).resolve().parents[3] / "results" / "published"

# 7402.4 tokens/s of 4.2 MFLOPs are 31 GFLOP/s: 346 % of this peak.
BUSY = {"mfu": 3.46, "mfu_peak_flops": 31.09e9 / 3.46}
OF_OLD = {"workers": None, "load": None, "machine": {"capability": None}}


def told(results, part: str) -> str:
    (found,) = [text for text in caveats(results) if part in text]
    return found


@pytest.mark.slow
def test_a_share_above_the_peak_is_a_notice_and_never_a_number(tmp_path, write_run):
    """As an older version wrote it: in the summary and in the metrics."""
    folder = write_run(tmp_path / "exp", **BUSY, **OF_OLD)
    metrics = folder / "metrics.csv"
    metrics.write_text(metrics.read_text().replace(",7400,,", ",7400,3.4612,"))
    write_run(tmp_path / "exp", seed=1, mfu=0.31)
    results = load_results(tmp_path / "exp")
    assert results.problems == []
    assert results.runs.set_index("seed")["mfu"].dropna().to_dict() == {1: 0.31}
    assert results.metrics["mfu"].isna().all()
    table = compare(results.runs)
    assert table["mfu"].tolist() == [0.31], "the mean over the seeds that have one"
    written = latex.table(COMPARISON, rows(table), "") + table.to_csv()
    assert "3.46" not in written
    assert "346" not in written
    assert "transformer seed 0" in told(results, "above the peak")
    assert any("MFU of 1 of 2 runs" in text for text in content.missing(results.runs, []))


@pytest.mark.slow
def test_peaks_of_one_machine_that_differ_are_told(tmp_path, write_run):
    for seed, peak in enumerate((1e11, 1.09e11)):
        write_run(tmp_path / "a", seed=seed, mfu_peak_flops=peak)
    assert not any("the peak of one machine" in text for text in caveats(load_results(tmp_path / "a")))
    write_run(tmp_path / "near", seed=0, mfu_peak_flops=1e11)
    write_run(tmp_path / "near", seed=1, mfu_peak_flops=1.11e11)
    assert "100G to 111G" in told(load_results(tmp_path / "near"), "the peak of one machine")
    write_run(tmp_path / "a", seed=2, mfu_peak_flops=5e10)
    write_run(tmp_path / "a", seed=3, mfu_peak_flops=1e12, machine={"threads": 8})
    assert "50.0G to 109G" in told(load_results(tmp_path / "a"), "the peak of one machine")


@pytest.mark.parametrize(
    ("workers", "load", "says"),
    [
        ((1, 1), (0.9, 1.9), []),
        ((2, 2), (2.1, 2.4), ["2 cells at a time on 2 cores"]),
        (
            (2, None),
            (2.1, None),
            ["2 cells at a time on 2 cores and how many runs at a time", "1 of 2 runs may have"],
        ),
        ((1, 1), (0.9, 6.3), ["transformer seed 1 trained (load 6.3)"]),
    ],
)
def test_what_ran_beside_is_said(tmp_path, write_run, workers, load, says):
    for seed in (0, 1):
        write_run(tmp_path / "exp", seed=seed, workers=workers[seed], load=load[seed])
    results = load_results(tmp_path / "exp")
    found = [text for text in caveats(results) if "speeds" in text]
    assert len(found) == len(says)
    for text, part in zip(found, says, strict=True):
        assert part in text
    assert ("2 cells" in conditions(results.runs)) == (2 in workers)


@pytest.mark.parametrize(
    "table", sorted(PUBLISHED.glob("*/comparison.csv")), ids=lambda path: path.parent.name
)
def test_no_published_comparison_shows_a_share_above_the_peak(table):
    assert not (pd.read_csv(table)["mfu"] > 1).any()
