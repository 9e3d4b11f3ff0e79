"""Tensors as arrays: the same memory, which PyTorch may still give back."""

import pytest
import torch
from support.kernel_cases import normal

from kernels import AdaptiveK, indexed_attention, nsa_attention
from kernels.numba_common import WIDTH, array, arrays

Q, K, V = ((1, 40, heads, WIDTH) for heads in (2, 1, 1))


def attend_indexed(q, k, v, q_idx, k_idx, w_idx, bias, tau):
    rule = AdaptiveK("none", 5, 1, 5)
    o, loss = indexed_attention(q, k, v, q_idx, k_idx, w_idx, bias, tau, rule=rule, backend="numba")
    return o.sum() + loss


def attend_natively(q, k_cmp, v_cmp, k_slc, v_slc, k_win, v_win, gates):
    branches = (k_cmp, v_cmp), (k_slc, v_slc), (k_win, v_win)
    sizes = {"block_size": 4, "stride": 2, "select_size": 4, "n_select": 4, "window": 5}
    return nsa_attention(q, *branches, gates, **sizes, backend="numba").sum()


OPERATIONS = {
    "indexed_attention": (attend_indexed, [Q, K, V, Q, (1, 40, WIDTH), (1, 40, 2), (2,), ()]),
    "nsa_attention": (attend_natively, [Q, *[(1, 20, 1, WIDTH)] * 2, *[K, V] * 2, (1, 40, 2, 3)]),
}


def test_an_array_is_the_tensors_memory_and_may_be_written():
    x = torch.zeros(3, 4)
    array(x)[0, 0] = 1.0
    arrays((x,), 1)[0][2] = 2.0
    assert x.tolist() == [[1.0, 0, 0, 0], [0, 0, 2.0, 0], [0.0] * 4]


@pytest.mark.parametrize("name", OPERATIONS)
def test_memory_of_inputs_can_be_given_back_as_fsdp_does_with_gathered_parameters(name):
    operation, shapes = OPERATIONS[name]
    inputs = [normal(1, *shape, seed=i)[0].float().requires_grad_() for i, shape in enumerate(shapes)]
    operation(*inputs).backward()
    storages = [x.untyped_storage() for x in inputs]
    for storage in storages:
        storage.resize_(0)
    assert [storage.nbytes() for storage in storages] == [0] * len(inputs)
