"""torch.nn.attention.varlen on one sequence a batch row: full causal attention, as in sdpa_flash."""

from __future__ import annotations

import functools

import torch

import kernels
from experiments.bench.peers.shared import dense_attention_peers
from kernels.plugins import varlen


def refuses(device: torch.device) -> str | None:
    """Why PyTorch's varlen attention cannot be used on this device; None if it can."""
    return varlen.unusable(device)


CALLS = dense_attention_peers(functools.partial(kernels.attention, backend="varlen"))
