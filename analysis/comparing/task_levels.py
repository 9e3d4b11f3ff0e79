"""What accuracies of a synthetic task are to be read beside: chance, and copying without reading a key."""

from __future__ import annotations

import pandas as pd

MARGIN = 0.01
"""Copying counts from so much above chance: two standard errors of 10,000 answers, and what a figure can show."""


def has_shortcut(chance: float, shortcut: float) -> bool:
    """Whether copying from a fixed spot gets more right than chance by MARGIN; not where it was not measured."""
    return pd.notna(shortcut) and shortcut - chance >= MARGIN


def levels_text(chance: float, shortcut: float, digits: str = ".3f") -> str:
    """Name both levels, "chance 0.031, copying 0.381"; chance alone where copying gets no more."""
    told = f"chance {chance:{digits}}"
    return told + (f", copying {shortcut:{digits}}" if has_shortcut(chance, shortcut) else "")
