"""Exponents of loss against size: known laws are found, intervals cover, three sizes tell of no floor."""

import math

import numpy as np
import pytest

from analysis import load_results
from analysis.caveats import caveats
from analysis.figures import scaling
from analysis.gallery import draw
from analysis.statistics import fit_line, fit_with_floor


def law(sizes, exponent, floor=0.0, factor=8.0):
    return [floor + factor * size**-exponent for size in sizes]


def test_a_straight_line_has_its_exponent_and_no_width():
    sizes = [5e4, 2e5, 8e5]
    found = fit_line(sizes, law(sizes, 0.07))
    assert found[:3] == pytest.approx((0.07, 0.07, 0.07), abs=1e-9)
    assert math.isnan(found.floor)
    assert fit_line([5e4, 2e5, 2e5], [3, 2, 2.1]) is None


def test_the_interval_is_that_of_a_least_squares_slope():
    """Residuals 1, −2, 1 (in hundredths of log L) beside a line over three equal steps of log N."""
    sizes, step = [1.0, math.e, math.e**2], 0.01
    losses = [math.exp(-0.1 * i + step * r) for i, r in enumerate((1, -2, 1))]
    half = 12.7062 * math.sqrt(6 * step**2 / 1 / 2)
    assert fit_line(sizes, losses)[:3] == pytest.approx((0.1, 0.1 - half, 0.1 + half), rel=1e-4)


@pytest.mark.parametrize("runs", [3, 9])
def test_intervals_cover_the_exponent_95_times_in_100(runs):
    generator, sizes = np.random.default_rng(0), np.tile([5e4, 2e5, 8e5], runs // 3)
    true = np.array(law(sizes, 0.07))
    found = (fit_line(sizes, true * np.exp(0.01 * generator.standard_normal(runs))) for _ in range(4000))
    assert np.mean([one.low <= 0.07 <= one.high for one in found]) == pytest.approx(0.95, abs=0.01)


def test_a_floor_is_found_from_four_sizes_on_and_hides_a_steeper_law():
    sizes = [2.0**k * 1e5 for k in range(6)]
    losses = law(sizes, 0.5, floor=2.0, factor=300)
    found = fit_with_floor(sizes, losses)
    assert found.value == pytest.approx(0.5, rel=0.01)
    assert found.floor == pytest.approx(2.0, rel=0.01)
    assert found.low <= found.value <= found.high
    assert fit_line(sizes, losses).value < 0.25, "without the floor the exponent comes out too low"
    assert fit_with_floor(sizes[:3], losses[:3]) is None


def test_the_interval_beside_a_floor_ends_where_the_profile_passes_its_limit():
    """Squares of relative errors by α, and their limit for 6 points and 3 parameters; α is searched in small steps."""
    x = 2.0 ** np.arange(6)
    y = np.array(law(x, 0.5, floor=2.0, factor=2.0)) * (1 + 0.01 * (-1.0) ** np.arange(6))

    def squares(alpha: float) -> float:
        return float(np.linalg.lstsq(np.stack([1 / y, x**-alpha / y], 1), np.ones(6), rcond=None)[1][0])

    found = fit_with_floor(x, y)
    limit = squares(found.value) * (1 + 3.1824463**2 / 3)
    assert squares(found.low) > limit > squares(1.02 * found.low)
    assert squares(found.high) > limit > squares(found.high / 1.02)


def test_a_law_without_a_floor_has_none():
    sizes = [2.0**k * 1e5 for k in range(5)]
    found = fit_with_floor(sizes, law(sizes, 0.3))
    assert found.value == pytest.approx(0.3, rel=0.015)  # the step of the search
    assert found.floor == pytest.approx(0, abs=0.01)


def study(place, write_run, widths=(32, 64, 128), **exponents):
    """Runs of models that follow a law exactly at their best of two rates."""
    for name, exponent in exponents.items():
        for width in widths:
            size = 50 * width**2
            for rate, worse in ((1e-3, 0.0), (3e-3, 0.1)):
                write_run(
                    place, name, option=name, loss=law([size], exponent)[0] + worse,
                    model={"d_model": width, "preset": name}, parameters_non_embedding=size, tokens=20 * size,
                    flops_per_token={"forward": 2.0 * size, "training": 6.0 * size},
                    recipe={"lr": rate, "lr_min": rate / 10, "steps": 20 * size, "tokens_per_step": 1},
                    steps=20 * size,
                )  # fmt: skip


@pytest.mark.slow
def test_every_model_has_the_exponents_of_its_best_rates(tmp_path, write_run):
    study(tmp_path / "exp", write_run, steep=0.12, flat=0.06)
    results = load_results(tmp_path / "exp")
    table = scaling.table(results)
    assert table.groupby("series").size().to_dict() == {"flat": 3, "steep": 3}
    first = table.groupby("series").first()
    assert first["line_parameters_non_embedding"].to_dict() == pytest.approx({"flat": 0.06, "steep": 0.12})
    assert first["line_training_flops"].to_dict() == pytest.approx({"flat": 0.03, "steep": 0.06})
    assert first["floor_training_flops"].isna().all()
    figure, caption, _ = draw("scaling", results)
    assert [axes.get_xscale() for axes in figure.axes] == ["log", "log"]
    assert "steep 0.120 (0.120 to 0.120) and 0.060 (0.060 to 0.060)" in caption
    assert "cannot be told from three sizes" in caption
    budgets = [text for text in caveats(results) if "budgets" in text]
    assert budgets == ["unequal training budgets, equal at each size: 16.4M tokens (4 runs), 1.02M tokens (4 runs) and "
                       "4.10M tokens (4 runs)."]  # fmt: skip
