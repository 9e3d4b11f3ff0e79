"""Noise that depends on where it is used, not on when it is drawn.

A counter-based generator: every draw is a hash of its coordinates, so it is the same on every device, in
every batch layout and after every resume, and no checkpoint needs a generator's state.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LOW_32 = 0xFFFFFFFF
_GOLDEN = 0x9E3779B9


def gumbel_noise(keys: Tensor, positions: Tensor, layer: int, n_heads: int, n_choices: int) -> Tensor:
    """Draw standard Gumbel noise, −log(−log u), with u a hash of (key, position, layer, head, choice).

    keys       int64 [B, T], the noise key of the sequence that the token belongs to
    positions  int64 [B, T], the token's position in its sequence
    layer      int ≥ 0
    returns    fp32 [B, T, n_heads, n_choices]; between −2.82 and 16.64; mean 0.5772, variance π²/6

    u takes the 2²³ values (i + ½)/2²³, which fp32 holds exactly, so that neither logarithm meets 0.
    Raises ValueError if keys and positions are not [B, T] both, or not int64.
    """
    if keys.shape != positions.shape or keys.dim() != 2:
        raise ValueError(
            f"gumbel_noise needs keys and positions [B, T], got {tuple(keys.shape)}, {tuple(positions.shape)}"
        )
    if keys.dtype != torch.int64 or positions.dtype != torch.int64:
        raise ValueError(f"gumbel_noise needs int64 keys and positions, got {keys.dtype}, {positions.dtype}")
    draw = torch.arange(n_heads * n_choices, device=keys.device)
    # Two 32-bit lanes: with one, two of 2^16 sequences would probably share their whole noise.
    first = _token_lane(keys, positions, layer, seed=0x243F6A88).unsqueeze(-1)
    second = _token_lane(keys, positions, layer, seed=0x13198A2E).unsqueeze(-1)
    bits = _mix(_mix(first ^ _spread(draw)) ^ second)
    uniform = ((bits >> 9).to(torch.float32) + 0.5) * 2.0**-23
    return -torch.log(-torch.log(uniform)).unflatten(-1, (n_heads, n_choices))


def _token_lane(keys: Tensor, positions: Tensor, layer: int, seed: int) -> Tensor:
    """A 32-bit hash [B, T] of the coordinates that all draws of a token share."""
    lane = _mix((keys & _LOW_32) ^ seed)
    lane = _mix(lane ^ _spread((keys >> 32) & _LOW_32))
    lane = _mix(lane ^ _spread(positions & _LOW_32))
    return _mix(lane ^ (((layer + 1) * _GOLDEN) & _LOW_32))


def _spread(counter: Tensor) -> Tensor:
    """Hashes of small counters: unhashed, neighbours would differ in a low bit only."""
    return _mix((counter + _GOLDEN) & _LOW_32)


def _mix(x: Tensor) -> Tensor:
    """A bijection of 32-bit integers (held in int64) in which every input bit flips half of the output bits.

    Multipliers stay below 2³¹, so that a product of 32-bit values fits in int64 on every device.
    """
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _LOW_32
    x = ((x ^ (x >> 15)) * 0x2C1B3C6D) & _LOW_32
    x = ((x ^ (x >> 12)) * 0x297A2D39) & _LOW_32
    return x ^ (x >> 15)
