"""Colours of what a router chooses: timelines, memories, experts."""

from __future__ import annotations

import pandas as pd

from analysis.plotting.style import PALETTE


def choice_colors(choices: pd.Series) -> dict[int, str]:
    """Return a colour for each choice; beyond the palette, rare choices share the last colour."""
    found = sorted(int(choice) for choice in choices.unique())
    if len(found) > len(PALETTE):
        common = [int(choice) for choice in choices.value_counts().index]
        found = [*sorted(common[: len(PALETTE) - 1]), *sorted(common[len(PALETTE) - 1 :])]
    return {choice: PALETTE[min(place, len(PALETTE) - 1)] for place, choice in enumerate(found)}
