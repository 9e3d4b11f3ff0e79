"""Axes of sequence lengths."""

import pytest
from matplotlib.figure import Figure

from analysis.plotting.axes import length_axis


@pytest.mark.parametrize(
    ("span", "named"), [((500, 2048), ["512", "1K", "2K"]), ((5, 7), ["7"]), ((1536, 1900), ["1900"])]
)
def test_a_span_names_the_powers_of_two_in_it_or_else_its_end(span: tuple, named: list[str]):
    axes = Figure().subplots()
    length_axis(axes, span=span)
    ticks = axes.xaxis.get_major_locator().locs
    assert [axes.xaxis.get_major_formatter()(tick) for tick in ticks] == named
    low, high = axes.get_xlim()
    assert low < span[0] < span[1] < high
