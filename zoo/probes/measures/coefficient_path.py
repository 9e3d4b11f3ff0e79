"""The path through the coefficients of hyper-connections: its bound, and its share of the gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zoo.probes.events import ProbeEvent
from zoo.probes.measure import Measure, Row, check_graph, register_measure, row

if TYPE_CHECKING:  # blocks import this package, and the model imports blocks
    from zoo.model import LanguageModel

INVOLVED = ("streams", "pre", "post", "res")
KEEP = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}


@register_measure
class CoefficientPath(Measure):
    """The way through the coefficients c(x) of every sub-block with several streams x.

    path_gain                    the bound of ‖∂(H_res(x)x)/∂x − H_res‖₂, where the scheme has one (ohc, shc)
    coefficient_gradient_share   ‖(∂c/∂x)ᵀ·∂loss/∂c‖/‖∂loss/∂x‖, all tokens together: of the gradient of the mean
                                 cross-entropy that reaches x, what comes through c; 0 while φ = 0. Above 1 where
                                 this way and the others cancel.

    Raises UserError under `torch.inference_mode`, which keeps no graph.
    """

    name = "coefficient_path"
    kinds = ("streams",)
    needs_gradient = True

    def __init__(self) -> None:
        self.events: list[ProbeEvent] = []

    def update(self, event: ProbeEvent) -> Iterator[Row]:
        """A row of the bound; the coefficients are stored until the loss is known."""
        if event.values.keys() >= set(INVOLVED):
            self.events.append(event)
        if "path_gain" in event.values:
            tokens = event.values["streams"].shape[:2].numel()
            yield row(event, "path_gain", event.values["path_gain"].detach().double(), count=tokens)

    def finish(self, model: LanguageModel, loss: Tensor) -> Iterator[Row]:
        """A row of the share of every sub-block, of the loss []. Raises UserError where the loss has no graph."""
        check_graph(loss, self.name)
        if not self.events:
            return
        tensors = [
            [x for name in INVOLVED if (x := event.values[name]).requires_grad] for event in self.events
        ]
        everything = [x for own in tensors for x in own]
        # Other measures may need the graph after this one.
        found = iter(torch.autograd.grad(loss, everything, **KEEP))
        for event, (x, *coefficients) in zip(self.events, tensors, strict=True):
            total, *upstream = [next(found) for _ in (x, *coefficients)]
            (through,) = torch.autograd.grad(coefficients, x, upstream, **KEEP)
            share = through.double().norm() / total.double().norm()
            yield row(event, "coefficient_gradient_share", share, count=x.shape[:2].numel())
