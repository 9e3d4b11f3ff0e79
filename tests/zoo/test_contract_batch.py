"""Contracts over the batch: a sequence gives the same alone, in a batch and packed, noise included."""

import pytest
import torch
import torch.nn.functional as F
from support.contract_cases import assert_same, boundaries, build, every_case, gradients, keys, tokens
from torch import Tensor

from zoo import Context, LanguageModel

LENGTHS = (7, 1, 67, 2)

modes = pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])


def mean_aux(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([part[name] for part in parts]).mean() for name in parts[0]}


def alone(model: LanguageModel, rows: list[Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Every sequence in a forward pass of its own: logits [T_i, V] each, mean auxiliary losses."""
    noise = keys(len(rows)).split(1)
    outs = [model(x[None], Context.of(x[None], noise_keys=key)) for x, key in zip(rows, noise, strict=True)]
    return [logits[0] for logits, _ in outs], mean_aux([aux for _, aux in outs])


@every_case
@modes
@torch.no_grad()
def test_a_batch_is_its_rows(case, training):
    model = build(case.config()).train(training)
    batch = tokens(3, 19)
    logits, aux = model(batch, Context.of(batch, noise_keys=keys(3)))
    rows, mean = alone(model, list(batch))
    torch.testing.assert_close(logits, torch.stack(rows), rtol=0, atol=1e-9)
    assert_same(aux, mean)


@every_case
@modes
def test_packed_sequences_are_separate_sequences(case, training):
    """Outputs, auxiliary losses and gradients of the training loss."""
    model = build(case.config()).train(training)
    packed = tokens(1, sum(LENGTHS))
    targets = tokens(1, sum(LENGTHS), seed=1)[0]
    logits, aux = model(packed, Context.of(packed, boundaries(*LENGTHS), keys(len(LENGTHS))))
    rows, mean = alone(model, list(packed[0].split(LENGTHS)))
    torch.testing.assert_close(logits[0], torch.cat(rows), rtol=0, atol=1e-9)
    assert_same(aux, mean)
    loss = F.cross_entropy(logits[0], targets) + model.aux_loss(aux)
    wanted = F.cross_entropy(torch.cat(rows), targets) + model.aux_loss(mean)
    assert_same(gradients(model, loss), gradients(model, wanted))
