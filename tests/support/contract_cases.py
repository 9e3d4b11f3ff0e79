"""The models on which every registered block has to keep the contracts.

A case is one block with its default options, or with those of a variant below. Blocks come from the
registry: a new file in zoo/mixers/, zoo/residuals/ or zoo/channels/ is tested as it is, with its defaults.
"""

import dataclasses
import math
from collections.abc import Callable, Container
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

from support.margins import below
from zoo import LanguageModel, ModelConfig, registry

VOCAB, SEQ_LEN, WIDTH, HEADS = 29, 16, 32, 4
LONG = 70
"""Tokens of a sequence that crosses the end of a chunk of any operation: 32 tokens on CPUs, 64 on GPUs."""
Module = TypeVar("Module", bound=nn.Module)

LONGER = {"rope_scaling": "yarn", "rope_factor": 4.0, "rope_length": 64}

# Options worth their own case. Nothing needs to be added here for a new block.
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "attention": {
        "grouped": {"n_kv_heads": 2},
        "sinks": {"sinks": "learned", "window": 5, "n_kv_heads": 2},
        "qk_norm": {"qk_norm": True},
        "no_positions": {"positions": "none"},
        "biases": {"qkv_bias": True, "n_kv_heads": 2},
        "partial": {"rope_dim": 4, "rope_scaling": "llama3", "rope_factor": 4.0, "rope_length": 16},
        "yarn": {**LONGER, "window": 9},
        "gates": {"output_gate": True, "value_gate": True, "n_kv_heads": 1, "head_width": 6},
    },
    "gsa": {
        "selected": {"warmup": 0, "k_base": 3, "head_width": 6},
        "seed": {"warmup": 0, "adaptive": "seed", "k_base": 3, "k_min": 2, "index_rope": False},
        "scaled": {"warmup": 0, "k_base": 3, "rope_dim": 4, **LONGER},
        "shared": {"warmup": 0, "k_base": 5, "share": 3},
        "blocks": {"warmup": 0, "k_base": 7, "share": 4, "key_block": 2, "adaptive": "none"},
        "relu": {
            "warmup": 0,
            "adaptive": "none",
            "k_base": 3,
            "scores": "relu",
            "qkv_bias": True,
            "qk_norm": True,
        },
    },
    "mesanet": {"value_conv": {"value_conv": True, "head_width": 6}},
    "hypergraph": {
        "global": {"positions": "global", "head_width": 6},
        "one_timeline": {"n_timelines": 1},
        "sharp": {"n_heads": 2, "n_timelines": 3, "temperature": 0.5, "aux_weight": 1.0},
        "top_1": {"top_k": 1, "entropy_weight": 0.1, "z_weight": 0.0},
    },
    "gated_conv": {"wide": {"kernel_size": 5}},
    "mla": {
        "no_positions": {"rope_dim": 0},
        "per_head": {"rope_keys": "per_head"},
        "direct": {"q_rank": 0, "head_width": 6, "value_width": 10, "rope_mscale_all": 0.7, **LONGER},
        "unrotated": {"positions": "none", "value_width": 5},
    },
    "path_fox": {
        "path": {"forget_gate": False},
        "fox": {"householder": False},
        "grouped": {"n_kv_heads": 2, "head_width": 5},
    },
    "ohc": {"neumann": {"inverse": "neumann", "neumann_terms": 4, "expansion": "learned"}},
    "shc": {"factorised": {"factorise": 2, "readout": "learned"}, "one_carried": {"factorise": 1}},
    "kda": {
        "negative": {"neg_eigval": True, "kernel_size": 2, "n_heads": 4, "head_width": 6},
        "one_rate": {"decay": "head", "gate_bias": False},
    },
    "mom": {
        "not_shared": {"shared": False, "n_heads": 2, "neg_eigval": True},
        "one_route": {"top_k": 1, "n_memories": 3},
        "one_memory": {"n_memories": 1, "top_k": 1},
        "gated_linear": {"update": "gated_linear"},
        "linear": {"update": "linear"},
    },
    "nsa": {
        "grouped": {"n_kv_heads": 2, "n_select": 3, "head_width": 6, "qkv_bias": True},
        "sizes": {"block_size": 6, "stride": 3, "select_size": 3, "window": 5, "n_kv_heads": 4},
        "scaled": {"rope_dim": 2, **LONGER},
    },
    "swiglu": {"hidden": {"hidden": 24}},
    "mlp": {"relu2": {"activation": "relu2", "hidden": 24}},
    "moe": {
        "one_expert": {"top_k": 1, "n_shared": 0, "aux_weight": 0.1},
        "groups": {"groups": 4, "top_groups": 2, "top_k": 3},
        "softmax": {"scores": "softmax", "renormalise": False, "scale": 2.0},
        "after_dense": {"top_k": 1},
    },
}


PATTERNS = {"after_dense": "swiglu+moe"}
"""Variant -> the channel mixers of its layers, where these are not all of the block."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One block under test, in a small model."""

    kind: str
    name: str
    variant: str = ""

    def __str__(self) -> str:
        return "-".join(part for part in (self.kind, self.name, self.variant) if part)

    def config(self, depth: int = 2) -> ModelConfig:
        config = ModelConfig(d_model=WIDTH, n_heads=HEADS, depth=depth)
        block = registry.get(self.kind, self.name)
        config.pattern = block.word if block.kind == "mixer" else "FS"
        if self.kind == "mixer":
            node = config.mixers
        else:
            node = getattr(config, self.kind)
            node.name = PATTERNS.get(self.variant, self.name)
        if self.variant:
            options = VARIANTS[self.name][self.variant]
            setattr(node, self.name, dataclasses.replace(getattr(node, self.name), **options))
        return config


def cases() -> list[Case]:
    """Every registered block with its defaults and its variants."""
    out = []
    for kind in registry.KINDS:
        for name in registry.blocks(kind):
            out += [Case(kind, name, variant) for variant in ("", *VARIANTS.get(name, ()))]
    return out


def _parametrised(
    fast: Callable[[Case], bool], others: pytest.MarkDecorator, kinds: Container[str] = registry.KINDS
) -> pytest.MarkDecorator:
    chosen = [case for case in cases() if case.kind in kinds]
    params = [pytest.param(case, id=str(case), marks=[] if fast(case) else [others]) for case in chosen]
    return pytest.mark.parametrize("case", params)


# Blocks with their defaults are in the fast subset, variants outside it.
every_case = _parametrised(lambda case: not case.variant, pytest.mark.slow)
# What only a mixer can break.
mixers_defaults_first = _parametrised(lambda case: not case.variant, pytest.mark.long, kinds=("mixer",))
# Where variants add little to their defaults.
defaults_first = _parametrised(lambda case: not case.variant, pytest.mark.long)
# For expensive contracts: of the defaults only mixers, and the others in make test-long.
fast_for_mixers = _parametrised(lambda case: not case.variant and case.kind == "mixer", pytest.mark.long)


def build(config: ModelConfig, *, dtype: torch.dtype = torch.float64, seed: int = 0) -> LanguageModel:
    """A model whose weights have all been moved away from their start, so that no term is negligible."""
    model = LanguageModel(config, vocab_size=VOCAB, seq_len=SEQ_LEN, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model.to(dtype)


def randomised(module: Module) -> Module:
    """A module in fp64 whose parameters are all random, gains and biases too."""
    module, generator = module.double(), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return module


def tokens(batch: int, length: int, seed: int = 0) -> Tensor:
    """Random token ids, int64 [batch, length]."""
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def turned(x: Tensor, position: int, base: float) -> Tensor:
    """RoPE of one vector [K], by hand: adjacent pairs turn by position·base^(−2i/K)."""
    out = x.clone()
    for i in range(len(x) // 2):
        angle = position * base ** (-2 * i / len(x))
        a, b = x[2 * i], x[2 * i + 1]
        out[2 * i] = a * math.cos(angle) - b * math.sin(angle)
        out[2 * i + 1] = a * math.sin(angle) + b * math.cos(angle)
    return out


def normed(x: Tensor, gain: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean() + 1e-6) * gain


def boundaries(*lengths: int) -> Tensor:
    """cu_seqlens of packed sequences of these lengths."""
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def keys(n: int) -> Tensor:
    """Noise keys of n sequences."""
    return torch.arange(n) * 7919 + 1


def gradients(model: LanguageModel, loss: Tensor) -> dict[str, Tensor]:
    """Gradients of a loss by parameter name, zeros where none arrived."""
    named = dict(model.named_parameters())
    found = torch.autograd.grad(loss, named.values(), allow_unused=True, materialize_grads=True)
    return dict(zip(named, found, strict=True))


def assert_same(got: dict[str, Tensor], wanted: dict[str, Tensor], limit: float = 1e-9) -> None:
    """Same names, and values equal relative to each tensor's largest."""
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        error = (got[name] - value).detach().abs().max() / value.detach().abs().max().clamp_min(1.0)
        below(error, limit, name)
