"""Scoring a split with a decode state that is carried along: every token once, with its whole history before it.

Windows (experiments.scoring.text) give a token at most seq_len − 1 tokens before it. Here the tokens are read in chunks
of seq_len, and the state goes on from one to the next. In a stream the history is the whole split before a token; where
documents are packed it begins at the document's separator.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.costs.decode_memory import check_decode_memory, explaining_memory
from experiments.data import Split, document_boundaries
from experiments.scoring.text import Score
from zoo.model import LanguageModel
from zoo.modules.states import select_sequences
from zoo.probes import evaluation_mode

_REMEDY = "give a smaller evaluate.batch_size, or score windows (evaluate.carry=false)"


@torch.no_grad()
def score_carried(
    model: LanguageModel,
    split: Split,
    *,
    batch_size: int,
    document_bos: int | None = None,
    precision: str = "fp32",
    progress: Callable[[int], None] | None = None,
) -> Score:
    """Score a whole split; document_bos: sequences begin at that token (packing), batch_size of them at once.

    Without it the split is one sequence, and batch_size does nothing. Memory is that of the logits of a chunk, and of
    the decode states of the longest documents (of the split). Raises UserError where those do not fit.
    """
    device = model.embedding.weight.device
    tokens = np.asarray(split.tokens)
    sequences = _sequences(tokens, document_bos)
    check_decode_memory(model, [[end - begin for begin, end in sequences[:batch_size]]], _REMEDY)
    nats, scored = torch.zeros((), dtype=torch.float64, device=device), 0
    with evaluation_mode(model), explaining_memory(_REMEDY):
        for i in range(0, len(sequences), batch_size):
            for losses in _losses(model, tokens, sequences[i : i + batch_size], precision):
                nats += losses.sum(dtype=torch.float64)
                scored += losses.numel()
                if progress is not None:
                    progress(losses.numel())
    return Score(float(nats), scored, split.n_words, split.n_bytes, None)


def _sequences(tokens: np.ndarray, document_bos: int | None) -> list[tuple[int, int]]:
    """[begin, end) of the sequences of inputs, the longest first, so that those of a batch are about as long."""
    last = len(tokens) - 1  # nothing follows the last token
    if document_bos is None:
        return [(0, last)]
    bounds = document_boundaries(tokens[None, :last], document_bos).tolist()
    return sorted(itertools.pairwise(bounds), key=lambda pair: pair[0] - pair[1])


def _losses(
    model: LanguageModel, tokens: np.ndarray, sequences: Sequence[tuple[int, int]], precision: str
) -> Iterator[Tensor]:
    """−ln p of every token that follows one of the sequences', chunk by chunk, [n] each."""
    device = model.embedding.weight.device
    lengths = [end - begin for begin, end in sequences]
    state = model.init_state(len(lengths), capacity=lengths[0])
    going = len(lengths)
    for done in range(0, lengths[0], model.seq_len):
        left = sum(length > done for length in lengths)
        if left < going:
            going, state = left, select_sequences(state, torch.arange(left, device=device))
        x, y, inside = (
            part.to(device)
            for part in _chunk(tokens, sequences[:going], done, min(model.seq_len, lengths[0] - done))
        )
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            logits, state = model.extend(x, state, every=True)
        yield F.cross_entropy(logits[inside].float(), y[inside], reduction="none")


def _chunk(
    tokens: np.ndarray, sequences: Sequence[tuple[int, int]], done: int, length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets [B, length] from `done` tokens into the sequences on, and which are inside their sequence.

    A chunk is filled up with the tokens after a sequence's end: no token attends to a later one, and no chunk of that
    sequence follows.
    """
    begin, end = (np.array(edge)[:, None] for edge in zip(*sequences, strict=True))
    index = begin + done + np.arange(length)
    x, y = (tokens.take(index + ahead, mode="clip").astype(np.int64) for ahead in (0, 1))
    return torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(index < end)
