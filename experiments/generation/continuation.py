"""The text of a sequence that is being generated: whole characters, up to a stop sequence."""

from __future__ import annotations

from collections.abc import Sequence

from zoo.tokenization import Tokenizer

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class Continuation:
    """The text that a model generates after a prompt, from tokens that arrive one at a time.

    tokens: all of them so far; text: their whole characters, up to the stop sequence or separator that ended it;
    ended: whether one did.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), *, stop_at_separator: bool = False
    ) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._separator = tokenizer.bos_id if stop_at_separator else None
        self.tokens: list[int] = []
        self.text = ""
        self.ended = False
        # Decoding everything again for every token would take a square of the length.
        self._settled, self._unsettled = "", []

    def add(self, token: int) -> None:
        """Take the next token, of a sequence that has not ended."""
        self.tokens.append(token)
        if token == self._separator:
            self.ended = True
            return
        self._unsettled.append(token)
        decoded = self._tokenizer.decode(self._unsettled)
        # A token may end inside a character; the replacement sign at the end waits for the rest of it.
        whole = decoded.rstrip(_INCOMPLETE)
        before, self.text = len(self.text), self._settled + whole
        if whole == decoded:
            self._settled, self._unsettled = self.text, []
        self._cut(before)

    @property
    def safe_text(self) -> str:
        """The text without an end that later tokens may turn into a stop sequence: what can be shown for good."""
        if self.ended:
            return self.text
        held = (n for stop in self._stop for n in range(1, len(stop)) if self.text.endswith(stop[:n]))
        return self.text[: len(self.text) - max(held, default=0)]

    def _cut(self, before: int) -> None:
        """End the text at the first stop sequence that reaches past its first `before` characters."""
        found = [self.text.find(stop, max(0, before - len(stop) + 1)) for stop in self._stop]
        places = [place for place in found if place >= 0]
        if places:
            self.text, self.ended = self.text[: min(places)], True
