"""The sentence whose attention and routes are recorded: one that was given, or the beginning of a held-out document."""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.configuration.schema import ProbeConfig
from experiments.data import Split
from experiments.probing.held_out import document_start
from experiments.runs.load_run import LoadedRun
from zoo.errors import UserError


def probed_sentence(loaded: LoadedRun, split: Split, probe: ProbeConfig) -> Tensor:
    """Tokens int64 [1, T] of probe.sentence after the separator, or of `document_start` where none is given.

    Raises UserError where the given one is longer than the trained length.
    """
    tokenizer, longest = loaded.tokenizer, loaded.model.seq_len
    if probe.sentence is None:
        return document_start(split, tokenizer.bos_id, probe.map_tokens)
    tokens = [tokenizer.bos_id, *tokenizer.encode(probe.sentence)]
    if len(tokens) > longest:
        raise UserError(
            f"probe.sentence has {len(tokens) - 1:,} tokens, and this model was trained on {longest:,} at a time, the "
            f"separator before it included; shorten it to {longest - 1:,} tokens"
        )
    return torch.tensor([tokens])
