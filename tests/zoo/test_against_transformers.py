"""Whole models against independent code: the same weights in transformers' Llama, LFM2 and DeepSeek-V3.

An optional dependency of the tests: without it they are skipped. It rotates halves of a head where this
project rotates adjacent pairs, so that rows of q and k move (`half_split`); DeepSeek, asked to, takes pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from support.contract_cases import tokens
from torch import Tensor, nn

from zoo import LanguageModel, ModelConfig
from zoo.config import from_dict
from zoo.layer import Layer

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

VOCAB, D, HEADS, HIDDEN, TIME = 29, 32, 4, 48, 37
SHARED = {
    "vocab_size": VOCAB,
    "hidden_size": D,
    "intermediate_size": HIDDEN,
    "num_attention_heads": HEADS,
    "tie_word_embeddings": True,
    "max_position_embeddings": 64,
    "pad_token_id": None,
}


def rope(base: float) -> dict:
    """The base of rotary positions, by the names that it has before and since version 5."""
    return {"rope_theta": base, "rope_parameters": {"rope_type": "default", "rope_theta": base}}


Weights = Iterator[tuple[str, Tensor]]


def ours(pattern: str, **mixers) -> LanguageModel:
    """A model of this project, its weights moved far enough from their start that every term counts."""
    values = {"pattern": pattern, "depth": len(pattern), "d_model": D, "n_heads": HEADS, "mixers": mixers}
    config = from_dict(ModelConfig, values | {"channel": {"swiglu": {"hidden": HIDDEN}}})
    model = LanguageModel(config, vocab_size=VOCAB, seq_len=TIME)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def half_split(x: Tensor, width: int) -> Tensor:
    """Rows [heads·width, ...] with every head's adjacent pairs (2i, 2i+1) moved to (i, i + width/2)."""
    heads = x.unflatten(0, (-1, width))
    return torch.cat([heads[:, 0::2], heads[:, 1::2]], dim=1).flatten(0, 1)


def attention_weights(m: nn.Module) -> Weights:
    yield "q_proj.weight", half_split(m.q_proj.weight, m.width)
    yield "k_proj.weight", half_split(m.k_proj.weight, m.width)
    yield "v_proj.weight", m.v_proj.weight
    yield "o_proj.weight", m.o_proj.weight


def llama_layer(layer: Layer) -> Weights:
    yield from ((f"self_attn.{name}", weight) for name, weight in attention_weights(layer.mixer))
    yield from dense_layer(layer)


def dense_layer(layer: Layer) -> Weights:
    """The names that Llama and DeepSeek share."""
    yield "input_layernorm.weight", layer.mixer_norm.weight
    yield "post_attention_layernorm.weight", layer.channel_norm.weight
    for name in ("gate", "up", "down"):
        yield f"mlp.{name}_proj.weight", getattr(layer.channel, name).weight


def lfm2_layer(layer: Layer) -> Weights:
    m = layer.mixer
    if hasattr(m, "conv"):
        yield "conv.in_proj.weight", m.in_proj.weight
        yield "conv.conv.weight", m.conv.weight[:, None]
        yield "conv.out_proj.weight", m.out_proj.weight
    else:
        names = {"o_proj.weight": "out_proj.weight"}
        yield from ((f"self_attn.{names.get(name, name)}", weight) for name, weight in attention_weights(m))
        yield "self_attn.q_layernorm.weight", half_split(m.q_norm.weight, m.width)
        yield "self_attn.k_layernorm.weight", half_split(m.k_norm.weight, m.width)
    yield "operator_norm.weight", layer.mixer_norm.weight
    yield "ffn_norm.weight", layer.channel_norm.weight
    for name, part in (("w1", "gate"), ("w3", "up"), ("w2", "down")):
        yield f"feed_forward.{name}.weight", getattr(layer.channel, part).weight


def deepseek_layer(layer: Layer, interleaved: bool) -> Weights:
    m = layer.mixer
    q_rope, k_rope = (
        w if interleaved else half_split(w, m.rope_dim) for w in (m.q_rope.weight, m.k_rope.weight)
    )
    yield "self_attn.q_a_proj.weight", m.q_down.weight
    yield "self_attn.q_a_layernorm.weight", m.q_norm.weight
    yield "self_attn.q_b_proj.weight", by_head(m.heads, m.q_up.weight, q_rope)
    yield "self_attn.kv_a_proj_with_mqa.weight", torch.cat([m.kv_down.weight, k_rope])
    yield "self_attn.kv_a_layernorm.weight", m.kv_norm.weight
    yield "self_attn.kv_b_proj.weight", by_head(m.heads, m.k_up.weight, m.v_up.weight)
    yield "self_attn.o_proj.weight", m.o_proj.weight
    yield from dense_layer(layer)


def by_head(heads: int, *weights: Tensor) -> Tensor:
    """Rows of several projections, put together head by head."""
    return torch.cat([w.unflatten(0, (heads, -1)) for w in weights], dim=1).flatten(0, 1)


def copied(
    model: LanguageModel, theirs: nn.Module, layer_weights: Callable[[Layer], Weights], norm: str
) -> None:
    """Load our weights into their model; strict, so that no weight of either is left out."""
    weights = {"model.embed_tokens.weight": model.embedding.weight, norm: model.norm.weight}
    for i, layer in enumerate(model.layers):
        weights.update({f"model.layers.{i}.{name}": weight for name, weight in layer_weights(layer)})
    weights["lm_head.weight"] = model.embedding.weight
    theirs.load_state_dict(weights, strict=True)
    assert sum(p.numel() for p in theirs.parameters()) == sum(p.numel() for p in model.parameters())


def assert_same_logits(model: LanguageModel, theirs: nn.Module) -> None:
    """Whole sequences, and decoding token by token."""
    batch = tokens(2, TIME)
    with torch.no_grad():
        wanted = theirs.eval()(input_ids=batch, use_cache=False).logits
        torch.testing.assert_close(model(batch)[0], wanted, rtol=1e-4, atol=1e-4)
        state = model.init_state(2)
        for t in range(TIME):
            logits, state = model.step(batch[:, t], state)
            torch.testing.assert_close(logits, wanted[:, t], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_full_attention_is_llama(kv_heads):
    model = ours("FF", attention={"n_kv_heads": kv_heads, "rope_base": 500.0})
    config = transformers.LlamaConfig(
        **SHARED,
        num_hidden_layers=2,
        num_key_value_heads=kv_heads,
        rms_norm_eps=1e-6,
        **rope(500.0),
    )
    theirs = transformers.LlamaForCausalLM(config)
    copied(model, theirs, llama_layer, "model.norm.weight")
    assert_same_logits(model, theirs)


def test_gated_convolution_and_normalised_attention_are_lfm2():
    pattern = "CCFCCF"
    model = ours(pattern, attention={"n_kv_heads": 2, "qk_norm": True, "rope_base": 1e6})
    config = transformers.Lfm2Config(
        **SHARED,
        num_hidden_layers=len(pattern),
        num_key_value_heads=2,
        norm_eps=1e-6,
        block_auto_adjust_ff_dim=False,
        layer_types=["conv" if letter == "C" else "full_attention" for letter in pattern],
        **rope(1e6),
    )
    theirs = transformers.Lfm2ForCausalLM(config)
    copied(model, theirs, lfm2_layer, "model.embedding_norm.weight")
    assert_same_logits(model, theirs)


@pytest.mark.parametrize("interleaved", [True, False], ids=["pairs", "halves"])
def test_latent_attention_is_deepseek(interleaved):
    sizes = {"kv_rank": 12, "q_rank": 20, "rope_dim": 6}
    model = ours("LL", mla=sizes | {"rope_base": 500.0})
    config = transformers.DeepseekV3Config(
        **SHARED,
        num_hidden_layers=2,
        first_k_dense_replace=2,
        num_key_value_heads=HEADS,
        kv_lora_rank=12,
        q_lora_rank=20,
        qk_rope_head_dim=6,
        qk_nope_head_dim=D // HEADS,
        v_head_dim=D // HEADS,
        rope_interleave=interleaved,
        **rope(500.0),
    )
    theirs = transformers.DeepseekV3ForCausalLM(config)
    copied(model, theirs, lambda layer: deepseek_layer(layer, interleaved), "model.norm.weight")
    assert_same_logits(model, theirs)
