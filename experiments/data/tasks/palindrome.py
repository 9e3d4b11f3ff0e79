"""`palindrome`: saying a sequence backwards."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.data.tasks_base import ORDER, PLACE, Drawn, Draws, Task, ask, register_task
from zoo.options import at_least


@dataclass
class PalindromeConfig:
    """Options of `palindrome`.

    items: length of the word; a sequence has twice as many tokens.
    values: number of different items, at least 2.
    """

    items: int = 12
    values: int = 16


@register_task(
    "palindrome", config=PalindromeConfig, title="Palindrome",
    source="Kimi Team 2025, Kimi Linear (arXiv:2510.26692), section 5.1",
)  # fmt: skip
class Palindrome(Task):
    """A random word, a separator, and the word backwards, which is asked for.

        tokens   O  G  R  |  R  G
        targets  .  .  .  R  G  O

    As in a text, each answer is shown before the next one is asked for. In the paper words fill up to 2,048 tokens.
    """

    rule = "palindrome 1"
    hardness = "tokens between an item and where it is asked for"
    copies_by = (PLACE, ORDER)

    def __init__(self, options: PalindromeConfig) -> None:
        super().__init__(options)
        at_least(options.items, 2, "data.tasks.palindrome.items")
        at_least(options.values, 2, "data.tasks.palindrome.values")
        self.separator = options.values
        self.vocab_size, self.seq_len = options.values + 1, 2 * options.items
        self.chance = 1 / options.values

    def draw(self, draws: Draws) -> Drawn:
        """The word, forwards and backwards."""
        items = self.options.items
        word = draws.below(self.options.values, items)
        tokens = np.concatenate([word, [self.separator], word[:0:-1]])
        return ask(tokens, items + np.arange(items), word[::-1], 1 + 2 * np.arange(items))

    def word(self, token: int) -> str:
        """A, B, … while letters last, then numbers; `|` for the separator."""
        if token == self.separator:
            return "|"
        return chr(ord("A") + token) if self.separator <= 26 else str(token)
