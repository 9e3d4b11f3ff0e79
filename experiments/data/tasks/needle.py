"""`needle`: facts hidden in a haystack."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.data.tasks_base import Drawn, Draws, Task, ask, register_task
from zoo.errors import UserError
from zoo.options import at_least


@dataclass
class NeedleConfig:
    """Options of `needle`.

    context: tokens of the haystack, needles included.
    needles: hidden facts, two tokens each, all asked for at the end; with a single one its key would not be needed.
    keys: number of different keys.
    values: number of different values.
    hay: number of different tokens of hay.
    """

    context: int = 124
    needles: int = 4
    keys: int = 16
    values: int = 16
    hay: int = 32


@register_task(
    "needle", config=NeedleConfig, title="Needle retrieval",
    source="Kamradt 2023, needle in a haystack; Mohtashami and Jaggi 2023, passkeys (arXiv:2305.16300)",
)  # fmt: skip
class Needle(Task):
    """Random hay with needles in it, each a key and its value; at the end the keys come again, in another order.

        tokens   h3 h9 k2 v7 h1 h1 h8 k5 v0 h4 h2  k5 k2
        targets   .  .  .  .  .  .  .  .  .  .  .  v0 v7

    Keys are different from each other; values and hay repeat as they fall. The answers are not shown to the model. In
    the sources haystack and needles are sentences of a language, and context is 8K tokens and more; here one token
    each, so that a model learns it in minutes, and there are several needles.
    """

    rule = "needle 1"
    hardness = "tokens between a needle's key and its question"

    def __init__(self, options: NeedleConfig) -> None:
        super().__init__(options)
        for key, least in (("needles", 1), ("values", 2), ("hay", 1)):
            at_least(getattr(options, key), least, f"data.tasks.needle.{key}")
        for key, least in (("keys", options.needles), ("context", 2 * options.needles)):
            if getattr(options, key) < least:
                raise UserError(
                    f"data.tasks.needle.{key}={getattr(options, key)} is too few for "
                    f"data.tasks.needle.needles={options.needles}; give at least {least}"
                )
        self.first_value = options.keys
        self.first_hay = options.keys + options.values
        self.vocab_size, self.seq_len = self.first_hay + options.hay, options.context + options.needles
        self.chance = 1 / options.values

    def draw(self, draws: Draws) -> Drawn:
        """Hay, places and contents of needles, and the order of the questions."""
        o = self.options
        tokens = self.first_hay + draws.below(o.hay, self.seq_len)
        # Places of needles among the remaining hay, each then moved by those before it: any arrangement, no overlap.
        places = np.sort(draws.distinct(o.context - o.needles, o.needles)) + np.arange(o.needles)
        keys = draws.distinct(o.keys, o.needles)
        values = self.first_value + draws.below(o.values, o.needles)
        tokens[places], tokens[places + 1] = keys, values
        order, questions = draws.distinct(o.needles, o.needles), o.context + np.arange(o.needles)
        tokens[questions] = keys[order]
        return ask(tokens, questions, values[order], questions - places[order])

    def word(self, token: int) -> str:
        """k0 … for keys, v0 … for values, h0 … for hay."""
        if token < self.first_value:
            return f"k{token}"
        return f"v{token - self.first_value}" if token < self.first_hay else f"h{token - self.first_hay}"
