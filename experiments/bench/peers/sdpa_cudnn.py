"""cuDNN's attention through PyTorch's SDPA: full causal attention, as in sdpa_flash."""

from __future__ import annotations

import functools

import torch
from torch.nn.attention import SDPBackend

from experiments.bench.peers.sdpa_flash import attention
from experiments.bench.peers.shared import dense_attention_peers


def refuses(device: torch.device) -> str | None:
    """Why cuDNN's attention cannot be used on this device; None if it can."""
    return None if device.type == "cuda" else "cuDNN needs a CUDA device"


CALLS = dense_attention_peers(functools.partial(attention, backend=SDPBackend.CUDNN_ATTENTION))
