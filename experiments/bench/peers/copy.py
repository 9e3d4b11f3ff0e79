"""Copying the largest input: what memory allows an operation that reads and writes as much and does next to nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from experiments.bench.cases.call import Call


def refuses(device: torch.device) -> str | None:
    """None: it runs on every device."""
    return None


def _copy(calls: list[Call]) -> Callable[[], Any]:
    largest: Tensor = max(calls[0].tensors(), key=lambda x: x.nbytes)
    return lambda: largest.clone()


CALLS = dict.fromkeys(("short_conv", "cayley", "sinkhorn"), _copy)
