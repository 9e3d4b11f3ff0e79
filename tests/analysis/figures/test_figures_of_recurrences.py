"""Figures of recurrent states and of solvers show the numbers of their tables."""

import math

import numpy as np
from support.probe_tables import measure, write_table

from analysis import load_results
from analysis.figures import recurrence, solver


def line(axes, label):
    (found,) = [line for line in axes.get_lines() if line.get_label() == label]
    return found


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
