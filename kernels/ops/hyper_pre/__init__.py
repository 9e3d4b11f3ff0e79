"""The sum of residual streams that a sub-block reads: the public function and its backends."""

from __future__ import annotations

from torch import Tensor

from kernels.dispatch import Operation, always, on_cuda, only_when_named
from kernels.ops.hyper_pre.reference import hyper_pre_reference
from kernels.ops.hyper_pre.torch_ops import hyper_pre_torch
from kernels.stream_checks import check_streams, refuses_streams
from kernels.triton_common import lazily

__all__ = ["hyper_pre"]


MAX_NORMED = 32_768
"""The most numbers of a token, n·D, that a Triton program holds at once to normalise their sum."""


def _refuses(streams: Tensor, h_pre: Tensor, *, gain: Tensor | None = None, **_options) -> str | None:
    numbers = streams.shape[-2] * streams.shape[-1]
    if gain is not None and numbers > MAX_NORMED:
        return f"normalises tokens of at most {MAX_NORMED} numbers n·D, got {numbers}"
    return refuses_streams(streams.shape[-2], streams, h_pre, gain)


OPERATION = Operation("hyper_pre")
OPERATION.register(
    "triton",
    lazily("kernels.ops.hyper_pre.triton_ops", "hyper_pre_triton"),
    refuses=_refuses,
    suits=on_cuda,
)
OPERATION.register("torch", hyper_pre_torch, suits=always)
OPERATION.register("reference", hyper_pre_reference, suits=only_when_named)


def hyper_pre(
    streams: Tensor,
    h_pre: Tensor,
    *,
    gain: Tensor | None = None,
    eps: float = 1e-6,
    hand_on: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Return the weighted sum of the streams that a sub-block reads, by option after its RMSNorm.

        y = Σ_i h_pre_i · x_i;   with a gain: y · (mean(y²) + eps)^(−1/2) ⊙ gain

    streams  [B, T, n, D], x; any floating dtype
    h_pre    [B, T, n] coefficients of every token
    gain     [D] of the norm between this sum and the sub-block; None: no norm. Fused, y itself is neither written
             nor saved
    eps      of the norm
    hand_on  return the streams too, for those who read them next: their gradient is then added to this one's as it
             is written (not by `reference`, nor by torch in 16 bit: there autograd adds them)
    backend  auto, triton (what auto takes on a GPU; at most 8 streams, with a gain n·D of at most 32,768), torch,
             reference
    returns  [B, T, D] in the streams' dtype, computed in at least fp32, under autocast too; with hand_on a pair

    Raises ValueError for shapes that do not fit, and for an unknown backend.
    Source: hyper-connections (arXiv:2409.19606), equation 3; mHC (arXiv:2512.24880), equation 3.
    """
    wanted = {} if gain is None else {"gain": (gain, streams.shape[-1:])}
    check_streams("hyper_pre", streams, h_pre=(h_pre, streams.shape[:-1]), **wanted)
    return OPERATION(streams, h_pre, gain=gain, eps=eps, hand_on=hand_on, backend=backend)
