"""Liger-Kernel's hyper-connections (mHC), its four steps: coefficients with Sinkhorn, what is read, what is written.

Its coefficients include the sigmoids and the scales, which ours leave to PyTorch; its streams are half precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from experiments.bench.cases import Call
from experiments.bench.peers.shared import Make, needs


def refuses(device: torch.device) -> str | None:
    return needs("liger_kernel", device)


def _pre(calls: list[Call]) -> Callable[[], Any]:
    from liger_kernel.transformers.functional import liger_mhc_pre

    (call,) = (c for c in calls if c.operation == "hyper_pre")
    return lambda: liger_mhc_pre(*call.arguments)


def _post(calls: list[Call]) -> Callable[[], Any]:
    from liger_kernel.transformers.functional import liger_mhc_post_res

    (call,) = (c for c in calls if c.operation == "hyper_post")
    streams, z, mixing, out = call.arguments
    return lambda: liger_mhc_post_res(streams, z, out, mixing)


def _coefficients(calls: list[Call]) -> Callable[[], Any]:
    from liger_kernel.transformers.functional import liger_mhc_coeffs

    (call,) = (c for c in calls if c.operation == "rms_linear")
    flat, weight = call.arguments
    rows = weight.shape[0]
    n = int((1 + rows) ** 0.5) - 1  # rows = n² + 2n
    streams = flat.unflatten(-1, (n, -1))
    alpha = torch.full((3,), 0.01, device=flat.device)
    bias = torch.zeros(rows, device=flat.device)
    return lambda: liger_mhc_coeffs(streams, weight.mT.contiguous(), bias, *alpha)


def _whole(calls: list[Call]) -> Callable[[], Any]:
    parts = [make(calls) for make in (_coefficients, _pre, _post)]
    return lambda: [part() for part in parts]


CALLS: dict[str, Make] = {"hyper_pre": _pre, "hyper_post": _post, "hyper-connections, mHC": _whole}
