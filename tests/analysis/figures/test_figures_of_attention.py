"""Figures of sinks and of how attention spreads show the means of their tables; all name what is missing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from support.figure_reading import assert_drawn, line, mean_of_means, rows_of
from support.probe_tables import ATTENDING, MODELS, doubling, measure, write_eleven, write_table

from analysis import load_results
from analysis.figures import (
    attention_profile,
    extrapolation,
    gates,
    selected_maps,
    selection,
    sink_maps,
    sinks,
)
from analysis.files import NoData
from analysis.gallery import draw_figure, listed
from analysis.loading.probes import probe_measures
from analysis.plotting.style import series_styles
from zoo.registry import blocks

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


@pytest.mark.slow
def test_no_sink_is_said_plainly_and_a_single_head_beside_it(first_tokens):
    results = first_tokens([[0.05, 0.06]])()
    text = sinks.caption(sinks.table(results))
    assert "No model has a sink: no head reaches 3× uniform. " in text
    assert "dots: single heads. " in text
    results = first_tokens([[0.02, 0.13]], name="other", option=1)()
    text = sinks.caption(sinks.table(results))
    assert "No model has a sink" not in text
    assert (
        "No layer's mean over heads reaches 3× uniform, but single heads do in other (layer 0, head 1: 3.2×)"
        in text
    )


def test_a_sink_of_another_head_in_each_seed_is_a_sink(first_tokens):
    first_tokens([[0.2, 0.02, 0.02, 0.02]], seed=0)
    results = first_tokens([[0.02, 0.02, 0.24, 0.02]], seed=1)()
    table = sinks.table(results)
    assert "transformer (layer 0, head 2: 6.0× with seed 1; in 2 of 2 seeds)" in sinks.caption(table)
    dots = line(sinks.draw(table).axes[1], "_heads")
    assert sorted(dots.get_ydata())[-2:] == pytest.approx([0.2, 0.24])


@pytest.mark.slow
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
    kept = probe_measures(results, ("first_token_mass",))
    assert kept.loc[kept["axis"] == "", "value"].tolist() == [0.1]


@pytest.mark.slow
def test_profile_draws_entropy_top_mass_and_distance(probed):
    table = attention_profile.table(probed)
    top, entropy, distance = attention_profile.draw(table).axes
    for label in ("transformer", "orthgsa"):
        by_start = mean_of_means(rows_of(probed, label, "attention_entropy", "position"), "start")
        middles = {(start + end) / 2: by_start[start] for start, end in doubling(128)}
        assert_drawn(line(entropy, label), middles)
        by_start = mean_of_means(rows_of(probed, label, "distance_mass", "distance"), "start")
        assert_drawn(line(distance, label), dict(enumerate(by_start.values())))
        assert sum(line(distance, label).get_ydata()) == pytest.approx(1)
        for rank, value in mean_of_means(rows_of(probed, label, "top_mass", "rank"), "end").items():
            assert line(top, f"{label}, {rank:g}").get_xdata()[0] == pytest.approx(value)
    uniform = [
        sum(math.log(t + 1) for t in range(start, end)) / (end - start) for start, end in doubling(128)
    ]
    np.testing.assert_allclose(line(entropy, "_uniform").get_ydata(), uniform)
    assert [text.get_text() for text in distance.get_xticklabels()][:4] == ["0", "1", "2–3", "4–7"]
    assert "No attention shown: mesanet. Seeds 0, 1. Trained on pydocs." in attention_profile.caption(table)


def test_without_probes_every_figure_names_the_job_that_makes_them(quickstart, tmp_path):
    results = load_results(quickstart)
    entries = [entry for entry in listed() if entry.family in FAMILIES]
    assert {entry.family for entry in entries} == FAMILIES
    for entry in entries:
        shown = draw_figure(entry, results, tmp_path / "figures")
        assert f"python run.py job=probe runs={quickstart} " in shown.missing, entry.name
    for module in (sinks, sink_maps, attention_profile, gates, selection, selected_maps, extrapolation):
        with pytest.raises(NoData, match="job=probe"):
            module.table(results)


def test_the_eleven_differ_in_colour_and_in_line_and_marker():
    colors = {name: block.color for name, block in blocks("mixer").items()}
    found = series_styles([*colors.items(), ("shc", blocks("residual")["shc"].color)])
    assert len(found) == 11
    assert len({series_style.color for series_style in found.values()}) == 11
    assert len({(str(series_style.linestyle), series_style.marker) for series_style in found.values()}) == 11
    assert series_styles([("kda", colors["kda"])])["kda"] == found["kda"]


@pytest.mark.long
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
            shown = draw_figure(entry, results, tmp_path / "figures")
            assert not shown.missing
            assert "Trained on pydocs." in shown.caption
            assert len(shown.runs) == runs[entry.name]


def test_a_run_whose_loss_was_never_taken_within_its_trained_length_has_no_gap(tmp_path, write_run):
    """And takes no other run's away."""
    for preset, losses in (
        ("transformer", {(0, 64): 4.0, (64, 128): 5.0}),
        ("kda", {(0, 32): 4.0, (32, 64): 4.25}),
    ):
        run = write_run(tmp_path / "made", preset, model={"preset": preset}, run=preset, data={"seq_len": 32})
        rows = [measure("loss", x, axis="position", start=a, end=b, part="") for (a, b), x in losses.items()]
        write_table(run, "measures", rows)
    table = extrapolation.table(load_results(tmp_path))
    assert extrapolation.final_gaps(table).to_dict() == {"kda": 0.25}


def test_runs_that_did_not_record_their_trained_length_have_no_gap_and_are_drawn(tmp_path, write_run):
    for preset, length in (("transformer", 32), ("kda", None)):
        data = {} if length is None else {"seq_len": length}
        run = write_run(tmp_path / "made", preset, model={"preset": preset}, run=preset, data=data)
        rows = [measure("loss", 4.0, axis="position", start=a, end=2 * a or 32, part="") for a in (0, 32)]
        write_table(run, "measures", rows)
    results = load_results(tmp_path)
    runs = results.runs.assign(seq_len=results.runs["seq_len"].where(results.runs["preset"] != "kda"))
    text = extrapolation.caption(extrapolation.table(replace(results, runs=runs)))
    assert "trained on 32 tokens, scored on up to 64 (2×)" in text
    assert "nats/token: transformer +0.000." in text
