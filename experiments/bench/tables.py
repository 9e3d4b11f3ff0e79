"""Bench results as a table on the screen and a CSV file."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import torch

from experiments import machine
from experiments.bench import timing
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
    "peak_memory_bytes",
    "machine",
    "torch",
    "commit",
]


def facts(device: torch.device) -> dict[str, Any]:
    """The columns that say where a row was measured."""
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
    return {"suite": suite, "model": model, "batch": 1, **times, "ratio": ratio, **facts(device), **more}


def write(rows: list[dict[str, Any]], path: Path) -> None:
    """Write rows as CSV, whole or not at all."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: _rounded(v) for k, v in row.items()} for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.getvalue())
    print(f"table: {path}")


def line(row: dict[str, Any]) -> str:
    """One measured row for the screen."""
    ratio = f"  {row['ratio']:.2f}x" if row.get("ratio") else ""
    return (
        f"{row['tokens']:>7} tokens  {row['model']:<22} {row.get('backend', ''):<10} {row.get('mode', ''):<17} "
        f"{row['milliseconds_median']:10.3f} ms  "
        f"({row['milliseconds_low']:.3f} to {row['milliseconds_high']:.3f}){ratio}"
    )


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value
