"""Shape classes of tuned launch configurations; how they are recorded: tests/experiments/gpu/test_gpu_stages.py."""

import pytest
import torch
import triton

from kernels.ops.delta_rule.triton_step import _step
from kernels.triton_common import tuning
from kernels.triton_common.tuning import Tuned

CONFIGS = [triton.Config({"BV": 64}, num_warps=4), triton.Config({"BV": 16}, num_warps=2)]


@pytest.fixture
def tuned(monkeypatch) -> Tuned:
    monkeypatch.setattr(Tuned, "all", [])
    return Tuned(_step, CONFIGS, ["K", "V", "SHARED"])


@pytest.mark.parametrize(
    ("dtypes", "said"),
    [
        (["float32"], "float32"),
        (["float16", "float32"], "float16+float32"),
        (["bfloat16", "float32", "bfloat16", "int32"], "bfloat16+float32"),
        (["int64", "float16", "float16"], "float16"),
    ],
)
def test_a_class_has_the_values_of_its_key_and_every_floating_dtype_once(tuned: Tuned, dtypes, said):
    shape = tuned._shape([64, 32, True], [f"torch.{name}" for name in dtypes])
    assert shape == f"K=64,V=32,SHARED=True,{said}"


def test_what_is_tuned_in_one_dtype_is_not_taken_in_another(tuned: Tuned, monkeypatch):
    entry = {(tuned.name, "K=64,V=32,SHARED=True,float16+float32"): CONFIGS[1]}
    monkeypatch.setattr(tuning, "_table", lambda device: entry)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "This GPU")
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)

    def known(dtype: torch.dtype):
        data = {"q": torch.zeros(1, dtype=dtype), "g": torch.zeros(1)}
        return tuned._known((), {**data, "K": 64, "V": 32, "SHARED": True})

    assert known(torch.float16) is CONFIGS[1]
    assert known(torch.float32) is None
    assert known(torch.bfloat16) is None
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    assert known(torch.bfloat16) is CONFIGS[0]  # nothing is measured in the interpreter
