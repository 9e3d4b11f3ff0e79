"""The pattern language: which sequence mixer each layer uses.

    pattern  = item+            "SF"        two layers, S then F
    item     = atom ["*" n]     "F*14"      fourteen F
    atom     = letter | "(" pattern ")"     "(KKKL)*4", "CC(FC)*3"

A named layout ("interlaced_sf") stands for its letters. Depth defaults to the pattern's length; a given depth tiles
or cuts the pattern.
"""

from __future__ import annotations

from zoo.errors import UserError, unknown

# The layouts of the HyperGraph report: eight sparse (S) and six full (F) layers each, and the dense baseline.
LAYOUTS = {
    "baseline": "FFFFFFFFFFFFFF",
    "interlaced_fss": "FSSFSSFSSFSSFF",
    "interlaced_sf": "SFSFSFSFSFSFSS",
    "late_full": "SSSSSSSSFFFFFF",
    "reverse_bookend": "SSSFFFFFFSSSSS",
    "chunked_4s2f": "SSSSFFSSSSFFFF",
    "early_full": "FFFFFFSSSSSSSS",
    "chunked_2f4s": "FFSSSSFFSSSSFF",
    "bookend": "FFFSSSSSSSSFFF",
}

MAX_LAYERS = 4096
MAX_GROUPS = 64
QUOTING = """quote it twice on a command line: 'model.pattern="(SF)*4"'"""


def layers(pattern: str, depth: int | None, known: str) -> str:
    """The letters of all layers, e.g. layers("SF", 3, "FS") == "SFS".

    pattern: as above, or the name of a layout; depth: number of layers, None for the pattern's own length;
    known: the registered letters. Raises UserError naming the letter, its position and the known letters.
    """
    letters = LAYOUTS.get(pattern) or _Parser(_checked(pattern, known), known).parse()
    if depth is None:
        return letters
    if not 1 <= depth <= MAX_LAYERS:
        raise UserError(f"model.depth must be from 1 to {MAX_LAYERS}, not {depth}")
    return (letters * -(-depth // len(letters)))[:depth]


def layout_name(pattern: str) -> str | None:
    """The name of the layout that a pattern names or spells out in letters, if any."""
    if pattern in LAYOUTS:
        return pattern
    return next(
        (name for name, letters in LAYOUTS.items() if letters == pattern and name != "baseline"), None
    )


def _checked(pattern: str, known: str) -> str:
    if not isinstance(pattern, str) or not pattern.strip():
        raise UserError(f"model.pattern is empty; give letters of {', '.join(known)}, e.g. model.pattern=SF")
    if set(pattern.upper()) <= {*known, *"()*0123456789"} and pattern != pattern.upper():
        raise UserError(
            f"model.pattern={pattern}: mixer letters are capitals; did you mean {pattern.upper()}? "
            f"Known letters: {', '.join(known)}"
        )
    if "_" in pattern or (pattern.islower() and pattern.isalpha()):
        raise UserError(
            f"{unknown('layout', pattern, LAYOUTS)}. A pattern of one's own is made of mixers' letters: "
            f"{', '.join(known)} (job=list names them), e.g. model.pattern=F*4"
        )
    return pattern


class _Parser:
    """Recursive descent over one pattern; positions in messages count from 1."""

    def __init__(self, text: str, known: str) -> None:
        self.text, self.known, self.at, self.depth = text, known, 0, 0

    def parse(self) -> str:
        out = self._items()
        if self.at < len(self.text):  # only an unmatched ")" stops the items early
            raise self._error("has no matching '('")
        return out

    def _items(self) -> str:
        out = ""
        while self.at < len(self.text) and self.text[self.at] != ")":
            out += self._item()
            if len(out) > MAX_LAYERS:
                raise UserError(f"model.pattern={self.text} has more than {MAX_LAYERS} layers")
        return out

    def _item(self) -> str:
        unit = self._atom()
        if self._peek() != "*":
            return unit
        self.at += 1
        return unit * self._number()

    def _atom(self) -> str:
        if self._peek() == "(":
            start = self.at
            self.depth += 1
            if self.depth > MAX_GROUPS:
                raise self._error(f"is nested more than {MAX_GROUPS} deep")
            self.at += 1
            inner = self._items()
            self.depth -= 1
            if self._peek() != ")":
                self.at = start
                raise self._error("is never closed")
            self.at += 1
            if not inner:
                self.at = start
                raise self._error("opens an empty group")
            return inner
        if self._peek() not in self.known:
            raise self._error("is no known mixer")
        self.at += 1
        return self.text[self.at - 1]

    def _number(self) -> int:
        start = self.at
        while self._peek() in "0123456789":
            self.at += 1
        digits = self.text[start : self.at]
        if not digits or len(digits) > 9 or not 0 < int(digits) <= MAX_LAYERS:
            self.at = start - 1
            raise self._error(f"must be followed by a number from 1 to {MAX_LAYERS}")
        return int(digits)

    def _peek(self) -> str:
        # A character no pattern can hold, so that the end needs no special case (and "" is not "in" everything).
        return self.text[self.at] if self.at < len(self.text) else "\0"

    def _error(self, what: str) -> UserError:
        here = self._peek().replace("\0", "end")
        return UserError(
            f"model.pattern={self.text}: '{here}' at position {self.at + 1} {what}. "
            f"Known letters: {', '.join(self.known)}; repeat with F*14, group with (SF)*4 ({QUOTING})"
        )
