"""Watches what runs: the largest tensor that is made, and the scores that are computed."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
MATRIX_PRODUCTS = (torch.ops.aten.bmm.default, torch.ops.aten.mm.default)


class Watch(TorchDispatchMode):
    """largest: elements of the largest result; scores: of the first arguments of operators that `counted` names."""

    def __init__(self, counted: Callable[[Any, tuple], bool] = lambda operator, args: False) -> None:
        super().__init__()
        self.counted, self.scores, self.largest = counted, 0, 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        if self.counted(operator, args):
            self.scores += args[0].numel()
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.largest = max(self.largest, *sizes, 0)
        return result


class AttentionWatch(Watch):
    """entries: one list item a fused attention call, B·H·Tq·Tk."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[int] = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        assert operator not in MATRIX_PRODUCTS, "attention went past the fused kernel"
        if operator is FORWARD:
            q, k = args[:2]
            self.entries.append(math.prod(q.shape[:3]) * k.shape[2])
        return super().__torch_dispatch__(operator, types, args, kwargs)
