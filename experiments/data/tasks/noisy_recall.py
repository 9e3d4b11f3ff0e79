"""`noisy_recall`: recalling values in a stream of pairs with noise between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.data.tasks_base import Drawn, Draws, Task, ask, register_task
from zoo.errors import UserError
from zoo.options import at_least


@dataclass
class NoisyRecallConfig:
    """Options of `noisy_recall`.

    length: tokens of a sequence.
    keys: number of different keys.
    values: number of different values.
    noise: number of different tokens of noise.
    share: share of the two-token slots that hold noise, from 0 to below 1.
    """

    length: int = 64
    keys: int = 8
    values: int = 8
    noise: int = 16
    share: float = 0.2


@register_task(
    "noisy_recall", config=NoisyRecallConfig, title="Noisy in-context recall",
    source="Poli et al. 2024, MAD (arXiv:2403.17844), section 3.1",
)  # fmt: skip
class NoisyRecall(Task):
    """A stream of keys with their values, noise between; the value is asked for at every key that came before.

        tokens   k2 v7  n3 n9  k5 v1  k2 v7  n0 n4  k5 v1
        targets   .  .   .  .   .  .  v7  .   .  .  v1  .

    The values of the keys are drawn for every sequence, keys with repetition. As in a text, the value is shown after it
    was asked for. MAD has 128 tokens, 8 keys, 8 values and 16 tokens of noise, share 0.2. There noise comes in single
    tokens; here in twos, so that a sequence has its length exactly.
    """

    rule = "noisy_recall 1"
    hardness = "tokens since the key came last"

    def __init__(self, options: NoisyRecallConfig) -> None:
        super().__init__(options)
        for key, least in (("keys", 1), ("values", 2), ("noise", 1)):
            at_least(getattr(options, key), least, f"data.tasks.noisy_recall.{key}")
        if not 0 <= options.share < 1:
            raise UserError(f"data.tasks.noisy_recall.share={options.share} must be at least 0 and below 1")
        if options.length % 2 or options.length < 2 * options.keys + 2:
            raise UserError(
                f"data.tasks.noisy_recall.length={options.length} must be even and at least "
                f"{2 * options.keys + 2}, so that one of data.tasks.noisy_recall.keys={options.keys} comes twice"
            )
        self.first_value, self.first_noise = options.keys, options.keys + options.values
        self.vocab_size, self.seq_len = self.first_noise + options.noise, options.length
        self.chance = 1 / options.values

    def draw(self, draws: Draws) -> Drawn:
        """Slots of pairs and of noise; at least one more of pairs than there are keys, so that one comes twice."""
        o, slots = self.options, self.seq_len // 2
        of_keys = self.first_value + draws.below(o.values, o.keys)
        keys, noise = (
            draws.below(o.keys, slots),
            self.first_noise + draws.below(o.noise, 2 * slots).reshape(-1, 2),
        )
        quiet = draws.uniform(slots)
        holds_pair = (quiet >= o.share) | (quiet >= np.sort(quiet)[-o.keys - 1])
        tokens = np.where(holds_pair[:, None], np.stack([keys, of_keys[keys]], axis=1), noise).ravel()
        places = np.flatnonzero(holds_pair)
        asked = []
        last: dict[int, int] = {}
        for place, key in zip((2 * places).tolist(), keys[places].tolist(), strict=True):
            if key in last:
                asked.append((place, of_keys[key], place - last[key]))
            last[key] = place
        return ask(tokens, *np.array(asked).T)

    def word(self, token: int) -> str:
        """k0 … for keys, v0 … for values, n0 … for noise."""
        if token < self.first_value:
            return f"k{token}"
        return f"v{token - self.first_value}" if token < self.first_noise else f"n{token - self.first_noise}"
