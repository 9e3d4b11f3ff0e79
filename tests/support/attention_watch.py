"""Watches what runs: the score entries that attention computes, and the largest tensor that is made."""

import math

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
MATRIX_PRODUCTS = (torch.ops.aten.bmm.default, torch.ops.aten.mm.default)


class AttentionWatch(TorchDispatchMode):
    """entries: one list item a fused attention call, B·H·Tq·Tk; largest: elements of the largest result."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[int] = []
        self.largest = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        assert operator not in MATRIX_PRODUCTS, "attention went past the fused kernel"
        result = operator(*args, **(kwargs or {}))
        if operator is FORWARD:
            q, k = args[:2]
            self.entries.append(math.prod(q.shape[:3]) * k.shape[2])
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.largest = max(self.largest, *sizes, 0)
        return result
