"""Evaluation windows score every token once, with the context they promise."""

import numpy as np
import pytest

from experiments.data import Split, eval_windows


def numbered(n: int) -> Split:
    return Split(np.arange(n, dtype=np.uint16), n, n, 1)


@pytest.mark.parametrize("stride", [1, 3, 8, 15, 16])
@pytest.mark.parametrize("n", [2, 10, 16, 17, 18, 100, 113])
def test_every_token_is_scored_once_in_order(n, stride):
    scored = []
    for tokens, targets, first in eval_windows(numbered(n), 16, stride):
        assert len(tokens) == len(targets) == min(16, n - 1)
        assert np.array_equal(targets.numpy(), tokens.numpy() + 1)
        for position in range(first, len(targets)):
            context = position + 1
            target = int(targets[position])
            assert context >= min(16 - stride, target)
            scored.append(target)
    assert scored == list(range(1, n))


def test_bad_strides_and_empty_splits_are_refused():
    for stride in (0, 17):
        with pytest.raises(ValueError, match="stride must be between 1 and seq_len=16"):
            next(eval_windows(numbered(100), 16, stride))
    with pytest.raises(ValueError, match="nothing to score"):
        next(eval_windows(numbered(1), 16, 16))
