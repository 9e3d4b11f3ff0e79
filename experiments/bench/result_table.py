"""Bench results as a table on the screen and a CSV file, which may grow row by row and over several runs."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from experiments.bench import timing
from experiments.configuration.schema import Config
from experiments.system import machine
from zoo.files import write_atomic

COLUMNS = [
    "suite",
    "model",
    "backend",
    "mode",
    "device",
    "precision",
    "tokens",
    "batch",
    "milliseconds_median",
    "milliseconds_low",
    "milliseconds_high",
    "ratio",
    "peer",
    "peak_memory_bytes",
    "kept_bytes",
    "flops",
    "bytes",
    "roofline_milliseconds",
    "roofline",
    "recompute",
    "note",
    "machine",
    "torch",
    "commit",
]


def machine_facts(device: torch.device) -> dict[str, Any]:
    """The columns that name device, machine, version of torch and commit of a row."""
    where = machine.describe(device)
    name = where["gpu"] or f"{where['host_cpu']}, {where['threads']} thread(s)"
    return {
        "device": device.type,
        "machine": name,
        "torch": str(torch.__version__),
        "commit": (machine.commit()[0] or "")[:12],
    }


def row(
    suite: str, model: str, milliseconds: list[float], peer: float, device: torch.device, **more: Any
) -> dict[str, Any]:
    """A measured row at batch 1; peer: the median milliseconds that `ratio` compares with (above 1: faster)."""
    times = timing.summary(milliseconds)
    ratio = peer / times["milliseconds_median"]
    return {
        "suite": suite,
        "model": model,
        "batch": 1,
        **times,
        "ratio": ratio,
        **machine_facts(device),
        **more,
    }


def note_row(suite: str, model: str, note: str, device: torch.device, **more: Any) -> dict[str, Any]:
    """A row without a time, and a note with the reason."""
    return {"suite": suite, "model": model, "note": note, **machine_facts(device), **more}


def table_path(config: Config) -> Path:
    """The path of the configured suite's table."""
    return Path(config.bench.out or f"{config.results}/bench") / f"{config.suite}.csv"


def write(rows: list[dict[str, Any]], path: Path, columns: Sequence[str] = COLUMNS) -> None:
    """Write rows as CSV, whole or not at all, and print the path."""
    save(rows, path, columns)
    print(f"table: {path}")


def save(rows: list[dict[str, Any]], path: Path, columns: Sequence[str] = COLUMNS) -> None:
    """Write rows as CSV, whole or not at all: of a table that grows while a suite runs."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: _rounded(v) for k, v in row.items()} for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.getvalue())


@dataclass(frozen=True)
class Cell:
    """A unit of measuring: the columns that name it, and a function that returns its rows, one or more."""

    names: dict[str, Any]
    measure: Callable[[], list[dict[str, Any]]]


def failure_reason(error: Exception) -> str:
    """The reason of a failure in a line; of a backend that refuses, its message."""
    text = " ".join(str(error).split())
    refused = text.partition("cannot serve this call: ")[2].partition("; those that can")[0]
    return refused or f"{type(error).__name__}: {text}"[:200]


def is_fatal(error: Exception) -> bool:
    """Return whether the GPU can be used no more by this process."""
    return any(words in str(error) for words in ("CUDA error", "illegal memory access", "device-side assert"))


class Crashed(RuntimeError):
    """A measurement broke the device for this process; `rows` holds the rows so far, the failure included."""

    def __init__(self, message: str, rows: list[dict[str, Any]]) -> None:
        super().__init__(message)
        self.rows = rows


class ResumableTable:
    """A table in a file that grows cell by cell: a cell that has rows there is not measured again.

    Rows of another commit, machine or version of torch are, and go when the first new ones come.
    """

    def __init__(self, config: Config, device: torch.device, columns: Sequence[str] = COLUMNS) -> None:
        self.path, self.columns = table_path(config), columns
        self.rows: list[dict[str, Any]] = []
        here = {key: str(value) for key, value in machine_facts(device).items()}
        if self.path.is_file():
            reader = csv.DictReader(self.path.read_text(encoding="utf-8", errors="replace").splitlines())
            self.rows = [row for row in reader if all(row.get(k) == v for k, v in here.items())]

    def unmeasured(self, cells: Iterable[Cell]) -> list[Cell]:
        """The cells that have no row yet."""
        return [cell for cell in cells if not self.find(**cell.names)]

    def find(self, **names: Any) -> list[dict[str, Any]]:
        """The rows with these values."""
        return [row for row in self.rows if all(str(row.get(k, "")) == str(v) for k, v in names.items())]

    def fill(self, cells: Iterable[Cell], budget_s: float, title: str) -> None:
        """Measure the cells that have no row yet, until the time is used up."""
        left, deadline = self.unmeasured(cells), time.monotonic() + budget_s
        for cell in tqdm(left, desc=title, unit="cell"):
            if time.monotonic() > deadline:
                tqdm.write(f"bench.budget_s={budget_s:g} is used up; the same command measures what is left")
                break
            try:
                self._add(cell.measure())
            except Crashed as crash:
                self._add(crash.rows)
                raise

    def _add(self, rows: list[dict[str, Any]]) -> None:
        self.rows += rows
        save(self.rows, self.path, self.columns)


def format_row(row: dict[str, Any]) -> str:
    """A row as a line for the terminal."""
    start = f"{row['tokens']:>7} tokens  {row['model']:<22} {row.get('backend', ''):<10} {row.get('mode', ''):<17} "
    if row.get("note"):
        return f"{start} {row['note']}"
    ratio = f"  {row['ratio']:.2f}x" if row.get("ratio") else ""
    against = f" {row['peer']}" if row.get("peer") else ""
    share = f"  {100 * row['roofline']:.0f} % of the roofline" if row.get("roofline") else ""
    return (
        f"{start}{row['milliseconds_median']:10.3f} ms  "
        f"({row['milliseconds_low']:.3f} to {row['milliseconds_high']:.3f}){ratio}{against}{share}"
    )


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value
