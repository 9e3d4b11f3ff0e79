"""Formats of numbers and texts over a grid of values: units, lengths, bytes, labels, Markdown, LaTeX, tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.colors import to_hex
from support import recorded
from support.pretended_runs import TASK, TEXT

from analysis import files
from analysis.comparing.tables import interval_text
from analysis.evidence.ledger.page import number_text
from analysis.figure_entry import Entry, report_order
from analysis.files import word
from analysis.loading.columns import (
    METRIC_COLUMNS,
    RUN_COLUMNS,
    blocks,
    labels,
    markdown,
    noun,
    nouns,
    plural,
    short_names,
)
from analysis.loading.probes import mutual_information
from analysis.loading.results import TABLES
from analysis.loading.tables import architectures, series_names, task_names
from analysis.plotting import axes, sentence_maps, sketches, style
from analysis.report import latex
from analysis.report import markdown as pages

RECORDED = Path(__file__).with_name("recorded")
NUMBERS = (
    *(
        0.0,
        1e-9,
        0.00123456,
        0.5,
        0.99949,
        0.9996,
        1,
        9.9949,
        9.9951,
        9.99949,
        10,
        99.94,
        99.96,
        100,
        123.456,
        999.4,
        999.6,
    ),
    *(
        1000,
        1023,
        1024,
        1536,
        4096,
        9994,
        65536,
        123456,
        999499,
        999600,
        1e6,
        1048576,
        5e6,
        1e7,
        12345678,
        1e9,
        2**30,
        7.7e12,
    ),
    *(
        2**40,
        3e15,
        -0.5,
        -3,
        -12345,
        59.94,
        59.96,
        60,
        3599.4,
        3600,
        5400,
        -1,
        -0.9999,
        -0.99999,
        math.nan,
        math.inf,
        -math.inf,
    ),
)
FORMATS = {
    **{
        one.__name__: one
        for one in (files.number, files.whole, files.engineering, files.memory, files.percent)
    },
    **{one.__name__: one for one in (files.deviation, files.duration, number_text)},
    "bytes": axes.bytes_text,
    "length": lambda value: axes._length(value, None),
}
TEXTS = (
    *(
        "plain",
        "a_b*c`d`",
        "<b>&amp;",
        "x | y",
        "$5 #1 100%",
        "[link](url) !",
        "a\nb\t c",
        "\\ ~ ^ {x}",
        "α ≤ β² − 3 × 10⁻⁵",
        "É ½ …",
    ),
    *(
        "“q” – —",
        "\x1b[31m",
        "a\u200bb",
        " lead",
        "trail  ",
        "  ",
        "\n",
        "日本",
        "```",
        "averyverylongtoken",
        "a$b",
        "…",
        "= ${x}, 'q'",
    ),
)


def formatted(form, value) -> str:
    try:
        return str(form(value))
    except (ValueError, OverflowError) as error:
        return type(error).__name__


def test_numbers():
    lines = [
        f"{value:.9g}: " + " | ".join(f"{name} {formatted(form, value)}" for name, form in FORMATS.items())
        for value in NUMBERS
    ]
    for size, half in (
        (0.1, 0.03),
        (0.0301, 0.03),
        (0.03, 0.0301),
        (1.2, 0.0),
        (0.0, 0.0),
        (5, 12.7),
        (1e-9, 1e-9),
        (0.12346, 0.12345),
        (300, 250),
    ):
        decimals = files.difference_decimals(size, half)
        lines.append(
            f"{size} ± {half}: {decimals} {files.signed(-size, decimals)} {interval_text(size, half)}"
        )
    lines += [
        files.listing(list("abcdefghij")[:count], limit)
        for count in (0, 1, 2, 3, 8, 9, 10)
        for limit in (1, 3, 8)
    ]
    lines.append(interval_text(1234.5678, math.nan))
    recorded.check(RECORDED / "numbers.txt", [line.replace(",", ";") for line in lines])


def test_texts():
    lines = []
    for text in TEXTS:
        lines.append(
            f"{text!r}: md {pages.escape(text)!r} tex {latex.escape(text)!r} visible {files.visible(text)!r} "
        )
        token = sentence_maps.token_label
        lines.append(f"  pictured {files.pictured(text)!r} token {token(text)!r} {token(text, 4)!r}")
        color = style.series_styles([(text, None)])[text].color
        lines.append(f"  word {word('runs', text)} fenced {pages.fenced(text, 'yaml')!r} {color}")
    recorded.check(RECORDED / "texts.txt", lines)


def test_labels_and_tasks():
    rows = [
        {**TEXT, "name": "kda relu", "lr": 1e-3, "setting": "s1xxxxxx", "sweep": "w1"},
        {**TEXT, "name": "kda relu", "lr": 3e-3, "setting": "s2xxxxxx", "sweep": "w1"},
        {**TEXT, "name": "kda relu", "lr": 3e-3, "setting": "s3xxxxxx", "sweep": "w2"},
        {**TEXT, "name": "mla relu", "depth": 8, "pattern": "F" * 8, "setting": "s4", "sweep": "w4"},
        {**TEXT, "name": "mla relu", "setting": "s5", "sweep": "w5", "clip": None},
        {**TASK, "name": "kda mqar", "setting": "s6", "sweep": "w6"},
        {
            **TASK,
            "name": "kda mqar",
            "training_set": "mqar (length 16, pairs 8)",
            "setting": "s7",
            "sweep": "w7",
        },
        {
            **TASK,
            "name": "kda flip",
            "data": "flip",
            "training_set": "flip (odd 1, 2, even 3)",
            "setting": "s8",
            "sweep": "w8",
        },
    ]
    runs = (
        pd.DataFrame(rows)
        .assign(preset="p", layout=None)
        .assign(pattern=lambda frame: frame["pattern"].fillna("FFFF") if "pattern" in frame else "FFFF")
    )
    runs["task"] = task_names(runs)
    parts = {
        "labels": labels(runs, "setting"),
        "sweeps": labels(runs, "sweep", ("lr", "lr_min")),
        "tasks": runs["task"],
    }
    parts |= {
        "within": labels(runs, "setting", within="training_set"),
        "architectures": architectures(runs),
        "series": series_names(runs),
    }
    lines = [
        f"{name} {place}: {value if pd.notna(value) else None}"
        for name, values in parts.items()
        for place, value in enumerate(values)
    ]
    for names in (
        ["a x", "b x"],
        ["a x", "b x y"],
        ["a", "b x"],
        ["a x"],
        ["a x z", "b z x"],
        ["a x", "a y"],
    ):
        lines.append(f"{names} -> {list(short_names(pd.Series(names)))}")
    lines += [plural(one) for one in ("memory", "timeline", "expert", "key")]
    described = pd.DataFrame(
        {"blocks": ['[{"name": "a", "mask": "memories"}, {"name": "b", "choice": "door"}, 3]', None, "[]"]}
    )
    lines += [
        str(blocks(described)),
        str(nouns(described)),
        noun({}),
        noun({"mask": "timeline"}),
        noun({"mask": "recurrent"}),
    ]
    recorded.check(RECORDED / "labels.txt", lines)


def test_captions_styles_and_orders():
    table = pd.DataFrame(
        {
            "seed": [1, 0, None, 1],
            "label": ["a", "b", "a", "c"],
            "run": ["r", "s", "t", None],
            "training_set": ["x", "y", None, "x"],
            "test_set": ["t"] * 4,
            "split": ["test", None, "validation", "test"],
            "given": ["The dog", None, "A" * 200, "The dog"],
            "rates": [1, 2, 1, 1],
        }
    )
    told = (
        style.provenance_text,
        style.test_set_text,
        style.split_text,
        style.sentence_text,
        style.rates_text,
    )
    told += (style.labels_with_data, style.band_text, style.dots_text)
    parts = (
        table,
        table.iloc[[1]],
        table.iloc[[0, 3]],
        table.assign(split=None, given=None, rates=1, seed=None),
    )
    lines = [f"{one.__name__}: {one(part)}" for part in parts for one in told]
    lines += [style.absent_text(table, "None of"), style.absent_text(table.iloc[:2], "None of")]
    names = [
        ("dense", "#0072b2"),
        *((f"m{n}", "#d55e00") for n in range(5)),
        *((f"y{n}", "#f0e442") for n in range(4)),
        ("none", None),
        ("dense †", "x"),
    ]
    lines += [f"{label}: {found}" for label, found in style.series_styles(names).items()]
    for choices in ([0, 1, 2], [0, 9], [*range(12), 11, 10], [3]):
        colors = style.choice_colors(pd.Series(choices))
        patches = style.choice_legend(colors, "door")
        lines.append(
            f"{choices}: {colors} {[(one.get_label(), to_hex(one.get_facecolor())) for one in patches]}"
        )
    for mask, own in (
        ("causal", None),
        ("odd", None),
        ("none", '[["x"], [["a", 1], "b"], ["y"]]'),
        ("none", "[[]]"),
        ("none", '[["x"]]'),
        ("memories", '[["x"], [["a", 9]]]'),
    ):
        lines.append(f"{mask} {own}: {sketches.path(mask, own)}")
    entries = [
        Entry(name, name, section=section, place=place)
        for name, section, place in (
            ("a", "", 1),
            ("b", "Cost", 2),
            ("c", "Cost", 1),
            ("d", "New", 1),
            ("e", "Tasks", 9),
            ("f", "Cost", 1),
        )
    ]
    lines += [one.name for one in report_order(entries)]
    choices, kinds = np.array([0, 0, 1, 1, 2]), np.array([0, 1, 0, 1, 2])
    lines += [
        recorded.number(mutual_information(choices, kinds, counts))
        for counts in (None, np.array([4, 1, 1, 4, 3]))
    ]
    recorded.check(RECORDED / "captions.txt", lines)


def named(columns: tuple) -> Iterator[str]:
    """Name, type and unit of each column of a table that tells what every one means."""
    for line in markdown(columns).splitlines()[2:]:
        *told, meaning = re.split(r"(?<!\\)\|", line)[1:-1]
        assert meaning.strip(), line
        yield " ".join(cell.strip(" `") for cell in told)


def test_columns():
    lines = ["# runs", *named(RUN_COLUMNS), "# metrics", *named(METRIC_COLUMNS), "# sources"]
    lines += [
        f"{one.name} from {one.source} {'optional' * one.optional} {'setting' * one.setting}"
        for one in RUN_COLUMNS
    ]
    for name, columns in TABLES.items():
        lines += [f"# {name}", *named(columns), " ".join(one.name for one in columns if one.optional)]
    recorded.check(RECORDED / "columns.txt", lines)


def test_masks_of_mixers():
    """A line a query: for each key its group, and how strong it is, in tenths; of keys out of reach nothing."""
    lines = []
    for name in (*sketches.PATTERNS, "unknown"):
        lines.append(f"# {name}")
        found: dict[int, list[str]] = {}
        for query, _, strength, group in sketches.cells(name):
            found.setdefault(query, []).append("." if strength == 0 else f"{group}:{10 * strength:.4f}")
        lines += [" ".join(row) for row in found.values()]
    recorded.check(RECORDED / "masks.txt", lines)
