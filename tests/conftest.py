"""What every test shares: one thread, because workers share the cores; Triton's interpreter where no GPU is.

kernels/ zoo/ experiments/ analysis/   tests of these rooms, in folders of the same names
zoo/test_contract_*                    what every block must keep; blocks are taken from the registry
test_recorded_*, recorded/             results as they were recorded (support/recorded.py)
test_frozen.py                         what no change may move: losses, costs, public names
fuzz/                                  make fuzz, and a small share of it
matrix.py                              the fast tests on other versions of Python and torch
support/                               what several tests use, importable as `support`: labs, cases, pretended runs

ARCHZOO_TEST_THREADS=2 gives another number of threads; --margins prints the room under every limit
(support/margins.py), --record writes recorded outputs again (support/recorded.py).
"""

import gc
import os
import sys

os.environ["OMP_NUM_THREADS"] = os.environ.get(
    "ARCHZOO_TEST_THREADS", "1"
)  # before torch reads it; inherited

import pytest
import torch

pytest_plugins = ["support.margins", "support.recorded"]
gc.disable()  # while tests are collected, which stay: looking through them takes a third of that time
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


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def forgetful_compiler():
    """torch.compile compiles a function a few times only; tests of many operations share functions."""
    yield
    if dynamo := sys.modules.get("torch._dynamo"):
        dynamo.reset()
