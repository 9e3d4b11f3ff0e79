"""Gradients of the loss with respect to each sub-block's parameters and the streams before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from zoo.probes.events import ProbeEvent
from zoo.probes.measure import Measure, Row, check_graph, register_measure, row

if TYPE_CHECKING:  # blocks import this package, and the model imports blocks
    from zoo.model import LanguageModel


@register_measure
class Gradients(Measure):
    """Norms of the gradient of the mean cross-entropy (auxiliary losses are not in it), from one backward pass.

        parameter_gradient   ‖∂loss/∂θ‖, θ: parameters of a mixer or channel mixer, its norm and its residual scheme
        stream_gradient      ‖∂loss/∂x‖, x: the streams of all tokens before a sub-block, or before the head

    No parameter's `.grad` is touched. Raises UserError under `torch.inference_mode`, which keeps no graph.
    """

    name = "gradients"
    kinds = ("streams",)
    needs_gradient = True

    def __init__(self) -> None:
        self.events: list[ProbeEvent] = []

    def update(self, event: ProbeEvent) -> Iterator[Row]:
        """Store the streams until the loss is known; no rows yet."""
        self.events.append(event)
        return iter(())

    def finish(self, model: LanguageModel, loss: Tensor) -> Iterator[Row]:
        """Rows of every sub-block, from one backward pass of the loss [].

        Raises UserError where the loss has no graph.
        """
        check_graph(loss, self.name)
        parameters = [sub_block_parameters(model, event) for event in self.events]
        wanted = [event.values["streams"] for event in self.events] + [
            p for group in parameters for p in group
        ]
        # Other measures may need the graph after this one.
        gradients = iter(
            torch.autograd.grad(loss, wanted, retain_graph=True, allow_unused=True, materialize_grads=True)
        )
        for event in self.events:
            yield self._row(event, "stream_gradient", [next(gradients)])
        for event, group in zip(self.events, parameters, strict=True):
            if group:
                yield self._row(event, "parameter_gradient", [next(gradients) for _ in group])

    def _row(self, event: ProbeEvent, measure: str, gradients: list[Tensor]) -> Row:
        norms = [torch.linalg.vector_norm(g, dtype=torch.float64) for g in gradients]
        tokens = event.values["streams"].shape[:2].numel()
        return row(event, measure, torch.stack(norms).norm(), count=tokens)


def sub_block_parameters(model: LanguageModel, event: ProbeEvent) -> list[nn.Parameter]:
    """Parameters of the (channel) mixer, its norm and its residual scheme; none of the head."""
    if event.part == "head":
        return []
    layer = model.layers[event.layer]
    modules = (getattr(layer, event.part + suffix) for suffix in ("", "_norm", "_residual"))
    return [parameter for module in modules for parameter in module.parameters()]
