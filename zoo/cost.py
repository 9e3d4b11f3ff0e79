"""A model's cost: parameters, FLOPs a token, decode-state bytes; computed from the built module, never by hand.

The module is built on the meta device (`zoo.model.on_meta`: no memory, no arithmetic) and PyTorch's FLOP counter counts
its matmuls and attention calls, by the formulas of kernels.autograd: a multiply-add is two FLOPs, and causal attention
counts all T×T scores. Elementwise work and short convolutions are not counted. Routed attention is counted at balanced
routing.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from kernels.autograd import flop_counter
from zoo.context import Context
from zoo.model import LanguageModel


def parameters(model: LanguageModel) -> int:
    """Number of parameters, shared ones once."""
    return sum(p.numel() for p in model.parameters())


def parameters_non_embedding(model: LanguageModel) -> int:
    """Parameters without the token embedding and the LM head."""
    head = 0 if model.head is None else model.head.weight.numel()
    return parameters(model) - model.embedding.weight.numel() - head


def flops_per_token(model: LanguageModel, length: int, *, backward: bool = False) -> float:
    """FLOPs a token at length `length`: forward in evaluation, or forward and backward of the training loss."""
    return sum(flops_by_operator(model, length, backward=backward).values())


def flops_by_operator(model: LanguageModel, length: int, *, backward: bool = False) -> dict[Any, float]:
    """`flops_per_token`, operator by operator: torch.ops.<name space>.<operator> -> FLOPs a token."""
    device = model.embedding.weight.device
    tokens = torch.zeros(1, length, dtype=torch.int64, device=device)
    training = model.training
    model.train(backward)
    with flop_counter() as counter, torch.set_grad_enabled(backward):
        logits, aux = model(tokens, Context.of(tokens))
        if backward:
            (F.cross_entropy(logits[0].float(), tokens[0]) + model.aux_loss(aux)).backward()
            model.zero_grad(set_to_none=True)
    model.train(training)
    return {operator: count / length for operator, count in counter.get_flop_counts()["Global"].items()}


def state_bytes(model: LanguageModel, length: int) -> int:
    """Bytes of the decode state of one sequence after `length` tokens, in the weights' dtype."""
    state = model.init_state(1, capacity=length)
    return sum(layer.mixer.state_bytes(part) for layer, part in zip(model.layers, state.layers, strict=True))


def stream_bytes(model: LanguageModel) -> int:
    """Bytes a token carries from one layer to the next (residual streams, no caches), in the weights' dtype."""
    return model.streams.carried() * model.config.d_model * model.embedding.weight.element_size()
