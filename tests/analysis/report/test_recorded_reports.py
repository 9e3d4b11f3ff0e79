"""Reports of published studies as their readers see them: the page, and what is drawn in every figure."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from support import recorded
from support.seen_reports import report_lines

from analysis import load_results

PUBLISHED = Path(__file__).resolve().parents[3] / "results" / "published"
RECORDED = Path(__file__).with_name("recorded")
PARTS = {
    "text": (
        ["quickstart"],
        {"transformer": (1, 2), "hypergraph": (1,), "nsa": (1, 2), "mesanet": (2,), "mom": (2,)},
    ),
    "residuals": (
        ["residual_rates", "residual_rates_24"],
        {f"transformer{scheme}": (1, 2) for scheme in ("", " hc", " shc")},
    ),
    "tasks": (["papers_recall", "papers_orthgsa_length", "papers_path_flip_flop"], None),
}
"""Studies, and the seeds of their models that are reported: enough for every figure, and for models with one seed."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
def test_a_report_says_what_it_said(name, tmp_path, monkeypatch):
    studies, wanted = PARTS[name]
    results = load_results([PUBLISHED / study for study in studies])
    if wanted is not None:
        keys = zip(results.runs["name"], results.runs["seed"], strict=True)
        results = results.part(pd.Series([seed in wanted.get(one, ()) for one, seed in keys]))
    lines = list(report_lines(results, tmp_path, monkeypatch))
    assert not [line for line in lines if "drawing it failed" in line]
    recorded.check(RECORDED / f"{name}.txt", lines, absolute=1e-9)
