"""Definitions are right in bf16 too, over 2,000 tokens: what they compute, and the gradients of what all tokens share.

Against the definition in fp64, of the very same bf16 numbers.
"""

import pytest
import torch
from support import operation_cases as cases
from support.formula import uniform
from support.kernel_cases import rmse_ratio
from support.margins import below
from support.operation_cases import Call, as_dtype, gate, tensors_of, unit

import kernels

TOKENS = 2000
LIMIT = 4 * 2.0**-9
"""Four roundings to bf16, as inputs, products, results and their gradients may have one each."""


def positive(name: str, *shape: int) -> torch.Tensor:
    """Numbers whose products have one sign, so that no sum over tokens stays small."""
    return uniform(name, *shape, low=0.5, high=1.5)


def recurrent(beta: float, **more: torch.Tensor) -> dict[str, torch.Tensor]:
    """Little is forgotten: gates that bf16 tells from 1 by their logarithms alone."""
    tensors = {"q": positive("q", 1, TOKENS, 1, 3), "k": unit(positive("k", 1, TOKENS, 1, 3))}
    tensors |= {"v": positive("v", 1, TOKENS, 1, 2), "g": 0.001 * gate("g", 1, TOKENS, 1)}
    return {**tensors, "beta": beta * positive("beta", 1, TOKENS, 1), **more}


def routed() -> dict[str, torch.Tensor]:
    tensors = recurrent(
        0.002, routes=torch.zeros(1, TOKENS, 1).long(), weights=uniform("weights", 1, TOKENS, 1)
    )
    return {name: x.unsqueeze(2) if name in ("k", "v", "g", "beta") else x for name, x in tensors.items()}


def shared() -> list[Call]:
    """An operation each, over TOKENS tokens; `learned` are inputs that all tokens share."""
    streams, attention = positive("streams", 1, TOKENS, 2, 4), cases.qkv(20, 100, 100, 2, 1, 4, 4)
    coefficients = {"phi": uniform("phi", 8, 8) / 3, "scale": uniform("scale", 3), "bias": uniform("bias", 8)}
    post = {
        "z": uniform("z", 1, TOKENS, 4),
        "h_res": uniform("h_res", 2, 2),
        "h_post": uniform("h_post", 1, TOKENS, 2),
    }
    pre = {"h_pre": uniform("h_pre", 1, TOKENS, 2), "gain": uniform("gain", 4)}
    rows = {
        "x": positive("x", TOKENS, 4),
        "weight": uniform("weight", 2, 3, 4),
        "counts": torch.tensor([1200, 800]),
    }
    indexed = {
        "q": attention["q"],
        "k": attention["k"],
        **cases.indexer(20, 100, 100),
        "tau": torch.tensor(3.0),
    }
    window = {"x": positive("x", 1, TOKENS, 3), "weight": uniform("weight", 3, 4)}
    ridge = {"lamb": positive("lamb", 1, 3)}
    return [
        Call("", kernels.short_conv, window, {"activation": "silu"}, ("weight",)),
        Call("", kernels.mesa, recurrent(0.5, **ridge), {"cg_steps": 2}, ("lamb",)),
        Call("", kernels.delta_rule, recurrent(0.002), {"output_final_state": True}, ()),
        Call("", kernels.memory_mixture, routed(), {"output_final_state": True}, ()),
        Call("", kernels.hyper_coefficients, {"streams": streams, **coefficients}, {}, tuple(coefficients)),
        Call("", kernels.hyper_pre, {"streams": streams, **pre}, {}, ("gain",)),
        Call("", kernels.hyper_post, {"streams": streams, **post}, {}, ("h_res",)),
        Call("", kernels.grouped_linear, rows, {}, ("weight",)),
        Call("", kernels.indexer_kl, indexed, {}, ("bias", "tau")),
    ]


def computed(call: Call) -> dict[str, torch.Tensor]:
    """Results, and gradients of shared inputs, of the sum of results times numbers that bf16 has."""
    leaves = {
        name: x.clone().requires_grad_() if name in call.learned else x for name, x in call.tensors.items()
    }
    out = tensors_of(call("reference", leaves))
    found = {f"result {i}": x.detach() for i, x in enumerate(out)}
    if call.learned:
        moving = [x for x in out if x.requires_grad]
        given = [positive(f"gradient {i}", *x.shape).bfloat16().to(x.dtype) for i, x in enumerate(moving)]
        gradients = torch.autograd.grad(moving, [leaves[name] for name in call.learned], given)
        found |= dict(zip(call.learned, gradients, strict=True))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("call", shared(), ids=lambda call: call.operation.__name__)
def test_a_definition_in_bf16_agrees_with_it_in_fp64(call):
    narrow = as_dtype(call, torch.bfloat16)
    got, wanted = (
        computed(Call("", call.operation, x.tensors, x.options, call.learned))
        for x in (narrow, as_dtype(narrow, torch.float64))
    )
    for name, x in got.items():
        below(rmse_ratio(x, wanted[name]), LIMIT, name)
