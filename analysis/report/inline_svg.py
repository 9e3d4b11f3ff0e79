"""A figure's SVG as part of an HTML page."""

from __future__ import annotations

import re

_BEFORE = re.compile(r"\A.*?(?=<svg\b)", re.DOTALL)
_LEFT_OUT = re.compile(r"<!--.*?-->|<metadata>.*?</metadata>|<style\b.*?</style>", re.DOTALL)
_SIZE = re.compile(r' (?:width|height|version|xmlns(?::xlink)?)="[^"]*"')
_IDS = re.compile(r'(\bid="|\bxlink:href="#|url\(#)')


def inline(svg: str, name: str) -> str:
    """Return an SVG file that matplotlib wrote as an element of a page, its ids beginning with ``name``-.

    Left out are prolog, comments, metadata, the style that would hold for the whole page, the namespaces, which HTML
    knows, and the size: CSS gives it.
    """
    element = _LEFT_OUT.sub("", _BEFORE.sub("", svg, count=1))
    opening, end, rest = element.partition(">")
    return _IDS.sub(rf"\g<1>{name}-", _SIZE.sub("", opening) + end + rest).strip()
