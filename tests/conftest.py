"""What every test shares: one thread, because workers share the cores; Triton's interpreter where no GPU is."""

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch reads it; child processes inherit it

import pytest
import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before a kernel is imported; child processes inherit it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, aloud, what needs a device that is not here."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def forgetful_compiler():
    """torch.compile compiles a function a few times only; tests of many operations share functions."""
    yield
    if dynamo := sys.modules.get("torch._dynamo"):
        dynamo.reset()
