"""Axes of layers."""

import pytest
from matplotlib.figure import Figure

from analysis.plotting.axes import layer_axis


@pytest.mark.parametrize("places", [[0], [0, 0.5], [0, 1], [0, 0.5, 1, 1.5], list(range(4)), list(range(48))])
def test_layers_are_ticked_at_whole_numbers_also_where_there_is_one(places: list[float]):
    axes = Figure().subplots()
    axes.plot(places, places)
    layer_axis(axes)
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert ticks
    assert ticks == [round(tick) for tick in ticks]
    assert len(ticks) <= 8
    assert axes.get_xlabel() == "layer (from 0)"
