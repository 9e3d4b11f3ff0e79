"""Packed sequences as chunks of one size."""

import pytest
import torch
from support.kernel_cases import packed

from kernels.packing import boundaries, chunk_table, first_chunks


@pytest.mark.parametrize("lengths", [(5,), (32, 0, 1, 33, 0), (0, 64), (1, 1, 1)], ids=str)
def test_chunks_of_packed_sequences(lengths):
    """Against counting them: every token is in one chunk, chunks end at boundaries, idle rows say so."""
    x, cu = torch.zeros(1, sum(lengths), 2), packed(*lengths)
    table = chunk_table(x, cu, 32)
    wanted = [[i, j] for i, length in enumerate(lengths) for j in range(-(-length // 32))]
    assert table[: len(wanted)].tolist() == wanted
    assert (table[len(wanted) :] == -1).all()
    assert first_chunks(x, cu, 32).tolist() == [
        sum(-(-n // 32) for n in lengths[:i]) for i in range(len(lengths) + 1)
    ]
    assert table.dtype == torch.int32


def test_a_batch_is_packed_sequences_of_one_length():
    x = torch.zeros(3, 40, 2)
    assert boundaries(x, None).tolist() == [0, 40, 80, 120]
    assert chunk_table(x, None, 32).tolist() == [[i, j] for i in range(3) for j in range(2)]
    assert first_chunks(x, None, 32).tolist() == [0, 2, 4, 6]
    assert {boundaries(x, None).dtype, chunk_table(x, None, 32).dtype} == {torch.int32}
    empty = x[:, :0]
    assert boundaries(empty, None).tolist() == first_chunks(empty, None, 32).tolist() == [0, 0, 0, 0]
    assert chunk_table(empty, None, 32).shape == (0, 2)
