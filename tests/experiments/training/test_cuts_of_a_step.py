"""A step of sixteen sequences is one step however it is cut into micro-batches: losses, accuracies, gradients, biases.

Of every task, and of every block with an auxiliary loss, on one stream and on packed documents. The numbers of one step
differ by the order of sums of fp32 alone, about 1e-7 of them; means of micro-batches' means differ by per cents.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.contract_cases import SEQ_LEN, VOCAB, Case, build, cases
from support.margins import below
from torch import Tensor

from experiments.configuration.schema import Config
from experiments.data import TASKS, Batches, DataConfig, Split, TaskSet
from experiments.data.task_set import TaskBatches
from experiments.training.lightning_modules import LanguageModelling, SyntheticTask
from experiments.training.train import make_trainer, silence_lightning
from zoo import LanguageModel, ModelConfig

SEQUENCES, LIMIT = 16, 1e-5
CUTS = [(16, 1), (4, 4), (1, 16)]
"""Sequences of a micro-batch, and micro-batches."""

Stream = Batches | TaskBatches


def one_step(
    model: LanguageModel, kind: type[LanguageModelling], batches: Stream, accumulate: int, folder: Path
) -> tuple[dict[str, float], dict[str, Tensor], dict[str, Tensor]]:
    """Losses and measures of the first step, its gradients by parameter, and the buffers after it."""
    silence_lightning()
    config, gradients = Config(), {}
    config.trainer.max_steps, config.trainer.accumulate, config.optim.clip = 1, accumulate, 1e9
    task = kind(model, config, batches, {})
    after = task.on_before_optimizer_step

    def seen(optimizer: torch.optim.Optimizer) -> None:
        after(optimizer)
        gradients.update({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})

    task.on_before_optimizer_step = seen
    make_trainer(config, torch.device("cpu"), [], folder).fit(task)
    numbers = {name: float(value) for name, value in task.last_step.items()}
    return numbers, gradients, {name: x.clone() for name, x in model.named_buffers()}


def assert_equal(found: tuple, wanted: tuple) -> None:
    """Numbers relative to themselves, gradients relative to their norm over all parameters, buffers bit for bit."""
    assert found[0].keys() == wanted[0].keys()
    for name, value in wanted[0].items():
        below(abs(found[0][name] - value) / (abs(value) or 1.0), LIMIT, name)
    assert found[1].keys() == wanted[1].keys()
    norm = torch.stack([gradient.norm() for gradient in wanted[1].values()]).norm()
    for name, gradient in wanted[1].items():
        below((found[1][name] - gradient).norm() / norm, LIMIT, name)
    assert found[2].keys() == wanted[2].keys()
    assert [name for name, x in wanted[2].items() if not torch.equal(x, found[2][name])] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_a_step_of_a_task_is_one_however_it_is_cut(name: str, tmp_path: Path):
    def step(batch_size: int, accumulate: int) -> tuple:
        task_set = TaskSet(DataConfig(name=name, batch_size=batch_size))
        size = {"vocab_size": task_set.vocab_size, "seq_len": task_set.task.seq_len}
        model = LanguageModel(ModelConfig(d_model=16, n_heads=2, depth=1), **size)
        return one_step(model, SyntheticTask, task_set.batches(0), accumulate, tmp_path)

    whole, *others = (step(*cut) for cut in CUTS)
    assert {"loss", *SyntheticTask.measures} <= whole[0].keys()
    for other in others:
        assert_equal(other, whole)


def config_of(case: Case) -> ModelConfig:
    """The case's model, without a mixer's losses beside those of a channel mixer."""
    config = case.config()
    config.pattern = "F" if case.kind == "channel" else config.pattern
    return config


WITH_LOSSES = [case for case in cases() if case.kind != "residual" and build(config_of(case)).aux_weights]


def text() -> Split:
    """Documents of very different lengths, from one token on, each with its separator 0 before it."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(1, VOCAB, (3 * SEQUENCES * SEQ_LEN,), generator=generator).numpy()
    lengths = torch.randint(1, 3 * SEQ_LEN, (len(tokens),), generator=generator).numpy() ** 2 // (3 * SEQ_LEN)
    starts = np.cumsum(lengths + 1)
    tokens[[0, *starts[starts < len(tokens)]]] = 0
    return Split(tokens.astype(np.uint16), 1, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("pack", ["stream", "document"])
@pytest.mark.parametrize("case", WITH_LOSSES, ids=str)
def test_a_step_with_auxiliary_losses_is_one_however_it_is_cut(case: Case, pack: str, tmp_path: Path):
    """All of them with a weight that makes them part of the gradient; weights in fp64, as they are far from small."""

    def step(batch_size: int, accumulate: int) -> tuple:
        model = build(config_of(case)).train()
        model.aux_weights = dict.fromkeys(model.aux_weights, 1.0)
        batches = Batches(text(), SEQ_LEN, batch_size, 0, pack)
        return one_step(model, LanguageModelling, batches, accumulate, tmp_path)

    whole, *others = (step(*cut) for cut in CUTS)
    assert any(name.startswith("aux:") for name in whole[0])
    for other in others:
        assert_equal(other, whole)
