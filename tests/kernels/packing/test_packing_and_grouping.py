"""What all layouts of packed sequences are built from: owners of tokens and rows, and the sort by group."""

import pytest
import torch

from kernels.indices import sort_by_group
from kernels.packing import (
    boundaries,
    chunk_counts,
    most_chunks,
    ragged_rows,
    sequence_starts,
    token_sequences,
)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_every_token_has_its_sequence_and_the_first_token_of_that(dtype):
    cu = torch.tensor([0, 3, 3, 4, 6], dtype=dtype)
    assert token_sequences(cu, 6).tolist() == [0, 0, 0, 2, 3, 3]
    assert sequence_starts(cu, 6, cu.device).tolist() == [0, 0, 0, 3, 4, 4]
    assert sequence_starts(None, 3, cu.device).tolist() == [0, 0, 0]


def test_a_batch_is_packed_sequences():
    x = torch.zeros(3, 2, 5)
    assert token_sequences(boundaries(x, None), 6).tolist() == [0, 0, 1, 1, 2, 2]


def test_rows_behind_the_last_sequence_count_on():
    sequence, number = ragged_rows(torch.tensor([2, 0, 1]), 5)
    assert sequence.tolist() == [0, 0, 2, 2, 2]
    assert number.tolist() == [0, 1, 0, 1, 2]


def test_no_division_into_sequences_needs_more_chunks_than_the_bound():
    for lengths in ([10], [1, 9], [5, 5], [9, 1, 0], [1, 1, 8]):
        cu = torch.tensor([0, *lengths]).cumsum(0)
        assert int(chunk_counts(cu, 4).sum()) <= most_chunks(10, len(lengths), 4)
    assert most_chunks(10, 3, 4) == 4  # of 1, 1 and 8 tokens


def test_sorting_by_group_is_stable_and_has_an_inverse():
    group = torch.tensor([2, 0, 2, 4, 0, 2])
    found = sort_by_group(group, 5)
    assert found.order.tolist() == [1, 4, 0, 2, 5, 3]
    assert found.offsets.tolist() == [0, 2, 2, 5, 5, 6]
    assert found.order[found.places()].tolist() == list(range(6))
