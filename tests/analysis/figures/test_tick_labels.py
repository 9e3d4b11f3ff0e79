"""Every axis that is a scale has two numbers at least: one tells nothing of how far apart things are."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator
from test_recorded_figures import CASES, probed

from analysis import load_results
from analysis.files import NoData
from analysis.gallery import draw, drawn_runs, listed
from analysis.loading.results import Results

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
