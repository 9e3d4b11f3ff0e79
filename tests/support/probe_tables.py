"""Synthetic tables of probes: any rows into a run's folder, and eleven models that look like trained ones."""

import itertools
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.loading.results import FOLDER, RECORD, TABLES

MODELS = {
    "transformer": ("FFFF", "#4D4D4D"),
    "lfm2": ("CCFC", "#56B4E9"),
    "mla": ("LLLL", "#0072B2"),
    "kda": ("KKKL", "#009E73"),
    "path_fox": ("PPPP", "#B8860B"),
    "mesanet": ("MMMM", "#CC79A7"),
    "mom": ("OOOO", "#D55E00"),
    "nsa": ("NNNN", "#332288"),
    "hypergraph interlaced_sf": ("SFSF", "#E69F00"),
    "shc": ("FFFF", "#117733"),
    "orthgsa": ("GGGG", "#882255"),
}
ATTENDING, HEADS, LENGTH = "FLPNSG", 4, 128
SENTENCE = (
    "The quick brown fox = jumps over the lazy dog , which sleeps in $ 5 worth of hay and dreams of rain \n ."
)


def write_table(run: Path, name: str, rows: Iterable[dict]) -> Path:
    """Write rows into RUN/probes/NAME.parquet; what a row leaves out is empty."""
    columns = TABLES[name]
    frame = pd.DataFrame(list(rows), columns=[column.name for column in columns])
    frame = frame.astype({column.name: column.dtype for column in columns})
    path = run / FOLDER / f"{name}.parquet"
    path.parent.mkdir(exist_ok=True)
    frame.to_parquet(path)
    (path.parent / RECORD).write_text("{}")
    return path


def measure(name: str, value: float, *, axis: str = "", **place) -> dict:
    """A row of `measures`; place: layer, head, start, end, block, step, count."""
    usual = {"step": 300, "part": "mixer", "block": "", "count": 1}
    return {**usual, **place, "axis": axis, "measure": name, "value": value}


def doubling(length: int, first: int = 16) -> list[tuple[int, int]]:
    """[0, first), [first, 2·first), … up to length."""
    edges = [0, first]
    while edges[-1] < length:
        edges.append(2 * edges[-1])
    return list(itertools.pairwise(edges))


def attention(layer: int, head: int, sink: float, rng: np.random.Generator) -> Iterator[dict]:
    """Measures of one head that gives the first token `sink` and spreads the rest by distance."""
    at = {"layer": layer, "head": head}
    uniform = float(np.mean(1 / np.arange(2, LENGTH + 1)))
    yield measure("first_token_mass", sink, **at)
    yield measure("first_token_uniform", uniform, **at)
    sharp = rng.uniform(0.2, 0.8)
    for start, end in doubling(LENGTH):
        bucket = {"start": start, "end": end, "axis": "position"}
        yield measure("first_token_mass", min(0.99, sink * 8 / (8 + start)), **bucket, **at)
        yield measure(
            "first_token_uniform", float(np.mean(1 / np.arange(max(start, 1) + 1, end + 1))), **bucket, **at
        )
        yield measure("attention_entropy", sharp * math.log((start + end) / 2 + 1), **bucket, **at)
    yield measure("attention_entropy", sharp * 4, **at)
    for rank, share in ((1, 1 - sharp), (8, 1 - 0.4 * sharp)):
        yield measure("top_mass", share, axis="rank", start=0, end=rank, **at)
    shares = np.exp(-rng.uniform(0.1, 0.6) * np.arange(8)) * rng.uniform(0.5, 1, 8)
    for (start, end), share in zip(doubling(LENGTH, 1), shares / shares.sum(), strict=True):
        yield measure("distance_mass", share, axis="distance", start=start, end=end, **at)


def gates(layer: int, head: int, names: Iterable[str], rng: np.random.Generator) -> Iterator[dict]:
    for name in names:
        mean = rng.uniform(0.1, 0.9)
        yield measure(f"{name}_gate_mean", mean, layer=layer, head=head)
        yield measure(f"{name}_gate_low", max(0.0, 0.6 - mean), layer=layer, head=head)


def selection(layer: int, head: int, dense: bool, rng: np.random.Generator) -> Iterator[dict]:
    at = {"layer": layer, "head": head}
    yield measure("selected_keys", rng.uniform(12, 18), **at)
    yield measure("selected_distance", rng.uniform(20, 40), **at)
    found = {"selected_mass": rng.uniform(0.7, 0.9), "selected_mass_random": 0.2} if dense else {}
    for name, value in found.items():
        yield measure(name, value, **at)
    for start, end in doubling(LENGTH):
        bucket = {"axis": "position", "start": start, "end": end}
        yield measure("selected_keys", min((start + end) / 2 + 1, rng.uniform(12, 24)), **bucket, **at)
        for name, value in found.items():
            yield measure(name, min(1.0, value * (1 + 16 / end)), **bucket, **at)


def losses(level: float, growth: float) -> Iterator[dict]:
    """Loss by position out to 8 × LENGTH: falling, then (growth) rising beyond the trained length."""
    for start, end in doubling(8 * LENGTH):
        beyond = max(0.0, math.log2(end / LENGTH))
        value = level + 2 / (1 + start / 8) + growth * beyond**1.5
        yield measure("loss", value, axis="position", start=start, end=end, part="", count=end - start)


def sentence() -> list[dict]:
    return [
        {"position": place, "token": place, "text": text} for place, text in enumerate(SENTENCE.split(" "))
    ]


def maps(layer: int, head: int, block: str, sink: float, kind: str, keep: int = 8) -> Iterator[dict]:
    """A head's attention (part on key 0, the rest falling with distance) or its selected keys (the nearest and 0)."""
    for query in range(len(SENTENCE.split(" "))):
        keys = np.arange(query + 1)
        near = np.exp(-(query - keys) / (2 + 3 * head))
        weights = (1 - sink) * near / near.sum() + sink * (keys == 0)
        if kind == "selection":
            weights = ((query - keys < keep) | (keys == head)).astype(float)
        for key in keys[weights >= 1e-3]:
            place = {"layer": layer, "block": block, "head": head, "query": query, "key": int(key)}
            yield {**place, "kind": kind, "weight": float(weights[key])}


def write_probes(run: Path, name: str, pattern: str, seed: int) -> None:
    """All tables that the figures of attention need, for one of MODELS."""
    rng = np.random.default_rng([*name.encode(), seed])
    place = list(MODELS).index(name)
    rows, cells = list(losses(5.2 + 0.08 * place, (0.7, 0.02, 0.4, -0.01)[place % 4])), []
    for layer, letter in enumerate(pattern):
        for head in range(HEADS):
            sink = 0.03 * math.exp(rng.normal(1.2 * layer / 3 if letter in "FS" else 0, 0.5))
            if letter in ATTENDING:
                rows += attention(layer, head, sink, rng)
                cells += maps(layer, head, letter, sink, "attention")
            if letter in "NG":
                names = ("output", "value") if letter == "G" else ("compressed", "selected", "window")
                rows += [*gates(layer, head, names, rng), *selection(layer, head, letter == "G", rng)]
                cells += maps(layer, head, letter, sink, "selection", 6 + layer)
    write_table(run, "measures", rows)
    if cells:
        write_table(run, "maps", cells)
        write_table(run, "sentence", sentence())
