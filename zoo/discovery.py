"""Importing what lies in a folder, and going on without a file that cannot be imported.

Somebody may be writing a block while others train: a file that is half there takes only itself away.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_left_out: dict[str, str] = {}


class Clash(ValueError):
    """Two files claim one name; newcomer: the class in the file that was written last."""

    def __init__(self, message: str, newcomer: type) -> None:
        super().__init__(message)
        self.newcomer = newcomer


def modules_of(package_name: str) -> list[str]:
    """The full names of a package's modules, in alphabetical order."""
    package = importlib.import_module(package_name)
    return [f"{package_name}.{found.name}" for found in pkgutil.iter_modules(package.__path__)]


def import_error(name: str) -> Exception | None:
    """Import a module; returns what was raised, None where all went well."""
    try:
        importlib.import_module(name)
    except Exception as error:
        return error
    return None


def import_all(package_name: str, forget: Callable[[str], None]) -> None:
    """Import every module of a package, so that what is in it registers itself.

    A module that cannot be imported is left out (`left_out`); of two files that claim one name, the one written last.
    forget: called with the name of a module that is left out, to remove what it had registered.
    """
    for name in modules_of(package_name):
        while error := import_error(name):
            loser = error.newcomer.__module__ if isinstance(error, Clash) else name
            leave_out(loser, error)
            forget(loser)
            if loser == name:
                break


def newest_first(*classes: type) -> list[type]:
    """Classes by when their files were written: the newcomer's came last, in whatever order files are imported."""
    return sorted(classes, key=_written, reverse=True)


def _written(cls: type) -> float:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return Path(file).stat().st_mtime if file else float("inf")


def leave_out(name: str, error: Exception) -> None:
    """Remember that this module could not be imported, and why."""
    _left_out[name] = _describe(error)


def is_left_out(name: str) -> bool:
    """Whether the module could not be imported."""
    return name in _left_out


def left_out(package_name: str = "zoo") -> list[str]:
    """A line for each mistake that kept modules of a package from being imported: file, line, error and modules.

    zoo/mixers/ema.py, line 12: SyntaxError: '(' was never closed (left out until that is mended: zoo.mixers.ema)
    """
    modules: dict[str, list[str]] = {}
    for name, mistake in _left_out.items():
        if name.startswith(f"{package_name}."):
            modules.setdefault(mistake, []).append(name)
    return [
        f"{mistake} (left out until that is mended: {', '.join(names)})" for mistake, names in modules.items()
    ]


def _describe(error: Exception) -> str:
    """`zoo/mixers/ema.py, line 12: NameError: name 'nn' is not defined`."""
    file, line = _place(error)
    path = Path(file)
    shown = path.relative_to(_ROOT) if path.is_relative_to(_ROOT) else path
    message = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return f"{shown}, line {line}: {type(error).__name__}: {message}"


def _place(error: Exception) -> tuple[str, int | None]:
    """File and line of the mistake: in the file whose import failed, not in what it called."""
    # A newcomer that was imported already: the traceback is of the file that it clashed with.
    if isinstance(error, Clash) and error.newcomer.__module__ in sys.modules:
        return inspect.getsourcefile(error.newcomer) or "?", inspect.getsourcelines(error.newcomer)[1]
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if f.name == "<module>" and _is_ours(Path(f.filename))]
    file = (ours or frames)[-1].filename
    return file, [f.lineno for f in frames if f.filename == file][-1]


def _is_ours(file: Path) -> bool:
    return any(file.is_relative_to(_ROOT / room) for room in ("zoo", "experiments"))
