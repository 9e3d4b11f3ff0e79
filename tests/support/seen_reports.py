"""What a reader of a report sees, as lines of text: the page, and every figure by what is drawn in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from analysis import gallery, write_report
from analysis.loading.results import Results
from support.said import digest
from support.seen_figures import figure_lines
from support.seen_pages import page_lines

SVG = "<svg><title>{name}</title></svg>"


def report_lines(results: Results, folder: Path, monkeypatch, baseline: str | None = None) -> Iterator[str]:
    """The page of a report, its figures and the tables behind them.

    Figures are not laid out and not rendered: that is most of the time.
    """
    figures: dict[str, Figure] = {}

    def save(figure: Figure, stem: Path) -> list[Path]:
        figures[stem.name] = figure
        for suffix in (".svg", ".png"):
            stem.with_suffix(suffix).write_text(SVG.format(name=stem.name))
        return [stem.with_suffix(suffix) for suffix in (".svg", ".png")]

    monkeypatch.setattr(gallery, "save", save)
    page = write_report(results, folder / "report", baseline=baseline)
    yield "# page"
    yield from page_lines(page.read_text(encoding="utf-8"))
    for name, figure in figures.items():
        yield f"# figure {name}"
        yield from figure_lines(figure)
        yield from digest(pd.read_csv(page.parent / "figures" / f"{name}.csv"))
