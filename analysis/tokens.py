"""Tokens as labels of an axis."""

from __future__ import annotations

from functools import lru_cache

from matplotlib.font_manager import findfont, get_font

LONGEST = 9
SIGNS = {"\n": "⏎", "\t": "→"}


@lru_cache
def _known() -> frozenset[int]:
    return frozenset(get_font(findfont("DejaVu Sans")).get_charmap())


def token_label(text: str, longest: int = LONGEST) -> str:
    """A token for a tick: spaces at its ends off, line ends and lone spaces as signs, no mathematics, not too long.

    Characters that the figures' font lacks become □.
    """
    shown = "".join(SIGNS.get(sign, sign) for sign in text).strip() or "␣"
    shown = "".join(sign if ord(sign) in _known() else "□" for sign in shown)
    shown = shown if len(shown) <= longest else shown[: longest - 1] + "…"
    return shown.replace("$", r"\$")
