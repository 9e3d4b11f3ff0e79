"""A fake GPU: while it is in use, Triton and PyTorch answer questions about a device with its sizes.

Libraries ask at import and keep the answers, so it belongs into a process of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from experiments.bench.static.gpus import Gpu


class _Driver:
    """A driver for Triton that answers questions about the device; nothing is loaded or launched through it."""

    def __init__(self, gpu: Gpu) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", gpu.sm, 32)
        self.utils = SimpleNamespace(get_device_properties=lambda _device: _properties(gpu))

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return torch.cuda

    def is_active(self) -> bool:
        return True


def _properties(gpu: Gpu) -> dict[str, int]:
    return {
        "max_shared_mem": gpu.program_shared,
        "multiprocessor_count": gpu.multiprocessors,
        "max_num_regs": gpu.registers,
        "warpSize": 32,
    }


@contextlib.contextmanager
def use_fake_gpu(gpu: Gpu) -> Iterator[None]:
    """Return a context manager inside which this GPU seems to be there, and tensors of a CPU to be on it."""
    from triton.runtime import driver

    properties = SimpleNamespace(
        name=gpu.name,
        major=gpu.capability[0],
        minor=gpu.capability[1],
        multi_processor_count=gpu.multiprocessors,
        shared_memory_per_block_optin=gpu.program_shared,
    )
    answers = {
        "is_available": True,
        "synchronize": None,
        "device_count": 1,
        "current_device": 0,
        "get_device_name": gpu.name,
        "get_device_capability": gpu.capability,
        "get_device_properties": properties,
    }
    with contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, lambda *_, answer=answer, **__: answer))
        stack.enter_context(mock.patch.object(torch.cuda, "device", contextlib.nullcontext))
        stack.enter_context(mock.patch.object(driver, "_active", _Driver(gpu)))
        yield
