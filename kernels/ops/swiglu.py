"""The gate of a feed-forward network, SiLU(gate) ⊙ up: the public function, its definition and PyTorch's form."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dispatch import Operation, always, on_cuda, only_when_named
from kernels.triton_common import lazily, refusal
from kernels.triton_common.tiles import Work, nbytes


def swiglu_reference(gate: Tensor, up: Tensor) -> Tensor:
    """Return g·σ(g)·u of gate g and up u [..., F], in their dtype, computed in at least fp32."""
    wide = torch.promote_types(gate.dtype, torch.float32)
    g = gate.to(wide)
    return (g * torch.sigmoid(g) * up.to(wide)).to(gate.dtype)


def swiglu_torch(gate: Tensor, up: Tensor) -> Tensor:
    """Compute `kernels.swiglu` of gate and up [..., F]; a form of our own that saves less takes as long on a CPU."""
    return F.silu(gate) * up


# The public function and its backends.

__all__ = ["swiglu"]


def _refuses(gate: Tensor, up: Tensor) -> str | None:
    return refusal(gate, up)


OPERATION = Operation("swiglu")
OPERATION.register(
    "triton",
    lazily("kernels.ops.swiglu_triton", "swiglu_triton"),
    refuses=_refuses,
    suits=on_cuda,
)
OPERATION.register("torch", swiglu_torch, suits=always)
OPERATION.register("reference", swiglu_reference, suits=only_when_named)


def swiglu(gate: Tensor, up: Tensor, *, backend: str = "auto") -> Tensor:
    """Return the gated hidden layer of a feed-forward network.

        h = SiLU(gate) ⊙ up,   SiLU(g) = g·σ(g)

    gate, up  [..., F], one shape and dtype, any floating; they may be parts of one product
    backend   auto, triton (what auto takes on a GPU: one kernel each way, which saves its inputs alone), torch,
              reference
    returns   [..., F] in their dtype, computed in at least fp32 by triton and reference

    Raises ValueError for shapes or dtypes that differ, and for an unknown backend.
    Source: Shazeer 2020 (arXiv:2002.05202), equation 5.
    """
    if gate.shape != up.shape or gate.dtype != up.dtype or gate.dim() == 0 or not gate.is_floating_point():
        raise ValueError(
            f"swiglu needs floating gate and up of the same shape and dtype, got {gate.dtype} {tuple(gate.shape)} and "
            f"{up.dtype} {tuple(up.shape)}"
        )
    return OPERATION(gate, up, backend=backend)


def work(gate: Tensor, up: Tensor) -> list[Work]:
    """Count the operations and bytes of a call: two products an element, and three for each gradient.

    gate, up [..., F].
    """
    size = gate.numel()
    return [
        Work("swiglu", "forward", 2 * size, nbytes(gate, up, up)),
        Work("swiglu", "backward", 6 * size, nbytes(gate, up, up, gate, up)),
    ]
