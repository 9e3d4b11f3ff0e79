"""Layouts of the same mixers ranked by loss, each drawn as a strip of letters."""

from __future__ import annotations

import json

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import is_color_like, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from analysis.comparing.tables import ranking_metric
from analysis.figure_entry import TEXT, Entry
from analysis.figures.comparison import AXIS
from analysis.files import NoData
from analysis.loading.columns import RATES, SETTING_COLUMNS, layers_of
from analysis.loading.probes import best_rates
from analysis.loading.results import Results
from analysis.plotting.axes import draw_interval, row_axis
from analysis.plotting.style import (
    FAINT,
    legend_below,
    panels,
    provenance_text,
    rates_text,
    styled,
    table_styles,
    test_set_text,
)

FIGURES = (
    Entry(
        "layout_ranking",
        "Layouts, ranked",
        needs=("runs.test_loss", "runs.pattern"),
        section="Quality",
        place=70,
        of=TEXT,
        compares=True,
    ),
)

COLUMNS = (
    "run",
    "group",
    "label",
    "color",
    "seed",
    "rates",
    "pattern",
    "letters",
    "metric",
    "value",
    "training_set",
    "test_set",
)
SAME = [name for name in SETTING_COLUMNS if name not in (*RATES, "preset", "layout", "pattern")]
LONGEST = 36
"""Letters of a label that stand side by side over a strip; a longer one is written smaller."""
LETTERED = 28
"""Letters are written into strips of so many layers; in longer ones they would touch."""


def table(results: Results) -> pd.DataFrame:
    """Make the table: one row per run of a group of layouts, best layout first.

    A group is the runs of one preset in two patterns or more, equal in all else, with the runs of other presets that
    use only letters of these patterns, such as the dense baseline of a sparse model. letters: colour by letter (JSON).
    Raises NoData without such a group.
    """
    runs, metric = best_rates(results), ranking_metric(results.runs)
    runs = runs[runs[metric].notna()]
    found = [_rows(group, name) for name, group in _groups(runs)]
    if not found:
        raise NoData(
            "no preset was tested in two layouts or patterns; run experiment=layouts or sweep model.pattern"
        )
    rows = pd.concat(found).assign(metric=metric)
    rows["value"] = rows[metric]
    rows["place"] = rows.groupby(["group", "label"])["value"].transform("mean")
    rows = rows.sort_values(["group", "place", "label", "seed"])
    return rows[list(COLUMNS)].reset_index(drop=True)


def _groups(runs: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    found = []
    for _, equal in runs.groupby(SAME, dropna=False, sort=False):
        for preset, own in equal.groupby("preset"):
            if own["pattern"].nunique() > 1:
                letters = set().union(*own["pattern"].map(layers_of))
                inside = equal["pattern"].map(
                    lambda text, letters=letters: letters.issuperset(layers_of(text))
                )
                found.append((preset, equal[inside | (equal["preset"] == preset)]))
    names = pd.Series([name for name, _ in found])
    return [
        (f"{name} ({n + 1})" if (names == name).sum() > 1 else name, group)
        for n, (name, group) in enumerate(found)
    ]


def _rows(group: pd.DataFrame, name: str) -> pd.DataFrame:
    colors = {
        block["letter"]: block
        for text in group["blocks"]
        for block in json.loads(text)
        if block.get("letter")
    }
    known = {
        letter: [block.get("title", ""), block.get("color", "")] for letter, block in sorted(colors.items())
    }
    return group.assign(group=name, letters=json.dumps(known))


@styled
def draw(table: pd.DataFrame) -> Figure:
    """Draw each group's layouts from the best on: strip and name left, loss with its interval right."""
    groups = list(dict(tuple(table.groupby("group", sort=False))).values())
    counts = [group["label"].nunique() for group in groups]
    figure, axes = panels(
        len(groups), 2, 1, width_ratios=(3, 2), height_ratios=[count + 1.5 for count in counts]
    )
    figure.set_figheight(sum(0.42 * count + 1.15 for count in counts) + 0.25)
    for group, (left, right) in zip(groups, axes, strict=True):
        styles = table_styles(group)
        layouts = group.drop_duplicates("label")
        depth, colors = layouts["pattern"].map(layers_of).map(len).max(), json.loads(group["letters"].iloc[0])
        for height, row in enumerate(layouts.itertuples()):
            _strip(left, height, row.label, row.pattern, colors, depth)
            draw_interval(
                right, height, group.loc[group["label"] == row.label, "value"], styles[row.label], row.label
            )
        for each in (left, right):
            row_axis(each, len(layouts))
        left.set(xlim=(0, depth), xlabel="layers, from the first on")
        left.set_xticks([0.5, depth - 0.5], ["1", str(depth)])
        left.grid(False)
        left.spines[:].set_visible(False)
        left.tick_params(length=0)
        left.set_title(f"layouts of {group['group'].iloc[0]}")
        right.locator_params(axis="x", nbins=4)
        right.set_xlabel(AXIS[group["metric"].iloc[0]])
    legend_below(figure, _legend(table))
    return figure


def _strip(
    axes: Axes, height: int, label: str, pattern: str, colors: dict[str, list[str]], depth: int
) -> None:
    """Draw the label and, below it, a coloured cell for each layer."""
    size = 9 * min(1, LONGEST / len(label))
    axes.text(0, height - 0.2, label, fontsize=size, va="bottom").set_in_layout(False)
    for layer, letter in enumerate(layers_of(pattern)):
        color = _color(colors, letter)
        axes.add_patch(
            Rectangle((layer, height - 0.16), 1, 0.44, facecolor=color, edgecolor="white", linewidth=0.8)
        )
        if depth <= LETTERED and len(letter) == 1:
            ink = "white" if sum(to_rgb(color)) < 1.4 else "black"
            axes.text(layer + 0.5, height + 0.07, letter, fontsize=8, ha="center", va="center", color=ink)


def _color(colors: dict[str, list[str]], letter: str) -> str:
    color = colors.get(letter, ["", ""])[1]
    return color if is_color_like(color) else FAINT


def _legend(table: pd.DataFrame) -> list[Line2D]:
    """Return a coloured square as legend entry for each letter that occurs."""
    known = {
        letter: block for text in table["letters"].unique() for letter, block in json.loads(text).items()
    }
    used = sorted(set().union(*table["pattern"].map(layers_of)))
    square = {"linestyle": "none", "marker": "s", "markersize": 8}
    return [
        Line2D(
            [],
            [],
            color=_color(known, letter),
            label=f"{letter} {known.get(letter, [''])[0]}".strip(),
            **square,
        )
        for letter in used
    ]


def caption(table: pd.DataFrame) -> str:
    """Give the ranking in words, and name the seeds and the text."""
    told = []
    for name, group in table.groupby("group", sort=False):
        means = group.groupby("label", sort=False)["value"].mean()
        gap = means.iloc[-1] - means.iloc[0]
        told.append(f"{name}: {means.index[0]} is best of {len(means)}, {means.index[-1]} last by {gap:.4f}")
    lone = (table.groupby("label")["seed"].nunique() == 1).all()
    dots = (
        "Dots: the run's value (one seed: no interval)"
        if lone
        else "Dots: mean over seeds; lines: 95 % interval (Student t); ticks: the single seeds"
    )
    return (
        f"Each square is a layer, named by its mixer's letter. {dots}. {'; '.join(told)}.{rates_text(table)} "
        f"{provenance_text(table)} {test_set_text(table)}"
    )
