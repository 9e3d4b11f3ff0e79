"""Liger-Kernel's hyper-connections (mHC), coefficients with Sinkhorn, reading and writing the streams; and its head.

Its coefficients include the map, which ours have as an operation of its own; its streams are half precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from experiments.bench.cases import Call
from experiments.bench.peers.shared import Make, needs, of_library

LIBRARY = "liger_kernel.transformers.functional"


def refuses(device: torch.device) -> str | None:
    """Why Liger-Kernel cannot be used on this device; None if it can."""
    return needs(LIBRARY, device)


def _pre(calls: list[Call]) -> Callable[[], Any]:
    liger_mhc_pre = of_library((LIBRARY, "liger_mhc_pre"))
    (call,) = (c for c in calls if c.operation == "hyper_pre")
    return lambda: liger_mhc_pre(*call.arguments)


def _post(calls: list[Call]) -> Callable[[], Any]:
    liger_mhc_post_res = of_library((LIBRARY, "liger_mhc_post_res"))
    (call,) = (c for c in calls if c.operation == "hyper_post")
    streams, z, mixing, out = call.arguments
    return lambda: liger_mhc_post_res(streams, z, out, mixing)


def _coefficients(calls: list[Call]) -> Callable[[], Any]:
    liger_mhc_coeffs = of_library((LIBRARY, "liger_mhc_coeffs"))
    (call,) = (c for c in calls if c.operation == "hyper_coefficients")
    streams, phi, scale, bias = call.arguments
    return lambda: liger_mhc_coeffs(streams, phi.mT.contiguous(), bias, *scale)


def _whole(calls: list[Call]) -> Callable[[], Any]:
    parts = [make(calls) for make in (_coefficients, _pre, _post)]
    return lambda: [part() for part in parts]


def _head(calls: list[Call]) -> Callable[[], Any]:
    linear_cross_entropy = of_library((LIBRARY, "liger_fused_linear_cross_entropy"))
    (call,) = calls
    x, weight, targets = call.arguments
    return lambda: linear_cross_entropy(x.flatten(0, 1), weight, targets.flatten(), reduction="sum")


def _hidden_layer(calls: list[Call]) -> Callable[[], Any]:
    swiglu = of_library((LIBRARY, "liger_swiglu"))
    (call,) = calls
    return lambda: swiglu(*call.arguments)


CALLS: dict[str, Make] = {
    "hyper_pre": _pre,
    "hyper_post": _post,
    "hyper-connections, mHC": _whole,
    "linear_cross_entropy": _head,
    "swiglu": _hidden_layer,
}
