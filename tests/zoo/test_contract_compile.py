"""Contracts under torch.compile: one graph, and the results of eager mode."""

import pytest
import torch
import torch.nn.functional as F
from support.contract_cases import Case, assert_same, boundaries, build, cases, gradients, keys, tokens
from torch import Tensor

from zoo import Context, LanguageModel, ModelConfig

CU_SEQLENS = boundaries(7, 1, 9, 2)


def results(model: LanguageModel, compute, cu_seqlens: Tensor | None) -> dict[str, Tensor]:
    """Logits, auxiliary losses and gradients of one training step."""
    batch = tokens(2 if cu_seqlens is None else 1, 19)
    n = 2 if cu_seqlens is None else len(cu_seqlens) - 1
    logits, aux = compute(batch, Context.of(batch, cu_seqlens, keys(n)))
    targets = tokens(*batch.shape, seed=1).flatten()
    grads = gradients(model, F.cross_entropy(logits.flatten(0, 1), targets) + model.aux_loss(aux))
    return {"logits": logits, **aux, **grads}


def assert_compiled_equals_eager(case: Case, cu_seqlens: Tensor | None) -> None:
    model = build(case.config(depth=1)).train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_same(results(model, compiled, cu_seqlens), results(model, model, cu_seqlens))


DAILY = ("attention", "kda", "gsa")
"""Whole presets stand in test_compiled_presets.py."""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case, marks=pytest.mark.slow if case.name in DAILY and not case.variant else pytest.mark.long
        )
        for case in cases()
    ],
    ids=str,
)
def test_compiled_equals_eager(case: Case):
    assert_compiled_equals_eager(case, None)


@pytest.mark.long
@pytest.mark.parametrize("case", [case for case in cases() if not case.variant], ids=str)
def test_compiled_equals_eager_on_packed_sequences(case: Case):
    assert_compiled_equals_eager(case, CU_SEQLENS)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("pattern", ["SF", "GN"])
def test_inductor_equals_eager(pattern):
    """The compiler that GPUs and `trainer.compile` use, on the smallest models: pure PyTorch, and operators of ours.

    A minute or two of processor time each, ten on a machine that is busy with other work.
    """
    config = ModelConfig(pattern=pattern, depth=2, d_model=16, n_heads=2)
    model = build(config, dtype=torch.float32).train()
    compiled = torch.compile(model, fullgraph=True)
    assert_same(results(model, compiled, None), results(model, model, None), limit=1e-4)
