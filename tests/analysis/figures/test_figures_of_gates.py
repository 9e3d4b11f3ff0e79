"""Figures of gates, selection and extrapolation show the means of their tables, read back from the axes."""

import math

import numpy as np
from support.figure_reading import assert_drawn, line, mean_of_means, rows_of
from support.probe_tables import HEADS, doubling, measure, write_table

from analysis import load_results
from analysis.figures import extrapolation, gates, selection


def test_gates_draw_means_and_closed_shares_by_layer(probed):
    table = gates.table(probed)
    figure = gates.draw(table)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        *("output gate", "output gate, closed"),
        *("value gate", "value gate, closed"),
    ]
    for axes, name in zip(
        figure.axes, ("output_gate_mean", "output_gate_low", "value_gate_mean"), strict=False
    ):
        rows = rows_of(probed, "orthgsa", name, "")
        assert_drawn(line(axes, "orthgsa"), mean_of_means(rows, "layer"))
        drawn = line(axes, "_heads").get_ydata()
        assert len(drawn) == 2 * 4 * HEADS  # each seed's own: heads of one number have nothing in common
        np.testing.assert_allclose(sorted(drawn), sorted(rows["value"]), rtol=1e-6)  # stored in fp32
    low = rows_of(probed, "orthgsa", "value_gate_low", "")["value"].mean()
    mean = rows_of(probed, "orthgsa", "value_gate_mean", "")["value"].mean()
    assert f"orthgsa, value: {mean:.2f} ({100 * low:.0f} %)" in gates.caption(table)


def test_selection_draws_keys_and_mass_against_chance(probed):
    table = selection.table(probed)
    keys, by_position, by_layer = selection.draw(table).axes
    assert by_position.get_title(loc="left") == "what they hold of dense attention, by position"
    assert by_position.get_xlabel() == "position of the query (tokens)"
    assert by_layer.get_title(loc="left") == "by layer, queries of the second half"
    assert by_layer.get_xlabel() == "layer (from 0)"
    places = {start: (start + end) / 2 for start, end in doubling(128)}

    def expected(name):
        means = mean_of_means(rows_of(probed, "orthgsa", name, "position"), "start")
        return {places[start]: value for start, value in means.items()}

    assert_drawn(line(keys, "orthgsa"), expected("selected_keys"))
    assert_drawn(line(by_position, "orthgsa"), expected("selected_mass"))
    assert_drawn(line(by_position, "orthgsa, random"), expected("selected_mass_random"))
    layers = mean_of_means(rows_of(probed, "orthgsa", "selected_mass", ""), "layer")
    assert_drawn(line(by_layer, "orthgsa"), layers)
    visible = line(keys, "_visible")
    np.testing.assert_allclose(visible.get_ydata(), visible.get_xdata() + 1)
    mass = sum(layers.values()) / len(layers)
    assert f"{mass:.2f} of dense attention's mass in the second half (at random 0.20)" in selection.caption(
        table
    )
    alone = table[~table["measure"].isin(["selected_mass", "selected_mass_random"])]
    assert len(selection.draw(alone).axes) == 1
    assert "of dense attention's mass" not in selection.caption(alone)


def test_extrapolation_compares_with_the_loss_at_the_trained_length(tmp_path, write_run):
    values = {
        0: {0: 7.0, 16: 6.0, 32: 5.5, 64: 5.0, 128: 5.5, 256: 9.0},
        1: {0: 7.2, 16: 6.2, 32: 5.7, 64: 5.2, 128: 5.3, 256: 7.0},
    }
    for seed, losses in values.items():
        run = write_run(tmp_path / "far", seed=seed)
        rows = [
            measure("loss", losses[start], axis="position", start=start, end=end, part="")
            for start, end in doubling(512)
        ]
        write_table(run, "measures", rows)
    table = extrapolation.table(load_results(tmp_path / "far"))
    loss, above = extrapolation.draw(table).axes
    middles = [math.sqrt((start + 1) * end) for start, end in doubling(512)]
    assert_drawn(line(loss, "transformer"), dict(zip(middles, [7.1, 6.1, 5.6, 5.1, 5.4, 8.0], strict=True)))
    assert_drawn(line(above, "transformer"), dict(zip(middles[3:], [0.0, 0.3, 2.9], strict=True)))
    assert (loss.get_xscale(), above.get_yscale()) == ("log", "symlog")
    for axes in (loss, above):
        assert line(axes, "_trained").get_xdata()[0] == 128
    text = extrapolation.caption(table)
    assert "transformer +2.900." in text
    assert "trained on 128 tokens, scored on up to 512 (4×)" in text
    assert "last bucket (256 to 512)" in text
