"""Figures show the numbers of their tables, read back from the axes; every scale has two numbers at least."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator
from test_recorded_figures import CASES, probed

from analysis import load_results
from analysis.figures import comparison, crossover, loss_curves
from analysis.files import NoData
from analysis.gallery import draw, drawn_runs, listed
from analysis.loading.results import Results
from analysis.plotting.style import PALETTE, save, series_styles
from analysis.statistics import curves_over_seeds


def line(axes, label):
    (found,) = [line for line in axes.get_lines() if line.get_label() == label]
    return found


def test_loss_curves_show_the_mean_over_seeds_of_both_splits(quickstart):
    results = load_results(quickstart)
    figure = loss_curves.draw(loss_curves.table(results))
    whole, zoom = figure.axes
    rows = results.metrics[results.metrics["label"] == "hypergraph late_full"]
    expected = rows[rows["split"] == "validation"].groupby("tokens")["loss"].mean()
    for axes in (whole, zoom):
        drawn = line(axes, "hypergraph late_full")
        assert list(drawn.get_xdata()) == list(expected.index)
        np.testing.assert_allclose(drawn.get_ydata(), expected)
    training = rows[rows["split"] == "train"].groupby("tokens")["loss"].mean()
    np.testing.assert_allclose(line(whole, "hypergraph late_full, training").get_ydata(), training)
    assert "tokens" in zoom.get_xlabel()
    assert "nats/token" in whole.get_ylabel()
    assert 0.65 < zoom.get_xlim()[0] / 307_200 < 0.69


def test_the_band_spans_the_seeds_and_stops_where_one_seed_stops(tmp_path, write_run):
    write_run(tmp_path / "exp", seed=0, loss=3.0)
    early = write_run(tmp_path / "exp", seed=1, loss=3.4)
    text = (early / "metrics.csv").read_text().splitlines(keepends=True)
    (early / "metrics.csv").write_text("".join(text[:13]))
    table = loss_curves.table(load_results(tmp_path / "exp"))
    band = curves_over_seeds(table[table["split"] == "validation"], "tokens", "loss")
    assert band.index.max() == 200 * 1024
    first = table[(table["split"] == "validation") & (table["tokens"] == 200 * 1024)]["loss"]
    assert (band["min"].iloc[-1], band["max"].iloc[-1]) == (first.min(), first.max())
    assert first.min() < first.max()


def test_loss_curves_without_validation_say_why(tmp_path, write_run):
    folder = write_run(tmp_path / "exp")
    (folder / "metrics.csv").write_text("step,tokens,split,loss\n1,1024,train,8.0\n")
    with pytest.raises(NoData, match="no run has a validation row"):
        loss_curves.table(load_results(folder))


@pytest.mark.slow
def test_comparison_draws_means_intervals_and_perplexity(quickstart):
    figure = comparison.draw(comparison.table(load_results(quickstart)))
    axes = figure.axes[0]
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert labels[0] == "transformer"
    assert len(labels) == 4
    dot = line(axes, "transformer")
    assert dot.get_xdata()[0] == pytest.approx(3.002)
    assert dot.get_ydata()[0] == 0
    assert axes.get_ylim()[0] > axes.get_ylim()[1]
    (segment,) = axes.containers[0].lines[2][0].get_segments()
    half_width = 12.7062047 * 0.002
    np.testing.assert_allclose(segment[:, 0], [3.002 - half_width, 3.002 + half_width], rtol=1e-6)
    upper = axes.child_axes[0]
    figure.canvas.draw()
    np.testing.assert_allclose(upper.get_xlim(), np.exp(axes.get_xlim()))
    assert axes.get_xlim()[0] > 2.5


def test_crossover_is_where_the_two_costs_are_equal(latency_csv):
    table = crossover.read(latency_csv, {"transformer": "#112233"})
    assert set(table["suite"]) == {"latency"}
    ratios = crossover.speedups(table)["hypergraph interlaced_sf"]
    assert ratios[512] == pytest.approx((4 + 4e-6 * 512**2) / (14 + 1e-6 * 512**2))
    found = crossover.crossover_tokens(ratios)
    assert 0.98 < found / math.sqrt(10 / 3e-6) < 1.02
    latency, ratio = crossover.draw(table).axes
    dense = line(latency, "transformer")
    assert dense.get_color() == "#112233"
    np.testing.assert_allclose(dense.get_ydata(), [4 + 4e-6 * t**2 for t in dense.get_xdata()])
    np.testing.assert_allclose(line(ratio, "hypergraph interlaced_sf").get_ydata(), ratios)
    assert (latency.get_xscale(), latency.get_yscale()) == ("log", "log")
    assert any(f"{found:,.0f}" in text.get_text() for text in latency.texts)
    assert "NVIDIA H200" in crossover.caption(table)
    assert f"{found:,.0f} tokens" in crossover.caption(table)


def test_the_speed_up_takes_each_models_fastest_backend_at_each_length(tmp_path):
    times = {
        ("transformer", "torch"): (10.0, 40.0),
        ("transformer", "triton"): (8.0, 60.0),
        ("sparse", "torch"): (5.0, 50.0),
        ("sparse", "triton"): (16.0, 4.0),
    }
    rows = [
        {"model": model, "backend": backend, "tokens": tokens, "milliseconds_median": one}
        for (model, backend), both in times.items()
        for tokens, one in zip((512, 1024), both, strict=True)
    ]
    frame = pd.DataFrame(rows).assign(
        suite="latency", device="GPU", batch=1, milliseconds_low=1.0, milliseconds_high=99.0
    )
    frame.assign(peak_memory_bytes=1).to_csv(tmp_path / "latency.csv", index=False)
    table = crossover.read(tmp_path / "latency.csv")
    assert crossover.speedups(table).to_dict() == {"sparse": {512: 8.0 / 5.0, 1024: 40.0 / 4.0}}
    latency, ratio = crossover.draw(table).axes
    for (model, backend), both in times.items():
        assert list(line(latency, f"{model}, {backend}").get_ydata()) == list(both)
    assert list(line(ratio, "sparse").get_ydata()) == [1.6, 10.0]
    assert "10.00× as fast at 1,024" in crossover.caption(table)


def test_a_timed_model_has_the_colour_of_the_run_that_is_called_like_it(tmp_path, write_run, latency_csv):
    """Another run of the same preset, which comes later, does not lend it its own."""
    write_run(tmp_path / "exp", name="transformer", model={"color": "#112233"})
    write_run(tmp_path / "exp", name="transformer wide", option=1, model={"color": "#445566"})
    latency_csv.rename(tmp_path / "exp" / "latency.csv")
    table = crossover.table(load_results(tmp_path / "exp"))
    assert set(table.loc[table["model"] == "transformer", "color"]) == {"#112233"}


def test_a_bench_file_that_cannot_serve_says_why(tmp_path, latency_csv):
    (tmp_path / "short.csv").write_text("suite,model\na,b\n")
    with pytest.raises(NoData, match="no column backend"):
        crossover.read(tmp_path / "short.csv")
    lines = latency_csv.read_text().splitlines()
    (tmp_path / "dense.csv").write_text("\n".join(line for line in lines if "hypergraph" not in line))
    with pytest.raises(NoData, match="no two models"):
        crossover.read(tmp_path / "dense.csv")
    (tmp_path / "point.csv").write_text(
        "\n".join(line for line in lines if ",512," in line or "suite" in line)
    )
    with pytest.raises(NoData, match="at two lengths or more"):
        crossover.read(tmp_path / "point.csv")


def test_variants_of_one_colour_differ_in_every_way_and_order_does_not_matter():
    series = [
        ("dense", "#0072b2"),
        ("a", "#d55e00"),
        ("b", "#d55e00"),
        ("c", "#d55e00"),
        ("odd", "no colour"),
    ]
    found = series_styles(series)
    assert found["dense"].color == "#0072b2"
    assert found["a"].color == "#d55e00"
    variants = [found[name] for name in "abc"]
    for part in ("color", "linestyle", "marker"):
        assert len({getattr(series_style, part) for series_style in variants}) == 3
    assert found["odd"].color in PALETTE
    assert series_styles(reversed(series)) == found
    assert series_styles([("a", "#e69f00"), ("b", "#e69f00")])["b"].color < "#b0"
    many = series_styles((f"layout {n}", "#d55e00") for n in range(9))
    assert len({series_style.color for series_style in many.values()}) == 9
    assert len({series_style.marker for series_style in many.values()}) == 9


@pytest.mark.slow
def test_saved_figures_are_the_same_bytes(quickstart, tmp_path):
    for folder in ("one", "two"):
        table = comparison.table(load_results(quickstart))
        paths = save(comparison.draw(table), tmp_path / folder / "comparison")
        assert [path.name for path in paths] == ["comparison.svg", "comparison.png"]
    for suffix in ("svg", "png"):
        one, two = ((tmp_path / folder / f"comparison.{suffix}").read_bytes() for folder in ("one", "two"))
        assert one == two
        assert len(one) > 1000


PUBLISHED = Path(__file__).resolve().parents[3] / "results" / "published"
STUDIES = sorted(path.parent.name for path in PUBLISHED.glob("*/README.md"))


def written(axis: Axis) -> list[str]:
    """The labels that can be read along an axis, of major and minor ticks inside its limits."""
    low, high = sorted(axis.get_view_interval())
    room = 1e-9 * (high - low)
    ticks = [
        tick
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
        if low - room <= tick.get_loc() <= high + room
    ]
    labels = [label for tick in ticks for label in (tick.label1, tick.label2) if label.get_visible()]
    return [label.get_text() for label in labels if label.get_text().strip()]


def is_a_scale(axes: Axes, which: str) -> bool:
    """Whether numbers stand along an axis: not names one by one, a picture's edge, or the one length that there is."""
    axis = getattr(axes, f"{which}axis")
    named = isinstance(axis.get_major_locator(), FixedLocator) and axis.get_scale() == "linear"
    low, high = axis.get_data_interval()
    return axes.axison and axis.get_visible() and not named and (which == "y" or high > low)


def bare_axes(figure: Figure) -> Iterator[str]:
    """Scales with fewer than two labels, on themselves and on those that share their limits."""
    figure.draw_without_rendering()
    for place, axes in enumerate(figure.axes):
        for which in "xy":
            shared = getattr(axes, f"get_shared_{which}_axes")().get_siblings(axes)
            if is_a_scale(axes, which):
                found = max((written(getattr(one, f"{which}axis")) for one in shared), key=len)
                if len(found) < 2:
                    yield f"axes {place}, {which}: {found}"


def drawn(results: Results, *names: str) -> Iterator[tuple[str, Figure]]:
    """The figures of these names (none: all) that results support."""
    for entry in listed():
        if (entry.name in names or not names) and not drawn_runs(entry, results).runs.empty:
            try:
                yield entry.name, draw(entry, results)[0]
            except NoData:
                continue


def bare(results: Results, *names: str) -> dict[str, list[str]]:
    return {name: found for name, figure in drawn(results, *names) if (found := list(bare_axes(figure)))}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("study", "names"),
    [
        ("residual_rates", ("singular_values", "extrapolation")),
        ("extrapolation_seeds", ("singular_values", "composite_gain")),  # all values within a factor of four
        ("papers_parity", ("task_positions",)),
    ],
)
def test_scales_of_published_figures_have_two_labels(study, names):
    results = load_results(PUBLISHED / study)
    assert {name for name, _ in drawn(results, *names)}
    assert bare(results, *names) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sizes", "rates", "probed"])
def test_scales_of_pretended_runs_have_two_labels(name):
    study, figures = CASES.get(
        name, (probed, ("sinks", "selection", "recurrence", "solver", "attention_profile"))
    )
    assert bare(study(), *figures) == {}


@pytest.mark.long
@pytest.mark.parametrize("study", STUDIES)
def test_scales_of_every_figure_of_every_study_have_two_labels(study):
    assert bare(load_results(PUBLISHED / study)) == {}


def test_a_scale_with_one_label_is_seen():
    axes = Figure().subplots()
    axes.plot([1, 2], [0.9, 1.3])
    axes.set_yscale("log")
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    assert list(bare_axes(axes.figure)) == ["axes 0, y: ['$\\\\mathdefault{10^{0}}$']"]
