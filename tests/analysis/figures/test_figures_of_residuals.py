"""Figures of residual schemes show the numbers of their tables: read back from the axes."""

import math

import numpy as np
import pytest
from support import residual_tables
from support.probe_tables import measure, write_table

from analysis import load_results
from analysis.figures import composite_gain, gradient_depth, singular_values, stream_pca

H = {
    0: np.array([[2.0, 1.0], [0.0, 1.0]]),
    1: np.array([[1.0, 0.0], [3.0, 1.0]]),
    2: np.array([[0.5, 0.5], [0.25, 1.0]]),
    3: np.array([[0.0, 1.0], [1.0, 0.1]]),
}
"""Mixing matrices of two layers' four sub-blocks."""


def write_two_streams(experiment, write_run, seed=0, scale=1.0, depth=2):
    """hc whose matrices are H, times scale; its measures as the probes write them."""
    model = {"residual": "hc", "depth": depth, "pattern": "F" * depth, "color": "#CC6677"}
    run = write_run(experiment, "transformer hc", seed, model=model)
    rows, product = [], np.eye(2)
    for sub_block in range(2 * depth):
        matrix = scale * H[sub_block % 4]
        product = matrix @ product
        place = {"layer": sub_block // 2, "part": "channel" if sub_block % 2 else "mixer"}
        rows += [*residual_tables.gains("h_res", matrix, **place)]
        rows += [*residual_tables.gains("composite", product, **place)]
    write_table(run, "measures", rows)
    return run


def line(axes, label):
    (found,) = [line for line in axes.get_lines() if line.get_label() == label]
    return found


def composites(scale, depth=2):
    """Each composite matrix by explicit sums."""
    product, found = [[1.0, 0.0], [0.0, 1.0]], []
    for sub_block in range(2 * depth):
        matrix = H[sub_block % 4]
        product = [
            [sum(scale * matrix[i][k] * product[k][j] for k in range(2)) for j in range(2)] for i in range(2)
        ]
        found.append(product)
    return found


def amax(m):
    rows = [abs(m[i][0] + m[i][1]) for i in range(2)]
    columns = [abs(m[0][j] + m[1][j]) for j in range(2)]
    return max(rows + columns)


def sigmas(m):
    """Of a 2×2 matrix, in closed form: σ₁² + σ₂² = Σm², σ₁σ₂ = |det|."""
    square, det = sum(x * x for row in m for x in row), abs(m[0][0] * m[1][1] - m[0][1] * m[1][0])
    root = math.sqrt(max(0.0, square**2 - 4 * det**2))
    return math.sqrt((square + root) / 2), math.sqrt((square - root) / 2)


@pytest.mark.slow
def test_composite_gains_are_those_of_the_products_by_depth_and_seed(tmp_path, write_run):
    for seed, scale in ((0, 1.0), (1, 1.5)):
        write_two_streams(tmp_path / "exp", write_run, seed, scale)
    write_two_streams(tmp_path / "exp", write_run, 0, depth=4)
    table = composite_gain.table(load_results(tmp_path / "exp"))
    figure = composite_gain.draw(table)
    drawn = np.array(figure.axes).reshape(3, 2)
    assert [axes.get_title("left") for axes in drawn[0]] == ["2 layers", "4 layers"]
    for row, gain in ((0, amax), (1, lambda m: sigmas(m)[0]), (2, lambda m: sigmas(m)[1])):
        expected = [
            (gain(one) + gain(two)) / 2 for one, two in zip(composites(1.0), composites(1.5), strict=True)
        ]
        shown = line(drawn[row, 0], "transformer hc")
        assert list(shown.get_xdata()) == [0, 1, 2, 3]
        np.testing.assert_allclose(shown.get_ydata(), expected)
        deep = line(drawn[row, 1], "transformer hc").get_ydata()
        np.testing.assert_allclose(deep, [gain(m) for m in composites(1.0, 4)], rtol=1e-6)
        assert drawn[row, 0].get_yscale() == "log"
    said = composite_gain.caption(table)
    last = [(amax(m), *sigmas(m)) for m in (composites(1.0)[-1], composites(1.5)[-1])]
    numbers = " / ".join(f"{(one + two) / 2:.3g}" for one, two in zip(*last, strict=True))
    assert f"transformer hc {numbers} (2 layers)" in said
    assert "Seeds 0, 1. Trained on pydocs." in said


def test_several_models_with_plain_residuals_are_one_line_of_ones(tmp_path, write_run):
    rng = np.random.default_rng(0)
    for name in ("transformer", "kda"):
        run = write_run(tmp_path / "exp", name, model={"preset": name, "depth": 2})
        write_table(run, "measures", residual_tables.residual("add", 2, rng))
    write_two_streams(tmp_path / "exp", write_run)
    table = composite_gain.table(load_results(tmp_path / "exp"))
    axes = composite_gain.draw(table).axes[0]
    assert [line.get_label() for line in axes.get_lines()] == ["plain residual", "transformer hc"]
    assert set(line(axes, "plain residual").get_ydata()) == {1.0}
    assert "Plain residual: kda and transformer, 1 by definition" in composite_gain.caption(table)


def test_singular_values_by_rank_of_the_deepest_model(tmp_path, write_run):
    write_two_streams(tmp_path / "exp", write_run, depth=1)
    write_two_streams(tmp_path / "exp", write_run, depth=2)
    table = singular_values.table(load_results(tmp_path / "exp"))
    each, product = singular_values.draw(table).axes
    for rank in (0, 1):
        single = [sigmas(H[sub_block].tolist())[rank] for sub_block in range(4)]
        whole = [sigmas(m)[rank] for m in composites(1.0)]
        np.testing.assert_allclose(line(each, f"σ{rank + 1}").get_ydata(), single)
        np.testing.assert_allclose(line(product, f"σ{rank + 1}").get_ydata(), whole)
    band = each.collections[0].get_paths()[0].vertices[:, 1]
    smallest, largest = zip(*(sigmas(m.tolist())[::-1] for m in H.values()), strict=True)
    assert (band.min(), band.max()) == pytest.approx((min(smallest), max(largest)))


def test_gradients_of_streams_and_parameters_by_layer(tmp_path, write_run):
    expected = {"streams": [], "mixer": [], "channel": []}
    for seed in (0, 1):
        run = write_run(tmp_path / "exp", seed=seed, model={"depth": 2})
        rows, value = [], 1.0 + seed
        for layer, part in ((0, "mixer"), (0, "channel"), (1, "mixer"), (1, "channel"), (2, "head")):
            rows.append(measure("stream_gradient", value, layer=layer, part=part))
            if part != "head":
                rows.append(measure("parameter_gradient", 10 * value, layer=layer, part=part))
            if seed == 0:  # the other seed has three times as much: from 1 and 2, both doubled at each place
                expected["streams"].append(1.5 * value)
                expected.get(part, []).append(15 * value)
            value *= 2
        write_table(run, "measures", rows)
    table = gradient_depth.table(load_results(tmp_path / "exp"))
    figure = gradient_depth.draw(table)
    for axes, of, places in zip(figure.axes, expected, ([0, 0.5, 1, 1.5, 2], [0, 1], [0, 1]), strict=True):
        shown = line(axes, "transformer")
        assert list(shown.get_xdata()) == places
        np.testing.assert_allclose(shown.get_ydata(), expected[of])
        assert "nats/token" in axes.get_ylabel()
    assert "transformer 0.0625 (2 layers)" in gradient_depth.caption(table)


def test_stream_dimensions_after_the_first_layer_half_way_and_at_the_end(tmp_path, write_run):
    run = write_run(tmp_path / "exp", "transformer hc", model={"residual": "hc", "depth": 4})
    rows = []
    for layer in range(5):
        for part in ("head",) if layer == 4 else ("mixer", "channel"):
            first = 1 - 0.1 * layer - (0.01 if part == "channel" else 0)
            for rank, energy in ((1, first), (2, 1.0)):
                place = {"axis": "rank", "start": 0, "end": rank, "layer": layer, "part": part}
                rows.append(measure("stream_energy", energy, **place))
                rows.append(measure("stream_error", math.sqrt(1 - energy), **place))
    write_table(run, "measures", rows)
    table = stream_pca.table(load_results(tmp_path / "exp"))
    drawn = stream_pca.draw(table).axes
    for energy, error, layer in zip(drawn[:3], drawn[3:], (1, 2, 4), strict=True):
        np.testing.assert_allclose(line(energy, "transformer hc").get_ydata(), [1 - 0.1 * layer, 1])
        np.testing.assert_allclose(line(error, "transformer hc").get_ydata(), [math.sqrt(0.1 * layer)])
    assert "transformer hc 60.0 %" in stream_pca.caption(table)
