"""Whether decode states fit into memory, told before they are made: a system without memory ends programs unasked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import psutil
import torch

from zoo import cost
from zoo.errors import UserError
from zoo.model import LanguageModel

GIB = 2**30


def check_decode_memory(model: LanguageModel, lengths: Sequence[int], remedy: str) -> None:
    """Raise UserError where the decode states of sequences of these lengths are more than the memory that is free."""
    described = cost.on_meta(model.config, vocab_size=model.vocab_size, seq_len=model.seq_len)
    needed = sum(lengths.count(length) * cost.state_bytes(described, length) for length in set(lengths))
    free = _free_memory(model.embedding.weight.device)
    if needed > free:
        raise UserError(
            f"the decode state of {max(lengths):,} tokens ({len(lengths)} at once) takes {needed / GIB:.1f} GiB, and "
            f"{free / GIB:.1f} GiB of memory are free; {remedy}"
        )


@contextlib.contextmanager
def explaining_memory(remedy: str) -> Iterator[None]:
    """Inside, an allocation that fails is a UserError."""
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
    """Bytes that can still be taken."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available
