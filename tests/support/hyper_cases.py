"""Inputs of `hyper_pre` and `hyper_post`."""

import torch
from torch import Tensor

from support.kernel_cases import normal


def stream_inputs(
    size: tuple[int, int, int, int] = (2, 5, 4, 8),
    dtype: torch.dtype = torch.float64,
    *,
    common: bool = False,
) -> dict[str, Tensor]:
    """Arguments of `hyper_post` by name, for size = batch, time, n, D; h_post is as good as h_pre.

    common: one matrix h_res for all tokens.
    """
    batch, time, n, width = size
    return {
        "streams": normal(batch, time, n, width, dtype=dtype, seed=1),
        "z": normal(batch, time, width, dtype=dtype, seed=2),
        "h_res": normal(*(() if common else (batch, time)), n, n, dtype=dtype, seed=3),
        "h_post": normal(batch, time, n, dtype=dtype, seed=4),
    }


def pre_inputs(
    size: tuple[int, int, int, int] = (2, 5, 4, 8), dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """Arguments of `hyper_pre` by name, for size = batch, time, n, D."""
    inputs = stream_inputs(size, dtype)
    return {"streams": inputs["streams"], "h_pre": inputs["h_post"]}


def normed_inputs(
    size: tuple[int, int, int, int] = (2, 5, 4, 8), dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """Arguments of `hyper_pre` with the norm's gain."""
    return {**pre_inputs(size, dtype), "gain": normal(size[-1], dtype=dtype, seed=5)}
