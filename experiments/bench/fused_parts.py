"""Operators that kernels fuse: bytes moved with the part inside the kernel, and with the part beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.bench import cases
from experiments.bench.cases import Call, InputFactory
from experiments.bench.memory_traffic import bytes_of
from zoo.mixers.gsa import Indexer

HEADS, HEAD = 4, 64
"""The indexer's, as in the cases of `lightning_topk`."""


@dataclass(frozen=True)
class Part:
    """A part of a call: the option that puts it into the kernel, and the operators that else compute it.

    make   the call with the part inside
    apart  (the kernel's output without the part, the option's tensor) -> the output with it
    """

    make: Callable[[InputFactory], Call]
    option: str
    apart: Callable[[Tensor, Tensor], Tensor]


def _gate(o: Tensor, logits: Tensor) -> Tensor:
    return o * torch.sigmoid(logits)


def _norm(y: Tensor, gain: Tensor) -> Tensor:
    """PyTorch's layer norm, one operator each way: its RMSNorm is that on a GPU, and several on a CPU."""
    return F.layer_norm(y, gain.shape, gain)


def _part_bytes(part: Part, length: int, mode: str, device: torch.device) -> tuple[float, float]:
    call = part.make(InputFactory(1, length, device, torch.float32))
    without = replace(call, options={key: x for key, x in call.options.items() if key != part.option})
    operand = call.options[part.option]
    with torch.no_grad():
        output = without.run("torch")
    leaves = [output.requires_grad_(), operand]
    operators = bytes_of(lambda: part.apart(*leaves), leaves, mode)
    return without.bytes(mode) + operators, call.bytes(mode)


def _gradient_bytes(length: int, mode: str, device: torch.device) -> tuple[float, float]:
    """Return the bytes of a sub-block's three readers of streams, apart and together.

    Apart, autograd adds their gradients; together, each kernel adds its own to the last.
    """
    d = InputFactory(1, length, device, torch.float32)
    apart, together = (
        sum(call.bytes(mode) for call in (*calls, cases.post(d)))
        for calls in ((cases.coefficients(d), cases.normed_pre(d)), cases.reading(d))
    )
    x, y, z = (d.normal(cases.STREAMS, cases.WIDTH).detach() for _ in range(3))
    sums = bytes_of(lambda: x + y + z, [], "forward") if "backward" in mode else 0
    return apart + sums, together


def _projection_bytes(length: int, mode: str, device: torch.device) -> tuple[float, float]:
    """Return the bytes of the indexer's projections as three products and as its own one; x takes no gradient."""
    indexer = Indexer(cases.WIDTH, HEADS, HEAD).to(device)
    weights = [linear.weight for linear in (indexer.q_proj, indexer.k_proj, indexer.w_proj)]
    x = InputFactory(1, length, device, torch.float32).normal(cases.WIDTH).detach()
    apart = bytes_of(lambda: [F.linear(x, weight) for weight in weights], weights, mode)
    return apart, bytes_of(lambda: indexer.projections(x), weights, mode)


PROJECTIONS, GRADIENTS = "indexer's projections", "gradients of the streams"
FUSED_PARTS: dict[str, Callable[[int, str, torch.device], tuple[float, float]]] = {
    "gate of sparse_attention": partial(
        _part_bytes, Part(lambda d: cases.gated_sparse(d)[0], "gate_logits", _gate)
    ),
    "norm of hyper_pre": partial(_part_bytes, Part(cases.normed_pre, "gain", _norm)),
    PROJECTIONS: _projection_bytes,
    GRADIENTS: _gradient_bytes,
}
"""Row -> its bytes apart and together, of a length, a mode of `timing.MODES` and a device."""
