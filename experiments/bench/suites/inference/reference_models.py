"""The models compared in a cell: the one measured, its equal in transformers, and the plain transformer."""

from __future__ import annotations

import dataclasses

import torch

from experiments.bench import result_table, timing
from experiments.bench.hugging_face.architectures import family_of
from experiments.bench.hugging_face.peer import NoPeer, Peer
from experiments.bench.suites.inference.model_sources import TimedModel
from experiments.configuration.compose import architectures
from experiments.configuration.schema import Config
from experiments.parallel.group import pick_device, pick_precision
from zoo.config import used
from zoo.generate import prefill
from zoo.model import LanguageModel

WARM_UP = 16
"""Tokens."""


class Bench:
    """State that the cells of a run share: configuration, table, device, shortest length, models of the last cell."""

    def __init__(self, config: Config, table: result_table.ResumableTable, shortest: int) -> None:
        self.config, self.table, self.device = config, table, pick_device(config.device)
        self.shortest = shortest
        half = pick_precision(config.trainer.precision, self.device) == "bf16"
        self.precision = torch.bfloat16 if half else torch.float32
        self._made: tuple[TimedModel, int, ComparedModels] | None = None

    def compared_models(self, timed: TimedModel, length: int) -> ComparedModels:
        """Return the models for contexts of a length, those of the last cell where it had the same."""
        if self._made is None or self._made[:2] != (timed, length):
            self.forget()
            self._made = timed, length, ComparedModels(timed.build(length), self.precision)
        return self._made[2]

    def forget(self) -> None:
        """Give all memory back."""
        self._made = None
        timing.free_memory(self.device)


class ComparedModels:
    """A model and what it is compared with.

    peer: its equal in transformers; None: there is none, and no_peer says why where there should be one.
    plain: the plain transformer of its size; None where it is that itself.
    """

    def __init__(self, model: LanguageModel, precision: torch.dtype) -> None:
        self.model, self.plain = model, _plain_like(model)
        for one in (model, self.plain):
            if one is not None:
                _warm_up(one)
        self.peer: Peer | None = None
        self.no_peer = ""
        if family_of(model) is None:
            return
        try:
            self.peer = Peer(model, precision)
        except NoPeer as reason:
            self.no_peer = str(reason)
        except Exception as error:  # another version of transformers has other arguments, say
            self.no_peer = result_table.failure_reason(error)


@torch.no_grad()
def _warm_up(model: LanguageModel) -> None:
    """Each kind of call once on a few tokens: the first of its kind may import what takes seconds."""
    tokens = torch.zeros(1, WARM_UP, dtype=torch.int64, device=model.embedding.weight.device)
    model(tokens)
    _, state = prefill(model, list(tokens), room=1)
    model.step(tokens[:, 0], state)


def _plain_like(model: LanguageModel) -> LanguageModel | None:
    config = architectures(dataclasses.replace(model.config, depth=len(model.letters)))["transformer"]
    plain = LanguageModel(config, vocab_size=model.vocab_size, seq_len=model.seq_len)
    if used(config, plain.letters) == used(model.config, model.letters):
        return None
    return plain.to(model.embedding.weight.device).eval()
