"""The same model in the package transformers, beside ours: weights copied over, prompts read, tokens decoded."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from experiments.bench.model_steps import tensors_in
from zoo.generate import prefill
from zoo.model import LanguageModel, Layer
from zoo.modules.layers import RMSNorm
from zoo.modules.rotary import RopeOptions

# Copying weights into transformers' Llama, LFM2 or DeepSeek-V3. It rotates halves of a head where this project
# rotates adjacent pairs, so rows of q and k move (`half_split`); DeepSeek takes pairs if asked to.

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
    query = by_head(m.heads, m.q_up.weight, q_rope)
    if isinstance(m.q_norm, RMSNorm):
        yield "self_attn.q_a_proj.weight", m.q_down.weight
        yield "self_attn.q_a_layernorm.weight", m.q_norm.weight
        yield "self_attn.q_b_proj.weight", query
    else:
        yield "self_attn.q_proj.weight", query
    yield "self_attn.kv_a_proj_with_mqa.weight", torch.cat([m.kv_down.weight, k_rope])
    yield "self_attn.kv_a_layernorm.weight", m.kv_norm.weight
    yield "self_attn.kv_b_proj.weight", by_head(m.heads, m.k_up.weight, m.v_up.weight)
    yield "self_attn.o_proj.weight", m.o_proj.weight
    yield from _dense_layer(layer)


def half_split(x: Tensor, width: int) -> Tensor:
    """Rows [heads·width, ...] with every head's adjacent pairs (2i, 2i+1) moved to (i, i + width/2)."""
    heads = x.unflatten(0, (-1, width))
    return torch.cat([heads[:, 0::2], heads[:, 1::2]], dim=1).flatten(0, 1)


def _attention(m: nn.Module) -> Weights:
    for name in ("q_proj", "k_proj"):
        for kind, values in getattr(m, name).named_parameters():
            yield f"{name}.{kind}", half_split(values, m.width)
    for name in ("v_proj", "o_proj"):
        for kind, values in getattr(m, name).named_parameters():
            yield f"{name}.{kind}", values


def _dense_layer(layer: Layer) -> Weights:
    """The names that Llama and DeepSeek share."""
    yield "input_layernorm.weight", layer.mixer_norm.weight
    yield "post_attention_layernorm.weight", layer.channel_norm.weight
    for name in ("gate", "up", "down"):
        yield f"mlp.{name}_proj.weight", getattr(layer.channel, name).weight


def by_head(heads: int, *weights: Tensor) -> Tensor:
    """Rows [heads·width, ...] of several projections, put together head by head."""
    return torch.cat([w.unflatten(0, (heads, -1)) for w in weights], dim=1).flatten(0, 1)


# Models with the weights of one of ours.

FAMILIES = {"Llama": "F", "Lfm2": "CF", "DeepseekV3": "L"}
"""The names that transformers' classes begin with, and the mixers that their models are made of."""


def family_of(model: LanguageModel) -> str | None:
    """The one of FAMILIES that computes what a model does; None where transformers has none."""
    config, mixers = model.config, [layer.mixer for layer in model.layers]
    if config.residual.name != "add" or {layer.channel_name for layer in model.layers} != {"swiglu"}:
        return None
    attention = [m for m, letter in zip(mixers, model.letters, strict=True) if letter == "F"]
    biased = [m.q_proj.bias is not None for m in attention]
    if any(biased) or any(
        m.window or m.output_gate or m.value_gate or m.rope_base is None for m in attention
    ):
        return None
    if config.mixers.attention.rope_dim is not None:
        return None
    normalised = {isinstance(m.q_norm, RMSNorm) for m in attention}
    letters = set(model.letters)
    if letters == {"F"}:
        return "Llama" if normalised == {False} else None
    if letters <= {"C", "F"}:
        return "Lfm2" if normalised == {True} else None
    # Its heads share one rotary key.
    shared = letters == {"L"} and all(m.rotate and m.key_heads == 1 for m in mixers)
    return "DeepseekV3" if shared else None


def make_llama(model: LanguageModel) -> nn.Module:
    """A Llama with the weights of a model of full attention."""
    from transformers import LlamaConfig, LlamaForCausalLM

    theirs = LlamaForCausalLM(LlamaConfig(**llama_settings(model)))
    copy_weights(model, theirs, llama_layer, "model.norm.weight")
    return theirs.eval()


def llama_settings(model: LanguageModel) -> dict[str, Any]:
    """The configuration of Llama, Qwen and their like for a model whose first layer is full attention."""
    m = model.layers[0].mixer
    own = {"num_key_value_heads": m.kv_heads, "rms_norm_eps": model.config.norm_eps, "head_dim": m.width}
    return {**_sizes(model, m.heads), **own, **_rope(model.config.mixers.attention)}


def make_lfm2(model: LanguageModel) -> nn.Module:
    """An LFM2 with the weights of a model of gated convolutions and full attention with normalised q and k."""
    from transformers import Lfm2Config, Lfm2ForCausalLM

    m = model.layers[model.letters.index("F")].mixer
    own = {
        "num_key_value_heads": m.kv_heads,
        "norm_eps": model.config.norm_eps,
        "conv_L_cache": model.config.mixers.gated_conv.kernel_size,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv" if letter == "C" else "full_attention" for letter in model.letters],
        **_rope(model.config.mixers.attention),
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
        "q_lora_rank": m.q_norm.weight.shape[0] if isinstance(m.q_norm, RMSNorm) else None,
        "qk_rope_head_dim": m.rope_dim,
        "qk_nope_head_dim": m.width,
        "v_head_dim": m.value_width,
        "rms_norm_eps": model.config.norm_eps,
        "rope_interleave": interleaved,
        **_rope(model.config.mixers.mla),
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


def _rope(options: RopeOptions) -> dict[str, Any]:
    """Rotary positions with the options of a mixer, by the names that they have before and since version 5."""
    base, kind = options.rope_base, options.rope_scaling
    names = {
        "factor": options.rope_factor,
        "original_max_position_embeddings": options.rope_length,
        "low_freq_factor" if kind == "llama3" else "beta_slow": options.rope_slow,
        "high_freq_factor" if kind == "llama3" else "beta_fast": options.rope_fast,
        "mscale": options.rope_mscale,
        "mscale_all_dim": getattr(options, "rope_mscale_all", None),
    }
    scaling = {key: value for key, value in names.items() if value is not None}
    parameters = {"rope_type": "default" if kind == "none" else kind, "rope_theta": base, **scaling}
    return {"rope_theta": base, "rope_parameters": parameters}


CHECKED, SEED = 48, 0
"""Tokens on which both must agree before they are timed, and the seed that draws them."""
# Reading a prompt, and decoding from a cache of any length.

CLOSE = {torch.float32: 1e-3, torch.bfloat16: 5e-2}
"""The largest error of logits, relative to theirs in the root mean square, by the precision of matrix products."""
BEGUN = 8
"""Tokens that are read for the layout of a cache, which is then made longer."""
CACHE_NAMES = ("cache", "past_key_values")
"""What a forward takes its cache by and returns it by: since version 5.24, and before."""


class NoPeer(Exception):
    """A model cannot be compared with transformers here; the message says why."""


class Peer:
    """A model of transformers with the weights of ours. Raises NoPeer where there is none that computes the same.

    precision: of the autocast that both are used under.
    """

    def __init__(self, model: LanguageModel, precision: torch.dtype) -> None:
        family = family_of(model)
        if family is None:
            raise NoPeer("transformers has no such architecture")
        self.family = family
        device = model.embedding.weight.device
        try:
            self.model = MAKE[self.family](model).to(device)
        except ImportError as error:
            raise NoPeer(f"transformers cannot be imported here ({error}); pip install '.[peers]'") from error
        self.cache_name = _cache_name(self.model)
        _check_logits(model, self, precision)

    @torch.no_grad()
    def prefill(self, tokens: Tensor) -> tuple[Tensor, Any]:
        """Read prompts int64 [B, T]: (logits after the last token [B, V], the cache).

        Raises NoPeer for a cache of another kind than `DynamicCache`.
        """
        out = self.model(input_ids=tokens, use_cache=True, logits_to_keep=1)
        cache = getattr(out, self.cache_name)
        if not hasattr(cache, "layers"):
            raise NoPeer(
                f"its cache of kind {type(cache).__name__} has no layers; pip install 'transformers>=5.5'"
            )
        return out.logits[:, -1], cache

    @torch.no_grad()
    def step(self, tokens: Tensor, cache: Any) -> Tensor:
        """One token a sequence: tokens int64 [B] -> logits [B, V]; the cache grows."""
        past = {self.cache_name: cache}
        out = self.model(input_ids=tokens[:, None], use_cache=True, logits_to_keep=1, **past)
        return out.logits[:, -1]

    def cache_after(self, tokens: int, batch: int) -> Any:
        """The cache after so many tokens, whose keys and values are zeros but for the last ones."""
        device = next(self.model.parameters()).device
        begun = torch.zeros(batch, min(BEGUN, tokens), dtype=torch.int64, device=device)
        _, cache = self.prefill(begun)
        for layer in cache.layers:
            if getattr(layer, "keys", None) is not None:
                layer.keys, layer.values = (_lengthen(x, tokens) for x in (layer.keys, layer.values))
        return cache

    def state_bytes(self, tokens: int, batch: int) -> int:
        """Bytes of the cache after so many tokens, from those of two short ones: it grows by as many for each."""
        one, two = (
            sum(x.nbytes for x in tensors_in(self.cache_after(n, 1).layers)) for n in (BEGUN, 2 * BEGUN)
        )
        return batch * (one + (two - one) * (tokens - BEGUN) // BEGUN)


def _cache_name(model: nn.Module) -> str:
    """The name that a model has for its cache. Raises NoPeer where it lacks a word of ours: it would drop it unsaid."""
    takes = inspect.signature(model.forward).parameters
    name = next((name for name in CACHE_NAMES if name in takes), " or ".join(CACHE_NAMES))
    if missing := [word for word in ("input_ids", "use_cache", "logits_to_keep", name) if word not in takes]:
        raise NoPeer(f"{type(model).__name__}.forward of this transformers takes no {', '.join(missing)}")
    return name


def _lengthen(x: Tensor, tokens: int) -> Tensor:
    """x [B, H, n, width] behind so many rows of zeros that they are `tokens`, written to memory of its own."""
    # `zeros` alone would map all of them to one page, which stays in the fastest cache.
    longer = x.new_empty(*x.shape[:2], tokens, x.shape[3]).zero_()
    longer[:, :, tokens - x.shape[2] :] = x
    return longer


def _check_logits(model: LanguageModel, peer: Peer, precision: torch.dtype) -> None:
    """Raise NoPeer unless logits after a prompt and after one more token are the same."""
    device = model.embedding.weight.device
    generator = torch.Generator().manual_seed(SEED)
    tokens = torch.randint(model.vocab_size, (2, CHECKED), generator=generator).to(device)
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == torch.bfloat16):
        found, state = prefill(model, list(tokens[:, :-1]), room=1)
        wanted, cache = peer.prefill(tokens[:, :-1])
        pairs = [(found, wanted), (model.step(tokens[:, -1], state)[0], peer.step(tokens[:, -1], cache))]
    for ours, theirs in pairs:
        error = float((ours - theirs).float().norm() / theirs.float().norm())
        if not error <= CLOSE[precision]:
            raise NoPeer(f"its {peer.family} in transformers has other logits: relative error {error:.2g}")
