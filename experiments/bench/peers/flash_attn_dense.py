"""The flash-attn package: full causal attention, as in sdpa_flash."""

from __future__ import annotations

import functools

import torch

import kernels
from experiments.bench.peers.shared import dense_attention_peers
from kernels.plugins import flash


def refuses(device: torch.device) -> str | None:
    """Why the flash-attn package cannot be used on this device; None if it can."""
    return flash.unusable(device)


CALLS = dense_attention_peers(functools.partial(kernels.attention, backend="flash_attn"))
