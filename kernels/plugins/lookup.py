"""Functions of libraries that may be absent or broken: imported where they are first needed, with a reason if not."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

ABSENT = "is not installed"


@functools.cache
def look_up(module: str, name: str | None = None) -> tuple[Any, str | None]:
    """A function of a library, or where no name is given its module, and None; else None and why it cannot be had.

    The reason goes on from the module's name: ABSENT, or what its import says, as a library that is installed may lack
    a compiled part of its own or a package that it needs.
    """
    try:
        found = importlib.import_module(module)
        # A folder without a file of its own is what another package of that name space left there.
        if (name is None or not hasattr(found, name)) and getattr(found, "__file__", None) is None:
            return None, ABSENT
        return (found, None) if name is None else (getattr(found, name), None)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            return None, ABSENT
        return None, _failed(error)
    except AttributeError as error:
        return None, f"has no {name}" if error.name == name else _failed(error)
    except Exception as error:  # whatever the code of a library raises when it starts
        return None, _failed(error)


def first_of(*places: tuple[str, str]) -> tuple[Callable | None, str | None]:
    """Of several (module, function), as versions of a library have it, the first that can be had; else why none can."""
    reasons = []
    for module, name in places:
        found, why = look_up(module, name)
        if why is None:
            return found, None
        reasons.append(f"{module} {why}")
    return None, "; ".join(reasons)


def _failed(error: Exception) -> str:
    """An error of an import on one line."""
    lines = str(error).splitlines() or [""]
    return f"cannot be imported ({type(error).__name__}: {lines[0]})"
