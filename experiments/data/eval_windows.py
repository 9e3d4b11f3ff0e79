"""Evaluation windows: every token scored exactly once, with context."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from experiments.data.corpus import Split


def eval_windows(split: Split, seq_len: int, stride: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
    """Yield (tokens int64 `[T']`, targets int64 `[T']`, first_scored) over a split of N tokens.

    Targets of position ``first_scored`` and later are to be scored; over all windows these are tokens 1 …
    N−1, each once and in order (token 0 is the first document's separator, which nothing predicts). Windows
    have T' = seq_len (N−1 if that is less). The first scores everything, each later one its last ``stride``
    targets, which so have at least seq_len − stride + 1 tokens of context; the last lies flush with the end
    and scores what is left. Raises ValueError unless 1 ≤ stride ≤ seq_len, and for a split of fewer than 2
    tokens.
    """
    if not 1 <= stride <= seq_len:
        raise ValueError(f"stride must be between 1 and seq_len={seq_len}, got {stride}")
    tokens = np.asarray(split.tokens)
    last = len(tokens) - 1
    if last < 1:
        raise ValueError(f"a split of {len(tokens)} tokens has nothing to score")
    done = 0
    while done < last:
        end = min(seq_len if done == 0 else done + stride, last)
        begin = max(0, end - seq_len)
        window = torch.from_numpy(tokens[begin : end + 1].astype(np.int64))
        yield window[:-1], window[1:], done - begin
        done = end
