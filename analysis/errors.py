"""Errors of analysis."""

import difflib
from collections.abc import Iterable


class ResultsError(ValueError):
    """Raised for a results folder that cannot be used; the message says what is wrong and what to do."""


class NoData(Exception):
    """Raised where results lack the data that a figure draws; the message gives the reason and replaces the figure."""


def unknown(kind: str, name: str, known: Iterable[str]) -> ResultsError:
    """Return `no figure 'curves'; did you mean 'task_curves'? There are ...`, as an error to raise."""
    names = list(known)
    close = difflib.get_close_matches(str(name), names, n=1)
    meant = f"did you mean '{close[0]}'? There" if close else "there"
    return ResultsError(f"no {kind} '{name}'; {meant} are {', '.join(names)}")
