"""What kernels take in of the operators around them: bytes with the part inside, and with it beside the kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.bench.cases import CASES
from experiments.bench.cases.residual import WIDTH
from experiments.bench.inputs import InputFactory
from experiments.bench.traffic import bytes_of
from zoo.modules.indexer import Indexer

HEADS, HEAD = 4, 64
"""The indexer's, as in the cases of `lightning_topk`."""


@dataclass(frozen=True)
class Part:
    """A part of a case's call: the option that puts it into the kernel, and the operators that else compute it.

    apart  (the kernel's output without the part, the option's tensor) -> the output with it
    """

    case: str
    option: str
    apart: Callable[[Tensor, Tensor], Tensor]


def _gate(o: Tensor, logits: Tensor) -> Tensor:
    return o * torch.sigmoid(logits)


def _norm(y: Tensor, gain: Tensor) -> Tensor:
    """PyTorch's layer norm, one operator each way: its RMSNorm is that on a GPU, and several on a CPU."""
    return F.layer_norm(y, gain.shape, gain)


PROJECTIONS = "indexer's projections"
PARTS = {
    "gate of sparse_attention": Part("sparse_attention with its gate", "gate_logits", _gate),
    "norm of hyper_pre": Part("hyper_pre with the norm", "gain", _norm),
}
TAKEN_IN = (*PARTS, PROJECTIONS)


def taken_in_bytes(name: str, length: int, mode: str, device: torch.device) -> tuple[float, float]:
    """Bytes of a row of TAKEN_IN, apart and together."""
    if name == PROJECTIONS:
        return _projection_bytes(length, mode, device)
    part = PARTS[name]
    (call,) = CASES[part.case].calls(length, length, device, torch.float32)
    without = replace(call, options={key: x for key, x in call.options.items() if key != part.option})
    operand = call.options[part.option]
    with torch.no_grad():
        output = without.run("torch")
    leaves = [output.requires_grad_(), operand]
    operators = bytes_of(lambda: part.apart(*leaves), leaves, mode)
    return without.bytes(mode) + operators, call.bytes(mode)


def _projection_bytes(length: int, mode: str, device: torch.device) -> tuple[float, float]:
    """Of the indexer's three projections as three products, and as the one that it makes; x takes no gradient."""
    indexer = Indexer(WIDTH, HEADS, HEAD).to(device)
    weights = [linear.weight for linear in (indexer.q_proj, indexer.k_proj, indexer.w_proj)]
    x = InputFactory(1, length, device, torch.float32).normal(WIDTH).detach()
    apart = bytes_of(lambda: [F.linear(x, weight) for weight in weights], weights, mode)
    return apart, bytes_of(lambda: indexer.projections(x), weights, mode)
