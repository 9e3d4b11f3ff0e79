"""Presets as single graphs: a training step and decoding steps, on PyTorch's forms and on Triton's (interpreted)."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

import pytest
import torch
from support.contract_cases import VOCAB, tokens
from torch import Tensor

from experiments.configuration.compose import architectures, presets_to_compare
from kernels.dispatch import Operation, always, only_when_named
from zoo import Context, LanguageModel, ModelConfig

LENGTH = 24
QUICK = ("lfm2",)
PRESETS = [
    pytest.param(name, marks=pytest.mark.slow if name in QUICK else pytest.mark.long)
    for name in presets_to_compare()
]


@pytest.fixture(params=["auto", "triton"])
def forms(request) -> Iterator[None]:
    """The forms that "auto" takes: those of this machine, or Triton's wherever there is one."""
    with contextlib.ExitStack() as stack:
        for operation in Operation.every:
            if request.param in operation.backends:
                for name in operation.backends:
                    suits = always if name == request.param else only_when_named
                    stack.enter_context(operation.override(name, suits=suits))
        yield


def made(preset: str) -> LanguageModel:
    config = architectures(ModelConfig(d_model=32, n_heads=2, depth=2))[preset]
    config = dataclasses.replace(config, d_model=32, n_heads=2, depth=2)
    return LanguageModel(config, vocab_size=VOCAB, seq_len=LENGTH)


def gradients(model: LanguageModel, compute: Callable) -> dict[str, Tensor]:
    model.zero_grad()
    given = tokens(2, LENGTH)
    (nats, *_), aux = compute(given, Context.of(given), given)
    loss = nats / given.numel() + model.aux_loss(aux)
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), **found}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_training_step_is_one_graph(preset: str, forms):
    torch._dynamo.reset()
    model = made(preset).train()
    got = gradients(model, torch.compile(model, fullgraph=True, backend="aot_eager"))
    wanted = gradients(model, model)
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(
            got[name], value, rtol=1e-4, atol=1e-6, msg=lambda said, n=name: f"{n}: {said}"
        )


@pytest.mark.parametrize("preset", PRESETS)
def test_a_decoding_step_is_one_graph(preset: str, forms):
    """The state that a step leaves is the next one's."""
    torch._dynamo.reset()
    model = made(preset).eval()
    given = tokens(2, 4)
    with torch.no_grad():
        compiled = torch.compile(model.step, fullgraph=True, backend="aot_eager")
        got, wanted = (
            decoded(step, given, model.init_state(2, capacity=8)) for step in (compiled, model.step)
        )
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def decoded(step: Callable, given: Tensor, state: object) -> Tensor:
    logits = []
    for token in given.unbind(1):
        out, state = step(token, state)
        logits.append(out)
    return torch.stack(logits)
