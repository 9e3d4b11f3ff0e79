"""Probe tables by token: attention maps and routes of a sentence, and counts of first choices over a longer text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
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
    return _ranked(model, sentence, lambda event: event.values["choices"][0], lambda event: 0)


def alternatives(model: LanguageModel, sentence: Tensor) -> Rows:
    """Rows as of `routes` for what the router did not choose, by probability; ranks go on from its k choices."""

    def others(event: ProbeEvent) -> Tensor:
        choices, probabilities = event.values["choices"][0], event.values["probabilities"][0]
        order = probabilities.scatter(-1, choices, -1.0).argsort(dim=-1, descending=True, stable=True)
        return order[..., : probabilities.shape[-1] - choices.shape[-1]]

    return _ranked(model, sentence, others, lambda event: event.values["choices"].shape[-1])


def _ranked(
    model: LanguageModel,
    sentence: Tensor,
    pick: Callable[[ProbeEvent], Tensor],
    first_rank: Callable[[ProbeEvent], int],
) -> Rows:
    """Rows of the choices [T, H, n] that `pick` finds in each routing event of a sentence, in their order."""
    rows: Rows = []

    def record(event: ProbeEvent) -> None:
        choices = pick(event).cpu()
        chosen = event.values["probabilities"][0].float().cpu().gather(-1, choices)
        for position, heads in enumerate(zip(choices.tolist(), chosen.tolist(), strict=True)):
            for head, pairs in enumerate(zip(*heads, strict=True)):
                for rank, (choice, probability) in enumerate(zip(*pairs, strict=True), first_rank(event)):
                    rows.append((*_place(event), head, position, rank, choice, probability))

    record_events(model, sentence, {"routing"}, record)
    return rows


def assignments(model: LanguageModel, batches: Iterable[Tensor], text: Callable[[int], str]) -> Rows:
    """Counts of the first choices of each token id over batches [N, T]: place, choice, token, text, count."""
    first: dict[tuple, list[Tensor]] = defaultdict(list)

    for tokens in batches:

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
