"""Finding parquet files, as the public WikiText repository lays them out; `tables` reads them."""

from __future__ import annotations

from pathlib import Path

from experiments.data.sources.base import expand_glob
from zoo.errors import UserError


def find_parquet(place: str, option: str) -> list[Path]:
    """Parquet files that a file, a folder or a glob names, sorted. Raises UserError if there are none."""
    path = Path(place).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        files = sorted(path.glob("*.parquet"))
    else:
        files = sorted(file for file in expand_glob(place) if file.is_file())
    if not files:
        raise UserError(
            f"data.{option}={place}: no parquet file there; give a file, a folder of *.parquet or a glob"
        )
    return files
