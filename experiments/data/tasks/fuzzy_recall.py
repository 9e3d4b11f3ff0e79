"""`fuzzy_recall`: recalling values where keys and values are several tokens long."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.data.tasks_base import Drawn, Draws, Task, ask, register_task
from zoo.errors import UserError
from zoo.options import at_least

Motif = tuple[int, ...]


@dataclass
class FuzzyRecallConfig:
    """Options of `fuzzy_recall`.

    length: tokens of a sequence.
    entries: keys with their values in a sequence.
    key_tokens: different tokens that keys are made of, at least 2.
    value_tokens: different tokens that values are made of, at least 2.
    longest: tokens of the longest key and value.
    """

    length: int = 64
    entries: int = 4
    key_tokens: int = 8
    value_tokens: int = 8
    longest: int = 3


@register_task(
    "fuzzy_recall", config=FuzzyRecallConfig, title="Fuzzy in-context recall",
    source="Poli et al. 2024, MAD (arXiv:2403.17844), section 3.1",
)  # fmt: skip
class FuzzyRecall(Task):
    """A stream of keys and values of 1 to `longest` tokens; where a key comes again, all tokens of its value are asked.

        tokens   k2 k5 v7  k4 v1 v3 v0  k2 k5 v7  k4 v1 v3 v0
        targets   .  .  .   .  .  .  .   . v7  .  v1 v3 v0  .

    Keys and values are drawn for every sequence. No key begins with another one, so it is known where a key ends. As in
    a text, each token of a value is shown after it was asked for; the last entry is cut at the end of the sequence. MAD
    has 128 tokens, 8 key tokens, 8 value tokens and longest=3; it takes keys of one length, permutations of tokens.
    """

    rule = "fuzzy_recall 1"
    hardness = "tokens since the key came last"

    def __init__(self, options: FuzzyRecallConfig) -> None:
        super().__init__(options)
        for key, least in (("entries", 1), ("key_tokens", 2), ("value_tokens", 2), ("longest", 1)):
            at_least(getattr(options, key), least, f"data.tasks.fuzzy_recall.{key}")
        if options.entries > options.key_tokens:
            raise UserError(
                f"data.tasks.fuzzy_recall.entries={options.entries} must be at most "
                f"data.tasks.fuzzy_recall.key_tokens={options.key_tokens}"
            )
        # Every key at its longest, and then one of them whole again.
        least = 2 * options.longest * (options.entries + 1)
        if options.length < least:
            raise UserError(
                f"data.tasks.fuzzy_recall.length={options.length} may be too short for a key to come twice; give at "
                f"least {least}"
            )
        self.vocab_size, self.seq_len = options.key_tokens + options.value_tokens, options.length
        self.chance = 1 / options.value_tokens

    def draw(self, draws: Draws) -> Drawn:
        """The dictionary, then entries of it until the sequence is full."""
        o = self.options
        values = [
            tuple((o.key_tokens + draws.below(o.value_tokens, size)).tolist())
            for size in (1 + draws.below(o.longest, o.entries)).tolist()
        ]
        keys = self._keys(draws)
        tokens: list[int] = []
        asked: list[tuple[int, int, int]] = []
        last: dict[int, int] = {}
        for entry in draws.below(o.entries, o.length).tolist():
            key, value, start = keys[entry], values[entry], len(tokens)
            if entry in last:
                first = start + len(key) - 1  # where the value's first token is asked for
                asked += [(first + i, token, start - last[entry]) for i, token in enumerate(value)]
            last[entry] = start
            tokens += [*key, *value]
            if len(tokens) >= o.length:
                break
        kept = [one for one in asked if one[0] < o.length]
        return ask(np.array(tokens[: o.length]), *np.array(kept).T)

    def _keys(self, draws: Draws) -> list[Motif]:
        """Random keys of which none begins with another. While there are fewer than tokens, room for one is left."""
        o, keys = self.options, []
        while len(keys) < o.entries:
            size = 1 + int(draws.below(o.longest, 1)[0])
            motif = tuple(draws.below(o.key_tokens, size).tolist())
            if not any(motif[: len(key)] == key[:size] for key in keys):
                keys.append(motif)
        return keys

    def word(self, token: int) -> str:
        """k0 … for tokens of keys, v0 … for tokens of values."""
        keys = self.options.key_tokens
        return f"k{token}" if token < keys else f"v{token - keys}"
