"""Descriptions of blocks in the summaries of runs: title, colour, mask, choice and sketch.

A block of summary.json has letter, name, title, family, color and mask and, where its author gave them, ``choice`` (a
noun for what its router chooses: "timeline") and ``sketch`` (rows of boxes, `analysis.plotting.sketches`). What is
missing, as in older summaries, follows from the mask.
"""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

NOUNS = {"timeline": "timeline", "memories": "memory", "recurrent": "memory"}
"""Nouns for the choices of a router, by the mask of its block."""

DEFAULT_NOUN = "expert"


def blocks(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the description of every block of every run (Results.runs); blocks of several runs repeat."""
    return [
        block for text in runs["blocks"].dropna() for block in json.loads(text) if isinstance(block, dict)
    ]


def noun(block: dict[str, Any]) -> str:
    """Return the noun for the choices of a block's router: its own, else that of its mask, else "expert"."""
    return str(block.get("choice") or NOUNS.get(block.get("mask", ""), DEFAULT_NOUN))


def nouns(runs: pd.DataFrame) -> dict[str, str]:
    """Return block name -> `noun` for every block that these runs describe."""
    return {block.get("name", ""): noun(block) for block in blocks(runs)}


def plural(word: str) -> str:
    """Return the plural of a noun: memories, timelines, keys."""
    return f"{word[:-1]}ies" if word.endswith("y") and word[-2:-1] not in "aeiou" else f"{word}s"
