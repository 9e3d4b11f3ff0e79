"""What the kernel tests share: inputs, and the comparison of one backend with another."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from support.margins import below

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}


def normal(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0, device: str = "cpu") -> Tensor:
    """Standard normal numbers that depend on the seed and the shape only."""
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed)).to(device)


def qkv(
    batch: int,
    time: int,
    heads: int = 4,
    kv_heads: int | None = None,
    width: int = 8,
    value_width: int | None = None,
    dtype: torch.dtype = torch.float64,
    queries: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of an attention."""
    kv_heads = kv_heads or heads
    q = normal(batch, queries or time, heads, width, dtype=dtype, seed=1)
    k = normal(batch, time, kv_heads, width, dtype=dtype, seed=2)
    return q, k, normal(batch, time, kv_heads, value_width or width, dtype=dtype, seed=3)


def packed(*lengths: int) -> Tensor:
    """cu_seqlens of sequences of these lengths."""
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def value_and_gradients(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The output, and the gradients of the inputs under a fixed output gradient."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = function(*leaves)
    out.backward(normal(*out.shape, dtype=torch.float64, seed=9).to(out))
    return [out.detach(), *(x.grad for x in leaves)]


def assert_agree(function: Callable[..., Tensor], expected: Callable[..., Tensor], inputs) -> None:
    """One output and one gradient an input, compared relative to the largest value (a true 0 absolutely)."""
    limit = TOLERANCE[inputs[0].dtype]
    results = value_and_gradients(function, inputs), value_and_gradients(expected, inputs)
    for index, (got, wanted) in enumerate(zip(*results, strict=True)):
        name = "output" if index == 0 else f"gradient {index - 1}"
        assert got.shape == wanted.shape
        assert got.isfinite().all(), name
        error = (got - wanted).abs().max() / wanted.abs().max().clamp_min(0.1)
        below(error, limit, name)


def rmse_ratio(got: Tensor, wanted: Tensor) -> float:
    """rmse(got − wanted) / rmse(wanted)."""
    wanted = wanted.double()
    return float((got.double() - wanted).norm() / wanted.norm())
