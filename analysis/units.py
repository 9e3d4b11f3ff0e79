"""Formatting of numbers and texts; a missing value is always "–"."""

from __future__ import annotations

import math
import unicodedata
from typing import Any

import pandas as pd

MISSING = "–"


def number(value: Any) -> str:
    """Format a loss or similar with four decimals below 10, fewer above."""
    if pd.isna(value):
        return MISSING
    value = float(value)
    if not math.isfinite(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if size >= 1e7:
        return f"{value:.3g}"
    return f"{value:,.{4 if size < 10 else 2 if size < 1000 else 0}f}"


def difference_decimals(difference: float, half_width: float) -> int:
    """Return the decimals that show a difference and its interval: two digits of the half width.

    More, where rounded numbers would say something else about zero than the numbers themselves.
    """
    size, decimals = abs(difference), 4
    if half_width > 0:
        decimals = max(1, min(6, 1 - math.floor(math.log10(half_width))))
    outside = size > half_width
    while (
        decimals < 12
        and (round(size, decimals) - round(half_width, decimals) > 0.5 * 10**-decimals) != outside
    ):
        decimals += 1
    return decimals


def signed(value: float, decimals: int) -> str:
    """Format a difference with its sign: "−0.031", "+0.004"."""
    return f"{value:+.{decimals}f}".replace("-", "−")


def whole(value: Any) -> str:
    """Format a count with thousands separators."""
    return MISSING if pd.isna(value) else f"{round(float(value)):,}"


def engineering(value: Any) -> str:
    """Format a number with three significant digits and k, M, G or T."""
    if pd.isna(value):
        return MISSING
    value = float(value)
    for factor, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * factor:
            return f"{_three_digits(value / factor)}{suffix}"
    return _three_digits(value)


def _three_digits(value: float) -> str:
    return f"{value:.{0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2}f}"


def memory(value: Any) -> str:
    """Format bytes in MiB or GiB."""
    if pd.isna(value):
        return MISSING
    mebibytes = float(value) / 2**20
    return f"{_three_digits(mebibytes)} MiB" if mebibytes < 1024 else f"{_three_digits(mebibytes / 1024)} GiB"


def percent(value: Any) -> str:
    """Format a share between 0 and 1 as per cent."""
    return MISSING if pd.isna(value) else f"{100 * float(value):.1f} %"


def deviation(value: float) -> str:
    """Format a relative difference as signed per cent; -100% only where nothing is left."""
    decimals = 1
    while value > -1 and float(f"{100 * value:.{decimals}f}") <= -100:
        decimals += 1
    return f"{100 * value:+.{decimals}f}%"


def duration(seconds: Any) -> str:
    """Format seconds as "12.3 s", "4 min 05 s" or "3 h 07 min"."""
    if pd.isna(seconds):
        return MISSING
    seconds = float(seconds)
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def listing(items: Any, limit: int = 8) -> str:
    """Join items as "a, b and c"; past the limit the number of those left out."""
    items = [str(item) for item in items]
    if len(items) > limit:
        items = [*items[:limit], f"{len(items) - limit} more"]
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else "none"


_PICTURES = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
}


def pictured(text: str) -> str:
    """Return the text with pictures for control characters (␛ for ESC), which a page and a terminal would obey."""
    return text.translate(_PICTURES)


INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn")
"""Categories of Unicode without a glyph of their own: control, format, half a character, private, unassigned."""


def visible(text: object) -> str:
    """Return the text on one line without control characters and characters of no width."""
    shown = (c for c in str(text) if c.isspace() or unicodedata.category(c) not in INVISIBLE)
    return " ".join("".join(shown).split())
