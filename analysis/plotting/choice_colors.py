"""Colours of what a router chooses: timelines, memories, experts."""

from __future__ import annotations

import pandas as pd
from matplotlib.patches import Patch

from analysis.plotting.style import PALETTE


def choice_colors(choices: pd.Series) -> dict[int, str]:
    """Return a colour for each choice, the same in all figures; beyond the palette, rare choices share the last."""
    found = sorted(int(choice) for choice in choices.unique())
    if found and found[-1] < len(PALETTE):
        return {choice: PALETTE[choice] for choice in found}
    if len(found) > len(PALETTE):
        common = [int(choice) for choice in choices.value_counts().index]
        found = [*sorted(common[: len(PALETTE) - 1]), *sorted(common[len(PALETTE) - 1 :])]
    return {choice: PALETTE[min(place, len(PALETTE) - 1)] for place, choice in enumerate(found)}


def choice_legend(colors: dict[int, str], noun: str) -> list[Patch]:
    """Return a legend entry for each colour of `choice_colors`: "timeline 0", ..., and "others" for the shared one."""
    own = list(colors)[: len(PALETTE)] if len(colors) <= len(PALETTE) else list(colors)[: len(PALETTE) - 1]
    patches = [Patch(color=colors[choice], label=f"{noun} {choice}") for choice in own]
    return patches + ([Patch(color=PALETTE[-1], label="others")] if len(own) < len(colors) else [])
