"""On a GPU every architecture gives the logits and gradients that a CPU gives in fp64."""

import copy

import pytest
import torch
import torch.nn.functional as F
from support.contract_cases import VOCAB, tokens
from support.kernel_cases import rmse_ratio
from support.margins import below
from torch import Tensor

from experiments.configuration.compose import architectures
from zoo.config import ModelConfig
from zoo.interfaces import set_step
from zoo.model import LanguageModel

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

PRESETS = architectures(ModelConfig(d_model=128, n_heads=4, depth=4))
LENGTH, LATE = 192, 10**6


def made(name: str) -> LanguageModel:
    """The preset in fp32, past its warm-ups."""
    torch.manual_seed(0)
    model = LanguageModel(PRESETS[name], vocab_size=VOCAB, seq_len=LENGTH)
    set_step(model, LATE)
    return model.eval()


def logits_and_gradients(model: LanguageModel, seen: Tensor) -> list[Tensor]:
    """Logits, and the gradient of every parameter that has one, joined."""
    logits, _ = model(seen)
    F.cross_entropy(logits[:, :-1].flatten(0, 1), seen[:, 1:].flatten()).backward()
    return [logits.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def joined(tensors: list[Tensor]) -> Tensor:
    return torch.cat([x.flatten().double().cpu() for x in tensors])


@pytest.mark.parametrize("name", PRESETS)
def test_logits_and_gradients(name):
    """fp32 on the GPU may be ten times as far from fp64 as fp32 on the CPU, and a choice near a tie may differ."""
    model, seen = made(name), tokens(2, LENGTH)
    wanted = logits_and_gradients(copy.deepcopy(model).double(), seen)
    own = logits_and_gradients(copy.deepcopy(model), seen)
    got = logits_and_gradients(copy.deepcopy(model).cuda(), seen.cuda())
    floor = 1e-4
    for part, what in ((slice(0, 1), "logits"), (slice(1, None), "gradients")):
        limit = 10 * max(floor, rmse_ratio(joined(own[part]), joined(wanted[part])))
        below(rmse_ratio(joined(got[part]), joined(wanted[part])), limit, what)


@pytest.mark.parametrize("name", PRESETS)
@torch.no_grad()
def test_half_precision_stays_near(name):
    """bf16 keeps 8 bits, and errors of some layers add; a wrong kernel is off by the size of the numbers."""
    model, seen = made(name), tokens(2, LENGTH)
    wanted, _ = copy.deepcopy(model).double()(seen)
    with torch.autocast("cuda", torch.bfloat16):
        got, _ = model.cuda()(seen.cuda())
    below(rmse_ratio(got.cpu(), wanted), 0.2, "logits")


@pytest.mark.parametrize("name", PRESETS)
@torch.no_grad()
def test_steps_continue_a_sequence(name):
    """Decoding token by token gives the forward pass's logits."""
    model, seen = made(name).cuda(), tokens(2, 24).cuda()
    wanted, _ = model(seen)
    state, steps = model.init_state(2), []
    for t in range(seen.shape[1]):
        logits, state = model.step(seen[:, t], state)
        steps.append(logits)
    below(rmse_ratio(torch.stack(steps, 1), wanted), 1e-3, "logits")
