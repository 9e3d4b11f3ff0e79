"""The figures of a report: which there are (figures.toml), which these results support, and why not the others."""

from __future__ import annotations

import base64
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.columns import RUN_COLUMNS
from analysis.errors import NoData
from analysis.files import write_atomically
from analysis.probes import TABLES, advice
from analysis.results import Results
from analysis.style import save

LIST = Path(__file__).with_name("figures.toml")


@dataclass(frozen=True)
class Entry:
    """A line of figures.toml."""

    name: str
    family: str
    title: str
    needs: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Exhibit:
    """A figure of these results, or the reason why there is none. source: the SVG as a data URL; runs: those drawn."""

    name: str
    title: str
    caption: str = ""
    source: str = ""
    missing: str = ""
    runs: tuple[str, ...] = ()


def listed(path: Path = LIST) -> list[Entry]:
    """All figures there are, in the order of a report."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["figure"]
    return [Entry(**{**entry, "needs": tuple(entry["needs"])}) for entry in entries]


def exhibits(results: Results, folder: Path) -> list[Exhibit]:
    """Draw every figure that the results support into ``folder``, as NAME.svg, .png and .csv (what it draws)."""
    return [exhibit(entry, results, folder) for entry in listed()]


def exhibit(entry: Entry, results: Results, folder: Path) -> Exhibit:
    """One figure, or why it is missing."""
    module = import_module(f"analysis.figures.{entry.family}")
    try:
        for need in entry.needs:
            require(need, results)
        table: pd.DataFrame = module.table(results, **entry.options)
    except NoData as reason:
        return Exhibit(entry.name, entry.title, missing=str(reason))
    svg, _ = save(module.draw(table, **entry.options), folder / entry.name)
    write_atomically(folder / f"{entry.name}.csv", partial(table.to_csv, index=False))
    encoded = base64.b64encode(svg.read_bytes()).decode()
    return Exhibit(
        entry.name,
        entry.title,
        module.caption(table, **entry.options),
        f"data:image/svg+xml;base64,{encoded}",
        runs=tuple(table["run"].dropna().unique()) if "run" in table else (),
    )


def require(need: str, results: Results) -> None:
    """Raise NoData with what to do if the results lack what a figure needs."""
    kind, _, name = need.partition(".")
    _CHECKS[kind](name, results)


def _runs(name: str, results: Results) -> None:
    if results.runs[name].isna().all():
        meaning = next(column.meaning for column in RUN_COLUMNS if column.name == name)
        raise NoData(f"no run recorded {name} ({meaning})")


def _metrics(name: str, results: Results) -> None:
    if name not in results.metrics or results.metrics[name].isna().all():
        raise NoData(f"no run has {name} in its metrics.csv")


def _measures(name: str, results: Results) -> None:
    if not (results.table("measures")["measure"] == name).any():
        raise NoData(f"no run has the measure {name}; {advice(results.runs)}")


def _table(name: str, results: Results) -> None:
    if name not in TABLES:
        raise KeyError(f"probes write {', '.join(TABLES)}, not '{name}'")
    if results.table(name).empty:
        raise NoData(f"no run has probes/{name}.parquet; {advice(results.runs)}")


def _bench(name: str, results: Results) -> None:
    if results.bench(name) is None:
        raise NoData(f"unmeasured: no {name} in these results or in a folder published/ beside them")


_CHECKS: dict[str, Callable[[str, Results], None]] = {
    "runs": _runs,
    "metrics": _metrics,
    "measures": _measures,
    "table": _table,
    "bench": _bench,
}
