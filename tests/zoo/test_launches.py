"""Models on Triton kernels alone: what they compute is PyTorch's, and launches of a training step, a layer."""

import contextlib
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from support.contract_cases import VOCAB, tokens
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triton.runtime.interpreter import InterpretedFunction

from experiments.bench.compiled import GPUS, use_fake_gpu
from experiments.bench.model_steps import LATE_STEP
from experiments.configuration.compose import architectures
from kernels.autograd import _RMSNorm
from kernels.dispatch import Operation, always, never
from kernels.triton_common import interpreted
from zoo import Context, LanguageModel, ModelConfig
from zoo.config import from_dict
from zoo.interfaces import Dims, set_step
from zoo.modules import RMSNorm
from zoo.residuals.hc import HC
from zoo.residuals.hyper_connections import HyperConfig

LIMITS = {"kda": 78, "mom": 126, "nsa": 110, "orthgsa": 106, "transformer": 48}
"""Of a layer's forward and backward pass."""
SORTING = ("mom", "nsa")
"""Where a layer sorts, once: tokens by their memory, queries by their blocks."""

NOTHING = {"_unsafe_view", "detach", "promote_types", "is_same_size", "set_"}
"""Operators that launch nothing, besides views and those that only allocate."""


class Launches(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[object] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if not function.is_view and "empty" not in name and name not in NOTHING:
            self.count[name] += 1
        return function(*args, **(kwargs or {}))


def noting(counted: Launches) -> Callable[..., None]:
    """What a launch becomes."""
    return lambda kernel, *_, **__: counted.count.update([kernel.fn])


def as_one_kernel(function: Callable, counted: Launches, count: int) -> Callable:
    """The function, whose operators count as the launches of the fused kernel that a GPU has in their place."""

    def run(*given):
        counted.count["rms_norm"] += count
        with _disable_current_modes():
            return function(*given)

    return staticmethod(run)


def launches(preset: str, depth: int) -> Counter[object]:
    """Of a training step in bf16, after one that made what later steps keep."""
    config = architectures(ModelConfig(d_model=48, n_heads=3, depth=depth))[preset]
    model = LanguageModel(config, vocab_size=VOCAB, seq_len=128).train()
    set_step(model, LATE_STEP)
    given = tokens(1, 128)
    for _ in range(2):
        counted = Launches()
        model.zero_grad()
        with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
            # Noted and not run: nothing here reads what kernels would have written.
            patch.setattr(InterpretedFunction, "run", noting(counted))
            # F.rms_norm, which a GPU takes: one kernel; backward one for x and two for the gain's sums.
            patch.setattr(_RMSNorm, "forward", as_one_kernel(_RMSNorm.forward, counted, 1))
            patch.setattr(_RMSNorm, "backward", as_one_kernel(_RMSNorm.backward, counted, 3))
            for operation in Operation.every:
                if "triton" in operation.backends:
                    stack.enter_context(operation.override("triton", refuses=never, suits=always))
            stack.enter_context(use_fake_gpu(GPUS["H200"]))
            with counted:
                with torch.autocast("cpu", torch.bfloat16):
                    (nats, *_), aux = model(given, Context.of(given), given)
                    loss = nats + model.aux_loss(aux)
                loss.backward()
    return counted.count


@pytest.mark.skipif(not interpreted(), reason="launches are counted without a GPU")
@pytest.mark.parametrize("preset", LIMITS)
def test_a_layer_launches_few_kernels_and_sorts_at_most_once(preset: str):
    one, two = launches(preset, 1), launches(preset, 2)
    layer = two - one
    assert layer.total() <= LIMITS[preset], layer
    assert layer["sort"] == (preset in SORTING), layer
    assert preset in SORTING or not {"topk", "scatter", "scatter_add_"} & set(two), two


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
