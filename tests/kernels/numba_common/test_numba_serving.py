"""Why Numba cannot serve: it is not there, cannot be imported, or is told to compile nothing."""

import importlib

import numba
import pytest
import torch

from kernels import numba_common


@pytest.fixture
def importing(monkeypatch):
    """Calling it sets what importing Numba raises."""

    def fail_with(error: Exception) -> None:
        def fail(_name: str):
            raise error

        monkeypatch.setattr(importlib, "import_module", fail)

    numba_common._fault.cache_clear()
    yield fail_with
    numba_common._fault.cache_clear()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ModuleNotFoundError("No module named 'numba'"), "numba cannot be imported: No module named 'numba'"),
        (ImportError("needs NumPy 2.2 or less"), "numba cannot be imported: needs NumPy 2.2 or less"),
        (SystemError("initialization failed"), "numba cannot be imported: initialization failed"),
    ],
)
def test_what_importing_it_raises_is_the_reason(importing, error, reason):
    importing(error)
    assert numba_common.refusal(torch.ones(2)) == reason


def test_compiling_can_be_switched_off(importing, monkeypatch):
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    assert numba_common.refusal(torch.ones(2)) == "NUMBA_DISABLE_JIT is set"


def test_an_installed_numba_takes_fp32_on_a_cpu(importing):
    assert numba_common.refusal(torch.ones(2), torch.ones(3, 1)) is None
    assert numba_common.refusal(torch.ones(2), torch.ones(3).half()) == "needs float32, got float16"
    assert numba_common.refusal(torch.ones(2, device="meta")) == "needs tensors on a CPU, got meta"
