"""Gates: public functions, definitions and PyTorch's forms.

swiglu       SiLU(gate) ⊙ up, of a feed-forward network
delta_gates  log decay and write strength of a gated delta rule
gated_norm   RMSNorm of a head's output, times a sigmoid gate
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.autograd import rms_norm
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


def delta_gates_torch(
    raw: Tensor, log_rate: Tensor, bias: Tensor, strength: Tensor, *, top: float
) -> tuple[Tensor, Tensor]:
    """Compute `kernels.delta_gates`: raw [..., *shape], log_rate [*rates], bias [*shape], strength [...] -> g, β."""
    wide = torch.promote_types(raw.dtype, torch.float32)
    g = -log_rate.to(wide).exp() * F.softplus(raw.to(wide) + bias)
    return g, top * torch.sigmoid(strength.to(torch.promote_types(strength.dtype, torch.float32)))


def delta_gates_reference(
    raw: Tensor, log_rate: Tensor, bias: Tensor, strength: Tensor, *, top: float
) -> tuple[Tensor, Tensor]:
    """Compute g = −exp(a)·log(1 + exp(x + b)) and β = top / (1 + exp(−s)) in at least fp32."""
    wide = torch.promote_types(raw.dtype, torch.float32)
    # Without overflow: log(1 + e^x) = log(e^0 + e^x).
    x = raw.to(wide) + bias.to(wide)
    g = -torch.exp(log_rate.to(wide)) * torch.logaddexp(x, torch.zeros_like(x))
    return g, top / (1 + torch.exp(-strength.to(torch.promote_types(strength.dtype, torch.float32))))


def gated_norm_torch(o: Tensor, gain: Tensor, logits: Tensor | None, *, eps: float) -> Tensor:
    """Compute `kernels.gated_norm`: o [..., K], gain [K], logits [..., K] or None -> [..., K]."""
    wide = torch.promote_types(o.dtype, torch.float32)
    y = rms_norm(o.to(wide), gain.to(wide), eps).to(o.dtype)
    return y if logits is None else (y * torch.sigmoid(logits)).to(o.dtype)


def gated_norm_reference(o: Tensor, gain: Tensor, logits: Tensor | None, *, eps: float) -> Tensor:
    """Compute o / √(mean(o²) + ε) ⊙ gain ⊙ σ(l) in at least fp32, in o's dtype."""
    wide = torch.promote_types(o.dtype, torch.float32)
    x = o.to(wide)
    y = x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps) * gain.to(wide)
    return (y if logits is None else y * torch.sigmoid(logits.to(wide))).to(o.dtype)


# The public functions and their backends.

__all__ = ["delta_gates", "gated_norm", "swiglu"]


def _refuses(*tensors: Tensor | None, **_options) -> str | None:
    return refusal(*tensors)


def _refuses_heads(o: Tensor, *others: Tensor | None, **_options) -> str | None:
    return refusal(o, *others, widths=o.shape[-1:])


def _operation(
    name: str, torch_form: Callable, reference: Callable, refuses: Callable = _refuses
) -> Operation:
    made = Operation(name)
    made.register(
        "triton", lazily("kernels.ops.gates_triton", f"{name}_triton"), refuses=refuses, suits=on_cuda
    )
    made.register("torch", torch_form, suits=always)
    made.register("reference", reference, suits=only_when_named)
    return made


OPERATION = _operation("swiglu", swiglu_torch, swiglu_reference)
DELTA_GATES = _operation("delta_gates", delta_gates_torch, delta_gates_reference)
GATED_NORM = _operation("gated_norm", gated_norm_torch, gated_norm_reference, _refuses_heads)


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


def delta_gates(
    raw: Tensor, log_rate: Tensor, bias: Tensor, strength: Tensor, *, top: float = 1.0, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Return the log decay and the write strength of a gated delta rule.

        g = −exp(a)·softplus(x + b) ≤ 0,   β = top·σ(s)

    raw       x [B, T, *shape], any floating dtype
    log_rate  a [*rates], which broadcasts to *shape: of as many axes, sizes equal to those of *shape from the first on
              and 1 after them
    bias      b [*shape]
    strength  s [B, T, ...], any floating dtype
    backend   auto, triton (what auto takes on a GPU: one kernel each way, which saves its inputs alone), torch,
              reference
    returns   g [B, T, *shape] in nats, β [B, T, ...]; both in at least fp32

    Raises ValueError for shapes that do not fit, and for an unknown backend.
    Source: Yang et al. 2024 (arXiv:2412.06464), and Gu and Dao 2023 (arXiv:2312.00752) for g.
    """
    shape, rates = tuple(raw.shape[2:]), tuple(log_rate.shape)
    same = next((i for i, (x, y) in enumerate(zip(rates, shape, strict=False)) if x != y), len(shape))
    fits = len(rates) == len(shape) and set(rates[same:]) <= {1} and tuple(bias.shape) == shape
    if raw.dim() < 3 or not fits or strength.dim() < 3 or strength.shape[:2] != raw.shape[:2]:
        raise ValueError(
            f"delta_gates needs raw [B, T, *shape], log_rate that broadcasts to *shape, bias [*shape] and strength "
            f"[B, T, ...], got {tuple(raw.shape)}, {rates}, {tuple(bias.shape)} and {tuple(strength.shape)}"
        )
    return DELTA_GATES(raw, log_rate, bias, strength, top=float(top), backend=backend)


def gated_norm(
    o: Tensor, gain: Tensor, logits: Tensor | None = None, *, eps: float = 1e-6, backend: str = "auto"
) -> Tensor:
    """Return a head's normalised output, times a gate.

        y = o · (mean(o²) + ε)^(−½) ⊙ gain ⊙ σ(l)     the mean over the last axis; without σ(l) where there is no l

    o        [..., K], any floating dtype
    gain     [K]
    logits   l [..., K] of o's shape, any floating dtype; or None
    backend  auto, triton (what auto takes on a GPU: one kernel each way, which saves its inputs alone; K at most 256),
             torch, reference
    returns  [..., K] in o's dtype; the norm in at least fp32

    Raises ValueError for shapes that do not fit, and for an unknown backend.
    Source: Zhang and Sennrich 2019 (arXiv:1910.07467) for the norm; Kimi Linear (arXiv:2510.26692) for the gate.
    """
    if o.dim() == 0 or gain.shape != o.shape[-1:] or (logits is not None and logits.shape != o.shape):
        given = None if logits is None else tuple(logits.shape)
        raise ValueError(
            f"gated_norm needs o [..., K], gain [K] and logits [..., K] or None, got {tuple(o.shape)}, "
            f"{tuple(gain.shape)} and {given}"
        )
    return GATED_NORM(o, gain, logits, eps=eps, backend=backend)


def work(gate: Tensor, up: Tensor) -> list[Work]:
    """Count the operations and bytes of a call of `swiglu`: two products an element, and three for each gradient.

    gate, up [..., F].
    """
    size = gate.numel()
    return [
        Work("swiglu", "forward", 2 * size, nbytes(gate, up, up)),
        Work("swiglu", "backward", 6 * size, nbytes(gate, up, up, gate, up)),
    ]
