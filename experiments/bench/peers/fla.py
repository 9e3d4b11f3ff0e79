"""flash-linear-attention (fla). Differences to our operations:

path_attention multiplies the summed log gates by the scale, too, and wants w and beta in fp32;
nsa_attention pools its blocks by the mean, with keys and values that all branches share, and wants groups of at least
16 query heads; mesa's conjugate gradient has no preconditioner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from experiments.bench.cases import NSA, Call
from experiments.bench.peers.shared import Make, needs, of_library
from kernels.plugins import look_up


def refuses(device: torch.device) -> str | None:
    """Why flash-linear-attention cannot be used on this device; None if it can."""
    # Not `fla` itself: that imports where what it needs is missing, and nothing of it can be used.
    return needs("fla.ops", device)


def _kda(calls: list[Call]) -> Callable[[], Any]:
    chunk_kda = of_library(("fla.ops.kda", "chunk_kda"))
    return lambda: chunk_kda(*calls[0].arguments)


def _gated_delta(calls: list[Call]) -> Callable[[], Any]:
    chunk_gated_delta_rule = of_library(("fla.ops.gated_delta_rule", "chunk_gated_delta_rule"))
    return lambda: chunk_gated_delta_rule(*calls[0].arguments)


def _kda_step(calls: list[Call]) -> Callable[[], Any]:
    fused_recurrent_kda = of_library(("fla.ops.kda", "fused_recurrent_kda"))
    return lambda: fused_recurrent_kda(*calls[0].arguments, **calls[0].options)


def _path(calls: list[Call]) -> Callable[[], Any]:
    parallel_path_attn = of_library(("fla.ops.path_attn", "parallel_path_attn"))
    q, k, v, w, beta, g = calls[0].arguments
    return lambda: parallel_path_attn(q, k, v, w.float(), beta.float(), g)


def _mesa(calls: list[Call]) -> Callable[[], Any]:
    chunk_mesa_net = of_library(("fla.ops.mesa_net", "chunk_mesa_net"))
    return lambda: chunk_mesa_net(*calls[0].arguments, max_CG_iteration=30)


def _nsa(calls: list[Call]) -> Callable[[], Any]:
    _, why = look_up("flash_attn", "flash_attn_func")
    if why is not None:  # fla would call None
        raise ImportError(f"fla's NSA computes its window with flash-attn 2: flash_attn {why}")
    parallel_nsa = of_library(("fla.ops.nsa", "parallel_nsa"))
    q, _, (k, v), _, gates = calls[0].arguments
    options = {
        "block_counts": NSA["n_select"],
        "block_size": NSA["select_size"],
        "window_size": NSA["window"],
    }
    return lambda: parallel_nsa(q, k, v, *gates.unbind(-1), **options)


def _short_conv(calls: list[Call]) -> Callable[[], Any]:
    places = ("fla.modules.causal_conv1d", "fla.modules.conv")  # since 0.6, and before
    causal_conv1d = of_library(*((module, "causal_conv1d") for module in places))
    return lambda: causal_conv1d(*calls[0].arguments, activation="silu")


CALLS: dict[str, Make] = {
    "delta_rule, KDA": _kda,
    "delta_rule, a gate a head": _gated_delta,
    "delta_rule, KDA, a step": _kda_step,
    "path_attention": _path,
    "mesa": _mesa,
    "nsa_attention, groups of 16": _nsa,
    "short_conv": _short_conv,
}
