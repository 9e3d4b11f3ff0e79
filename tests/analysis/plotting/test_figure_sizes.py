"""Figures: axes keep their room; models light up in every SVG of a page; sketches that a block brings."""

import json
import re
import warnings

import pytest
from matplotlib.lines import Line2D

from analysis import gallery, load_results
from analysis.plotting.sketches import GROUPS, PATHS, Box, path
from analysis.plotting.style import (
    WIDTH,
    legend_below,
    legend_entries,
    mark_series,
    new_figure,
    panels,
    save,
    series_key,
    series_styles,
)
from analysis.report.page import inline


def drawn(figure, tmp_path):
    """Save a figure without warnings and return width and height in inches of its smallest axes."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(path.stat().st_size > 1000 for path in save(figure, tmp_path / "figure"))
    width, height = figure.get_size_inches()
    boxes = [axes.get_position() for axes in figure.axes]
    assert all(0 <= box.x0 < box.x1 <= 1 and 0 <= box.y0 < box.y1 <= 1 for box in boxes)
    return min(box.width for box in boxes) * width, min(box.height for box in boxes) * height


@pytest.mark.parametrize("models", [1, 4, 7, 40])
@pytest.mark.slow
def test_a_long_legend_makes_a_figure_higher(tmp_path, models):
    figure, _ = panels(1, 2, 1.75)
    styles = series_styles((f"model {number}", None) for number in range(models))
    legend_below(figure, legend_entries(styles), 1)
    _, height = drawn(figure, tmp_path)
    assert height > 0.6
    assert figure.get_size_inches()[0] == WIDTH, "text keeps its size on a page"
    assert (figure.get_size_inches()[1] > 1.75) == (models > 1)


@pytest.mark.slow
def test_axes_that_are_too_low_make_a_figure_higher(tmp_path):
    figure, _ = new_figure(1.0, rows=4)
    drawn(figure, tmp_path)
    assert tuple(figure.get_size_inches()) > (WIDTH, 1.0)


def test_labels_wider_than_a_figure_make_it_wider(tmp_path):
    figure, ((left, right),) = panels(1, 2, 1.75)
    for axes in (left, right):
        axes.set_yticks([0, 1], ["a very long name of a model and its settings"] * 2)
    width, _ = drawn(figure, tmp_path)
    assert width > 0.3
    assert figure.get_size_inches()[0] > WIDTH


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


def own(group: object) -> str:
    return json.dumps([["x"], [["a", group]], ["y"]])


@pytest.mark.parametrize("group", [None, 0, GROUPS - 1])
def test_groups_that_have_a_shade_are_kept(group):
    assert path("causal", own(group)) == ((Box("x"),), (Box("a", group),), (Box("y"),))


@pytest.mark.parametrize("group", [GROUPS, -1, "1", 0.5])
def test_a_sketch_with_another_group_is_drawn_by_the_mask(group):
    assert path("causal", own(group)) == PATHS["causal"]
