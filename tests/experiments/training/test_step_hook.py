"""Training tells blocks how many optimiser steps are done; expert biases follow; checkpoints hold both."""

from pathlib import Path

import pytest
import torch

from experiments.configuration.schema import Config
from experiments.training.lightning_modules import LanguageModelling
from experiments.training.train import make_trainer, silence_lightning
from zoo import LanguageModel
from zoo.interfaces import StepBuffer

VOCAB, LENGTH = 29, 8


class RandomBatches:
    """Batch i depends on i only."""

    def batch(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(VOCAB, (2, LENGTH), generator=generator)
        return {"tokens": tokens, "targets": tokens.roll(-1, 1), "noise_keys": torch.arange(2) + 2 * index}


def trained(folder: Path, steps: int, point: Path | None = None) -> tuple[LanguageModelling, list[int]]:
    """A task after `steps` optimiser steps of two micro-batches, and the step that every forward pass saw."""
    silence_lightning()
    config = Config()
    config.model.residual.name, config.model.channel.name = "ohc", "moe"
    config.model.d_model, config.model.depth = 16, 1
    config.trainer.max_steps, config.trainer.accumulate = steps, 2
    model = LanguageModel(config.model, vocab_size=VOCAB, seq_len=LENGTH)
    seen: list[int] = []
    clock = model.layers[0].mixer_residual.clock
    model.register_forward_pre_hook(lambda *_: seen.append(int(clock.step)))
    task = LanguageModelling(model, config, RandomBatches(), {})
    trainer = make_trainer(config, torch.device("cpu"), [], folder)
    trainer.fit(task, ckpt_path=None if point is None else str(point), weights_only=True)
    trainer.save_checkpoint(folder / f"{steps}.ckpt")
    return task, seen


@pytest.mark.slow
def test_blocks_see_the_step_through_accumulation_and_resumption(tmp_path):
    task, seen = trained(tmp_path, 3)
    assert seen == [0, 0, 1, 1, 2, 2]
    clocks = [m for m in task.model.modules() if isinstance(m, StepBuffer)]
    assert len(clocks) == 3
    assert all((m.step, m.total) == (3, 3) for m in clocks)
    balance = task.model.layers[0].channel.balance
    assert not balance.counts.any()
    assert 0 < balance.bias.abs().max() <= 3.001 * balance.rate

    rest, seen = trained(tmp_path, 5, tmp_path / "3.ckpt")
    assert seen == [3, 3, 4, 4]
    assert rest.model.layers[0].mixer_residual.clock.total == 5
    moved = rest.model.layers[0].channel.balance.bias - balance.bias
    assert 0 < moved.abs().max() <= 2.001 * balance.rate
