"""Figures of the inside (sinks, gates, selection, maps, states) show their tables, read back from the axes."""

import math

import numpy as np
import pytest
from support.figure_reading import assert_drawn, line, mean_of_means, rows_of
from support.probe_tables import HEADS, doubling, measure, sentence, write_table

from analysis import load_results
from analysis.figures import (
    attention_profile,
    extrapolation,
    gates,
    recurrence,
    selected_maps,
    selection,
    sink_maps,
    sinks,
    solver,
)
from analysis.files import NoData
from analysis.gallery import draw_figure, listed


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


@pytest.mark.slow
def test_sink_maps_show_the_head_with_the_largest_sink_on_a_log_scale(probed):
    table = sink_maps.table(probed)
    figure = sink_maps.draw(table)
    maps = probed.table("maps")
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
    said = sink_maps.caption(table)
    assert "Seed 0. Trained on pydocs." in said
    assert f"The first {length} tokens of one held-out sentence, all models" in said
    said = sink_maps.caption(table.assign(given="The quick\nbrown fox"))
    assert f"The first {length} tokens of the sentence “The quick brown fox”, all models" in said


def test_mean_maps_average_heads_and_count_what_is_left_out_as_nothing(probed):
    table = sink_maps.table(probed, heads="mean")
    maps = probed.table("maps")
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
        sink_maps.table(probed, heads="all")


def test_selected_maps_show_the_share_of_heads(probed):
    table = selected_maps.table(probed)
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


def test_states_by_tokens_seen_and_half_lives_by_layer(tmp_path, write_run):
    run = write_run(tmp_path / "exp", "kda")
    rows, lives = [], {(0, 0): 4.0, (0, 1): 8.0, (1, 0): 16.0, (1, 1): math.inf}
    for (layer, head), life in lives.items():
        at = {"layer": layer, "head": head}
        for end in (16, 32):
            bucket = {"axis": "position", "start": 0, "end": end, **at}
            rows.append(measure("state_norm", end + 2 * layer + head, **bucket))
            rows.append(measure("state_rank", end / 4, **bucket))
        for quantile, factor in ((0.1, 0.5), (0.5, 1), (0.9, 2)):
            rows.append(measure("decay_half_life", factor * life, axis="quantile", end=quantile, **at))
    write_table(run, "measures", rows)
    table = recurrence.table(load_results(tmp_path / "exp"))
    norm, rank, half_life = recurrence.draw(table).axes
    assert list(line(norm, "kda").get_ydata()) == [(0 + 1 + 2 + 3) / 4 + end for end in (16, 32)]
    assert list(line(rank, "kda").get_ydata()) == [4, 8]
    assert list(line(rank, "kda").get_xdata()) == [16, 32]
    assert line(half_life, "kda").get_ydata()[0] == 6
    assert math.isnan(line(half_life, "kda").get_ydata()[1])
    band = half_life.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (3, 12)
    assert "rank 8 after 32 tokens" in recurrence.caption(table)


def test_a_head_that_never_forgets_does_not_move_the_half_life_of_its_layer(tmp_path, write_run):
    """The median over heads and seeds, not the mean."""
    for seed in (0, 1):
        run = write_run(tmp_path / "exp", "kda", seed)
        lives = [4.0, 6.0 + seed, 5000.0]
        write_table(
            run,
            "measures",
            [
                measure("decay_half_life", factor * life, axis="quantile", end=q, layer=0, head=head)
                for head, life in enumerate(lives)
                for q, factor in ((0.1, 0.5), (0.5, 1), (0.9, 2))
            ],
        )
    table = recurrence.table(load_results(tmp_path / "exp"))
    (half_life,) = recurrence.draw(table).axes
    assert line(half_life, "kda").get_ydata().tolist() == [6.5]
    assert "kda: median half-life 6.5 tokens" in recurrence.caption(table)


def test_residuals_of_the_solver_are_means_over_heads_by_layer(tmp_path, write_run):
    run = write_run(tmp_path / "exp", "mesanet")
    at = {(layer, head): (layer + 1) * (head + 1) for layer in (0, 1) for head in (0, 1)}
    rows = [
        measure(
            "cg_residual", scale * 10.0**-step, layer=layer, head=head, axis="step", start=step, end=step + 1
        )
        for (layer, head), scale in at.items()
        for step in (0, 1, 2)
    ]
    write_table(run, "measures", rows)
    table = solver.table(load_results(tmp_path / "exp"))
    (axes,) = solver.draw(table).axes
    for layer in (0, 1):
        np.testing.assert_allclose(
            line(axes, f"layer {layer}").get_ydata(), [1.5 * (layer + 1) * 10.0**-step for step in (0, 1, 2)]
        )
    assert "at most 0.03 after 2 steps (layer 1)" in solver.caption(table)


FAMILIES = {"sinks", "sink_maps", "attention_profile", "gates", "selection", "selected_maps", "extrapolation"}
UNIFORM = 0.04


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
    np.testing.assert_allclose(
        sorted(dots.get_ydata()), [0.1, 0.1, 0.2, 0.4, 0.4, 0.5, 0.6, 0.7], rtol=1e-6
    )  # stored in fp32
    assert (whole.get_xlabel(), whole.get_yscale()) == ("layer (from 0)", "log")
    text = sinks.caption(table)
    assert "transformer (0.65 in layer 1, 16.2×" in text
    assert "with seed 1; in 2 of 2 seeds)" in text
    assert "dots: single heads of each seed." in text
    assert "Seeds 0, 1. Trained on pydocs." in text


def test_each_model_is_compared_with_the_uniform_share_of_its_own_length(tmp_path, write_run):
    """0.1 is no sink where a window of 16 tokens gives 0.05 to each, and one where 128 give 0.01."""
    uniforms = {"short": 0.05, "long": 0.01}
    for name, uniform in uniforms.items():
        run = write_run(tmp_path / "made", name, option=name)
        at = {"layer": 0, "head": 0}
        write_table(
            run,
            "measures",
            [measure("first_token_mass", 0.1, **at), measure("first_token_uniform", uniform, **at)],
        )
    table = sinks.table(load_results(tmp_path))
    assert table.set_index("label")["uniform"].to_dict() == uniforms
    assert sinks.strongest(table, ["layer"])["times"].to_dict() == pytest.approx({"short": 2.0, "long": 10.0})
    text = sinks.caption(table)
    assert "uniform or more): long (0.1 in layer 0, 10.0×)." in text
    assert "(0.01 and 0.05)" in text
    whole, *single = sinks.draw(table).axes
    for axes in single:
        mine = uniforms[axes.get_title(loc="left")]
        assert line(axes, "_uniform").get_ydata()[0] == pytest.approx(mine)
    drawn = [found.get_ydata()[0] for found in whole.get_lines() if found.get_label() == "_uniform"]
    assert sorted(drawn) == pytest.approx([0.01, 0.05])


def test_what_is_told_far_out_is_the_last_bucket_and_not_the_worst(tmp_path, write_run):
    run = write_run(tmp_path / "made", data={"seq_len": 32})
    losses = {(0, 16): 4.0, (16, 32): 3.0, (32, 64): 5.0, (64, 128): 3.5}
    write_table(
        run,
        "measures",
        [measure("loss", x, axis="position", start=a, end=b, part="") for (a, b), x in losses.items()],
    )
    table = extrapolation.table(load_results(tmp_path))
    assert extrapolation.final_gaps(table).tolist() == [0.5]
    assert extrapolation.above_trained(table)["value"].tolist() == [0.0, 2.0, 0.5]
    assert "transformer +0.500" in extrapolation.caption(table)


def test_a_sink_of_another_head_in_each_seed_is_a_sink(first_tokens):
    first_tokens([[0.2, 0.02, 0.02, 0.02]], seed=0)
    results = first_tokens([[0.02, 0.02, 0.24, 0.02]], seed=1)()
    table = sinks.table(results)
    assert "transformer (layer 0, head 2: 6.0× with seed 1; in 2 of 2 seeds)" in sinks.caption(table)
    dots = line(sinks.draw(table).axes[1], "_heads")
    assert sorted(dots.get_ydata())[-2:] == pytest.approx([0.2, 0.24])


def test_without_probes_every_figure_names_the_job_that_makes_them(quickstart, tmp_path):
    results = load_results(quickstart)
    entries = [entry for entry in listed() if entry.family.rpartition(".")[2] in FAMILIES]
    assert len({entry.family for entry in entries}) == len(FAMILIES)
    for entry in entries:
        shown = draw_figure(entry, results, tmp_path / "figures")
        assert f"python run.py job=probe runs={quickstart} " in shown.missing, entry.name
    for module in (sinks, sink_maps, attention_profile, gates, selection, selected_maps, extrapolation):
        with pytest.raises(NoData, match="job=probe"):
            module.table(results)
