"""Held-out text for probes: windows, prompts and a sentence that every model reads, and rows computed over them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import zoo
from experiments.configuration.schema import ProbeConfig
from experiments.data import Corpus, Split, TaskSet
from experiments.runs import LoadedRun
from experiments.scoring.text import token_losses
from zoo.config import Architecture
from zoo.errors import UserError
from zoo.model import LanguageModel
from zoo.probes import Row, all_measures, correct_averages, evaluation_mode, probe_model
from zoo.probes.measure import buckets


def evenly_spaced_windows(split: Split, count: int, length: int) -> tuple[Tensor, Tensor]:
    """Windows in equal distances over the whole split: tokens and targets (the next tokens), int64 [N, T].

    T = length, or less where the split is shorter; N = count, or as many as there are without overlap. A window
    begins wherever it falls, as in training on one stream; documents in it see each other.
    """
    last = len(split.tokens) - 1
    length = min(length, last)
    count = min(count, last // length)
    starts = np.linspace(0, last - length, count).astype(int)
    windows = torch.from_numpy(
        np.stack([split.tokens[start : start + length + 1] for start in starts]).astype(np.int64)
    )
    return windows[:, :-1], windows[:, 1:]


def document_start(split: Split, bos: int, length: int) -> Tensor:
    """The start of the first document that is long enough, int64 [1, T], with its separator as the first token.

    Where none is, the start of the split, with whatever follows the first document.
    """
    tokens = np.asarray(split.tokens)
    starts = np.flatnonzero(tokens == bos)
    ends = np.append(starts[1:], len(tokens))
    long_enough = starts[ends - starts >= length]
    start = int(long_enough[0]) if len(long_enough) else 0
    return torch.from_numpy(tokens[start : start + length].astype(np.int64))[None]


def whole_split(split: Split, length: int) -> list[Tensor]:
    """All tokens of a split, int64: windows [N, length] one after another, then the rest [1, below length]."""
    tokens = torch.from_numpy(np.asarray(split.tokens).astype(np.int64))
    rest = len(tokens) % length
    windows, last = tokens[: len(tokens) - rest].view(-1, length), tokens[None, len(tokens) - rest :]
    return [part for part in (windows, last) if part.numel()]


def probe_windows(model: LanguageModel, tokens: Tensor, targets: Tensor, batch_size: int) -> list[Row]:
    """Rows of all measures over windows [N, T], batch_size at a time: averages over batches, corrected where needed.

    A measure that is no average over tokens (norms of gradients, principal directions) is taken batch by batch, and
    averaged over batches.
    """
    device = model.embedding.weight.device
    return correct_averages(
        average_rows(
            row
            for x, y in zip(tokens.split(batch_size), targets.split(batch_size), strict=True)
            for row in probe_model(model, x.to(device), y.to(device))
        )
    )


def average_rows(rows: Iterable[Row]) -> list[Row]:
    """One row for every place, bucket and measure: Σ count·value / Σ count. Averages of nothing are left out."""
    sums: dict[tuple, tuple[float, int]] = {}
    for row in rows:
        if row.count:
            total, count = sums.get(row[:-2], (0.0, 0))
            sums[row[:-2]] = total + row.count * row.value, count + row.count
    return [Row(*place, total / count, count) for place, (total, count) in sums.items()]


def loss_by_position(
    model: LanguageModel, tokens: Tensor, targets: Tensor, batch_size: int, precision: str
) -> list[Row]:
    """Mean −ln p (nats/token) of the same tokens at the positions of each bucket: only the context differs.

    tokens, targets [N, T] are the longest contexts, batch_size of them at once. The last tokens are scored, as many
    as the widest bucket holds; for a bucket [start, end) windows of `end` tokens end where their last end − start
    tokens tile that stretch. They tile it whole where T is a power of two times the trained length; otherwise a rest
    is left out. T may be above the trained length, of which buckets beyond it are multiples.
    """
    length = tokens.shape[1]
    edges = position_buckets(model.seq_len, length)
    stretch = length - max(end - start for start, end in edges)
    rows = []
    for start, end in edges:
        scored, before = end - start, max(stretch - start, 0)
        x, y = (part[:, before:].unfold(1, end, scored).flatten(0, 1) for part in (tokens, targets))
        total = _summed(model, x, y, scored, max(1, batch_size * length // end), precision)
        count = len(x) * scored
        rows.append(
            Row(None, "", "", None, "position", float(start), float(end), "loss", total / count, count)
        )
    return rows


def _summed(
    model: LanguageModel, tokens: Tensor, targets: Tensor, last: int, batch_size: int, precision: str
) -> float:
    """Σ −ln p over the `last` tokens of every window."""
    device = model.embedding.weight.device
    total = torch.zeros((), dtype=torch.float64, device=device)
    with torch.no_grad(), evaluation_mode(model):
        for x, y in zip(tokens.split(batch_size), targets.split(batch_size), strict=True):
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                losses = token_losses(model, x.to(device), y.to(device))
            total += losses[:, -last:].double().sum()
    return float(total)


def position_buckets(trained: int, length: int) -> list[tuple[int, int]]:
    """`buckets` of the trained length, then [1, 2), [2, 4), [4, 8) … times it, up to `length`."""
    if length <= trained:
        return buckets(length)
    edges = [trained]
    while edges[-1] < length:
        edges.append(min(length, 2 * edges[-1]))
    return [*buckets(trained), *itertools.pairwise(edges)]


# Continuations of the same prompts by every model, so that texts can be read side by side.


def samples(loaded: LoadedRun, probe: ProbeConfig) -> Iterator[tuple[Any, ...]]:
    """A row a prompt: prompt, text, temperature, seed, tokens/s."""
    device = loaded.model.embedding.weight.device
    for text in probe.prompts:
        ids = [loaded.tokenizer.bos_id, *loaded.tokenizer.encode(text)]
        began = time.perf_counter()
        written = zoo.generate(
            loaded.model,
            torch.tensor([ids], device=device),
            probe.tokens,
            temperature=probe.temperature,
            top_k=probe.top_k,
            seed=probe.sample_seed,
        )
        tokens = [int(token) for token in written]
        rate = (len(ids) + len(tokens) - 1) / (time.perf_counter() - began)
        yield text, loaded.tokenizer.decode(tokens), probe.temperature, probe.sample_seed, rate


# The sentence for attention maps and routes: one that was given, or the start of a held-out document.


def probed_sentence(loaded: LoadedRun, split: Split, probe: ProbeConfig) -> Tensor:
    """Tokens int64 [1, T] of probe.sentence after the separator, or of `document_start` where none is given.

    Raises UserError where the given one is longer than the trained length.
    """
    tokenizer, longest = loaded.tokenizer, loaded.model.seq_len
    if probe.sentence is None:
        return document_start(split, tokenizer.bos_id, probe.map_tokens)
    tokens = [tokenizer.bos_id, *tokenizer.encode(probe.sentence)]
    if len(tokens) > longest:
        raise UserError(
            f"probe.sentence has {len(tokens) - 1:,} tokens, and this model was trained on {longest:,} at a time, the "
            f"separator before it included; shorten it to {longest - 1:,} tokens"
        )
    return torch.tensor([tokens])


# What the measures say is wrong with a trained model's own numbers, a sentence each.

NOTICED, WINDOWS = "validation", 4
"""The split, and how many of its windows, that decide whether a trained model has a notice."""


def notices_of_trained(
    run: Path, layers: Architecture, corpus: Corpus | TaskSet, device: torch.device
) -> list[str]:
    """Sentences about a run's best weights on a few held-out sequences; `layers`: those of its model.

    A model none of whose mixers a measure warns of is not run.
    """
    names = {mixer.block.name for mixer in layers.kinds}
    watching = {name: cls for name, cls in all_measures().items() if cls.warns_of in names}
    if not watching:
        return []
    model = zoo.load(run, device)
    if isinstance(corpus, TaskSet):
        sequences = corpus.held_out(NOTICED).first(WINDOWS)
        tokens, targets = torch.from_numpy(sequences.tokens), torch.from_numpy(sequences.targets)
    else:
        tokens, targets = evenly_spaced_windows(corpus.splits[NOTICED], WINDOWS, model.seq_len)
    rows = average_rows(
        row
        for x, y in zip(tokens.split(1), targets.split(1), strict=True)
        for row in probe_model(model, x.to(device), y.to(device), watching)
    )
    return [line for cls in watching.values() for line in cls.notices(rows)]
