"""The check that decode states fit into memory, before they are made: a system without memory ends programs unasked."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence

import psutil
import torch

from zoo import cost
from zoo.errors import UserError
from zoo.model import LanguageModel, on_meta

GIB = 2**30


def check_decode_memory(model: LanguageModel, batches: Iterable[Sequence[int]], remedy: str) -> None:
    """Raise UserError where the decode states of a batch take more memory than is free.

    batches: the lengths of the sequences of every batch, of which one is decoded after the other.
    """
    described = on_meta(model.config, vocab_size=model.vocab_size, seq_len=model.seq_len)
    free = _free_memory(model.embedding.weight.device)
    state_bytes = functools.cache(lambda length: cost.state_bytes(described, length))
    for lengths in batches:
        needed = sum(map(state_bytes, lengths))
        if needed > free:
            raise UserError(
                f"the decode state of {max(lengths):,} tokens ({len(lengths)} at once) takes {needed / GIB:.1f} GiB, "
                f"and {free / GIB:.1f} GiB of memory are free; {remedy}"
            )


@contextlib.contextmanager
def explaining_memory(remedy: str) -> Iterator[None]:
    """While inside, an allocation that fails raises UserError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # On CPUs PyTorch raises a bare RuntimeError.
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "allocate memory" not in str(
            error
        ):
            raise
        raise UserError(f"there is not enough memory ({str(error).splitlines()[0]}); {remedy}") from error


def _free_memory(device: torch.device) -> int:
    """Bytes that can still be taken; on a GPU those too that PyTorch keeps for the next tensors."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    return psutil.virtual_memory().available
