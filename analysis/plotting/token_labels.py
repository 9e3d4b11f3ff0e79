"""Tokens as labels of an axis."""

from __future__ import annotations

from functools import lru_cache

from matplotlib.font_manager import findfont, get_font

LONGEST = 9
SPACE = "␣"
SIGNS = {"\n": "⏎", "\t": "→"}


@lru_cache
def _known() -> frozenset[int]:
    return frozenset(get_font(findfont("DejaVu Sans")).get_charmap())


def token_label(text: str, longest: int = LONGEST) -> str:
    """Format a token as a tick label: outer spaces and line ends as signs, "$" escaped, cut to ``longest``.

    " a" and "a" are different tokens, hence the signs. Characters that the figures' font lacks become □.
    """
    shown = "".join(SIGNS.get(sign, sign) for sign in text)
    before, after = (len(shown) - len(bare) for bare in (shown.lstrip(" "), shown.rstrip(" ")))
    middle = shown.strip(" ")
    shown = SPACE * before + middle + SPACE * after if middle else SPACE * before
    shown = "".join(sign if ord(sign) in _known() else "□" for sign in shown)
    shown = shown if len(shown) <= longest else shown[: longest - 1] + "…"
    return shown.replace("$", r"\$")
