"""hyper_post: the products against the definition, identities, precision, cost and errors."""

from functools import partial

import pytest
import torch
from support.hyper_cases import stream_inputs
from support.kernel_cases import assert_agree

from kernels import hyper_post

dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
sizes = pytest.mark.parametrize("size", [(2, 1, 2, 3), (2, 5, 4, 8), (2, 7, 3, 65)], ids=str)


@sizes
@dtypes
@pytest.mark.parametrize("common", [False, True], ids=["per token", "one matrix"])
def test_equals_its_definition_with_all_gradients(size, dtype, common):
    args = list(stream_inputs(size, dtype, common=common).values())
    assert_agree(partial(hyper_post, backend="torch"), partial(hyper_post, backend="reference"), args)


def test_an_identity_leaves_the_streams_as_they_are():
    streams, z, _, h = stream_inputs().values()
    eye = torch.eye(4, dtype=torch.float64)
    assert torch.equal(hyper_post(streams, z, eye, torch.zeros_like(h)), streams)
    added = hyper_post(streams, z, eye, torch.ones_like(h))
    torch.testing.assert_close(added, streams + z.unsqueeze(-2))


def test_a_permutation_moves_streams():
    streams, z, _, h = stream_inputs().values()
    swap = torch.eye(4, dtype=torch.float64)[[2, 0, 3, 1]]
    assert torch.equal(hyper_post(streams, z, swap, torch.zeros_like(h)), streams[:, :, [2, 0, 3, 1]])


def test_autocast_does_not_round_the_streams():
    streams, z, h_res, h = stream_inputs(dtype=torch.float32).values()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = hyper_post(streams, z.bfloat16(), h_res, h)
    assert x.dtype == torch.float32
    torch.testing.assert_close(x, hyper_post(streams, z.bfloat16(), h_res, h, backend="reference"))


def test_sixteen_bit_streams_are_added_up_in_fp32():
    args = stream_inputs(dtype=torch.bfloat16)
    x = hyper_post(**args)
    assert x.dtype == torch.bfloat16
    assert torch.equal(x, hyper_post(**{name: y.float() for name, y in args.items()}).bfloat16())
