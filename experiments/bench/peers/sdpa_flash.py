"""PyTorch's own FlashAttention: full causal attention where ours is sparse or routed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from experiments.bench.peers.shared import dense_attention_peers


def refuses(device: torch.device) -> str | None:
    """None: where a device has no FlashAttention, SDPA raises when it is called."""
    return None


def attention(q: Tensor, k: Tensor, v: Tensor, backend: SDPBackend = SDPBackend.FLASH_ATTENTION) -> Tensor:
    """Causal attention o [B, T, H, K] of q, k, v of that layout, by one of SDPA's kernels and no other."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


CALLS = dense_attention_peers(attention)
