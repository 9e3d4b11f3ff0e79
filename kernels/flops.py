"""FLOPs of PyTorch's operators, by formulas of our own.

PyTorch's change with its releases and differ between its forms of attention. Here one model has one count on every
device: two a multiply-add, every score entry whether masked or not, two products forward and four backward.
Counted are products of matrices and attention; elementwise work is not, nor the short convolution, a multiply-add a
tap and channel: together under 0.4 % of a layer at a width of 768, in every block (tests/zoo/test_cost.py).
Computing scores again in a backward belongs to the method and is not counted. Operations of ours register theirs
where they are defined.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode

BACKWARD: dict[object, float] = {}
"""How many times its forward an operator's backward costs, where that is not 2; see `backward_costs`."""


def backward_costs(operator: object, forwards: float) -> None:
    """Declare that the backward of torch.ops.<name space>.<operator> costs so many of its forwards.

    A product's backward costs two: a gradient for either factor. A solve's costs one, a second solve, and an operator
    without a gradient costs none. The counter does not use this, it counts what runs; a check of the cost of training
    against the cost of a forward does (tests/zoo/test_contract_files.py).
    """
    BACKWARD[operator] = forwards


def backward_share(operator: object) -> float:
    """Return how many forwards an operator's backward costs: what `backward_costs` declared, else 2."""
    return BACKWARD.get(operator, 2.0)


def attention_flops(score_entries: int, key_width: int, value_width: int) -> int:
    """Return the FLOPs of q·kᵀ and weights·v over so many score entries; a backward costs twice this."""
    return 2 * score_entries * (key_width + value_width)


def flop_counter() -> FlopCounterMode:
    """Return PyTorch's counter with the formulas of this file; the same count in every release, no table at the end."""
    return FlopCounterMode(display=False, custom_mapping=FORMULAS)


def _mm(a, b, *_args, **_options) -> int:
    return 2 * a[0] * a[1] * b[1]


def _bmm(a, b, *_args, **_options) -> int:
    return a[0] * _mm(a[1:], b[1:])


def _added(product):
    """The formula of addmm or baddbmm, whose first argument is the term that the product is added to."""
    return lambda _to, *factors, **_options: product(*factors)


def _sdpa(q, k, v, *_args, **_options) -> int:
    batch, heads, queries, width = q
    return attention_flops(batch * heads * queries * k[2], width, v[3])


def _sdpa_backward(_grad, q, k, v, *_args, **_options) -> int:
    return 2 * _sdpa(q, k, v)


_FUSED = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")

FORMULAS: dict[object, Callable[..., int]] = {
    torch.ops.aten.mm: _mm,
    torch.ops.aten.addmm: _added(_mm),
    torch.ops.aten.bmm: _bmm,
    torch.ops.aten.baddbmm: _added(_bmm),
    **{getattr(torch.ops.aten, f"_scaled_dot_product_{name}"): _sdpa for name in _FUSED},
    **{getattr(torch.ops.aten, f"_scaled_dot_product_{name}_backward"): _sdpa_backward for name in _FUSED},
}
"""Operators of PyTorch's -> FLOPs from the shapes of their arguments; they come before PyTorch's own formulas."""
