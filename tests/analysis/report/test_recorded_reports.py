"""Reports of published studies as their readers see them: the page, and what is drawn in every figure."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from support import recorded
from support.seen_reports import report_lines

from analysis import gallery, load_results
from analysis.report.markdown import escape

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


@pytest.fixture
def sampled(tmp_path, quickstart) -> Path:
    """The small quickstart with samples, probes' records and a config that is missing."""
    for place, run in enumerate(sorted(path for path in quickstart.iterdir() if path.is_dir())[:4]):
        (run / "probes").mkdir()
        samples = [
            ("The ", f"end {place}\n```", 0.0 if place else None, None if place == 1 else 3, 90.0 + place),
            ("<b>A", "x | y", 0.8, 0, None),
        ]
        names = ["prompt", "text", "temperature", "sample_seed", "tokens_per_second"]
        pd.DataFrame(samples, columns=names).to_parquet(run / "probes" / "samples.parquet")
        (run / "probes" / "probes.json").write_text(f'{{"settings": {{"windows": {place}}}}}')
    (run / "config.yaml").unlink()
    return quickstart


def test_a_report_in_every_format(sampled, tmp_path, monkeypatch):
    """The page of run folders, its Markdown, its tables as CSV and LaTeX; figures are recorded elsewhere."""
    entries = [
        one for one in gallery.listed() if one.name in ("comparison", "scaling", "stream_pca", "solver")
    ]
    monkeypatch.setattr(gallery, "listed", lambda: entries)
    lines = list(report_lines(load_results(sampled), tmp_path, monkeypatch))
    for path in sorted((tmp_path / "report").rglob("*")):
        if path.suffix in (".md", ".csv", ".tex"):
            lines += [
                f"# {path.relative_to(tmp_path / 'report')}",
                *path.read_text(encoding="utf-8").splitlines(),
            ]
        elif path.is_file():
            lines.append(f"# {path.relative_to(tmp_path / 'report')}")
    place = str(sampled.parents[1])
    hidden = [line.replace(place, "PLACE").replace(escape(place), "PLACE") for line in lines]
    recorded.check(RECORDED / "formats.txt", hidden, absolute=1e-9)
