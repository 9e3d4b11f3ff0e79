"""The report of every published study as its readers see it: page, tables, and what is drawn in each figure."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import recorded
from support.seen_reports import report_lines

from analysis import load_results

PUBLISHED = Path(__file__).resolve().parents[2] / "results" / "published"
RECORDED = Path(__file__).with_name("recorded")
STUDIES = sorted(path.parent.name for path in PUBLISHED.glob("*/runs.parquet"))


@pytest.mark.parametrize("name", STUDIES)
def test_the_report_of_a_published_study_says_what_it_said(name, tmp_path, monkeypatch):
    lines = report_lines(load_results(PUBLISHED / name), tmp_path, monkeypatch)
    recorded.check(RECORDED / f"study_{name}.txt", lines, absolute=1e-9)
