"""Figures of attention, gates, selection and extrapolation show the numbers of their tables: read from the axes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from probe_tables import (
    ATTENDING,
    HEADS,
    MODELS,
    doubling,
    measure,
    sentence,
    write_eleven,
    write_probes,
    write_table,
)

from analysis import load_results
from analysis.errors import NoData
from analysis.figures import (
    attention_profile,
    extrapolation,
    gates,
    selected_maps,
    selection,
    sink_maps,
    sinks,
)
from analysis.gallery import exhibit, listed
from analysis.measured import measured
from analysis.style import looks
from analysis.tokens import token_label
from zoo.registry import blocks

FAMILIES = {"sinks", "sink_maps", "attention_profile", "gates", "selection", "selected_maps", "extrapolation"}
UNIFORM = 0.04


@pytest.fixture(scope="module")
def small(tmp_path_factory, write_run):
    """Three of the eleven models with two seeds: attention; attention with gates and selection; neither."""
    folder = tmp_path_factory.mktemp("attention") / "small"
    for seed in (0, 1):
        for name in ("transformer", "orthgsa", "mesanet"):
            pattern, color = MODELS[name]
            run = write_run(folder, name, seed, model={"preset": name, "pattern": pattern, "color": color})
            write_probes(run, name, pattern, seed)
    return load_results(folder)


@pytest.fixture
def first_tokens(tmp_path, write_run):
    """Results in which a run gives the first token masses[layer][head]."""

    def make(masses, name="transformer", seed=0, extra=(), experiment="made", **changes):
        run = write_run(tmp_path / experiment, name, seed, **changes)
        places = [(layer, head) for layer, heads in enumerate(masses) for head in range(len(heads))]
        rows = [
            measure("first_token_mass", masses[layer][head], layer=layer, head=head) for layer, head in places
        ]
        rows += [measure("first_token_uniform", UNIFORM, layer=layer, head=head) for layer, head in places]
        rows.append(measure("first_token_mass", 0.99, layer=0, head=0, axis="position", start=0, end=16))
        write_table(run, "measures", [*rows, *extra])
        return lambda: load_results(tmp_path)

    return make


def line(axes, label):
    (found,) = [line for line in axes.get_lines() if line.get_label() == label]
    return found


def rows_of(results, label, name, axis):
    """Rows of a measure, from the table as it was written."""
    rows = results.table("measures")
    return rows[(rows["label"] == label) & (rows["measure"] == name) & (rows["axis"] == axis)]


def mean_of_means(rows, by):
    """For each value of `by` the mean over seeds of the mean over everything else, one by one."""
    found = {}
    for key in sorted(set(rows[by])):
        at = rows[rows[by] == key]
        seeds = [at.loc[at["seed"] == seed, "value"].tolist() for seed in sorted(set(at["seed"]))]
        found[float(key)] = sum(sum(values) / len(values) for values in seeds) / len(seeds)
    return found


def assert_drawn(drawn, expected):
    np.testing.assert_allclose(drawn.get_xdata(), list(expected))
    np.testing.assert_allclose(drawn.get_ydata(), list(expected.values()))


def test_sinks_draw_means_heads_seeds_and_the_base_rate(first_tokens):
    first_tokens([[0.1, 0.2], [0.4, 0.5]], seed=0)
    results = first_tokens([[0.1, 0.4], [0.6, 0.7]], seed=1)()
    table = sinks.table(results)
    whole, single = sinks.draw(table).axes
    for axes in (whole, single):
        assert_drawn(line(axes, "transformer"), {0: 0.2, 1: 0.55})
        assert line(axes, "_uniform").get_ydata()[0] == pytest.approx(UNIFORM)
    low_high = whole.collections[0].get_paths()[0].vertices[:, 1]
    assert {round(value, 6) for value in low_high} == {0.15, 0.25, 0.45, 0.65}
    dots = line(single, "_heads")
    np.testing.assert_allclose(dots.get_ydata(), [0.1, 0.3, 0.5, 0.6])
    assert (whole.get_xlabel(), whole.get_yscale()) == ("layer (from 0)", "log")
    text = sinks.caption(table)
    assert "transformer (0.55 in layer 1, 13.8×)" in text
    assert "Seeds 0, 1. Trained on pydocs." in text


def test_no_sink_is_said_plainly_and_a_single_head_beside_it(first_tokens):
    results = first_tokens([[0.05, 0.06]])()
    assert "No model has a sink: no layer's mean over heads reaches 3× uniform. " in sinks.caption(
        sinks.table(results)
    )
    results = first_tokens([[0.02, 0.13]], name="other", option=1)()
    text = sinks.caption(sinks.table(results))
    assert "No model has a sink" in text
    assert "single heads reach that in other (layer 0, head 1: 3.2×)" in text


def test_gated_models_are_named_and_missing_ones_keep_their_look(first_tokens):
    gate = measure("output_gate_mean", 0.5, layer=0, head=0)
    first_tokens([[0.1]], name="plain", model={"color": "#d55e00"})
    results = first_tokens([[0.1]], name="with gate", extra=[gate], option=1, model={"color": "#d55e00"})()
    table = sinks.table(results)
    assert "Gates on output or value: with gate." in sinks.caption(table)
    titles = [axes.get_title(loc="left") for axes in sinks.draw(table).axes]
    assert "with gate (output\ngate)" in titles
    (only,) = {one.get_color() for axes in gates.draw(gates.table(results)).axes for one in axes.get_lines()}
    assert only == line(sinks.draw(table).axes[0], "with gate").get_color() != "#d55e00"
    assert "No such gates: plain." in gates.caption(gates.table(results))


def test_a_run_counts_once_with_its_last_step(first_tokens):
    early = measure("first_token_mass", 0.9, layer=0, head=0, step=100)
    first_tokens([[0.1]], extra=[early])
    results = first_tokens([[0.1]], extra=[early], experiment="again")()
    assert len(results.runs) == 2
    kept = measured(results, ("first_token_mass",))
    assert kept.loc[kept["axis"] == "", "value"].tolist() == [0.1]


def test_sink_maps_show_the_head_with_the_largest_sink_on_a_log_scale(small):
    table = sink_maps.table(small)
    figure = sink_maps.draw(table)
    maps = small.table("maps")
    mine = maps[(maps["kind"] == "attention") & (maps["label"] == "transformer") & (maps["seed"] == 0)]
    length = len(sentence())
    for axes, layer in zip(figure.axes[3:6], (0, 2, 3), strict=True):
        dense = np.zeros((HEADS, length, length))
        for row in mine[mine["layer"] == layer].itertuples():
            dense[row.head, row.query, row.key] = row.weight
        head = int(dense[:, 1:, 0].sum(1).argmax())
        assert axes.get_title(loc="left") == f"layer {layer}, head {head}"
        (image,) = axes.get_images()
        shown = image.get_array()
        visible = np.tril(np.ones((length, length), bool))
        np.testing.assert_allclose(shown[visible], np.maximum(dense[head], 1e-3)[visible])
        assert np.isnan(np.ma.filled(shown, np.nan)[~visible]).all()
        assert (image.norm.vmin, image.norm.vmax, type(image.norm).__name__) == (1e-3, 1.0, "LogNorm")
    assert [text.get_text() for text in figure.axes[3].get_xticklabels()][:4] == ["The", "brown", "=", "over"]
    assert figure.axes[3].get_ylabel() == "transformer\nquery (token)"
    assert figure.axes[-1].get_xlabel().startswith("weight")
    assert "Seed 0. Trained on pydocs." in sink_maps.caption(table)


def test_mean_maps_average_heads_and_count_what_is_left_out_as_nothing(small):
    table = sink_maps.table(small, heads="mean")
    maps = small.table("maps")
    at = (
        (maps["kind"] == "attention")
        & (maps["label"] == "orthgsa")
        & (maps["seed"] == 0)
        & (maps["layer"] == 3)
    )
    shown = sink_maps.draw(table, heads="mean").axes[2].get_images()[0].get_array()
    for query, key in ((20, 3), (20, 20), (5, 0)):
        cell = maps[at & (maps["query"] == query) & (maps["key"] == key)]
        assert shown[query, key] == pytest.approx(max(1e-3, cell["weight"].sum() / HEADS))
    with pytest.raises(ValueError, match="sink or mean"):
        sink_maps.table(small, heads="all")


def test_selected_maps_show_the_share_of_heads(small):
    table = selected_maps.table(small)
    assert set(table["label"]) == {"orthgsa"}
    shown = selected_maps.draw(table).axes[2].get_images()[0].get_array()
    keep = 6 + 3
    for query in range(len(sentence())):
        for key in range(query + 1):
            heads = sum(query - key < keep or key == head for head in range(HEADS))
            assert shown[query, key] == pytest.approx(heads / HEADS), (query, key)
    pairs = sum(
        min(query + 1, 6 + layer) + (query >= 6 + layer) * min(1, (query - 6 - layer + 1) / HEADS)
        for layer in (0, 2, 3)
        for query in range(len(sentence()))
    )
    assert f"orthgsa {pairs / 3 / len(sentence()):.1f}." in selected_maps.caption(table)


def test_a_token_fits_its_tick_and_is_no_mathematics():
    assert token_label(" the") == "the"
    assert token_label("\n") == "⏎"
    assert token_label("  ") == "␣"
    assert token_label("$5") == r"\$5"
    assert token_label("extraordinary") == "extraord…"
    assert token_label("日本") == "□□"


def test_profile_draws_entropy_top_mass_and_distance(small):
    table = attention_profile.table(small)
    top, entropy, distance = attention_profile.draw(table).axes
    for label in ("transformer", "orthgsa"):
        by_start = mean_of_means(rows_of(small, label, "attention_entropy", "position"), "start")
        middles = {(start + end) / 2: by_start[start] for start, end in doubling(128)}
        assert_drawn(line(entropy, label), middles)
        by_start = mean_of_means(rows_of(small, label, "distance_mass", "distance"), "start")
        assert_drawn(line(distance, label), dict(enumerate(by_start.values())))
        assert sum(line(distance, label).get_ydata()) == pytest.approx(1)
        for rank, value in mean_of_means(rows_of(small, label, "top_mass", "rank"), "end").items():
            assert line(top, f"{label}, {rank:g}").get_xdata()[0] == pytest.approx(value)
    uniform = [
        sum(math.log(t + 1) for t in range(start, end)) / (end - start) for start, end in doubling(128)
    ]
    np.testing.assert_allclose(line(entropy, "_uniform").get_ydata(), uniform)
    assert [text.get_text() for text in distance.get_xticklabels()][:4] == ["0", "1", "2–3", "4–7"]
    assert "No attention shown: mesanet. Seeds 0, 1. Trained on pydocs." in attention_profile.caption(table)


def test_gates_draw_means_and_closed_shares_by_layer(small):
    table = gates.table(small)
    figure = gates.draw(table)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        *("output gate", "output gate, closed"),
        *("value gate", "value gate, closed"),
    ]
    for axes, name in zip(
        figure.axes, ("output_gate_mean", "output_gate_low", "value_gate_mean"), strict=False
    ):
        rows = rows_of(small, "orthgsa", name, "")
        assert_drawn(line(axes, "orthgsa"), mean_of_means(rows, "layer"))
        assert len(line(axes, "_heads").get_xdata()) == 4 * HEADS
    low = rows_of(small, "orthgsa", "value_gate_low", "")["value"].mean()
    mean = rows_of(small, "orthgsa", "value_gate_mean", "")["value"].mean()
    assert f"orthgsa, value: {mean:.2f} ({100 * low:.0f} %)" in gates.caption(table)


def test_selection_draws_keys_and_mass_against_chance(small):
    table = selection.table(small)
    keys, by_position, by_layer = selection.draw(table).axes
    places = {start: (start + end) / 2 for start, end in doubling(128)}

    def expected(name):
        means = mean_of_means(rows_of(small, "orthgsa", name, "position"), "start")
        return {places[start]: value for start, value in means.items()}

    assert_drawn(line(keys, "orthgsa"), expected("selected_keys"))
    assert_drawn(line(by_position, "orthgsa"), expected("selected_mass"))
    assert_drawn(line(by_position, "orthgsa, random"), expected("selected_mass_random"))
    layers = mean_of_means(rows_of(small, "orthgsa", "selected_mass", ""), "layer")
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


def test_without_probes_every_figure_names_the_job_that_makes_them(quickstart, tmp_path):
    results = load_results(quickstart)
    entries = [entry for entry in listed() if entry.family in FAMILIES]
    assert {entry.family for entry in entries} == FAMILIES
    for entry in entries:
        shown = exhibit(entry, results, tmp_path / "figures")
        assert "python run.py job=probe runs=results/quickstart" in shown.missing, entry.name
    for module in (sinks, sink_maps, attention_profile, gates, selection, selected_maps, extrapolation):
        with pytest.raises(NoData, match="job=probe"):
            module.table(results)


def test_the_eleven_differ_in_colour_and_in_line_and_marker():
    colors = {name: block.color for name, block in blocks("mixer").items()}
    found = looks([*colors.items(), ("shc", blocks("residual")["shc"].color)])
    assert len(found) == 11
    assert len({look.color for look in found.values()}) == 11
    assert len({(str(look.linestyle), look.marker) for look in found.values()}) == 11
    assert looks([("kda", colors["kda"])])["kda"] == found["kda"]


@pytest.mark.slow
def test_all_eleven_are_drawn_with_captions(tmp_path, write_run):
    results = load_results(write_eleven(tmp_path / "eleven", write_run))
    attending = sum(bool(set(pattern) & set(ATTENDING)) for pattern, _ in MODELS.values())
    runs = {"sinks": 2 * attending, "sink_maps": attending, "sink_maps_mean": attending}
    runs |= {
        "attention_profile": 2 * attending,
        "gates": 4,
        "selection": 4,
        "selected_maps": 2,
        "extrapolation": 22,
    }
    for entry in listed():
        if entry.family in FAMILIES:
            shown = exhibit(entry, results, tmp_path / "figures")
            assert not shown.missing
            assert "Trained on pydocs." in shown.caption
            assert len(shown.runs) == runs[entry.name]
