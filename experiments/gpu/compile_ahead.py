"""Compiling for a GPU on a machine without one: every launch becomes machine code in Triton's cache, and is not run.

The cache's keys are those that the GPU's own machine makes with the same Triton, of the same Python and system, so that
the cache folder can be carried there, to the same path (TRITON_CACHE_DIR): it holds paths.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

from experiments.bench import peers
from experiments.bench.cases import CASES
from experiments.bench.static.capture import capturing
from experiments.bench.static.fake_gpu import use_fake_gpu
from experiments.bench.static.gpus import GPUS
from experiments.bench.static.host_calls import equal_segments, even_selection, on_triton
from experiments.bench.static.tools import check_tools
from kernels.triton_common import interpreted
from zoo.errors import UserError, unknown

LIBRARIES = ("fla", "liger")
"""Peers whose kernels are Triton's."""

_launch = JITFunction.run  # before `capturing` puts its own in its place


class _IntoCache:
    """Takes launches as `Capture` does, and has Triton compile them."""

    def launch(self, kernel: Any, args: tuple, grid: Any, options: dict[str, Any]) -> None:
        _launch(kernel, *args, grid=grid, warmup=True, **options)

    def each(self, configurations: list[Any], run: Callable[[Any], None]) -> None:
        for configuration in configurations:
            run(configuration)


@contextlib.contextmanager
def compiling_for(target: str) -> Iterator[None]:
    """While inside, launches are compiled for the GPU `target`, tuned ones in all configurations, and not run."""
    with use_fake_gpu(GPUS[target]), even_selection(), equal_segments(), capturing(_IntoCache()):
        yield


def check_target(target: str) -> None:
    """Raise UserError for a GPU that is not known, under Triton's interpreter, and without NVIDIA's tools."""
    if target not in GPUS:
        raise unknown("gpu.target", target, list(GPUS))
    if interpreted():
        raise UserError("gpu.target needs Triton's compiler: unset TRITON_INTERPRET")
    check_tools()


def forms_ahead(name: str, length: int) -> tuple[dict[str, Callable[[], Any]], list[Tensor]]:
    """Return a case's Triton forms, ours and those of installed peers, on tensors of a CPU; and those with gradients.

    length: tokens of a sequence, of which there are two, unless the case has a length of its own.
    """
    case = CASES[name]
    length = case.length or length
    # More than one sequence: a kernel is compiled once more for sizes of 1.
    calls = case.calls(length, min(case.tokens, 2 * length), torch.device("cpu"), torch.bfloat16)
    peer_forms = dict(peers.peers_of(name, calls, torch.device("cuda")))
    forms: dict[str, Callable[[], Any]] = {"triton": lambda: [on_triton(call) for call in calls]}
    forms |= {peer: form for peer, form in peer_forms.items() if peer in LIBRARIES}
    return forms, [x for call in calls for x in call.tensors() if x.requires_grad]
