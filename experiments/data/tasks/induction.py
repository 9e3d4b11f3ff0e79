"""`induction`: a random word over and over, whose next token is asked for all along."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.data.tasks_base import Drawn, Draws, Task, ask, register_task
from zoo.errors import UserError
from zoo.options import at_least


@dataclass
class InductionConfig:
    """Options of `induction`.

    length: tokens of a sequence, more than `longest`.
    shortest: tokens of the shortest word, at least 2.
    longest: tokens of the longest word, at most `vocab`.
    vocab: number of different tokens.
    """

    length: int = 128
    shortest: int = 8
    longest: int = 24
    vocab: int = 64


@register_task(
    "induction", config=InductionConfig, title="Induction: a random word repeated",
    source="Olsson et al. 2022, In-context Learning and Induction Heads (arXiv:2209.11895), repeated random sequences",
)  # fmt: skip
class Induction(Task):
    """A word of different tokens, repeated to the sequence's end; after every token the next one is asked for.

        tokens   f  c  k  f  c  k  f  c
        targets  c  k  f  c  k  f  c  k

    The length of the word is drawn for each sequence, so nobody can count. The first time round nothing tells the next
    token; from the second on, the token that followed this one before is right, which one pair of attention heads can
    do. As in a text, the loss falls along the sequence by what a model makes of its context. The best possible accuracy
    is about 1 − p/length for a word of p tokens. The paper repeats a longer random sequence once.
    """

    rule = "induction 1"
    hardness = "times the word was read"

    def __init__(self, options: InductionConfig) -> None:
        super().__init__(options)
        at_least(options.shortest, 2, "data.tasks.induction.shortest")
        at_least(options.longest, options.shortest, "data.tasks.induction.longest")
        at_least(options.length, options.longest + 1, "data.tasks.induction.length")
        if options.vocab < options.longest:
            raise UserError(
                f"data.tasks.induction.vocab={options.vocab} has too few different tokens for a word of "
                f"data.tasks.induction.longest={options.longest}; give at least {options.longest}"
            )
        self.vocab_size, self.seq_len = options.vocab, options.length
        self.chance = 1 / (options.vocab - 1)

    def draw(self, draws: Draws) -> Drawn:
        """The word's length, the word, and its repetitions."""
        options = self.options
        period = options.shortest + int(draws.below(options.longest - options.shortest + 1, 1)[0])
        word = draws.distinct(options.vocab, period)
        places = np.arange(options.length)
        read = (places + 1) // period
        return ask(word[places % period], places, word[(places + 1) % period], read)
