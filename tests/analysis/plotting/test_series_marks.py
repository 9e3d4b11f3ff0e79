"""Models that light up in every figure of a page: marks in the SVGs, and the SVGs as parts of the page."""

import re

import pytest
from matplotlib.lines import Line2D

from analysis import gallery, load_results
from analysis.plotting.style import (
    legend_below,
    legend_entries,
    mark_series,
    new_figure,
    save,
    series_key,
    series_styles,
)
from analysis.report.page import inline

STYLES = series_styles([("kda", "#0072b2"), ("mla †", "#d55e00")])
KDA, MLA = series_key("kda"), series_key("mla")


@pytest.fixture
def svg(tmp_path) -> str:
    """A line and a band of each of two models, a tick that names one, a legend, and a line of nobody."""
    figure, (axes,) = new_figure(2)
    for height, (label, style) in enumerate(STYLES.items()):
        axes.plot([0, 1], [height, height], **style.line(), label=label)
        axes.fill_between([0, 1], height, height + 0.1, color=style.color, alpha=0.1)
    axes.plot([0, 1], [0, 1], color="#123456")
    axes.set_yticks([0], ["kda"])
    legend_below(figure, legend_entries(STYLES))
    mark_series(figure, STYLES)
    path, _ = save(figure, tmp_path / "one")
    return path.read_text()


def test_lines_bands_labels_and_legends_are_marked(svg):
    found = re.findall(r'id="((?:series|legend)\.\w+)\.\d+"', svg)
    assert sorted(found) == sorted(
        [
            *[f"series.{KDA}"] * 3,  # line, band, tick
            *[f"series.{MLA}"] * 2,
            *[f"legend.{key}" for key in (KDA, MLA) for _ in ("line", "text")],
        ]
    )


def test_an_inlined_figure_shares_no_id_and_keeps_its_references(svg):
    page = inline(svg, "a") + inline(svg, "b")
    assert page.startswith("<svg")
    assert not re.search(r"<\?xml|<!DOCTYPE|<!--|<metadata|<style", page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(set(ids)) == len(ids)
    references = set(re.findall(r'(?:href="#|url\(#)([^")]+)', page))
    assert references
    assert references <= set(ids)
    assert not re.search(r"<svg[^>]* width=", page)
    assert "viewBox" in page


@pytest.mark.parametrize("name", ["comparison", "loss_against_tokens"])
@pytest.mark.slow
def test_every_model_of_a_figure_is_marked(quickstart, name):
    results = load_results(quickstart)
    figure, _, _ = gallery.draw(name, results)
    marks = {artist.get_gid().split(".")[1] for artist in figure.findobj(Line2D) if artist.get_gid()}
    assert marks == {series_key(label) for label in results.runs["label"]}
