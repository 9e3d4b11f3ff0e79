"""Copying a model's weights into transformers' Llama, LFM2 or DeepSeek-V3.

It rotates halves of a head where this project rotates adjacent pairs, so that rows of q and k move (`half_split`);
DeepSeek, asked to, takes pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from zoo.model import LanguageModel, Layer

Weights = Iterator[tuple[str, Tensor]]


def copy_weights(
    model: LanguageModel, theirs: nn.Module, layer_weights: Callable[[Layer], Weights], norm: str
) -> None:
    """Load a model's weights into theirs, by the names that `layer_weights` gives those of a layer.

    norm: their name of the last norm. Raises RuntimeError where a weight of either would be left out.
    """
    weights = {"model.embed_tokens.weight": model.embedding.weight, norm: model.norm.weight}
    for i, layer in enumerate(model.layers):
        weights.update({f"model.layers.{i}.{name}": weight for name, weight in layer_weights(layer)})
    weights["lm_head.weight"] = model.embedding.weight if model.head is None else model.head.weight
    theirs.load_state_dict(weights, strict=True)
    ours, loaded = (sum(p.numel() for p in m.parameters()) for m in (model, theirs))
    if ours != loaded:
        raise RuntimeError(f"{ours:,} parameters against {loaded:,} in transformers")


def llama_layer(layer: Layer) -> Weights:
    """A layer of full attention and SwiGLU."""
    yield from ((f"self_attn.{name}", weight) for name, weight in _attention(layer.mixer))
    yield from _dense_layer(layer)


def lfm2_layer(layer: Layer) -> Weights:
    """A layer of gated convolution, or of full attention with normalised q and k, and SwiGLU."""
    m = layer.mixer
    if hasattr(m, "conv"):
        yield "conv.in_proj.weight", m.in_proj.weight
        yield "conv.conv.weight", m.conv.weight[:, None]
        yield "conv.out_proj.weight", m.out_proj.weight
    else:
        names = {"o_proj.weight": "out_proj.weight"}
        yield from ((f"self_attn.{names.get(name, name)}", weight) for name, weight in _attention(m))
        yield "self_attn.q_layernorm.weight", half_split(m.q_norm.weight, m.width)
        yield "self_attn.k_layernorm.weight", half_split(m.k_norm.weight, m.width)
    yield "operator_norm.weight", layer.mixer_norm.weight
    yield "ffn_norm.weight", layer.channel_norm.weight
    for name, part in (("w1", "gate"), ("w3", "up"), ("w2", "down")):
        yield f"feed_forward.{name}.weight", getattr(layer.channel, part).weight


def deepseek_layer(layer: Layer, interleaved: bool) -> Weights:
    """A layer of latent attention and SwiGLU; interleaved: they rotate adjacent pairs too."""
    m = layer.mixer
    q_rope, k_rope = (
        w if interleaved else half_split(w, m.rope_dim) for w in (m.q_rope.weight, m.k_rope.weight)
    )
    yield "self_attn.q_a_proj.weight", m.q_down.weight
    yield "self_attn.q_a_layernorm.weight", m.q_norm.weight
    yield "self_attn.q_b_proj.weight", _by_head(m.heads, m.q_up.weight, q_rope)
    yield "self_attn.kv_a_proj_with_mqa.weight", torch.cat([m.kv_down.weight, k_rope])
    yield "self_attn.kv_a_layernorm.weight", m.kv_norm.weight
    yield "self_attn.kv_b_proj.weight", _by_head(m.heads, m.k_up.weight, m.v_up.weight)
    yield "self_attn.o_proj.weight", m.o_proj.weight
    yield from _dense_layer(layer)


def half_split(x: Tensor, width: int) -> Tensor:
    """Rows [heads·width, ...] with every head's adjacent pairs (2i, 2i+1) moved to (i, i + width/2)."""
    heads = x.unflatten(0, (-1, width))
    return torch.cat([heads[:, 0::2], heads[:, 1::2]], dim=1).flatten(0, 1)


def _attention(m: nn.Module) -> Weights:
    yield "q_proj.weight", half_split(m.q_proj.weight, m.width)
    yield "k_proj.weight", half_split(m.k_proj.weight, m.width)
    yield "v_proj.weight", m.v_proj.weight
    yield "o_proj.weight", m.o_proj.weight


def _dense_layer(layer: Layer) -> Weights:
    """The names that Llama and DeepSeek share."""
    yield "input_layernorm.weight", layer.mixer_norm.weight
    yield "post_attention_layernorm.weight", layer.channel_norm.weight
    for name in ("gate", "up", "down"):
        yield f"mlp.{name}_proj.weight", getattr(layer.channel, name).weight


def _by_head(heads: int, *weights: Tensor) -> Tensor:
    """Rows of several projections, put together head by head."""
    return torch.cat([w.unflatten(0, (heads, -1)) for w in weights], dim=1).flatten(0, 1)
