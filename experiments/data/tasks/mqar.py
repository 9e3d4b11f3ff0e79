"""`mqar`: multi-query associative recall."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.data.tasks_base import Drawn, Draws, Task, ask, register_task
from zoo.errors import UserError
from zoo.options import at_least, one_of, positive

BLANK = 0
FILLS = ("blank", "values")


MOST_POWER = 50
"""g^(a−1) is a number for every gap g of a sequence."""


@dataclass
class MQARConfig:
    """Options of `mqar`.

    length: tokens of a sequence, at least 4·pairs.
    pairs: keys with a value each, all asked for once.
    vocab: number of different tokens: one blank, keys up to the middle, values from there on.
    power: exponent a of the distribution of gaps, at most 50: 1 makes all gaps equally likely, smaller values short
        ones more likely.
    fill: tokens where nothing is asked: blank, or values (drawn at random).
    """

    length: int = 32
    pairs: int = 4
    vocab: int = 64
    power: float = 0.01
    fill: str = "blank"


@register_task(
    "mqar", config=MQARConfig, title="Multi-query associative recall",
    source="Arora et al. 2023, Zoology (arXiv:2312.04927), section 4 and appendix E",
)  # fmt: skip
class MQAR(Task):
    """Pairs of key and value, then every key once more, where its value is asked for.

        tokens   k2 v7  k5 v1  k9 v4  .  k5  .  .  .  k9  .  k2 …
        targets   .  .   .  .   .  .  .  v1  .  .  .  v4  .  v7 …

    Keys are different from each other, and values are. The places after the pairs are cut into slots of two, and a key
    is asked for in the g-th slot (from 1) with weight a·g^(a−1), no two in one. The paper has vocab=8192 and
    length, pairs = 64, 4; 128, 8; 256, 16; 512, 64, and its published code power=0.01 and blanks between. Chance: one
    value of all. Guessing among the values of the sequence gives 1/pairs, and more where the place tells the pair,
    since short gaps are likelier: 0.38 with 16 tokens and four pairs, 0.32 with 32.
    """

    rule = "mqar 1"
    hardness = "tokens between a key and its question"

    def __init__(self, options: MQARConfig) -> None:
        super().__init__(options)
        at_least(options.pairs, 1, "data.tasks.mqar.pairs")
        positive(options.power, "data.tasks.mqar.power")
        if options.power > MOST_POWER:
            raise UserError(f"data.tasks.mqar.power={options.power} must be at most {MOST_POWER}")
        one_of(options.fill, FILLS, "data.tasks.mqar.fill")
        self.vocab_size, self.seq_len = options.vocab, options.length
        self.first_value = options.vocab // 2
        if self.first_value <= options.pairs:
            raise UserError(
                f"data.tasks.mqar.vocab={options.vocab} has too few keys for data.tasks.mqar.pairs={options.pairs}; "
                f"give at least {2 * options.pairs + 2}"
            )
        if options.length < 4 * options.pairs:
            raise UserError(
                f"data.tasks.mqar.length={options.length} has no room for data.tasks.mqar.pairs={options.pairs}; give "
                f"at least {4 * options.pairs}"
            )
        self.chance = 1 / (options.vocab - self.first_value)
        slots = np.arange(1, (options.length - 2 * options.pairs) // 2 + 1)
        self.weights = options.power * slots ** (options.power - 1.0)

    def draw(self, draws: Draws) -> Drawn:
        """The pairs, and a slot for the question of each."""
        pairs, values = self.options.pairs, self.vocab_size - self.first_value
        keys = 1 + draws.distinct(self.first_value - 1, pairs)
        answers = self.first_value + draws.distinct(values, pairs)
        places = 2 * pairs + 2 * draws.weighted(self.weights, pairs)
        tokens = np.full(self.seq_len, BLANK)
        if self.options.fill == "values":
            tokens = self.first_value + draws.below(values, self.seq_len)
        tokens[0 : 2 * pairs : 2], tokens[1 : 2 * pairs : 2], tokens[places] = keys, answers, keys
        return ask(tokens, places, answers, places - 2 * np.arange(pairs))

    def word(self, token: int) -> str:
        """`.` for the blank, k3 and v7 for keys and values."""
        if token < self.first_value:
            return f"k{token}" if token else "."
        return f"v{token - self.first_value}"
