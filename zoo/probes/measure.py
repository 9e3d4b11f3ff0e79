"""The pass over a batch, and what a measure is."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.context import Context
from zoo.model import LanguageModel
from zoo.probe import Probe, Sight
from zoo.probes.rows import Row


class Measure(ABC):
    """Sees the sights of its `kinds` during one forward pass, in the order of the layers, then gives rows.

    One instance a pass. `needs_gradient`: the pass keeps its graph, and `finish` gets the loss, which it may
    differentiate (retaining the graph) with respect to what was shown.
    """

    name: str
    kinds: tuple[str, ...]
    needs_gradient = False

    @abstractmethod
    def see(self, sight: Sight) -> Iterable[Row]:
        """Rows about this place."""

    def finish(self, model: LanguageModel, loss: Tensor) -> Iterable[Row]:
        """Rows about the whole model, after the pass; loss: mean cross-entropy in nats a token."""
        return ()

    @classmethod
    def conclude(cls, rows: list[Row]) -> list[Row]:
        """Rows averaged over batches, those put right that are no means: a largest load is one of all tokens."""
        return rows


_MEASURES: dict[str, type[Measure]] = {}


def register(cls: type[Measure]) -> type[Measure]:
    """Make a measure known under its name."""
    _MEASURES[cls.name] = cls
    return cls


def registered() -> dict[str, type[Measure]]:
    """All measures by name."""
    return dict(_MEASURES)


def conclude(rows: list[Row]) -> list[Row]:
    """Rows of several passes, averaged, as one pass over all their tokens would have given them."""
    for cls in _MEASURES.values():
        rows = cls.conclude(rows)
    return rows


def measure(
    model: LanguageModel, tokens: Tensor, targets: Tensor | None = None, names: Collection[str] | None = None
) -> list[Row]:
    """Rows of all measures (or those named) from one pass over tokens [B, T] in evaluation mode.

    targets: int64 [B, T], the next tokens; None: tokens one to the left, the last one unknown.
    The model is left as it was: training mode, gradients, random numbers.
    """
    chosen = [cls() for name, cls in _MEASURES.items() if names is None or name in names]
    rows: list[Row] = []

    def look(sight: Sight) -> None:
        for one in chosen:
            if sight.kind in one.kinds:
                rows.extend(one.see(sight))

    probe = Probe(look, {kind for one in chosen for kind in one.kinds})
    needs_gradient = any(one.needs_gradient for one in chosen)
    with evaluating(model), differentiable(model, needs_gradient), torch.set_grad_enabled(needs_gradient):
        loss = _loss(model, tokens, targets, probe)
        for one in chosen:
            rows.extend(one.finish(model, loss))
    return rows


def _loss(model: LanguageModel, tokens: Tensor, targets: Tensor | None, probe: Probe) -> Tensor:
    logits, _ = model(tokens, Context.of(tokens, probe=probe))
    if targets is None:
        logits, targets = logits[:, :-1], tokens[:, 1:]
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


@contextlib.contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Inside, the model is in evaluation mode; afterwards every module is in the mode it was in."""
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


@contextlib.contextmanager
def differentiable(model: torch.nn.Module, wanted: bool = True) -> Iterator[None]:
    """Inside, frozen parameters have gradients too, if that is wanted; afterwards they are frozen again."""
    frozen = (
        [p for p in model.parameters() if not p.requires_grad and p.is_floating_point()] if wanted else []
    )
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
