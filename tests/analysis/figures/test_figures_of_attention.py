"""Figures of sinks and of how attention spreads show the means of their tables; all name what is missing."""

import numpy as np
import pytest
from support.figure_reading import assert_drawn, line
from support.probe_tables import measure, write_table

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
