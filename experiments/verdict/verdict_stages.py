"""The measurements of a verdict beside training, each done once: tables in results/NAME/verdict, and their record."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.configuration.schema import Config
from experiments.parallel.group import pick_device
from experiments.planning.identity import file_hash
from experiments.system import machine
from experiments.verdict import contracts, measurements
from zoo import registry
from zoo.config import ModelConfig
from zoo.errors import UserError
from zoo.files import write_atomic, write_json

FOLDER, RECORD = "verdict", "verdict.json"
Rows = list[dict[str, Any]]


def open_verdict(config: Config, block: registry.Block, models: dict[str, ModelConfig]) -> Path:
    """The folder results/NAME/verdict, made with its record verdict.json; the one that is there where it is the same.

    The record says which block is judged, which models and lengths, the hash of the block's file, and the machine.
    Raises UserError where the folder holds the verdict on another block, or on this one before its file was changed.
    """
    folder = Path(config.results) / config.name / FOLDER
    names = list(models)
    deciding = {
        "block": {"kind": block.kind, "name": block.name, "title": block.title, "source": block.source},
        "relative": names[2] if len(names) > 2 else None,
        "file": file_hash(block),
        "models": {name: dataclasses.asdict(model) for name, model in models.items()},
        "lengths": config.verdict.lengths,
        "match": config.match,
    }
    deciding = json.loads(json.dumps(deciding))
    path = folder / RECORD
    if path.is_file():
        before = _read(path)
        off = [key for key, value in deciding.items() if before.get(key) != value]
        if off:
            raise UserError(
                f"{folder} holds a verdict made with another {' and '.join(off)}; give name=... for a new one, or "
                "remove that folder and the runs beside it"
            )
        return folder
    device = pick_device(config.device)  # before there is a folder: it refuses a device that is not there
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, deciding | {"machine": machine.describe(device), "commit": machine.commit()[0]})
    return folder


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} cannot be read ({error}); remove its folder to measure again") from error
    return data if isinstance(data, dict) else {}


def check_contracts(folder: Path, block: registry.Block) -> Rows:
    """The rows of contracts.csv (`contracts.run_contracts`)."""
    return _once(folder / "contracts.csv", contracts.COLUMNS, lambda: contracts.run_contracts(block))


def measure_sizes(folder: Path, config: Config, models: dict[str, ModelConfig]) -> Rows:
    """The rows of model_sizes.csv (`measurements.size_rows`), at all lengths."""
    lengths = config.verdict.lengths
    return _once(
        folder / "sizes.csv",
        measurements.COLUMNS,
        lambda: [row for length in lengths for row in measurements.size_rows(config, models, length)],
    )


def measure_speeds(folder: Path, config: Config, models: dict[str, ModelConfig]) -> Rows:
    """The rows of speeds.csv (`measurements.speed_rows`), at all lengths."""
    lengths = config.verdict.lengths
    return _once(
        folder / "speeds.csv",
        measurements.SPEED_COLUMNS,
        lambda: [
            row
            for length in lengths
            for mode in measurements.MODES
            for row in measurements.speed_rows(config, models, length, mode)
        ],
    )


def _once(path: Path, columns: Sequence[str], measure: Callable[[], Rows]) -> Rows:
    """The rows of a table, measured and written where it is not there; always as they are read, all text."""
    if not path.is_file():
        out = io.StringIO()
        writer = csv.DictWriter(out, columns, lineterminator="\n", extrasaction="ignore", restval="")
        writer.writeheader()
        writer.writerows(measure())
        write_atomic(path, out.getvalue())
    with path.open(encoding="utf-8", newline="") as rows:
        return list(csv.DictReader(rows))
