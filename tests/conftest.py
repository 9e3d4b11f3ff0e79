"""What every test shares: one thread, because workers share the cores; Triton's interpreter where no GPU is.

ARCHZOO_TEST_THREADS=2 gives another number of threads; --margins prints the room under every limit
(support/margins.py), --record writes recorded outputs again (support/recorded.py). `support` is importable
because this file puts its own folder on the path.
"""

import os
import sys

os.environ["OMP_NUM_THREADS"] = os.environ.get(
    "ARCHZOO_TEST_THREADS", "1"
)  # before torch reads it; inherited

import pytest
import torch

pytest_plugins = ["support.margins", "support.recorded"]
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
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
