"""Kernels that a training step launches on a GPU, a layer: PyTorch's operators that are no views, and Triton's."""

import contextlib
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from support.contract_cases import VOCAB, tokens
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import InterpretedFunction

from experiments.bench.compiled import GPUS, use_fake_gpu
from experiments.bench.model_steps import LATE_STEP
from experiments.configuration.compose import architectures
from kernels.dispatch import Operation, always, never
from kernels.triton_common import interpreted
from zoo import Context, LanguageModel, ModelConfig
from zoo.interfaces import set_step

LIMITS = {"orthgsa": 130}
"""Of a layer's forward and backward pass."""

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
def test_a_layer_launches_few_kernels_and_sorts_nothing(preset: str):
    one, two = launches(preset, 1), launches(preset, 2)
    layer = two - one
    assert layer.total() <= LIMITS[preset], layer
    assert not {"sort", "topk", "scatter", "scatter_add_"} & set(two), two
