"""`memorisation`: facts that are learned in training and are not in the sequence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.data.tasks_base import Drawn, Draws, Task, ask, register_task
from zoo.options import at_least

_FACTS = 7
"""The purpose of the draws that make the facts, beside those of the splits (task_set.py)."""


@dataclass
class MemorisationConfig:
    """Options of `memorisation`.

    facts: keys, each with a value of its own.
    values: number of different values, at least 2.
    asked: facts asked for in a sequence, two tokens each.
    facts_seed: seed of the values, which are the same for all runs.
    """

    facts: int = 128
    values: int = 128
    asked: int = 16
    facts_seed: int = 0


@register_task(
    "memorisation", config=MemorisationConfig, title="Memorisation",
    source="Poli et al. 2024, MAD (arXiv:2403.17844), section 3.1",
)  # fmt: skip
class Memorisation(Task):
    """Random keys, after each a mark, where the key's value is asked for: the same in every sequence of every run.

        tokens   k2  ?  k5  ?  k2  ?
        targets   . v7   . v1   . v7

    Nothing in the sequence tells a value: it is learned from training, whose facts are those of validation and test;
    their sequences have other keys in other orders. MAD has 256 tokens in all, 32 a sequence.
    """

    rule = "memorisation 1"
    hardness = "facts that there are"

    def __init__(self, options: MemorisationConfig) -> None:
        super().__init__(options)
        for key, least in (("facts", 1), ("values", 2), ("asked", 1)):
            at_least(getattr(options, key), least, f"data.tasks.memorisation.{key}")
        self.mark = options.facts + options.values
        self.vocab_size, self.seq_len = self.mark + 1, 2 * options.asked
        self.facts = options.facts + Draws(_FACTS, options.facts_seed).below(options.values, options.facts)
        # One who sees the mark alone does best with the most frequent value.
        self.chance = float(np.bincount(self.facts).max() / options.facts)

    def draw(self, draws: Draws) -> Drawn:
        """Keys, and the values that go with them."""
        asked = self.options.asked
        keys = draws.below(self.options.facts, asked)
        tokens = np.stack([keys, np.full(asked, self.mark)], axis=1).ravel()
        return ask(tokens, 1 + 2 * np.arange(asked), self.facts[keys], self.options.facts)

    def word(self, token: int) -> str:
        """k0 … for keys, v0 … for values, `?` for the mark."""
        if token == self.mark:
            return "?"
        return f"k{token}" if token < self.options.facts else f"v{token - self.options.facts}"
