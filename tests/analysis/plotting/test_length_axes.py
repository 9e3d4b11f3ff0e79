"""Axes of lengths, bytes, layers and other numbers, and legends of choices."""

import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from analysis.plotting.axes import (
    byte_axis,
    deepest,
    drawn_depths,
    layer_axis,
    left_out_text,
    length_axis,
    plain_log_ticks,
)
from analysis.plotting.style import PALETTE, choice_colors, choice_legend


@pytest.mark.parametrize(
    ("span", "named"),
    [
        ((500, 2048), ["512", "1K", "2K"]),
        ((5, 7), ["5", "6", "7"]),
        ((1536, 1900), ["1600", "1700", "1800", "1900"]),
        ((91, 128), ["100", "110", "120"]),
        ((96, 96), ["96"]),
    ],
)
def test_a_span_names_the_powers_of_two_in_it_or_else_even_steps(span: tuple, named: list[str]):
    axes = Figure().subplots()
    length_axis(axes, span=span)
    ticks = axes.xaxis.get_major_locator().locs
    assert [axes.xaxis.get_major_formatter()(tick) for tick in ticks] == named
    low, high = axes.get_xlim()
    assert low < span[0] <= span[1] < high


SPANS = [
    (low, factor * low)
    for low in (3e-7, 0.5, 0.9, 13.0, 700.0, 3e9)
    for factor in (1.03, 1.3, 1.9, 4, 30, 900)
]


@pytest.mark.parametrize("ticked", ["1, 2 and 5", "1 and 3", "base 2", "bytes"])
def test_every_span_of_a_logarithmic_axis_has_two_numbers_and_few(ticked: str):
    for low, high in SPANS:
        axis = Figure().subplots().yaxis
        axis.axes.set_yscale("log")
        axis.axes.set_ylim(low, high)
        if ticked == "bytes":
            if low < 1:
                continue
            byte_axis(axis)
        else:
            plain_log_ticks(
                axis, (1.0, 3.0) if ticked == "1 and 3" else (1.0, 2.0, 5.0), 2 if ticked == "base 2" else 10
            )
        inside = [tick for tick in axis.get_majorticklocs() if low <= tick <= high]
        texts = {axis.get_major_formatter()(tick) for tick in inside}
        assert 2 <= len(texts) == len(inside) <= 11, (low, high, texts)


def test_an_axis_of_bytes_is_ticked_at_few_powers_of_two_and_keeps_its_range():
    for high, most, named in (
        (2**13, 8, ["1 KiB", "2 KiB", "4 KiB", "8 KiB"]),
        (2**34, 4, ["256 KiB", "128 MiB"]),
    ):
        axis = Figure().subplots().xaxis
        axis.axes.set_xscale("log", base=2)
        axis.axes.set_xlim(1000, high)
        byte_axis(axis, most)
        ticks = [tick for tick in axis.get_major_locator()() if 1000 <= tick <= high]
        assert [axis.get_major_formatter()(tick) for tick in ticks][: len(named)] == named
        assert len(ticks) <= most
        assert axis.get_view_interval().tolist() == [1000, high]
        assert not len(axis.get_minor_locator()())


@pytest.mark.parametrize(
    ("high", "named"), [(900.0, ["1", "2", "5", "10", "20", "50", "100", "200", "500"]), (1000.0, None)]
)
def test_a_logarithmic_axis_of_less_than_a_thousandfold_has_plain_numbers(high: float, named):
    axis = Figure().subplots().yaxis
    axis.axes.set_yscale("log")
    axis.axes.set_ylim(1.0, high)
    plain_log_ticks(axis)
    ticks = [tick for tick in axis.get_majorticklocs() if 1.0 <= tick <= high]
    if named is None:
        assert ticks == [1.0, 10.0, 100.0, 1000.0]
    else:
        assert [axis.get_major_formatter()(tick) for tick in ticks] == named
    assert axis.get_minor_formatter()(3.0) == ""


@pytest.mark.parametrize("choices", [len(PALETTE) - 1, len(PALETTE), len(PALETTE) + 2])
def test_the_legend_names_each_choice_that_has_a_colour_of_its_own(choices: int):
    """Beyond the palette the rarest share its last colour, which is called others."""
    numbers = [100 + n for n in range(choices) for _ in range(choices - n)]  # 100 is the most common
    legend = choice_legend(choice_colors(pd.Series(numbers)), "expert")
    own = choices if choices <= len(PALETTE) else len(PALETTE) - 1
    named = [f"expert {100 + n}" for n in range(own)]
    assert [patch.get_label() for patch in legend] == named + ["others"] * (own < choices)
    assert [to_hex(patch.get_facecolor()) for patch in legend] == list(PALETTE[: len(legend)])


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


def test_each_series_has_its_own_deepest_model():
    rows = pd.DataFrame({"series": ["add", "add", "ohc"], "depth": [4, 24, 12]})
    assert deepest(rows).values.tolist() == [["add", 24], ["ohc", 12]]


def test_of_many_depths_the_first_the_middle_and_the_last_have_room():
    few, many = (pd.DataFrame({"depth": depths}) for depths in ([24, 4, 12], [24, 4, 12, 8, 16]))
    assert (drawn_depths(few), left_out_text(few)) == ([4, 12, 24], "")
    assert (drawn_depths(many), left_out_text(many)) == ([4, 12, 24], "Not drawn: 8, 16 layers. ")
