"""Figures from runs and metrics: what is drawn, against numbers computed here by hand."""

import csv
import itertools
import math
import random

import numpy as np
import pytest

from analysis import load_results
from analysis.figures import (
    efficiency,
    gradient_norms,
    layout_ranking,
    loss_curves,
    state_and_memory,
)
from analysis.plotting.sketches import cells
from analysis.statistics import pareto_front

pytestmark = pytest.mark.slow

BLOCKS = [
    {"letter": "F", "name": "attention", "title": "Full", "family": "", "color": "#0072b2", "mask": "causal"},
    {
        "letter": "S",
        "name": "hypergraph",
        "title": "Lines",
        "family": "",
        "color": "#d55e00",
        "mask": "timeline",
    },
]


def line(axes, label):
    (found,) = [line for line in axes.get_lines() if line.get_label() == label]
    return found


def rewrite(folder, rows, columns=("step", "tokens", "split", "loss", "grad_norm", "seconds")):
    """A metrics.csv of these rows."""
    with (folder / "metrics.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


def by_hand(points, x):
    """The straight line between neighbouring points, at x."""
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x0 <= x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    raise AssertionError(x)


def test_time_is_interpolated_inside_a_run_and_between_seeds(tmp_path, write_run):
    slow, fast = (
        write_run(tmp_path / "exp", seed=seed, seconds=40.0 / (1 + seed), steps=40) for seed in (0, 1)
    )
    validation = {0: [(10, 6.0), (30, 4.0), (40, 3.0)], 1: [(10, 5.0), (30, 4.5), (40, 3.5)]}
    for seed, folder in ((0, slow), (1, fast)):
        train = [(step, step * 8, "train", 5.0, 1.0, step / (1 + seed)) for step in (4, 20, 36)]
        rewrite(
            folder, train + [(step, step * 8, "validation", loss, "", "") for step, loss in validation[seed]]
        )
    table = loss_curves.table(load_results(tmp_path / "exp"), against="seconds")
    drawn = line(loss_curves.draw(table, against="seconds").axes[0], "transformer")
    first = [(float(step), loss) for step, loss in validation[0]]
    second = [(step / 2, loss) for step, loss in validation[1]]
    times = [10.0, 15.0, 20.0]
    np.testing.assert_allclose(drawn.get_xdata(), times)
    np.testing.assert_allclose(
        drawn.get_ydata(), [(by_hand(first, x) + by_hand(second, x)) / 2 for x in times]
    )
    assert "Example CPU, 1 thread(s)" in loss_curves.caption(table, against="seconds")


def test_other_figures_show_the_rate_of_the_lowest_validation_loss_not_test_loss(tmp_path, write_run):
    write_run(tmp_path / "exp", loss=3.0, validation_loss=3.2, recipe={"lr": 1e-3})
    write_run(tmp_path / "exp", loss=3.1, validation_loss=2.9, recipe={"lr": 1e-2})
    write_run(tmp_path / "exp", name="other", option=1)
    results = load_results(tmp_path / "exp")
    for module in (loss_curves, gradient_norms, efficiency):
        table = module.table(results)
        assert set(table["label"]) == {"transformer (lr=0.01)", "other"}
        assert "lowest validation loss" in module.caption(table)


def test_gradient_norms_are_geometric_means_smoothed_on_a_log_axis(tmp_path, write_run):
    count, random_norm = 60, random.Random(0)
    norms = [[math.exp(random_norm.gauss(0, 1)) for _ in range(count)] for _ in range(2)]
    for seed in (0, 1):
        folder = write_run(tmp_path / "exp", seed=seed)
        rows = [
            (step + 1, step * 8, "train", 5.0, norms[seed][step], step) for step in range(count - 5 * seed)
        ]
        rewrite(folder, rows)
    table = gradient_norms.table(load_results(tmp_path / "exp"))
    (axes,) = gradient_norms.draw(table).axes
    means = [math.sqrt(norms[0][step] * norms[1][step]) for step in range(count - 5)]
    np.testing.assert_allclose(line(axes, "transformer, recorded").get_ydata(), means)
    smooth = line(axes, "transformer").get_ydata()
    assert smooth[0] == pytest.approx(math.sqrt(means[0] * means[1]))
    assert smooth[30] == pytest.approx((means[29] * means[30] * means[31]) ** (1 / 3))
    assert len(smooth) == count - 5
    assert (axes.get_yscale(), axes.get_xlabel()) == ("log", "optimiser step")
    assert [found.get_ydata()[0] for found in axes.get_lines() if found.get_linestyle() == ":"] == [1.0]
    assert "running mean of 3 points" in gradient_norms.caption(table)


def beaten(point, points):
    """Is any other point nowhere higher and somewhere lower?"""
    for other in points:
        if all(a <= b for a, b in zip(other, point, strict=True)) and tuple(other) != tuple(point):
            return True
    return False


def test_the_pareto_front_by_brute_force():
    draw = random.Random(1)
    for size in (2, 3):
        points = [[draw.randrange(6) for _ in range(size)] for _ in range(40)]
        assert list(pareto_front(points)) == [not beaten(point, points) for point in points]


def test_efficiency_draws_each_front(tmp_path, write_run):
    draw, models = random.Random(2), {}
    for number in range(8):
        name, cost, parameters = f"model{number}", draw.uniform(1e6, 5e6), draw.randrange(10_000, 90_000)
        losses = [draw.uniform(3, 4) for _ in range(2)]
        for seed, loss in enumerate(losses):
            write_run(
                tmp_path / "exp", name=name, seed=seed, loss=loss, option=number,
                parameters=parameters, flops_per_token={"training": cost},
            )  # fmt: skip
        models[name] = (cost, parameters, sum(losses) / 2)
    table = efficiency.table(load_results(tmp_path / "exp"))
    text = efficiency.caption(table)
    for axes, place, said in zip(
        efficiency.draw(table).axes, (0, 1), ("in training FLOPs per token", "in parameters"), strict=True
    ):
        pairs = {name: (values[place], values[2]) for name, values in models.items()}
        front = sorted((pair, name) for name, pair in pairs.items() if not beaten(pair, pairs.values()))
        np.testing.assert_allclose(line(axes, "_front").get_xydata(), [pair for pair, _ in front])
        # Up to the next model's cost nothing better than this one is to be had.
        assert line(axes, "_front").get_drawstyle() == "steps-post"
        for name, pair in pairs.items():
            np.testing.assert_allclose(line(axes, name).get_xydata()[0], pair)
        names = [name for _, name in front]
        assert f"{said}: {', '.join(names[:-1])}{' and ' if names[1:] else ''}{names[-1]}" in text


def test_layouts_are_ranked_with_the_dense_baseline_and_drawn_letter_by_letter(
    quickstart, write_run, layout_changes
):
    for seed in (0, 1):
        changes = layout_changes("late_full")
        changes["model"] |= {"pattern": "SSSS", "layout": None}
        write_run(quickstart, seed=seed, loss=2.9 + 0.1 * seed, blocks=BLOCKS, **{**changes, "name": "all"})
        # One of its letters is in none of the layouts.
        write_run(quickstart, seed=seed, name="odd", model={"preset": "odd", "pattern": "SFKF"})
    table = layout_ranking.table(load_results(quickstart))
    left, right = layout_ranking.draw(table).axes
    expected = {
        "all": ("SSSS", 2.95), "transformer": ("FFFF", 3.002), "hypergraph interlaced_sf": ("SFSF", 3.0385),
        "hypergraph late_full": ("SSFF", 3.0685), "hypergraph bookend": ("FSSF", 3.1185),
    }  # fmt: skip
    assert list(table["label"].unique()) == list(expected)
    words = [text.get_text() for text in left.texts]
    assert words == [word for label, (pattern, _) in expected.items() for word in (label, *pattern)]
    faces = [tuple(round(255 * part) for part in patch.get_facecolor()[:3]) for patch in left.patches]
    colors = {"F": (0x00, 0x72, 0xB2), "S": (0xD5, 0x5E, 0x00)}
    assert faces == [colors[letter] for pattern, _ in expected.values() for letter in pattern]
    for height, (label, (_, mean)) in enumerate(expected.items()):
        assert line(right, label).get_xydata()[0] == pytest.approx((mean, height))
    spread = right.containers[0].lines[2][0].get_segments()[0][:, 0]
    np.testing.assert_allclose(spread, [2.95 - 12.7062047 * 0.05, 2.95 + 12.7062047 * 0.05], rtol=1e-6)
    assert "all is best of 5, hypergraph bookend last by 0.1685" in layout_ranking.caption(table)


def test_states_and_where_they_cross_the_dense_one(tmp_path, write_run):
    lengths = (1024, 8192, 131072)
    costs = {"transformer": (0, 100), "constant": (400_000, 0), "small": (10, 1), "large": (5, 200)}
    for number, (name, (fixed, rate)) in enumerate(costs.items()):
        state = {str(length): fixed + rate * length for length in lengths}
        for seed in (0, 1):
            size = (100 + number + 10 * seed) * 2**20
            write_run(
                tmp_path / "exp",
                name=name,
                seed=seed,
                option=number,
                state_bytes=state,
                peak_memory_bytes=size,
            )
    table = state_and_memory.table(load_results(tmp_path / "exp"))
    above, below = state_and_memory.draw(table).axes
    for number, (name, (fixed, rate)) in enumerate(costs.items()):
        np.testing.assert_allclose(line(above, name).get_xydata(), [(t, fixed + rate * t) for t in lengths])
        assert line(below, name).get_xdata()[0] == pytest.approx(110 + number)
    (ring,) = [found for found in above.get_lines() if found.get_label() == "_crossing"]
    np.testing.assert_allclose(ring.get_xydata()[0], (4000, 400_000))
    assert (above.get_xscale(), above.get_yscale()) == ("log", "log")
    text = state_and_memory.caption(table)
    assert "constant from about 4,000 tokens on" in text
    assert "all three lengths: small;" in text
    assert "never less: large." in text


def reachable(mask):
    """strength [query][key] of a mixer, 0 above the diagonal; group likewise."""
    strength, group = np.zeros((16, 16)), np.zeros((16, 16), dtype=int)
    for t, s, value, part in cells(mask):
        strength[t, s], group[t, s] = value, part
    return strength, group


def test_patterns_are_what_their_masks_say():
    near = np.subtract.outer(np.arange(16), np.arange(16))
    causal = near >= 0
    assert (reachable("causal")[0] == causal).all()
    assert (reachable("window")[0] == (causal & (near < 5))).all()
    assert (reachable("convolution")[0] == (causal & (near < 3))).all()
    assert (reachable("unheard of")[0] == np.eye(16)).all()
    fading, _ = reachable("recurrent")
    assert (np.diff(fading[15]) > 0).all()
    chosen, _ = reachable("topk")
    assert [int(row.sum()) for row in chosen] == [min(t + 1, 4) for t in range(16)]
    lines, _ = reachable("timeline")
    linked = (lines + lines.T) > 0
    assert ((linked.astype(int) @ linked.astype(int) > 0) == linked).all()
    assert linked.diagonal().all()
    assert not linked.all()
    memory, _ = reachable("memories")
    assert ((memory > 0) == (lines > 0)).all()
    assert (memory < lines).any()
    blocks, branch = reachable("blocks")
    assert ((blocks > 0) == causal).all()
    assert {int(part) for part in branch[15]} == {0, 1, 2}
    assert (branch[causal & (near < 5)] == 0).all()
    assert (branch[12:, :2] == 1).all()
