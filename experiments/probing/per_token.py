"""Probe tables with a row a token: attention maps and routes of a sentence, and routes of a longer text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from zoo.context import Context
from zoo.model import LanguageModel
from zoo.probes import Probe, ProbeEvent, evaluation_mode

_WEIGHTS = {"attention": "weights", "selection": "selected"}
_LEAST_WEIGHT = 1e-3

Rows = list[tuple[Any, ...]]


def record_events(
    model: LanguageModel, tokens: Tensor, kinds: Collection[str], record: Callable[[ProbeEvent], None]
) -> None:
    """Call `record` with every probe event of these kinds while the model reads tokens [B, T], in evaluation mode."""
    tokens = tokens.to(model.embedding.weight.device)
    with torch.no_grad(), evaluation_mode(model):
        model(tokens, Context.of(tokens, probe=Probe(record, kinds)))


def attention_maps(model: LanguageModel, sentence: Tensor) -> Rows:
    """Attention weights and selected keys of a sentence [1, T]: layer, block, head, kind, query, key, weight."""
    rows: Rows = []

    def record(event: ProbeEvent) -> None:
        weights = event.values[_WEIGHTS[event.kind]][0].float().cpu()
        where = (weights >= _LEAST_WEIGHT).nonzero(as_tuple=True)
        heads, queries, keys = (index.tolist() for index in where)
        for head, query, key, weight in zip(heads, queries, keys, weights[where].tolist(), strict=True):
            rows.append((event.layer, event.block, head, event.kind, query, key, weight))

    record_events(model, sentence, _WEIGHTS, record)
    return rows


def routes(model: LanguageModel, sentence: Tensor) -> Rows:
    """All choices for every token of a sentence [1, T]: place, position, rank, choice, probability."""
    rows: Rows = []

    def record(event: ProbeEvent) -> None:
        choices = event.values["choices"][0].cpu()
        chosen = event.values["probabilities"][0].float().cpu().gather(-1, choices)
        for position, heads in enumerate(zip(choices.tolist(), chosen.tolist(), strict=True)):
            for head, pairs in enumerate(zip(*heads, strict=True)):
                for rank, (choice, probability) in enumerate(zip(*pairs, strict=True)):
                    rows.append((*_place(event), head, position, rank, choice, probability))

    record_events(model, sentence, {"routing"}, record)
    return rows


def assignments(model: LanguageModel, windows: Tensor, batch_size: int, text: Callable[[int], str]) -> Rows:
    """Counts of the first choices of each token id over windows [N, T]: place, choice, token, text, count."""
    first: dict[tuple, list[Tensor]] = defaultdict(list)

    for tokens in windows.split(batch_size):

        def record(event: ProbeEvent, tokens: Tensor = tokens) -> None:
            for head, choice in enumerate(event.values["choices"][..., 0].cpu().unbind(2)):
                first[(*_place(event), head)].append((choice * model.vocab_size + tokens).flatten())

        record_events(model, tokens, {"routing"}, record)
    rows: Rows = []
    for place, pairs in first.items():
        values, counts = torch.cat(pairs).unique(return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            choice, token = divmod(value, model.vocab_size)
            rows.append((*place, choice, token, text(token), count))
    return rows


def _place(event: ProbeEvent) -> tuple[int, str, str]:
    return event.layer, event.part, event.block
