"""Models of transformers with the weights of one of ours."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn

from experiments.bench.hugging_face.weights import copy_weights, deepseek_layer, lfm2_layer, llama_layer
from zoo.model import LanguageModel
from zoo.modules.layers import NORM_EPS, RMSNorm

FAMILIES = {"Llama": "F", "Lfm2": "CF", "DeepseekV3": "L"}
"""The names that transformers' classes begin with, and the mixers that their models are made of."""


def family_of(model: LanguageModel) -> str | None:
    """The one of FAMILIES that computes what a model does; None where transformers has none."""
    config, mixers = model.config, [layer.mixer for layer in model.layers]
    if config.residual.name != "add" or config.channel.name != "swiglu":
        return None
    attention = [m for m, letter in zip(mixers, model.letters, strict=True) if letter == "F"]
    if any(m.window or m.output_gate or m.value_gate or m.rope_base is None for m in attention):
        return None
    normalised = {isinstance(m.q_norm, RMSNorm) for m in attention}
    letters = set(model.letters)
    if letters == {"F"}:
        return "Llama" if normalised == {False} else None
    if letters <= {"C", "F"}:
        return "Lfm2" if normalised == {True} else None
    # Its heads share one rotary key.
    shared = letters == {"L"} and all(m.rope_dim and m.key_heads == 1 for m in mixers)
    return "DeepseekV3" if shared else None


def make_llama(model: LanguageModel) -> nn.Module:
    """A Llama with the weights of a model of full attention."""
    from transformers import LlamaConfig, LlamaForCausalLM

    m = model.layers[0].mixer
    own = {"num_key_value_heads": m.kv_heads, "rms_norm_eps": NORM_EPS, **_rope(m.rope_base)}
    theirs = LlamaForCausalLM(LlamaConfig(**_sizes(model, m.heads), **own))
    copy_weights(model, theirs, llama_layer, "model.norm.weight")
    return theirs.eval()


def make_lfm2(model: LanguageModel) -> nn.Module:
    """An LFM2 with the weights of a model of gated convolutions and full attention with normalised q and k."""
    from transformers import Lfm2Config, Lfm2ForCausalLM

    m = model.layers[model.letters.index("F")].mixer
    own = {
        "num_key_value_heads": m.kv_heads,
        "norm_eps": NORM_EPS,
        "conv_L_cache": model.config.mixers.gated_conv.kernel_size,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv" if letter == "C" else "full_attention" for letter in model.letters],
        **_rope(m.rope_base),
    }
    theirs = Lfm2ForCausalLM(Lfm2Config(**_sizes(model, m.heads), **own))
    copy_weights(model, theirs, lfm2_layer, "model.embedding_norm.weight")
    return theirs.eval()


def make_deepseek(model: LanguageModel, interleaved: bool = True) -> nn.Module:
    """A DeepSeek-V3 of dense layers with the weights of a model of latent attention.

    interleaved: it rotates adjacent pairs, as its released weights want it to; otherwise halves.
    """
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    m = model.layers[0].mixer
    own = {
        "first_k_dense_replace": len(model.layers),
        "num_key_value_heads": m.heads,
        "kv_lora_rank": m.kv_rank,
        "q_lora_rank": m.q_down.out_features,
        "qk_rope_head_dim": m.rope_dim,
        "qk_nope_head_dim": m.width,
        "v_head_dim": m.width,
        "rms_norm_eps": NORM_EPS,
        "rope_interleave": interleaved,
        **_rope(m.rope_base),
    }
    theirs = DeepseekV3ForCausalLM(DeepseekV3Config(**_sizes(model, m.heads), **own))
    layer_weights = functools.partial(deepseek_layer, interleaved=interleaved)
    copy_weights(model, theirs, layer_weights, "model.norm.weight")
    return theirs.eval()


MAKE = {"Llama": make_llama, "Lfm2": make_lfm2, "DeepseekV3": make_deepseek}
"""Family -> what makes its model."""

LONGEST = 2**20
"""Positions that a model of transformers is made for: it stores nothing for them."""


def _sizes(model: LanguageModel, heads: int) -> dict[str, Any]:
    return {
        "vocab_size": model.vocab_size,
        "hidden_size": model.config.d_model,
        "intermediate_size": model.layers[0].channel.gate.out_features,
        "num_hidden_layers": len(model.layers),
        "num_attention_heads": heads,
        "tie_word_embeddings": model.head is None,
        "max_position_embeddings": LONGEST,
        "pad_token_id": None,
        "attn_implementation": "sdpa",
    }


def _rope(base: float) -> dict[str, Any]:
    """The base of rotary positions, by the names that it has before and since version 5."""
    return {"rope_theta": base, "rope_parameters": {"rope_type": "default", "rope_theta": base}}
