"""Probing a run of a synthetic task on its held-out sequences: measures, and where attention looks for answers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from experiments.configuration.schema import ProbeConfig
from experiments.data import TaskSet
from experiments.data.task_registry import IGNORE
from experiments.probing import per_token, routing_text
from experiments.probing.held_out import average_rows, probe_windows
from zoo.errors import UserError
from zoo.model import LanguageModel
from zoo.probes import ProbeEvent, Row
from zoo.probes.probe_row import by_head

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
    sentence, split = tokens[:1], routing_text.split_name(probe)
    routes = per_token.routes(model, sentence)
    counted = _counted(task_set, split, probe) if routes else []
    return {
        "measures": [(step, *row, SPLIT) for row in measured],
        "maps": per_token.attention_maps(model, sentence),
        "sentence": [(i, token, word(token), None) for i, token in enumerate(sentence[0].tolist())],
        "routes": routes,
        "alternatives": per_token.alternatives(model, sentence),
        "assignments": [(*row, split) for row in per_token.assignments(model, counted, word)],
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

        per_token.record_events(model, x, {"attention"}, record)
    return average_rows(rows)
