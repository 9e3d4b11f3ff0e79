"""What attention and routers do with the single tokens of a sentence, and where a longer text is sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from zoo.context import Context
from zoo.model import LanguageModel
from zoo.probes import Probe, ProbeEvent, evaluation_mode

_SHOWN = {"attention": "weights", "selection": "selected"}
_LEAST_WEIGHT = 1e-3

Rows = list[tuple[Any, ...]]


def look(
    model: LanguageModel, tokens: Tensor, kinds: Collection[str], see: Callable[[ProbeEvent], None]
) -> None:
    """Call `see` with everything of these kinds that the model shows over tokens [B, T], in evaluation mode."""
    tokens = tokens.to(model.embedding.weight.device)
    with torch.no_grad(), evaluation_mode(model):
        model(tokens, Context.of(tokens, probe=Probe(see, kinds)))


def maps(model: LanguageModel, sentence: Tensor) -> Rows:
    """Attention weights and selected keys of a sentence [1, T]: layer, block, head, kind, query, key, weight."""
    rows: Rows = []

    def see(sight: ProbeEvent) -> None:
        weights = sight.values[_SHOWN[sight.kind]][0].float().cpu()
        where = (weights >= _LEAST_WEIGHT).nonzero(as_tuple=True)
        heads, queries, keys = (index.tolist() for index in where)
        for head, query, key, weight in zip(heads, queries, keys, weights[where].tolist(), strict=True):
            rows.append((sight.layer, sight.block, head, sight.kind, query, key, weight))

    look(model, sentence, _SHOWN, see)
    return rows


def routes(model: LanguageModel, sentence: Tensor) -> Rows:
    """All choices for every token of a sentence [1, T]: place, position, rank, choice, probability."""
    rows: Rows = []

    def see(sight: ProbeEvent) -> None:
        choices = sight.values["choices"][0].cpu()
        chosen = sight.values["probabilities"][0].float().cpu().gather(-1, choices)
        for position, heads in enumerate(zip(choices.tolist(), chosen.tolist(), strict=True)):
            for head, pairs in enumerate(zip(*heads, strict=True)):
                for rank, (choice, probability) in enumerate(zip(*pairs, strict=True)):
                    rows.append((*_place(sight), head, position, rank, choice, probability))

    look(model, sentence, {"routing"}, see)
    return rows


def assignments(model: LanguageModel, windows: Tensor, batch_size: int, text: Callable[[int], str]) -> Rows:
    """How often each kind of token of windows [N, T] has each first choice: place, choice, token, text, count."""
    first: dict[tuple, list[Tensor]] = defaultdict(list)

    for tokens in windows.split(batch_size):

        def see(sight: ProbeEvent, tokens: Tensor = tokens) -> None:
            for head, choice in enumerate(sight.values["choices"][..., 0].cpu().unbind(2)):
                first[(*_place(sight), head)].append((choice * model.vocab_size + tokens).flatten())

        look(model, tokens, {"routing"}, see)
    rows: Rows = []
    for place, pairs in first.items():
        values, counts = torch.cat(pairs).unique(return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            choice, token = divmod(value, model.vocab_size)
            rows.append((*place, choice, token, text(token), count))
    return rows


def _place(sight: ProbeEvent) -> tuple[int, str, str]:
    return sight.layer, sight.part, sight.block
