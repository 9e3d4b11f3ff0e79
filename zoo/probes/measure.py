"""The interface of a measure: numbers computed from the events of one forward pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import Tensor

from zoo.errors import UserError
from zoo.probes.events import ProbeEvent
from zoo.probes.probe_row import Row
from zoo.registry import is_left_out

if TYPE_CHECKING:  # blocks import this module, and the model imports blocks
    from zoo.model import LanguageModel


class Measure(ABC):
    """Takes the events of its `kinds` during one forward pass, in the order of the layers, and returns rows.

    One instance per pass. `needs_gradient`: the pass builds its graph, and `finish` gets the loss, which it may
    differentiate (retaining the graph) with respect to the recorded tensors. `warns_of`: the name of the mixer that
    `notices` is about, "" where there are none.
    """

    name: str
    kinds: tuple[str, ...]
    needs_gradient = False
    warns_of = ""

    @abstractmethod
    def update(self, event: ProbeEvent) -> Iterable[Row]:
        """Rows about the place in the model where the event was recorded."""

    def finish(self, model: LanguageModel, loss: Tensor) -> Iterable[Row]:
        """Rows about the whole model, after the pass; loss []: mean cross-entropy in nats a token."""
        return ()

    @classmethod
    def correct_averages(cls, rows: list[Row]) -> list[Row]:
        """Rows averaged over batches, with values that are no means over tokens (a largest load, say) recomputed."""
        return rows

    @classmethod
    def notices(cls, rows: list[Row]) -> Iterable[str]:
        """A sentence for each thing that, by all measures' rows of a model, is wrong with the model's own numbers."""
        return ()


def check_graph(loss: Tensor, measure: str) -> None:
    """Raise UserError where the loss [] has no graph, which `torch.inference_mode` does not keep."""
    if not loss.requires_grad:
        raise UserError(f"the measure '{measure}' needs a graph: measure outside of inference mode")


_MEASURES: dict[str, type[Measure]] = {}


def register_measure(cls: type[Measure]) -> type[Measure]:
    """Register a measure under its name; a class decorator. Raises ValueError for a name that is taken."""
    other = _MEASURES.setdefault(cls.name, cls)
    if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f"the measure '{cls.name}' of {cls.__module__} has its name from {other.__module__}")
    _MEASURES[cls.name] = cls
    return cls


def all_measures() -> dict[str, type[Measure]]:
    """Every registered measure by name, without those of files whose import failed later on (zoo.registry)."""
    return {name: cls for name, cls in _MEASURES.items() if not is_left_out(cls.__module__)}


def correct_averages(rows: list[Row]) -> list[Row]:
    """Rows averaged over several passes as one pass over all their tokens would have given them."""
    for cls in all_measures().values():
        rows = cls.correct_averages(rows)
    return rows
