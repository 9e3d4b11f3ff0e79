"""What the summaries of runs say about the blocks they use: title, colour, mask, choice and sketch, from the registry.

A block of summary.json has letter, name, title, family, color and mask and, where its author gave them, ``choice`` (a
noun for what its router chooses: "timeline") and ``sketch`` (rows of boxes, `analysis.plotting.sketches`). What is
missing, as in older summaries, is told from the mask.
"""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

NOUNS = {"timeline": "timeline", "memories": "memory", "recurrent": "memory"}
"""What a router chooses between, by the mask of its block."""

DEFAULT_NOUN = "expert"


def blocks(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Every block of these runs (Results.runs), as summaries describe them; one that several runs use comes again."""
    return [
        block for text in runs["blocks"].dropna() for block in json.loads(text) if isinstance(block, dict)
    ]


def noun(block: dict[str, Any]) -> str:
    """What the block's router chooses between: its own noun, else that of its mask, else "expert"."""
    return str(block.get("choice") or NOUNS.get(block.get("mask", ""), DEFAULT_NOUN))


def nouns(runs: pd.DataFrame) -> dict[str, str]:
    """Block name -> `noun`, of every block that these runs describe; others route to experts."""
    return {block.get("name", ""): noun(block) for block in blocks(runs)}


def plural(word: str) -> str:
    """The plural of a noun: memories, timelines."""
    return f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"
