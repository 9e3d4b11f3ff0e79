"""Whole models on Triton kernels alone, in the interpreter: what they compute and learn from is PyTorch's."""

import pytest
import torch
from support.contract_cases import VOCAB, tokens
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from zoo import Context, LanguageModel, ModelConfig
from zoo.config import from_dict
from zoo.interfaces import Dims
from zoo.modules import RMSNorm
from zoo.residuals.hc import HC
from zoo.residuals.hyper_connections import HyperConfig

LENGTH = 17
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def model(pattern: str, residual: str, backend: str) -> LanguageModel:
    sizes = {"pattern": pattern, "depth": len(pattern), "d_model": 32, "n_heads": 2, "backend": backend}
    mixers = {"gsa": {"warmup": 0, "k_base": 5}, "nsa": {"window": 6}}
    config = from_dict(ModelConfig, {**sizes, "mixers": mixers, "residual": {"name": residual}})
    return LanguageModel(config, vocab_size=VOCAB, seq_len=LENGTH).to(DEVICE)


def learned(made: LanguageModel) -> tuple[Tensor, dict[str, Tensor]]:
    x = tokens(1, LENGTH).to(DEVICE)
    logits, aux = made(x, Context.of(x))
    loss = logits.square().mean() + sum(aux.values())
    loss.backward()
    return logits, {name: p.grad for name, p in made.named_parameters() if p.grad is not None}


class Sums(TorchDispatchMode):
    """shapes: of what PyTorch adds up."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        if operator.overloadpacket in (torch.ops.aten.add, torch.ops.aten.add_):
            self.shapes.append(result.shape[2:])
        return result


@pytest.mark.parametrize(("backend", "sums"), [("triton", 0), ("torch", 0), ("reference", 2)])
def test_kernels_add_the_gradients_of_the_streams(backend, sums):
    """Three readers a sub-block: two sums by autograd, or none where each form adds to the gradient so far."""
    scheme, norm = HC(HyperConfig(), Dims(16, 2, 3, 0, 1, backend)).to(DEVICE), RMSNorm(16).to(DEVICE)
    x = torch.randn(1, 3, 4, 16, generator=torch.Generator().manual_seed(0)).to(DEVICE).requires_grad_()
    u, streams, coefficients = scheme.normed_pre(x, norm)
    loss = scheme.post(streams, u, coefficients).square().sum()
    with Sums() as seen:
        loss.backward()
    assert seen.shapes.count((4, 16)) == sums


@pytest.mark.long
@pytest.mark.parametrize(
    ("pattern", "residual"),
    [("CG", "ohc"), *(pytest.param(*x, marks=pytest.mark.long) for x in (("CKMO", "ohc"), ("PNSG", "mhc")))],
)
def test_a_model_of_kernels_is_the_model(pattern, residual):
    definition, kernels = (model(pattern, residual, backend) for backend in ("torch", "triton"))
    kernels.load_state_dict(definition.state_dict())
    (wanted, wanted_grads), (got, got_grads) = learned(definition), learned(kernels)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    assert got_grads.keys() == wanted_grads.keys()
    # mHC's first mixing of equal streams has no gradient but rounding.
    rounding = 1e-7 * max(float(grad.abs().max()) for grad in wanted_grads.values())
    for name, grad in wanted_grads.items():
        allowed = 1e-4 * float(grad.abs().max()) + rounding
        torch.testing.assert_close(got_grads[name], grad, rtol=1e-3, atol=allowed, msg=name)
