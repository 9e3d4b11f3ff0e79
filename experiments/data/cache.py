"""The cache: folders that are made once, whole or not at all, by one process at a time, and facts in JSON files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from experiments.data.config import DataConfig
from experiments.system import locks
from experiments.system.paths import CACHE
from zoo.errors import UserError
from zoo.files import read_json


def content_hash(value: Any, digits: int = 32) -> str:
    """First `digits` hexadecimal digits of the SHA-256 of plain values as canonical JSON (keys sorted, no spaces)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def cache_root(cfg: DataConfig) -> Path:
    """The cache folder that ``cfg`` asks for (it need not exist yet)."""
    place = cfg.cache_dir or os.environ.get("ARCHZOO_CACHE") or CACHE
    return Path(place).expanduser().absolute()


def build_once(
    parent: Path, key: str, build: Callable[[Path], None], problem: Callable[[Path], str | None]
) -> Path:
    """The folder ``parent/key``, after calling ``build(folder)`` to fill it where it is missing or damaged.

    build: writes into the folder it is given, a temporary sibling that is renamed when it is done.
    problem: what is wrong with a finished folder, or None; a damaged one is rebuilt with a warning.

    Processes that ask for the same key at once wait for the first (locks); leftovers of killed ones are removed.
    Raises UserError (path and the system's message) when the folder cannot be written; then nothing is left.
    """
    final = parent / key
    if final.is_dir() and problem(final) is None:
        return final
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with _locked(parent, key):
            if final.is_dir():
                reason = problem(final)
                if reason is None:
                    return final
                warnings.warn(f"cache folder {final} is damaged ({reason}); rebuilding it", stacklevel=2)
            _remove_stale(parent, key)
            _fill(final, build)
    except OSError as error:
        raise UserError(
            f"cannot make the cache folder {final}: {error.strerror or error}"
            f"{f' ({error.filename})' if error.filename else ''}; free some space, or give another folder with "
            "data.cache_dir=... (or the environment variable ARCHZOO_CACHE)"
        ) from error
    return final


def _fill(final: Path, build: Callable[[Path], None]) -> None:
    work = final.with_name(f"{final.name}.tmp-{os.getpid()}")
    old = final.with_name(f"{final.name}.tmp-{os.getpid()}-old")
    try:
        work.mkdir()
        build(work)
        if final.exists():
            os.replace(final, old)
        os.replace(work, final)
    finally:
        for leftover in (work, old):
            shutil.rmtree(leftover, ignore_errors=True)


def _remove_stale(parent: Path, held: str) -> None:
    """Remove temporary folders that no living process writes: those whose lock can be had."""
    for folder in parent.glob("*.tmp-*"):
        key = folder.name.split(".tmp-")[0]
        if key == held:
            shutil.rmtree(folder, ignore_errors=True)
            continue
        with contextlib.suppress(locks.Held), _locked(parent, key, wait=False):
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(parent: Path, key: str, wait: bool = True) -> Iterator[None]:
    """Hold the lock of `key`; the lock file exists only while it is held. Raises Held where wait is False."""
    path = parent / f"{key}.lock"
    message = f"waiting for another process that is preparing {parent / key}"
    with locks.locked(path, message, wait=wait, stream=sys.stderr):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)  # a waiting process opens the path again


def store_fact(path: Path, value: Any) -> None:
    """Write ``value`` as JSON by atomic rename. A cache that cannot be written only costs time: no error."""
    work = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    with contextlib.suppress(OSError):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            work.write_text(json.dumps(value))
            os.replace(work, path)
        finally:
            work.unlink(missing_ok=True)


def load_fact(path: Path, schema: Any = None) -> Any | None:
    """The value that `store_fact` wrote, or None if there is nothing readable of this schema (`zoo.files.fit`)."""
    try:
        return read_json(path, schema)
    except (OSError, ValueError):
        return None
