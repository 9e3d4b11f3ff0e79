"""Errors that speak to a person.

`UserError` is a mistake in what the user typed or in a file they named: one line that says what to do. The command
line prints it without a traceback and exits with status 2; everything else is a defect and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake that the user can correct; the message says how."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """`unknown mixer 'kdaa'; did you mean 'kda'? Known: attention, kda`, as an error to raise."""
    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"; did you mean '{close[0]}'?" if close else "."
    return UserError(f"unknown {kind} '{name}'{hint} Known: {', '.join(names)}")
