"""The check that a model's backend serves what its blocks compute, before anything is computed.

A rehearsal: the model runs on the meta device, where it takes no memory and no arithmetic, and every operation asks the
backend by tensors of the device and type that it will have.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from kernels.dispatch import Operation, Unserved
from zoo.config import ModelConfig
from zoo.context import Context
from zoo.errors import UserError
from zoo.model import WITHOUT_DATA, LanguageModel, letters_of, on_meta

TOKENS = 64
"""Tokens of a rehearsed sequence: no operation looks at their number."""


def check_backend(
    config: ModelConfig,
    *,
    seq_len: int,
    device: torch.device | None,
    half: bool = False,
    packed: bool = False,
    whole: bool = True,
    decodes: bool = False,
    remedy: str = "use model.backend=auto",
) -> None:
    """Raise UserError where `config.backend` does not serve the operations of a model.

    device: where they run; None where that is another machine, of which nothing is known but that operations have a
    form of this name or not. half: under autocast to bf16; whole: in training and scoring, of sequences with several
    documents in them where they are packed; decodes: in decoding. remedy: ends the message.
    """
    if config.backend in WITHOUT_DATA:
        return
    # Layers of one letter ask alike.
    one_each = dataclasses.replace(config, pattern="".join(dict.fromkeys(letters_of(config))), depth=None)
    model = on_meta(one_each, vocab_size=1, seq_len=seq_len, keep_backend=True)
    try:
        with _rehearsal(config.backend, device, half):
            # Where a block cannot decode without data, its whole sequences stand for what it calls.
            if (decodes and not _runs(_decode, model)) or whole:
                _runs(_train, model, packed)
                _runs(_evaluate, model, packed)
    except Unserved as error:
        raise UserError(f"model.backend={config.backend}: {error}; {remedy}") from error


def _runs(rehearse: Callable[..., None], *given: Any) -> bool:
    """Return whether something can be computed without data: where it cannot, that is no matter of the backend."""
    try:
        rehearse(*given)
    except RuntimeError:
        return False
    return True


def _train(model: LanguageModel, packed: bool) -> None:
    model.train()(*_batch(packed))


@torch.no_grad()
def _evaluate(model: LanguageModel, packed: bool) -> None:
    model.eval()(*_batch(packed))


@torch.no_grad()
def _decode(model: LanguageModel) -> None:
    tokens, _ = _batch(packed=False)
    _, state = model.eval().extend(tokens, model.init_state(1, capacity=TOKENS + 1))
    model.step(tokens[:, 0], state)


def _batch(packed: bool) -> tuple[Tensor, Context]:
    tokens = torch.zeros(1, TOKENS, dtype=torch.int64, device="meta")
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
