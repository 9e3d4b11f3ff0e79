"""The check that a model's backend serves what its blocks compute, before anything is computed.

A rehearsal: the model runs on the meta device, where it takes no memory and no arithmetic, and every operation asks the
backend by tensors of the device and type that it will have.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from kernels.dispatch import Operation, Unserved
from zoo.config import ModelConfig, architecture_of
from zoo.context import Context
from zoo.errors import UserError
from zoo.interfaces import WITHOUT_DATA, set_step
from zoo.model import LanguageModel, on_meta

TRAINING = ("warm-up", "training", "scoring")
"""What a run does: its first step and one past every warm-up, and scoring whole sequences."""
_LATE = 10**6


def check_backend(
    config: ModelConfig,
    uses: Collection[str] = TRAINING,
    *,
    seq_len: int,
    device: torch.device | None,
    half: bool = False,
    packed: bool = False,
    remedy: str = "use model.backend=auto",
) -> None:
    """Raise UserError where `config.backend` does not serve the operations of a model in sequences of `seq_len` tokens.

    uses: some of warm-up, training, scoring and decoding, the last three past every warm-up. device: where they run;
    None where that is another machine, of which nothing is known but that operations have a form of this name or not.
    half: under autocast to bf16; packed: sequences are of several documents; remedy: ends the message.
    """
    if config.backend in WITHOUT_DATA:
        return
    # Layers of one letter ask alike.
    one_each = dataclasses.replace(
        config, pattern="".join(dict.fromkeys(architecture_of(config).words)), depth=None
    )
    model = on_meta(one_each, vocab_size=1, seq_len=seq_len, keep_backend=True)
    try:
        with _rehearsal(config.backend, device, half):
            for use in uses:
                # Where a block cannot decode without data, its whole sequences stand for what it calls.
                if not _rehearse(model, use, packed) and use == "decoding":
                    _rehearse(model, "scoring", packed=False)
    except Unserved as error:
        raise UserError(f"model.backend={config.backend}: {error}; {remedy}") from error


def _rehearse(model: LanguageModel, use: str, packed: bool) -> bool:
    """Return whether it can be done without data: where it cannot, that is no matter of the backend."""
    set_step(model, 0 if use == "warm-up" else _LATE)
    try:
        if use in ("warm-up", "training"):
            model.train()(*_batch(model, packed))
        with torch.no_grad():
            if use in ("warm-up", "scoring"):
                model.eval()(*_batch(model, packed))
            if use == "decoding":
                tokens, _ = _batch(model)
                _, state = model.eval().extend(tokens, model.init_state(1, capacity=model.seq_len + 1))
                model.step(tokens[:, 0], state)
    except RuntimeError:
        return False
    return True


def _batch(model: LanguageModel, packed: bool = False) -> tuple[Tensor, Context]:
    tokens = torch.zeros(1, model.seq_len, dtype=torch.int64, device="meta")
    ends = torch.zeros(3, dtype=torch.int32, device="meta") if packed else None
    return tokens, Context.of(tokens, ends)


@contextlib.contextmanager
def _rehearsal(backend: str, device: torch.device | None, half: bool) -> Iterator[None]:
    """While inside, operations compute by their PyTorch form once the backend would have taken the call."""

    def refuses(own: Callable[..., str | None], *given: Any, **options: Any) -> str | None:
        if device is None:
            return None
        with FakeTensorMode():
            given, options = pytree.tree_map_only(Tensor, described, (given, options))
            return own(*given, **options)

    def described(x: Tensor) -> Tensor:
        """A tensor like x as it will be; under autocast all numbers are taken to be bf16."""
        dtype = torch.bfloat16 if half and x.is_floating_point() else x.dtype
        return torch.empty(x.shape, dtype=dtype, device=device)

    with contextlib.ExitStack() as stack:
        for operation in Operation.every:
            stack.enter_context(operation.rehearsed(backend, refuses))
        yield
