"""A sequence cut over the ranks of a process group: every block computes and learns as in one piece."""

import functools

import pytest
from support.context_cases import every_error
from support.contract_cases import Case, cases
from support.margins import below
from support.ranks import on_ranks

LIMIT = 1e-9

NAMES = [str(case) for case in cases()]
DEFAULTS = [str(case) for case in cases() if case.kind == "mixer" and not case.variant]


@functools.cache
def errors(size: int) -> list[dict]:
    """What every rank found of every case; once for all tests, as starting ranks takes seconds."""
    return on_ranks(size, every_error, NAMES, (1, 2, 3), (True, False))


def assert_small(found: list[dict], name: str) -> None:
    for rank, by_place in enumerate(found):
        mine = {where: errors for where, errors in by_place.items() if where.split()[0] == name}
        assert mine
        for where, by_tensor in mine.items():
            for tensor, error in by_tensor.items():
                below(error, LIMIT, f"rank {rank} {where} {tensor}")


def test_mixers_on_two_ranks_are_the_mixers():
    found = on_ranks(2, every_error, DEFAULTS, (), (True,))
    for name in DEFAULTS:
        assert_small(found, name)


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_blocks_in_shards_are_the_blocks(name, size):
    """Outputs, losses, gradients of inputs and parameters; rows, documents across borders; training and evaluation."""
    assert_small(errors(size), name)
