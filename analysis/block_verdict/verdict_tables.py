"""Tables of job=verdict, read as files that may come from strangers."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from analysis.errors import ResultsError
from analysis.loading.safe_read import read_text

FOLDER, RECORD = "verdict", "verdict.json"
_TEXTS = ("contract", "case", "reason", "model", "peer", "mode", "machine", "device")
_WHOLE = ("cases", "failed", "skipped", "tokens")
TABLES = {
    "contracts": ("contract", "cases", "failed", "skipped", "case", "reason"),
    "sizes": ("model", "tokens", "parameters_non_embedding", "flops_forward", "state_bytes"),
    "speeds": (
        "model",
        "peer",
        "mode",
        "tokens",
        "milliseconds_median",
        "ratio",
        "ratio_low",
        "ratio_high",
        "machine",
        "device",
    ),
}


class VerdictTables(NamedTuple):
    """The record verdict.json and the tables beside it, empty where a stage has not come yet."""

    record: dict[str, Any]
    contracts: pd.DataFrame
    sizes: pd.DataFrame
    speeds: pd.DataFrame

    @property
    def name(self) -> str:
        """The name of the block that is judged."""
        return self.record["block"]["name"]

    @property
    def models(self) -> list[str]:
        """The names of all models: the transformer, the block, its relative if there is one."""
        return list(self.record["models"])

    @property
    def peers(self) -> list[str]:
        """The models that the block is compared with."""
        return [name for name in self.models if name != self.name]

    @property
    def broken_contracts(self) -> pd.DataFrame:
        """The rows of contracts that were broken."""
        return self.contracts[self.contracts["failed"] > 0]


def read_verdict_tables(results: Path) -> VerdictTables:
    """Read results/NAME/verdict. Raises ResultsError where it is not there, or is damaged."""
    folder = results / FOLDER
    try:
        record = json.loads(read_text(folder, RECORD))
        _ = record["block"]["name"], record["block"]["kind"], list(record["models"])
        return VerdictTables(record, *(_table(folder, name) for name in TABLES))
    except FileNotFoundError as error:
        raise ResultsError(
            f"{results} has no verdict; make one: python run.py job=verdict block=NAME"
        ) from error
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ResultsError(f"{folder} cannot be read: {error}") from error


def _table(folder: Path, name: str) -> pd.DataFrame:
    types = {column: _type(column) for column in TABLES[name]}
    if not (folder / f"{name}.csv").is_file():
        return pd.DataFrame({column: pd.Series(dtype=kind) for column, kind in types.items()})
    frame = pd.read_csv(StringIO(read_text(folder, f"{name}.csv")), dtype=types, keep_default_na=False)
    return frame[list(types)]


def _type(column: str) -> str:
    return "str" if column in _TEXTS else "int64" if column in _WHOLE else "float64"
