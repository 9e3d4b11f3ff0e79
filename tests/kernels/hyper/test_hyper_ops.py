"""hyper_pre and hyper_post: the products against their definitions, identities, precision and errors."""

from functools import partial

import pytest
import torch
from support.kernel_cases import assert_agree, normal

from kernels import hyper_post, hyper_pre
from kernels.flops import flop_counter

dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
sizes = pytest.mark.parametrize(("time", "n", "width"), [(1, 2, 3), (5, 4, 8), (7, 3, 65)])


def inputs(
    time: int = 5, n: int = 4, width: int = 8, dtype: torch.dtype = torch.float64, static: bool = False
):
    """streams, z, h_res, h_post (also good as h_pre)."""
    return (
        normal(2, time, n, width, dtype=dtype, seed=1),
        normal(2, time, width, dtype=dtype, seed=2),
        normal(*(() if static else (2, time)), n, n, dtype=dtype, seed=3),
        normal(2, time, n, dtype=dtype, seed=4),
    )


@sizes
@dtypes
def test_pre_equals_its_definition_with_all_gradients(time, n, width, dtype):
    streams, _, _, h = inputs(time, n, width, dtype)
    assert_agree(partial(hyper_pre, backend="torch"), partial(hyper_pre, backend="reference"), [streams, h])


@sizes
@dtypes
@pytest.mark.parametrize("static", [False, True], ids=["per token", "one matrix"])
def test_post_equals_its_definition_with_all_gradients(time, n, width, dtype, static):
    args = inputs(time, n, width, dtype, static)
    assert_agree(partial(hyper_post, backend="torch"), partial(hyper_post, backend="reference"), args)


def test_an_even_reading_is_the_mean_and_an_identity_keeps_the_streams():
    streams, z, _, h = inputs()
    torch.testing.assert_close(hyper_pre(streams, torch.full_like(h, 0.25)), streams.mean(-2))
    eye = torch.eye(4, dtype=torch.float64)
    assert torch.equal(hyper_post(streams, z, eye, torch.zeros_like(h)), streams)
    added = hyper_post(streams, z, eye, torch.ones_like(h))
    torch.testing.assert_close(added, streams + z.unsqueeze(-2))


def test_a_permutation_moves_streams():
    streams, z, _, h = inputs()
    swap = torch.eye(4, dtype=torch.float64)[[2, 0, 3, 1]]
    assert torch.equal(hyper_post(streams, z, swap, torch.zeros_like(h)), streams[:, :, [2, 0, 3, 1]])


def test_autocast_does_not_round_the_streams():
    streams, z, h_res, h = inputs(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, x = hyper_pre(streams, h), hyper_post(streams, z.bfloat16(), h_res, h)
    assert y.dtype == x.dtype == torch.float32
    torch.testing.assert_close(y, hyper_pre(streams, h, backend="reference"))
    torch.testing.assert_close(x, hyper_post(streams, z.bfloat16(), h_res, h, backend="reference"))


def test_sixteen_bit_streams_are_added_up_in_fp32():
    streams, z, h_res, h = inputs(dtype=torch.bfloat16)
    wide = [x.float() for x in (streams, z, h_res, h)]
    x = hyper_post(streams, z, h_res, h)
    assert x.dtype == hyper_pre(streams, h).dtype == torch.bfloat16
    assert torch.equal(x, hyper_post(*wide).bfloat16())


def test_flops_are_counted():
    """2·n·D reading a token, 2·n²·D mixing it, twice that backward; and the gradients of both factors of h_post·z."""
    streams, z, h_res, h = (x.to("meta").requires_grad_() for x in inputs())
    tokens = 2 * 5
    with flop_counter() as counter:
        y, x = hyper_pre(streams, h), hyper_post(streams, z, h_res, h)
    assert counter.get_total_flops() == tokens * (2 * 4 * 8 + 2 * 16 * 8)
    with flop_counter() as counter:
        (y.sum() + x.sum()).backward()
    assert counter.get_total_flops() == 2 * tokens * (2 * 4 * 8 + 2 * 16 * 8 + 2 * 4 * 8)


def test_compiles_in_one_graph():
    compiled = torch.compile(hyper_post, fullgraph=True, backend="aot_eager")
    assert_agree(compiled, hyper_post, inputs())
    streams, _, _, h = inputs()
    assert_agree(torch.compile(hyper_pre, fullgraph=True, backend="aot_eager"), hyper_pre, [streams, h])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"streams": (2, 5, 8)}, r"streams \[B, T, n, D\], got \(2, 5, 8\)"),
        ({"z": (2, 5, 9)}, r"needs z \(2, 5, 8\), got \(2, 5, 9\)"),
        ({"h_res": (2, 5, 3, 4)}, r"needs h_res \(2, 5, 4, 4\), got \(2, 5, 3, 4\)"),
        ({"h_res": (3, 3)}, r"needs h_res \(4, 4\), got \(3, 3\)"),
        ({"h_post": (2, 5, 3)}, r"needs h_post \(2, 5, 4\), got \(2, 5, 3\)"),
    ],
)
def test_errors_name_what_is_wrong(change, said):
    args = dict(zip(("streams", "z", "h_res", "h_post"), inputs(), strict=True))
    args.update({name: torch.zeros(shape) for name, shape in change.items()})
    with pytest.raises(ValueError, match=said):
        hyper_post(**args)


def test_errors_of_pre():
    streams, *_ = inputs()
    with pytest.raises(ValueError, match=r"needs h_pre \(2, 5, 4\), got \(2, 5, 1\)"):
        hyper_pre(streams, torch.zeros(2, 5, 1))
    with pytest.raises(ValueError, match="unknown backend 'fused'"):
        hyper_pre(streams, torch.zeros(2, 5, 4), backend="fused")
