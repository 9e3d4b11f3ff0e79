"""Checks of a block's options, and defaults that several blocks share; every refusal names the option and its value."""

from __future__ import annotations

import math
from collections.abc import Sequence

from zoo.errors import UserError


def at_least(value: float | None, least: float, option: str) -> None:
    """Refuse an infinite number, NaN or one below `least`; None stands for a default. Raises UserError."""
    if value is not None and not least <= value < math.inf:
        raise UserError(f"{option}={value} must be at least {least}")


def positive(value: float, option: str) -> None:
    """Raise UserError for a value that is not a finite number above 0."""
    if not 0 < value < math.inf:
        raise UserError(f"{option}={value} must be a number above 0")


def one_of(value: str, known: Sequence[str], option: str) -> None:
    """Raise UserError for a value that is not one of `known`."""
    if value not in known:
        raise UserError(f"{option} is one of {', '.join(known)}, not '{value}'")


def head_width(d_model: int, n_heads: int, option: str, own: int | None = None) -> int:
    """d_model / n_heads, or a block's own head_width. Raises UserError where heads do not divide the width."""
    if own is not None:
        at_least(n_heads, 1, option)
        at_least(own, 1, option.replace("n_heads", "head_width"))
        return own
    if n_heads < 1 or d_model % n_heads:
        fits = [h for h in range(1, d_model + 1) if d_model % h == 0 and (d_model // h) % 2 == 0][-8:]
        advice = f"choose a divisor, e.g. one of {fits}" if fits else "choose an even model.d_model"
        raise UserError(f"{option}={n_heads} does not divide model.d_model={d_model}; {advice}")
    return d_model // n_heads


def even_width(width: int, block: str) -> int:
    """The head width. Raises UserError for an odd one: rotary positions turn pairs of channels."""
    if width % 2:
        raise UserError(
            f"{block}: head width {width} is odd, and rotary positions rotate pairs; use an even width"
        )
    return width


def kv_heads(own: int | None, n_heads: int, block: str, *, default: int) -> int:
    """The number of KV heads, `default` where `own` is None. Raises UserError unless it divides n_heads."""
    heads = default if own is None else own
    if heads < 1 or n_heads % heads:
        raise UserError(f"{block}.n_kv_heads={heads} does not divide n_heads={n_heads}")
    return heads


def default_kv_heads(n_heads: int) -> int:
    """The most KV heads that divide the heads and are at most a third of them; at least 1."""
    return grouped_kv_heads(n_heads, n_heads // 3)


def grouped_kv_heads(n_heads: int, most: int) -> int:
    """The most KV heads, up to `most`, that divide the heads and are fewer than they are; at least 1."""
    return max(n for n in range(1, max(1, min(most, n_heads - 1)) + 1) if n_heads % n == 0)


def default_recurrent_heads(n_heads: int) -> int:
    """Half the model's heads, each twice as wide; all of them where they are odd."""
    return n_heads // 2 if n_heads % 2 == 0 else n_heads
