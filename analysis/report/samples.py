"""Samples of the compared models after the same prompts, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from analysis import units
from analysis.errors import NoData
from analysis.gallery import require
from analysis.loading.results import Results

KEYS = ["prompt", "temperature", "sample_seed"]


class Continuation(NamedTuple):
    """Generated text of one run: the model's label, the run's seed, the text, and the decoding speed."""

    label: str
    seed: str
    text: str
    speed: str


class Prompt(NamedTuple):
    """A prompt with its sampling settings and the continuation of each run."""

    prompt: str
    sampling: str
    continuations: list[Continuation]


class Samples(NamedTuple):
    """All prompts in the order asked; missing: the reason if there are none; without: labels without a sample."""

    prompts: list[Prompt]
    missing: str = ""
    without: tuple[str, ...] = ()


def samples(results: Results, order: Sequence[str]) -> Samples:
    """Group the probe table `samples` by prompt. order: labels as the comparison has them, best first."""
    try:
        require("table.samples", results)
    except NoData as reason:
        return Samples([], missing=str(reason))
    table = results.table("samples").drop_duplicates([*KEYS, "label", "seed"])
    place = {label: position for position, label in enumerate(order)}
    table = table.assign(place=table["label"].map(place)).sort_values(["place", "seed"], kind="stable")
    asked = table[KEYS].drop_duplicates().sort_index()  # the order of the files, not of the models
    prompts = [_prompt(key, table) for key in asked.itertuples(index=False)]
    return Samples(prompts, without=tuple(label for label in order if label not in set(table["label"])))


def _prompt(key: tuple, table: pd.DataFrame) -> Prompt:
    same = pd.Series(True, index=table.index)
    for name in KEYS:
        value = getattr(key, name)
        same &= table[name].isna() if pd.isna(value) else (table[name] == value).fillna(False)
    rows = table[same].itertuples(index=False)
    return Prompt(_printable(key.prompt), _sampling(key), [_continuation(row) for row in rows])


def _sampling(key: tuple) -> str:
    if pd.isna(key.temperature):
        return "how it was sampled is not recorded"
    if key.temperature == 0:
        return "temperature 0: the most likely token each time"
    return f"temperature {key.temperature:g}, sampling seed {units.whole(key.sample_seed)}"


def _continuation(row: tuple) -> Continuation:
    speed = units.engineering(row.tokens_per_second)
    return Continuation(row.label, units.whole(row.seed), _printable(row.text), speed)


def _printable(text: object) -> str:
    return units.MISSING if pd.isna(text) else units.pictured(str(text))
