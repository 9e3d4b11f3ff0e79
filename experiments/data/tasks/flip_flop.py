"""`flip_flop`: one bit of memory that is written, read, and to be kept over what is to be ignored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.data.tasks_base import Drawn, Draws, Task, ask, register_task
from zoo.errors import UserError
from zoo.options import at_least

ZERO, ONE, WRITE, READ, SKIP = range(5)


@dataclass
class FlipFlopConfig:
    """Options of `flip_flop`.

    operations: instructions, two tokens each, at least 2.
    ignore: share of the instructions that are to be ignored, from 0 to below 1; half of the others are reads.
    """

    operations: int = 24
    ignore: float = 0.8


@register_task(
    "flip_flop", config=FlipFlopConfig, title="Flip-flop language",
    source="Liu et al. 2023, Flip-flop language modeling (arXiv:2306.00946), section 3",
)  # fmt: skip
class FlipFlop(Task):
    """Instructions with a bit each: write it, ignore it, or read, which gives the bit written last and is asked for.

        tokens   w 1  i 0  i 0  r 1  w 0  i 1  r 0
        targets  . .  . .  . .  1 .  . .  . .  0 .

    The first instruction writes and the last reads; the others are drawn independently. As in a text, the bit is shown
    after a read, so that it stands between a write and later reads, too. The paper has 512 tokens and ignore=0.8, and
    scores ignore=0.98 and 0.1 besides.
    """

    rule = "flip_flop 1"
    hardness = "tokens between the last write and the read"
    chance = 0.5
    vocab_size = 5

    def __init__(self, options: FlipFlopConfig) -> None:
        super().__init__(options)
        at_least(options.operations, 2, "data.tasks.flip_flop.operations")
        if not 0 <= options.ignore < 1:
            raise UserError(f"data.tasks.flip_flop.ignore={options.ignore} must be at least 0 and below 1")
        self.seq_len = 2 * options.operations

    def draw(self, draws: Draws) -> Drawn:
        """Instructions and bits; a read's bit is that of the last write."""
        count, ignore = self.options.operations, self.options.ignore
        u = draws.uniform(count)
        kinds = np.where(u < ignore, SKIP, np.where(u < (1 + ignore) / 2, WRITE, READ))
        kinds[0], kinds[-1] = WRITE, READ
        written = np.maximum.accumulate(np.where(kinds == WRITE, np.arange(count), 0))
        bits = draws.below(2, count)
        bits = np.where(kinds == READ, bits[written], bits)
        reads = np.flatnonzero(kinds == READ)
        tokens = np.stack([kinds, bits], axis=1).ravel()
        return ask(tokens, 2 * reads, bits[reads], 2 * (reads - written[reads]))

    def word(self, token: int) -> str:
        """0, 1, w, r, i."""
        return "01wri"[token]
