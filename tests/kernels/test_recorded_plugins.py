"""Libraries for GPUs, asked without one: what they refuse, and what they are given."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import recorded
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import varlen as torch_varlen

from kernels import attention, plugins
from kernels.dispatch import never
from kernels.ops.attention import OPERATION as ATTENTION
from kernels.ops.timeline_attention import OPERATION as TIMELINES
from kernels.plugins import varlen

FOLDER = Path(__file__).parent / "recorded"
SHAPES = (
    ("as it should be", (1, 4, 2, 64), (1, 4, 2, 64), torch.bfloat16, "cuda"),
    ("fp16", (1, 4, 2, 64), (1, 4, 2, 64), torch.float16, "cuda"),
    ("fp32", (1, 4, 2, 64), (1, 4, 2, 64), torch.float32, "cuda"),
    ("on a CPU", (1, 4, 2, 64), (1, 4, 2, 64), torch.bfloat16, "cpu"),
    ("other values", (1, 4, 2, 64), (1, 4, 2, 32), torch.bfloat16, "cuda"),
    ("no multiple of 8", (1, 4, 2, 60), (1, 4, 2, 60), torch.bfloat16, "cuda"),
    ("the widest", (1, 4, 2, 256), (1, 4, 2, 256), torch.bfloat16, "cuda"),
    ("too wide", (1, 4, 2, 264), (1, 4, 2, 264), torch.bfloat16, "cuda"),
)
ALL_OPTIONS = ("enable_gqa", "scale", "window_size")


def of_plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(varlen, "_options", lambda: ALL_OPTIONS)
    with FakeTensorMode():
        for title, qk, v, dtype, device in SHAPES:
            given = [torch.empty(size, dtype=dtype, device=device) for size in (qk, qk, v)]
            yield f"{title}: {plugins.flash_refuses(*given)}; {varlen.refuses(*given)}"
        given = [torch.empty(SHAPES[0][1], dtype=torch.bfloat16, device="cuda") for _ in range(3)]
        for missing in ALL_OPTIONS:
            monkeypatch.setattr(varlen, "_options", lambda missing=missing: without(missing))
            yield f"without {missing}: {varlen.refuses(*given)}, under a window {varlen.refuses(*given, 4)}"
        monkeypatch.setattr(torch.version, "cuda", None)
        yield f"not there: {varlen.refuses(*given)}"
    yield from handed_on(monkeypatch)


def without(missing: str) -> tuple[str, ...]:
    return tuple(name for name in ALL_OPTIONS if name != missing)


def handed_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What the libraries' functions are called with."""
    calls: list[str] = []

    def library(q: Any, k: Any, v: Any, *more: Any, **options: Any) -> Any:
        repeated = k[:, :, 0].tolist() if k.shape[1] > 2 else tuple(k.shape)
        calls.append(
            f"q {tuple(q.shape)}, k {repeated}, {[x if isinstance(x, int) else x.tolist() for x in more]}, {options}"
        )
        return q

    monkeypatch.setattr(torch_varlen, "varlen_attn", library)
    q, k, cu = torch.zeros(5, 4, 8), torch.arange(2.0)[None, :, None].expand(5, 2, 8), torch.tensor([0, 2, 5])
    for available in (ALL_OPTIONS, without("window_size"), without("enable_gqa")):
        monkeypatch.setattr(varlen, "_options", lambda available=available: available)
        for causal, window in ((True, None), (True, 3), (False, None)):
            options = {"causal": causal, "window": window, "scale": 0.5}
            varlen.packed_attention(q, k, k, cu, cu, 3, 3, **options)
            yield f"varlen, {list(available)}, causal {causal}, window {window}: {calls.pop()}"
    varlen.packed_attention(q, q, q, cu, cu, 3, 3, causal=True, window=None, scale=0.5)
    yield f"as many heads: {calls.pop()[:40]}"
    yield f"{ATTENTION.backends} {TIMELINES.backends}"


def test_libraries_for_gpus_refuse_and_are_given_what_they_were(monkeypatch):
    recorded.check(FOLDER / "plugins.txt", of_plugins(monkeypatch))


def test_a_batch_is_handed_to_a_library_as_packed_sequences_with_all_options(monkeypatch):
    calls = []

    def library(q: Any, k: Any, v: Any, *lengths: Any, **options: Any) -> Any:
        calls.append(([x if isinstance(x, int) else x.tolist() for x in lengths], options))
        return q

    monkeypatch.setattr(varlen, "packed_attention", library)
    q, k = torch.rand(2, 3, 4, 16), torch.rand(2, 5, 2, 16)
    with ATTENTION.override("varlen", refuses=never):
        assert torch.equal(attention(q, k, k, scale=0.5, backend="varlen"), q)
        attention(q, k, k, window=2, backend="varlen")
    lengths = [[0, 3, 6], [0, 5, 10], 3, 5]
    assert calls == [
        (lengths, {"causal": True, "window": None, "scale": 0.5}),
        (lengths, {"causal": True, "window": 2, "scale": 0.25}),
    ]
