"""`parity`: whether the ones so far are odd in number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.data.tasks_base import Drawn, Draws, Task, ask, register_task
from zoo.options import at_least


@dataclass
class ParityConfig:
    """Options of `parity`.

    length: bits of a sequence, at least 2; fewer than 12 give too few sequences for three splits.
    """

    length: int = 32


@register_task(
    "parity", config=ParityConfig, title="Parity",
    source="Grazzi et al. 2024, State-tracking through negative eigenvalues (arXiv:2411.12537), section 5",
)  # fmt: skip
class Parity(Task):
    """Random bits b; after every bit but the first their parity so far is asked for, p_t = b_0 ⊕ … ⊕ b_t.

        tokens   1  1  0  1  0
        targets  .  0  0  1  1

    The answers are not shown to the model: with the last parity and the next bit every model could go on. After the
    first bit the parity is that bit, so it is not asked for. The source asks once, after up to 40 bits in training and
    up to 256 in evaluation. No held-out sequence is ever trained on, but all short prefixes are: of t bits there are
    2^t.
    """

    rule = "parity 1"
    hardness = "bits so far"
    chance = 0.5
    vocab_size = 2

    def __init__(self, options: ParityConfig) -> None:
        super().__init__(options)
        at_least(options.length, 2, "data.tasks.parity.length")
        self.seq_len = options.length

    def draw(self, draws: Draws) -> Drawn:
        """The bits and their parities."""
        bits = draws.below(2, self.seq_len)
        places = np.arange(1, self.seq_len)
        return ask(bits, places, np.cumsum(bits)[1:] % 2, places + 1)
