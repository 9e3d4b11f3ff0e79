"""One forward pass whose probe events go to measures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.context import Context
from zoo.errors import UserError, unknown
from zoo.probes.events import Probe, ProbeEvent, event_kinds
from zoo.probes.measure import Row, all_measures

if TYPE_CHECKING:  # blocks import this package, and the model imports blocks
    from zoo.model import LanguageModel


def probe_model(
    model: LanguageModel, tokens: Tensor, targets: Tensor | None = None, names: Collection[str] | None = None
) -> list[Row]:
    """Rows of all measures (or those named) from one pass over tokens [B, T] in evaluation mode.

    targets: int64 [B, T], the next tokens; None: tokens one to the left, the last one unknown.
    The model is left as it was: training mode, gradients, random numbers. Raises UserError for a measure of events that
    there are not, and for two measures with rows of one name, which tables would average.
    """
    chosen = {name: cls() for name, cls in all_measures().items() if names is None or name in names}
    for name, measure in chosen.items():
        for kind in measure.kinds:
            if kind not in event_kinds():
                raise unknown(f"event kind of the measure {name}", kind, event_kinds())
    rows: list[Row] = []
    owners: dict[str, str] = {}

    def add(name: str, make: Callable[..., Iterable[Row]], *args: Any) -> None:
        for row in _rows(name, make, *args):
            if (owner := owners.setdefault(row.measure, name)) != name:
                raise UserError(
                    f"the measures {owner} and {name} both write rows {row.measure!r}; rename one of them"
                )
            rows.append(row)

    def update(event: ProbeEvent) -> None:
        for name, measure in chosen.items():
            if event.kind in measure.kinds:
                add(name, measure.update, event)

    probe = Probe(update, {kind for measure in chosen.values() for kind in measure.kinds})
    needs_gradient = any(measure.needs_gradient for measure in chosen.values())
    with evaluation_mode(model), unfrozen(model, needs_gradient), torch.set_grad_enabled(needs_gradient):
        loss = _loss(model, tokens, targets, probe)
        for name, measure in chosen.items():
            add(name, measure.finish, model, loss)
    return rows


def _rows(name: str, make: Callable[..., Iterable[Row]], *args: Any) -> Iterator[Row]:
    """The rows of make(*args); what goes wrong while they are made names the measure."""
    try:
        yield from make(*args)
    except UserError:
        raise
    except Exception as error:
        raise RuntimeError(f"the measure {name} failed, {type(error).__name__}: {error}") from error


def _loss(model: LanguageModel, tokens: Tensor, targets: Tensor | None, probe: Probe) -> Tensor:
    logits, _ = model(tokens, Context.of(tokens, probe=probe))
    if targets is None:
        logits, targets = logits[:, :-1], tokens[:, 1:]
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


@contextlib.contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """Inside, the model is in evaluation mode; afterwards every module is in the mode it was in."""
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


@contextlib.contextmanager
def unfrozen(model: torch.nn.Module, wanted: bool = True) -> Iterator[None]:
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
