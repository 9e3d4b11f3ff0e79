"""On a GPU every installed backend agrees in bf16 with the fp32 reference."""

from functools import partial

import pytest
import torch
from support.kernel_cases import packed, qkv, rmse_ratio, value_and_gradients
from support.margins import below

from kernels import attention, gumbel_noise, timeline_attention
from kernels.ops import attention as attention_op
from kernels.ops import timeline_attention as timeline_op

pytestmark = pytest.mark.gpu

OUTPUT_LIMIT, GRADIENT_LIMIT = 0.005, 0.008

ATTENTION = {
    "plain": ({"batch": 2, "time": 300}, {}),
    "grouped heads": ({"batch": 2, "time": 300, "kv_heads": 2}, {}),
    "shorter q": ({"batch": 2, "time": 300, "queries": 70}, {}),
    "window": ({"batch": 2, "time": 600}, {"window": 100}),
    "packed": ({"batch": 1, "time": 600}, {"cu_seqlens": packed(1, 270, 9, 320)}),
    "packed, window": ({"batch": 1, "time": 600}, {"cu_seqlens": packed(1, 270, 9, 320), "window": 33}),
}


@pytest.fixture(autouse=True)
def _needs_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


def inputs_of(shape: dict) -> list[torch.Tensor]:
    """bf16 inputs on the GPU."""
    return [x.to("cuda", torch.bfloat16) for x in qkv(**shape, width=64, dtype=torch.float32)]


def assert_within_limits(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    """The field's criterion for 16-bit kernels against an fp32 reference."""
    for index, (a, b) in enumerate(zip(got, wanted, strict=True)):
        below(rmse_ratio(a, b), GRADIENT_LIMIT if index else OUTPUT_LIMIT, f"tensor {index}")


def skip_unless_able(operation, backend, *arguments, **options) -> None:
    reason = operation.refusals(*arguments, **options).get(backend)
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.parametrize("backend", ["auto", "varlen", "torch", "flash_attn"])
@pytest.mark.parametrize("case", ATTENTION)
def test_attention(case, backend):
    shape, options = ATTENTION[case]
    inputs = inputs_of(shape)
    options = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    skip_unless_able(attention_op.OPERATION, backend, *inputs, **options)
    call = partial(attention, **options)
    got = value_and_gradients(partial(call, backend=backend), inputs)
    wanted = value_and_gradients(partial(call, backend="reference"), [x.float() for x in inputs])
    assert_within_limits(got, wanted)


@pytest.mark.parametrize("backend", ["auto", "varlen", "torch", "flash_attn"])
@pytest.mark.parametrize("cu_seqlens", [None, packed(1, 270, 9, 320)], ids=["batch", "packed"])
def test_timeline_attention(cu_seqlens, backend):
    batch = 2 if cu_seqlens is None else 1
    inputs = inputs_of({"batch": batch, "time": 600})
    assignment = torch.randint(0, 5, (batch, 600, 4), generator=torch.Generator().manual_seed(0)).cuda()
    cu_seqlens = None if cu_seqlens is None else cu_seqlens.cuda()
    skip_unless_able(timeline_op.OPERATION, backend, *inputs, assignment)
    call = partial(timeline_attention, assignment=assignment, n_timelines=6, cu_seqlens=cu_seqlens)
    got = value_and_gradients(partial(call, backend=backend), inputs)
    wanted = value_and_gradients(partial(call, backend="reference"), [x.float() for x in inputs])
    assert_within_limits(got, wanted)


def test_auto_takes_fused_kernels_for_packed_and_timelines():
    q, k, v = inputs_of({"batch": 1, "time": 32})
    cu = packed(12, 20).cuda()
    assert attention_op.OPERATION.choose("auto", q, k, v, cu_seqlens=cu).name == "varlen"
    assert attention_op.OPERATION.choose("auto", q, k, v).name == "torch"
    assignment = torch.zeros(1, 32, 4, dtype=torch.long, device="cuda")
    assert timeline_op.OPERATION.choose("auto", q, k, v, assignment).name == "triton"
    assert (
        timeline_op.OPERATION.choose("auto", q.double(), k.double(), v.double(), assignment).name == "torch"
    )


def test_noise_is_the_same_as_on_a_cpu():
    keys = torch.randint(-(2**62), 2**62, (4, 128), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(128).expand(4, 128)
    on_gpu = gumbel_noise(keys.cuda(), positions.cuda(), 3, 4, 6).cpu()
    torch.testing.assert_close(on_gpu, gumbel_noise(keys, positions, 3, 4, 6), rtol=1e-5, atol=1e-6)
