"""Operations that PyTorch's FLOP counter does not know.

Counted as PyTorch counts attention that it takes apart, so that one model has one count on every device: two
a multiply-add, every score entry whether masked or not, two products forward and four backward. Computing
scores again in a backward belongs to the method and is not counted.
"""

from __future__ import annotations

import torch
from torch.utils.flop_counter import flop_registry, register_flop_formula

BACKWARD: dict[object, float] = {}
"""How many times its forward an operator's backward costs, where that is not 2; see `backward_costs`."""


def backward_costs(operator: object, forwards: float) -> None:
    """Declare that the backward of torch.ops.<name space>.<operator> costs so many of its forwards.

    A product's backward costs two: a gradient for either factor. A solve's costs one, a second solve, and what
    passes no gradient none. The counter needs no such word, it counts what runs; whoever checks a count of the
    training against that of the forward does (tests/zoo/test_contract_files.py).
    """
    BACKWARD[operator] = forwards


def backward_share(operator: object) -> float:
    """What `backward_costs` declared for an operator, 2 where nothing was."""
    return BACKWARD.get(operator, 2.0)


def attention_flops(score_entries: int, key_width: int, value_width: int) -> int:
    """FLOPs of q·kᵀ and weights·v over so many score entries; a backward costs twice this."""
    return 2 * score_entries * (key_width + value_width)


def _sdpa(q, k, v, *_args, out_shape=None, **_options) -> int:
    batch, heads, queries, width = q
    return attention_flops(batch * heads * queries * k[2], width, v[3])


def _sdpa_backward(_grad, q, k, v, *_args, out_shape=None, **_options) -> int:
    return 2 * _sdpa(q, k, v)


def count_cpu_attention() -> None:
    """Teach the counter the fused CPU kernel, which it would count as nothing."""
    aten = torch.ops.aten
    formulas = {
        aten._scaled_dot_product_flash_attention_for_cpu: _sdpa,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: _sdpa_backward,
    }
    for operator, formula in formulas.items():
        if operator not in flop_registry:
            register_flop_formula(operator)(formula)


count_cpu_attention()
