"""Probe tables by token: attention maps and routes of a sentence, choices of routers over a text, tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from experiments.configuration.schema import ProbeConfig
from experiments.data import Split, TaskSet
from experiments.data.tasks_base import IGNORE
from experiments.probing.held_out import average_rows, evenly_spaced_windows, probe_windows, whole_split
from zoo.context import Context
from zoo.errors import UserError
from zoo.model import LanguageModel
from zoo.probes import Probe, ProbeEvent, Row, correct_averages, evaluation_mode, probe_model
from zoo.probes.measure import by_head

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


def routes_of(model: LanguageModel, sentence: Tensor) -> Rows:
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


# The text over which choices of routers are counted: some windows of a split, or all of it.

DEFAULT_SPLIT = "validation"


def split_name(probe: ProbeConfig) -> str:
    """The split that is read, DEFAULT_SPLIT where none is asked for."""
    return probe.routing_split or DEFAULT_SPLIT


def batches(splits: Mapping[str, Split], probe: ProbeConfig, length: int) -> list[Tensor]:
    """Tokens int64 [N, T] of the split, probe.batch_size windows of the trained length at once.

    At least probe.routing_tokens in windows evenly spaced, or every token of the split where that is null.
    """
    split = splits[split_name(probe)]
    if probe.routing_tokens is None:
        parts = whole_split(split, length)
    else:
        parts = [evenly_spaced_windows(split, -(-probe.routing_tokens // length), length)[0]]
    return [batch for part in parts for batch in part.split(probe.batch_size)]


def routing_rows(model: LanguageModel, tokens: list[Tensor]) -> list[Row]:
    """Rows of the measure `routing` (loads, imbalance, certainty) over all batches as over one."""
    device = model.embedding.weight.device
    rows = (row for batch in tokens for row in probe_model(model, batch.to(device), names=("routing",)))
    return correct_averages(average_rows(rows))


# Synthetic tasks: measures on held-out sequences, and where attention looks for answers.

SPLIT = "validation"


def task_tables(
    model: LanguageModel, task_set: TaskSet, probe: ProbeConfig, step: int | None
) -> dict[str, list[tuple[Any, ...]]]:
    """Table -> rows, as of a run on text; probe.windows counts sequences, and the sentence is the first of them.

    There are no samples and no loss by position. Raises UserError for a sentence, which is text.
    """
    if probe.sentence is not None:
        raise UserError(
            f"probe.sentence is text, and this run was trained on the task {task_set.task.name}; leave it out"
        )
    sequences, word = task_set.held_out(SPLIT).first(probe.windows), task_set.task.word
    tokens, targets = torch.from_numpy(sequences.tokens), torch.from_numpy(sequences.targets)
    measured = probe_windows(model, tokens, targets, probe.batch_size)
    measured += answer_attention(model, tokens, targets, probe.batch_size)
    sentence, split = tokens[:1], split_name(probe)
    routes = routes_of(model, sentence)
    counted = _counted(task_set, split, probe) if routes else []
    return {
        "measures": [(step, *row, SPLIT) for row in measured],
        "maps": attention_maps(model, sentence),
        "sentence": [(i, token, word(token), None) for i, token in enumerate(sentence[0].tolist())],
        "routes": routes,
        "alternatives": alternatives(model, sentence),
        "assignments": [(*row, split) for row in assignments(model, counted, word)],
        "samples": [],
    }


def _counted(task_set: TaskSet, split: str, probe: ProbeConfig) -> list[Tensor]:
    """Tokens [N, T] of the sequences whose routing choices are counted, probe.batch_size at once."""
    length = task_set.task.seq_len
    count = None if probe.routing_tokens is None else -(-probe.routing_tokens // length)
    tokens = torch.from_numpy(task_set.held_out(split).first(count).tokens)
    return list(tokens.split(probe.batch_size))


def answer_attention(model: LanguageModel, tokens: Tensor, targets: Tensor, batch_size: int) -> list[Row]:
    """Rows by head of the attention that a question pays to the places that hold its answer; tokens, targets [N, T].

        answer_mass     Σ_s w_ts over s ≤ t with token_s = target_t, mean over questions t whose answer was seen
        answer_uniform  the same of uniform attention: the number of these places / (t + 1)

    A head that copies an answer has 1. In tasks whose answers are computed (parity, products) a token that equals the
    answer says nothing of it. No rows of mixers without attention weights.
    """
    rows: list[Row] = []
    for x, y in zip(tokens.split(batch_size), targets.split(batch_size), strict=True):
        holds = ((x[:, None, :] == y[:, :, None]) & (y != IGNORE)[:, :, None]).tril()
        asked = holds.any(-1)
        uniform = holds.float().mean(-1) * x.shape[1] / torch.arange(1, x.shape[1] + 1)

        def record(
            event: ProbeEvent, holds: Tensor = holds, asked: Tensor = asked, uniform: Tensor = uniform
        ) -> None:
            weights = event.values["weights"].float().cpu()
            mass = (weights * holds[:, None]).sum(-1).transpose(1, 2)[asked]
            count = len(mass)
            if count:
                rows.extend(by_head(event, "answer_mass", mass.mean(0), count))
                level = uniform[asked].mean().expand(mass.shape[1])
                rows.extend(by_head(event, "answer_uniform", level, count))

        record_events(model, x, {"attention"}, record)
    return average_rows(rows)
