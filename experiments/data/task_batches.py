"""Training batches of a task, a pure function of the seed and the number of the batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from experiments.data.batches import NOISE, counter_hash
from experiments.data.task_registry import Drawn

TRAIN = 4
"""The purpose, a first word of `counter_hash`, of training sequences."""


class TaskBatches:
    """An endless stream of sequences, cut into micro-batches.

    Micro-batch i holds sequences i·B … i·B+B−1, so that a change of batch size against accumulation leaves the order
    as it is. draw: (seed, number of the sequence) -> sequence.
    """

    def __init__(self, draw: Callable[[int, int], Drawn], batch_size: int, seed: int) -> None:
        self.draw, self.batch_size, self.seed = draw, batch_size, seed

    def batch(self, i: int) -> dict[str, torch.Tensor]:
        """Micro-batch ``i`` on the CPU.

        tokens, targets: int64 `[B, T]`, targets −100 where nothing is asked. noise_keys: int64 `[B]` in [0, 2^62).
        """
        samples = range(i * self.batch_size, (i + 1) * self.batch_size)
        drawn = [self.draw(self.seed, s) for s in samples]
        noise = counter_hash(NOISE, self.seed, np.array(samples, dtype=np.int64), 0)
        return {
            "tokens": torch.from_numpy(np.stack([one.tokens for one in drawn])),
            "targets": torch.from_numpy(np.stack([one.targets for one in drawn])),
            "noise_keys": torch.from_numpy(noise),
        }
