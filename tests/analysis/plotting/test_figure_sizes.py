"""Sizes of figures: axes keep their room however much a legend or labels take."""

import warnings

import pytest

from analysis.plotting.style import (
    WIDTH,
    legend_below,
    legend_entries,
    new_figure,
    panels,
    save,
    series_styles,
)


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
