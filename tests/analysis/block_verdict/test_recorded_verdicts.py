"""Verdict pages for pretended measurements and runs: every side, every heading, with and without training."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from support import recorded
from support.pretended_runs import TEXT, model, pretended
from support.seen_pages import only_in_markdown, table_lines

from analysis.loading.results import Results
from analysis.verdict_page.findings import TABLES, VerdictTables
from analysis.verdict_page.page import _write, gather

RECORDED = Path(__file__).with_name("recorded")
MODELS = {
    name: {"pattern": letter, "residual": {"name": "add"}, "channel": {"name": "swiglu"}}
    for name, letter in (("transformer", "F"), ("delta", "K"), ("mesa", "M"))
}
RECORD = {
    "block": {"kind": "mixer", "name": "delta", "title": "Delta <rule>", "source": "a paper"},
    "relative": "mesa",
    "models": MODELS,
}
CONTRACTS = [("the future changes nothing", 4, 0, 1, "", ""), ("saved", 2, 0, 0, "", "")]
BROKEN = [
    CONTRACTS[0],
    ("saved", 2, 1, 0, "mixer-delta", "AssertionError: <script>"),
    ("finite", 3, 3, 0, "a", "b"),
]
SIZES = [
    *(
        ("transformer", 256, 1000, 2e6, 4096),
        ("delta", 256, 1001, 1e6, 4100),
        ("mesa", 256, 1000, 0.5e6, 4e4),
    ),
    *(
        ("transformer", 8192, 1000, 9e6, 1e6),
        ("delta", 8192, 1001, 1.1e6, 4100),
        ("mesa", 8192, 1000, 1.1e6, 4059),
    ),
]
SPEEDS = [
    ("delta", "transformer", "prefill", 256, 2.0, 1.4, 1.2, 1.5, "a processor", "cpu"),
    ("delta", "transformer", "decode", 256, 2.123456, 0.9, 0.8, 1.1, "a processor", "cpu"),
    ("delta", "mesa", "a training step", 8192, 1234.5, 0.5, 0.4, 0.6, "another", "cpu"),
    ("delta", "mesa", "decode", 256, 3.0, 1.3, 1.0, 1.5, "another", "cpu"),
]


def tables(contracts=CONTRACTS, sizes=SIZES, speeds=SPEEDS) -> VerdictTables:
    parts = zip((contracts, sizes, speeds), TABLES, strict=True)
    return VerdictTables(RECORD, *(pd.DataFrame(rows, columns=list(TABLES[name])) for rows, name in parts))


def trained(losses: dict[str, list[float]], rates=(1e-3, 3e-3, 1e-2), **more) -> Results:
    patterns = {"transformer": "FFFF", "delta": "KKKK", "mesa": "MMMM"}
    parts = [
        model(name, [loss + 0.1 * abs(place - 1) for loss in values], lr=rate, pattern=patterns[name], **more)
        for name, values in losses.items()
        for place, rate in enumerate(rates[:1] if len(values) == 2 else rates)
    ]
    return pretended(*parts)


CASES = {
    "nothing trained": (tables(), None),
    "condemned": (tables(BROKEN, [], []), None),
    "not yet checked": (tables([], SIZES, []), None),
    "better and worse": (
        tables(speeds=[(*SPEEDS[0][:-1], "cuda")]),
        trained({"transformer": [3.0, 3.01, 3.005], "delta": [2.9, 2.91, 2.92], "mesa": [2.8, 2.81, 2.79]}),
    ),
    "tied and a lead": (
        tables(),
        trained({"transformer": [3.0, 3.01, 3.005], "delta": [3.004, 3.001, 3.01], "mesa": [3.2, 3.21]}),
    ),
    "one seed, two contexts": (tables(), trained({"transformer": [3.0], "delta": [2.9], "mesa": [3.1]})),
    "behind": (
        tables(),
        trained({"transformer": [2.8, 2.81], "delta": [2.9, 2.91], "mesa": [3.1, 3.0, 3.05]}),
    ),
    "a task": (
        tables(),
        pretended(
            model("transformer mqar", [0.5, 0.52, 0.51], data="mqar", seq_len=[16, 32, 16]),
            model("delta mqar", [0.9, 0.92, 0.91], data="mqar"),
            model("delta", [3.0, 3.1], tokens=TEXT["tokens"] * 2),
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_verdict_says_what_it_said(name, tmp_path):
    found, results = CASES[name]
    page = _write(tmp_path, gather(found, results))
    markdown, html = (path.read_text(encoding="utf-8") for path in (tmp_path / "verdict.md", page))
    assert only_in_markdown(markdown, html) == []
    told = [line for line in markdown.splitlines() if line]
    lines = [line for line in told if line.startswith(("-", "#")) or line.endswith(":")]
    recorded.check(
        RECORDED / f"{name.replace(' ', '_').replace(',', '')}.txt", [told[1], *lines, *table_lines(html)]
    )
