"""Residual streams, mixed and given a sub-block's output: the public function and its backends."""

from __future__ import annotations

from torch import Tensor

from kernels.dispatch import Operation, always, on_cuda, only_when_named
from kernels.ops.hyper_post.reference import hyper_post_reference
from kernels.ops.hyper_post.torch_ops import hyper_post_torch
from kernels.stream_checks import check_streams, refuses_streams
from kernels.triton_common import lazily

__all__ = ["hyper_post"]


def _refuses(streams: Tensor, z: Tensor, h_res: Tensor, h_post: Tensor, **_options) -> str | None:
    return refuses_streams(streams.shape[-2], streams, z, h_res, h_post)


OPERATION = Operation("hyper_post")
OPERATION.register(
    "triton",
    lazily("kernels.ops.hyper_post.triton_ops", "hyper_post_triton"),
    refuses=_refuses,
    suits=on_cuda,
)
OPERATION.register("torch", hyper_post_torch, suits=always)
OPERATION.register("reference", hyper_post_reference, suits=only_when_named)


def hyper_post(streams: Tensor, z: Tensor, h_res: Tensor, h_post: Tensor, *, backend: str = "auto") -> Tensor:
    """Return the streams after a sub-block: mixed with each other, plus its output times h_post.

        x_i ← Σ_j h_res_ij · x_j + h_post_i · z

    streams  [B, T, n, D], x; any floating dtype
    z        [B, T, D], the sub-block's output
    h_res    [B, T, n, n], or [n, n] for all tokens
    h_post   [B, T, n]
    backend  auto, triton (what auto takes on a GPU; at most 8 streams), torch, reference
    returns  [B, T, n, D] in the streams' dtype, computed in at least fp32, under autocast too

    Raises ValueError for shapes that do not fit, and for an unknown backend.
    Source: hyper-connections (arXiv:2409.19606), equation 3; mHC (arXiv:2512.24880), equation 3.
    """
    n = streams.shape[-2:-1]
    check_streams(
        "hyper_post",
        streams,
        z=(z, streams.shape[:-2] + streams.shape[-1:]),
        h_res=(h_res, n + n if h_res.dim() == 2 else streams.shape[:-1] + n),
        h_post=(h_post, streams.shape[:-1]),
    )
    return OPERATION(streams, z, h_res, h_post, backend=backend)
