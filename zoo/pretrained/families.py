"""Families of published models: a configuration as options of a model, and the names of its tensors; both both ways.

A family serves a published model if its configuration becomes options here. A model of this project belongs to a family
if the configuration written of it, read back, builds the same modules (`family_of`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

from torch import nn

from zoo.config import Architecture, ModelConfig, from_dict, split
from zoo.errors import UserError
from zoo.model import LanguageModel, Layer, on_meta
from zoo.modules.rotary import FAST, mscale
from zoo.pretrained.links import Link, experts, parted, rotated, same, shaped, stacked

# Configurations, config.json.


class Settings:
    """The values of a config.json by key; what it leaves out has the family's default."""

    def __init__(self, family: Family, values: Mapping[str, Any]) -> None:
        self.family, self.values = family, {**family.defaults, **values}

    def __getitem__(self, key: str) -> Any:
        """The value of a key. Raises UserError where there is none."""
        if self.values.get(key) is None:
            raise UserError(f"config.json of model_type={self.family.model_type} has no {key}; restore it")
        return self.values[key]

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default where it is not there or null."""
        return default if self.values.get(key) is None else self.values[key]

    def refuse(self, key: str, value: Any, instead: object) -> NoReturn:
        """Raise UserError for a value that no option here has."""
        raise UserError(
            f"config.json says {key}={value}; {self.family.model_type} models can be loaded only with {instead}, as "
            "others compute something else"
        )

    def only(self, key: str, *allowed: Any) -> None:
        """Raise UserError for a key that has another value than these; one that is not there has a right one."""
        if (value := self.values.get(key)) is not None and value not in allowed:
            self.refuse(key, value, " or ".join(map(str, allowed)))

    def positions(self) -> dict[str, Any]:
        """The options of rotary positions, of the keys that they have had since version 5 and before."""
        given = {**self.get("rope_scaling", {}), **self.get("rope_parameters", {})}
        kind = given.get("rope_type", given.get("type", "default"))
        if kind not in ROPE_TYPES:
            self.refuse("rope_type", kind, " or ".join(ROPE_TYPES))
        if (part := given.get("partial_rotary_factor", self.get("partial_rotary_factor", 1.0))) != 1:
            self.refuse("partial_rotary_factor", part, 1.0)
        base = given.get("rope_theta", self.get("rope_theta", self.family.rope_base))
        return {"rope_base": base, **self._scaling(kind, {k: v for k, v in given.items() if v is not None})}

    def _scaling(self, kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options of rotary frequencies for texts longer than those of the pretraining."""
        if kind == "default":
            return {}
        for key in ("factor", *(LLAMA3_KEYS if kind == "llama3" else ())):
            if key not in given:
                raise UserError(f"config.json has rope_type={kind} without {key}; restore it")
        names = ROPE_KEYS | (LLAMA3_KEYS if kind == "llama3" else YARN_KEYS if kind == "yarn" else {})
        options = {option: given[key] for key, option in names.items() if key in given}
        if kind == "linear":
            options.pop("rope_length", None)
        elif "rope_length" not in options:  # of models whose whole length is that of the pretraining
            options["rope_length"] = self["max_position_embeddings"]
        if kind == "yarn":
            if given.get("truncate", True) is not True:
                self.refuse("truncate", given["truncate"], True)
            options |= self._amplitude(
                given, options.pop("rope_mscale", None), options.pop("rope_mscale_all", None)
            )
        return {"rope_scaling": kind, **options}

    def _amplitude(self, given: Mapping[str, Any], m: float | None, m_all: float | None) -> dict[str, Any]:
        """The options of YaRN's factors. Transformers reads mscale beside mscale_all_dim alone."""
        factor = given["factor"]
        amplitude = given.get("attention_factor")
        if self.family.letters == "F" or not m_all:
            if amplitude is None and m and m_all:
                amplitude = mscale(factor, m) / mscale(factor, m_all)
            if amplitude is None or factor <= 1:
                return {}
            return {"rope_mscale": (amplitude - 1) / (mscale(factor, 1) - 1)}
        if amplitude is not None or not m:
            self.refuse("mscale_all_dim", m_all, "mscale beside it and no attention_factor")
        return {"rope_mscale": m, "rope_mscale_all": m_all}

    def norm_eps(self, key: str = "rms_norm_eps") -> dict[str, Any]:
        """The option of the norms' ε."""
        return {"norm_eps": float(self.get(key, self.family.norm_eps))}


ROPE_TYPES = ("default", "linear", "llama3", "yarn")
ROPE_KEYS = {"factor": "rope_factor", "original_max_position_embeddings": "rope_length"}
LLAMA3_KEYS = {"low_freq_factor": "rope_slow", "high_freq_factor": "rope_fast"}
YARN_KEYS = {
    "beta_slow": "rope_slow",
    "beta_fast": "rope_fast",
    "mscale": "rope_mscale",
    "mscale_all_dim": "rope_mscale_all",
}
"""Keys of rope_parameters -> options."""


def _rope(options: Any) -> dict[str, Any]:
    """The keys of rotary positions with a mixer's options, by the names that they have before and since version 5."""
    kind = options.rope_scaling
    names = {**ROPE_KEYS, **(LLAMA3_KEYS if kind == "llama3" else YARN_KEYS)}
    given = {key: getattr(options, option, None) for key, option in names.items()}
    scaling = {"low_freq_factor": 1.0, "high_freq_factor": FAST[kind]} if kind == "llama3" else {}
    scaling |= {key: value for key, value in given.items() if value is not None}
    if kind == "yarn" and getattr(options, "rope_mscale_all", None):
        scaling.setdefault("mscale", 1.0)
    elif (m := scaling.pop("mscale", None)) is not None:
        scaling["attention_factor"] = mscale(options.rope_factor, m)
    parameters = {
        "rope_type": "default" if kind == "none" else kind,
        "rope_theta": options.rope_base,
        **scaling,
    }
    return {"rope_parameters": parameters, "rope_theta": options.rope_base}


def _attention_of(model: LanguageModel) -> Any:
    """The first mixer with softmax attention. Raises UserError where there is none."""
    for layer in model.layers:
        if layer.mixer_name in ("attention", "mla"):
            return layer.mixer
    raise UserError("no layer has attention")


# Families whose layers are full attention (`F`) and SwiGLU.


def _grouped_query(layer: Layer, theirs: Mapping[str, str]) -> Iterator[Link]:
    """Full attention; theirs: the names that differ from ours."""
    m = layer.mixer
    for part in (
        "q_proj.weight",
        "k_proj.weight",
        "q_norm.weight",
        "k_norm.weight",
        "q_proj.bias",
        "k_proj.bias",
    ):
        yield rotated(f"mixer.{part}", f"self_attn.{_renamed(part, theirs)}", m.width)
    for part in ("v_proj.weight", "v_proj.bias", "o_proj.weight"):
        yield same(f"mixer.{part}", f"self_attn.{_renamed(part, theirs)}")


def _renamed(name: str, names: Mapping[str, str]) -> str:
    module, _, kind = name.partition(".")
    return f"{names.get(module, module)}.{kind}"


def _norms(mixer: str = "input_layernorm", channel: str = "post_attention_layernorm") -> Iterator[Link]:
    yield same("mixer_norm.weight", f"{mixer}.weight")
    yield same("channel_norm.weight", f"{channel}.weight")


def _swiglu(
    theirs: str = "mlp",
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    ours: str = "channel",
) -> Iterator[Link]:
    for part, name in zip(("gate", "up", "down"), names, strict=True):
        yield same(f"{ours}.{part}.weight", f"{theirs}.{name}.weight")


def _llama_layer(layer: Layer) -> Iterator[Link]:
    yield from _norms()
    yield from _grouped_query(layer, {})
    yield from _swiglu()


def _llama_options(s: Settings) -> dict[str, Any]:
    s.only("hidden_act", "silu")
    s.only("mlp_bias", False)
    s.only("attention_bias", False)
    d, heads = s["hidden_size"], s["num_attention_heads"]
    width = s.get("head_dim", d // heads)
    attention = {
        "n_kv_heads": s.get("num_key_value_heads", heads),
        "head_width": width if width * heads != d else None,
        "window": _window(s),
        "qk_norm": s.family.model_type == "qwen3",
        "qkv_bias": s.family.model_type == "qwen2",
        **s.positions(),
    }
    return {"pattern": "F", "mixers": {"attention": attention}, **_dense(s), **s.norm_eps()}


def _window(s: Settings) -> int | None:
    """Tokens that a query attends to, the same in all layers; None: all."""
    window = s.get("sliding_window")
    if s.family.model_type == "mistral":
        return window
    if s.family.model_type == "llama" or not s.get("use_sliding_window", False) or window is None:
        return None
    kinds = s.get("layer_types") or [
        "sliding_attention" if i >= s["max_window_layers"] else "full_attention"
        for i in range(s["num_hidden_layers"])
    ]
    if len(set(kinds)) > 1:
        s.refuse("layer_types", "full and sliding attention in turn", "one window in all layers")
    return window if kinds[0] == "sliding_attention" else None


def _dense(s: Settings, hidden: int | None = None) -> dict[str, Any]:
    return {"channel": {"name": "swiglu", "swiglu": {"hidden": hidden or s["intermediate_size"]}}}


def _llama_config(model: LanguageModel, family: Family) -> dict[str, Any]:
    m = model.layers[0].mixer
    config = {
        "num_key_value_heads": m.kv_heads,
        "head_dim": m.width,
        "intermediate_size": model.layers[0].channel.gate.out_features,
        "rms_norm_eps": model.config.norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,
        **_rope(model.config.mixers.attention),
    }
    if family.model_type == "llama":
        config["mlp_bias"] = False
    if family.model_type == "mistral":
        config["sliding_window"] = m.window
    elif family.model_type != "llama" and m.window is not None:
        config |= {"use_sliding_window": True, "sliding_window": m.window, "max_window_layers": 0}
    return config


# LFM2: gated convolutions (`C`) and full attention with normalised q and k.


def _lfm2_layer(layer: Layer) -> Iterator[Link]:
    yield from _norms("operator_norm", "ffn_norm")
    if layer.mixer_name == "gated_conv":
        yield same("mixer.in_proj.weight", "conv.in_proj.weight")
        yield parted("mixer.conv.weight", ("conv.conv.weight",), taps=True)
        yield same("mixer.out_proj.weight", "conv.out_proj.weight")
    else:
        names = {"o_proj": "out_proj", "q_norm": "q_layernorm", "k_norm": "k_layernorm"}
        yield from _grouped_query(layer, names)
    yield from _swiglu("feed_forward", ("w1", "w3", "w2"))


def _lfm2_options(s: Settings) -> dict[str, Any]:
    s.only("conv_bias", False)
    s.only("num_heads", s["num_attention_heads"])
    layers = s["num_hidden_layers"]
    kinds = s.get("layer_types")
    if kinds is None:
        attends = s.get("full_attn_idxs", range(layers))
        kinds = ["full_attention" if i in attends else "conv" for i in range(layers)]
    hidden = s.get("block_ff_dim", s.get("intermediate_size"))
    if s["block_auto_adjust_ff_dim"]:
        hidden = int(s.get("block_ffn_dim_multiplier", 1.0) * int(2 * hidden / 3))
        hidden = -(-hidden // s["block_multiple_of"]) * s["block_multiple_of"]
    attention = {"n_kv_heads": s["num_key_value_heads"], "qk_norm": True, **s.positions()}
    return {
        "pattern": _letters(s, kinds, {"conv": "C", "full_attention": "F"}),
        "mixers": {"attention": attention, "gated_conv": {"kernel_size": s["conv_L_cache"]}},
        **_dense(s, hidden),
        **s.norm_eps("norm_eps"),
    }


def _letters(s: Settings, kinds: Iterable[str], letters: Mapping[str, str]) -> str:
    for kind in kinds:
        if kind not in letters:
            s.refuse("layer_types", kind, " and ".join(letters))
    return "".join(letters[kind] for kind in kinds)


def _lfm2_config(model: LanguageModel, family: Family) -> dict[str, Any]:
    m = _attention_of(model)
    return {
        "num_key_value_heads": m.kv_heads,
        "intermediate_size": model.layers[0].channel.gate.out_features,
        "block_auto_adjust_ff_dim": False,
        "norm_eps": model.config.norm_eps,
        "conv_bias": False,
        "conv_L_cache": model.config.mixers.gated_conv.kernel_size,
        "layer_types": ["conv" if letter == "C" else "full_attention" for letter in split(model.letters)],
        **_rope(model.config.mixers.attention),
    }


# Multi-head latent attention (`L`), dense layers or a mixture of experts: DeepSeek-V2 and -V3.


def _latent(layer: Layer) -> Iterator[Link]:
    """Latent attention, whose published weights rotate adjacent pairs too, or nothing."""
    m = layer.mixer
    direct = isinstance(m.q_down, nn.Identity)
    yield same("mixer.q_down.weight", "self_attn.q_a_proj.weight")
    yield same("mixer.q_norm.weight", "self_attn.q_a_layernorm.weight")
    yield stacked(
        ("mixer.q_up.weight", "mixer.q_rope.weight"),
        "self_attn.q_proj.weight" if direct else "self_attn.q_b_proj.weight",
        (m.width, m.rope_dim),
        m.heads,
    )
    yield stacked(
        ("mixer.kv_down.weight", "mixer.k_rope.weight"),
        "self_attn.kv_a_proj_with_mqa.weight",
        (m.kv_rank, m.rope_dim),
    )
    yield same("mixer.kv_norm.weight", "self_attn.kv_a_layernorm.weight")
    yield stacked(
        ("mixer.k_up.weight", "mixer.v_up.weight"),
        "self_attn.kv_b_proj.weight",
        (m.width, m.value_width),
        m.heads,
    )
    yield same("mixer.o_proj.weight", "self_attn.o_proj.weight")


_GATED = ("gate_proj", "up_proj", "down_proj")


def _mixture(layer: Layer, theirs: str = "mlp", names: tuple[str, str, str] = _GATED) -> Iterator[Link]:
    moe = layer.channel
    yield same("channel.router.weight", f"{theirs}.gate.weight")
    if moe.config.scores == "sigmoid":
        yield same("channel.balance.bias", f"{theirs}.gate.e_score_correction_bias")
    for part, name in zip(("gate", "up", "down"), names, strict=True):
        yield experts(f"channel.{part}", f"{theirs}.experts.{{}}.{name}.weight", moe.config.n_experts)
    yield from _swiglu(f"{theirs}.shared_experts", ours="channel.shared")


def _deepseek_layer(layer: Layer) -> Iterator[Link]:
    yield from _norms()
    yield from _latent(layer)
    yield from _mixture(layer) if layer.channel_name == "moe" else _swiglu()


def _deepseek_options(s: Settings) -> dict[str, Any]:
    s.only("hidden_act", "silu")
    s.only("attention_bias", False)
    s.only("mlp_bias", False)
    s.only("rope_interleave", True)
    kinds = ["dense" if i < s["first_k_dense_replace"] else "sparse" for i in range(s["num_hidden_layers"])]
    softmax = s.family.model_type == "deepseek_v2"
    if softmax:
        s.only("norm_topk_prob", False)
        s.only("topk_method", "greedy", "group_limited_greedy")
    return {
        "pattern": "L",
        "mixers": {"mla": {**_latent_options(s), **s.positions()}},
        **_channels(s, kinds, softmax=softmax, grouped=not softmax or s["topk_method"] != "greedy"),
        **s.norm_eps(),
    }


def _latent_options(s: Settings) -> dict[str, Any]:
    return {
        "kv_rank": s["kv_lora_rank"],
        "q_rank": s.get("q_lora_rank", 0),
        "rope_dim": s["qk_rope_head_dim"],
        "head_width": s["qk_nope_head_dim"],
        "value_width": s["v_head_dim"],
    }


def _channels(
    s: Settings, kinds: list[str], *, softmax: bool = False, grouped: bool = True
) -> dict[str, Any]:
    """The channel mixers of layers that are dense or sparse, as a pattern whose last item goes on."""
    names = ["moe" if kind == "sparse" else "swiglu" for kind in kinds]
    while len(names) > 1 and names[-1] == names[-2]:
        names.pop()
    channel: dict[str, Any] = {"name": "+".join(names)}
    if "dense" in kinds:
        channel["swiglu"] = {"hidden": s["intermediate_size"]}
    if "sparse" in kinds:
        channel["moe"] = _mixture_options(s, softmax, grouped)
    return {"channel": channel}


def _mixture_options(s: Settings, softmax: bool, grouped: bool) -> dict[str, Any]:
    """The options of a mixture of experts, by the names of DeepSeek's keys."""
    weighs_one = s["num_experts_per_tok"] == 1 and s["norm_topk_prob"]
    if weighs_one:  # here it keeps its affinity, or the router would have no gradient
        s.refuse("num_experts_per_tok", 1, "norm_topk_prob=false or more experts a token")
    groups = s.get("n_group", 1) if grouped else 1
    return {
        "n_experts": s["n_routed_experts"],
        "top_k": s["num_experts_per_tok"],
        "n_shared": s.get("n_shared_experts", 0),
        "hidden": s["moe_intermediate_size"],
        "scale": float(s["routed_scaling_factor"]),
        "scores": "softmax" if softmax else "sigmoid",
        "renormalise": s["norm_topk_prob"],
        **({} if groups == 1 else {"groups": groups, "top_groups": s["topk_group"]}),
    }


def _deepseek_config(model: LanguageModel, family: Family) -> dict[str, Any]:
    grouped = any(x.channel_name == "moe" and x.channel.config.groups > 1 for x in model.layers)
    return {
        **_latent_config(model),
        **_channel_config(model),
        "rope_interleave": True,
        "num_nextn_predict_layers": 0,
        "first_k_dense_replace": [x.channel_name for x in model.layers].count("swiglu"),
        "topk_method": "group_limited_greedy" if grouped else "greedy",
        **_rope(model.config.mixers.mla),
    }


def _latent_config(model: LanguageModel) -> dict[str, Any]:
    m = _attention_of(model)
    direct = isinstance(m.q_down, nn.Identity)
    return {
        "num_key_value_heads": m.heads,
        "kv_lora_rank": m.kv_rank,
        "q_lora_rank": None if direct else m.q_down.out_features,
        "qk_rope_head_dim": m.rope_dim,
        "qk_nope_head_dim": m.width,
        "v_head_dim": m.value_width,
        "rms_norm_eps": model.config.norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,
    }


def _channel_config(model: LanguageModel) -> dict[str, Any]:
    channels = {layer.channel_name: layer.channel for layer in model.layers}
    config: dict[str, Any] = {}
    if (dense := channels.get("swiglu")) is not None:
        config["intermediate_size"] = dense.gate.out_features
    if (moe := channels.get("moe")) is not None:
        config |= {
            "n_routed_experts": moe.config.n_experts,
            "num_experts_per_tok": moe.config.top_k,
            "n_shared_experts": moe.config.n_shared,
            "moe_intermediate_size": moe.gate.shape[1],
            "routed_scaling_factor": moe.config.scale,
            "norm_topk_prob": moe.config.renormalise,
            "n_group": moe.config.groups,
            "topk_group": moe.config.top_groups or 1,
        }
    return config


# Kimi Linear: Kimi delta attention (`K`) and latent attention without positions.

_KIMI_NAMES = {
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
    "num_experts": "n_routed_experts",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
}
"""Its words -> DeepSeek's."""


def _kimi_layer(layer: Layer) -> Iterator[Link]:
    yield from _norms()
    yield from _latent(layer) if layer.mixer_name == "mla" else _delta(layer)
    sparse = layer.channel_name == "moe"
    yield from _mixture(layer, "block_sparse_moe", ("w1", "w3", "w2")) if sparse else _swiglu()


def _delta(layer: Layer) -> Iterator[Link]:
    m = layer.mixer
    yield parted("mixer.qkv_proj.weight", [f"self_attn.{x}_proj.weight" for x in "qkv"])
    yield parted("mixer.convolution.weight", [f"self_attn.{x}_conv1d.weight" for x in "qkv"], taps=True)
    names = {"beta_proj": "b_proj", "decay_down": "f_a_proj", "decay_up": "f_b_proj"}
    names |= {"gate_down": "g_a_proj", "gate_up": "g_b_proj", "o_norm": "o_norm", "o_proj": "o_proj"}
    for ours, theirs in names.items():
        yield same(f"mixer.{ours}.weight", f"self_attn.{theirs}.weight")
    yield shaped("mixer.decay.A_log", "self_attn.A_log", (m.heads, 1), (1, 1, m.heads, 1))
    yield shaped("mixer.decay.dt_bias", "self_attn.dt_bias", (m.heads, m.width), (m.heads * m.width,))


def _kimi_options(s: Settings) -> dict[str, Any]:
    s = Settings(s.family, {_KIMI_NAMES.get(key, key): value for key, value in s.values.items()})
    s.only("hidden_act", "silu")
    s.only("attention_bias", False)
    s.only("mla_use_nope", True)
    s.only("moe_router_activation_func", "sigmoid")
    s.only("moe_layer_freq", 1)
    places, linear = range(s["num_hidden_layers"]), s.get("linear_attn_config", {})
    kinds = s.get("layer_types")
    attends = linear.get("full_attn_layers")  # counted from 1
    if attends is None and kinds is None:
        attends = [i + 1 for i in places if i and i % 4 == 0]
    if attends is not None:
        kinds = ["full_attention" if i + 1 in attends else "linear_attention" for i in places]
    dense = s.get("first_k_dense_replace", 1)
    kda = {
        "n_heads": linear.get("num_heads", s.get("linear_num_heads")),
        "head_width": linear.get("head_dim", s.get("linear_head_dim")),
        "kernel_size": linear.get("short_conv_kernel_size", s.get("linear_conv_kernel_dim")),
        "gate_bias": False,
    }
    return {
        "pattern": _letters(s, kinds, {"linear_attention": "K", "full_attention": "L"}),
        "mixers": {"mla": {**_latent_options(s), "positions": "none"}, "kda": kda},
        **_channels(s, s.get("mlp_layer_types", ["dense" if i < dense else "sparse" for i in places])),
        **s.norm_eps(),
    }


def _kimi_config(model: LanguageModel, family: Family) -> dict[str, Any]:
    k = next((layer.mixer for layer in model.layers if layer.mixer_name == "kda"), None)
    if k is None:
        raise UserError("no layer has Kimi delta attention")
    if model.head is None:  # transformers would draw another head, and warn
        raise UserError("its embedding and LM head are not tied")
    places = {kind: [i + 1 for i, x in enumerate(split(model.letters)) if x == kind] for kind in "KL"}
    words = {ours: theirs for theirs, ours in _KIMI_NAMES.items()}
    values = {
        **_latent_config(model),
        **_channel_config(model),
        "max_position_embeddings": model.seq_len,
        "linear_attn_config": {
            "full_attn_layers": places["L"],
            "kda_layers": places["K"],
            "num_heads": k.heads,
            "head_dim": k.width,
            "short_conv_kernel_size": model.config.mixers.kda.kernel_size,
        },
        "mlp_layer_types": ["sparse" if x.channel_name == "moe" else "dense" for x in model.layers],
    }
    return {words.get(key, key): value for key, value in values.items()}


# The families.


@dataclasses.dataclass(frozen=True)
class Family:
    """model_type, architecture: what config.json calls it; options: its values -> options of ModelConfig.

    config: a model of such layers -> the values that are the family's own; layer: the links of a layer; norm: the name
    of the last norm; rope_base, norm_eps, defaults: values of keys that config.json may leave out. also: a regular
    expression of names that some files have in place of published ones, and what it becomes.
    """

    model_type: str
    architecture: str
    options: Callable[[Settings], dict[str, Any]]
    config: Callable[[LanguageModel, Family], dict[str, Any]]
    layer: Callable[[Layer], Iterable[Link]]
    letters: str
    norm: str = "model.norm.weight"
    rope_base: float = 1e4
    norm_eps: float = 1e-6
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    also: tuple[str, str] | None = None

    def model_config(self, values: Mapping[str, Any]) -> tuple[ModelConfig, int, int]:
        """Options of a model, its vocabulary and the length that it was trained for, of a config.json.

        Raises UserError for what no option here has, and for values of the wrong kind.
        """
        s = Settings(self, values)
        length = "max_position_embeddings" if "max_position_embeddings" in s.values else "model_max_length"
        for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", length):
            if not isinstance(s[key], int):
                raise UserError(f"config.json says {key}={s[key]!r}, which is not an integer; restore it")
        if "quantization_config" in values:
            raise UserError(
                "config.json has a quantization_config, and quantised weights cannot be read; give the "
                "unquantised model"
            )
        try:
            options = {
                "depth": s["num_hidden_layers"],
                "d_model": s["hidden_size"],
                "n_heads": s["num_attention_heads"],
                "tie_embeddings": s.get("tie_embedding", s["tie_word_embeddings"]),
                **self.options(s),
            }
            return from_dict(ModelConfig, options), s["vocab_size"], s[length]
        except (TypeError, AttributeError, ZeroDivisionError) as error:
            raise UserError(f"config.json has a value of the wrong type ({error}); restore it") from error

    def published_config(self, model: LanguageModel) -> dict[str, Any]:
        """The config.json of a model of this family."""
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "vocab_size": model.vocab_size,
            "hidden_size": model.config.d_model,
            "num_hidden_layers": len(model.layers),
            "num_attention_heads": _attention_of(model).heads,
            "tie_word_embeddings": model.head is None,
            "max_position_embeddings": model.seq_len,
            **self.config(model, self),
        }

    def links(self, model: LanguageModel) -> list[Link]:
        """The links of all tensors of a model that decide what it computes, in order of its layers."""
        pairs = [same("embedding.weight", "model.embed_tokens.weight")]
        for i, layer in enumerate(model.layers):
            there = layer.state_dict().keys()
            links = (link for link in self.layer(layer) if there & set(link.ours))
            pairs += [link.inside(f"layers.{i}.", f"model.layers.{i}.") for link in links]
        pairs += [same("norm.weight", self.norm)]
        return pairs if model.head is None else [*pairs, same("head.weight", "lm_head.weight")]


_UNTIED = {"tie_word_embeddings": False}

FAMILIES = {
    family.model_type: family
    for family in (
        Family("llama", "LlamaForCausalLM", _llama_options, _llama_config, _llama_layer, "F", defaults=_UNTIED),
        Family("mistral", "MistralForCausalLM", _llama_options, _llama_config, _llama_layer, "F", defaults=_UNTIED),
        Family("qwen2", "Qwen2ForCausalLM", _llama_options, _llama_config, _llama_layer, "F", defaults=_UNTIED),
        Family("qwen3", "Qwen3ForCausalLM", _llama_options, _llama_config, _llama_layer, "F",
               defaults=_UNTIED | {"head_dim": 128}),
        Family("lfm2", "Lfm2ForCausalLM", _lfm2_options, _lfm2_config, _lfm2_layer, "CF",
               norm="model.embedding_norm.weight", rope_base=1e6, norm_eps=1e-5,
               defaults={"tie_word_embeddings": True, "block_auto_adjust_ff_dim": True, "block_multiple_of": 256}),
        Family("deepseek_v2", "DeepseekV2ForCausalLM", _deepseek_options, _deepseek_config, _deepseek_layer, "L",
               defaults=_UNTIED | {"first_k_dense_replace": 0, "topk_method": "greedy", "q_lora_rank": 1536,
                                   "norm_topk_prob": False}),
        Family("deepseek_v3", "DeepseekV3ForCausalLM", _deepseek_options, _deepseek_config, _deepseek_layer, "L",
               defaults=_UNTIED | {"first_k_dense_replace": 3, "norm_topk_prob": True, "n_group": 8, "topk_group": 4,
                                   "q_lora_rank": 1536}),
        Family("kimi_linear", "KimiLinearForCausalLM", _kimi_options, _kimi_config, _kimi_layer, "KL", norm_eps=1e-5,
               defaults=_UNTIED | {"linear_head_dim": 128, "linear_num_heads": 32, "linear_conv_kernel_dim": 4},
               # Transformers itself renames those of dense layers when it saves.
               also=(r"block_sparse_moe\.((gate|up|down)_proj)", r"mlp.\1")),
    )
}  # fmt: skip
"""model_type -> the family."""


def read_config(values: Mapping[str, Any]) -> tuple[Family, ModelConfig, int, int]:
    """The family of a config.json, and what `Family.model_config` makes of it. Raises UserError for an unknown one."""
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise UserError(
            f"config.json says model_type={kind}, which cannot be loaded; the families that can are "
            f"{', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[kind], *FAMILIES[kind].model_config(values)


# Which family a model of this project belongs to.

OF_TRAINING = (
    "balance_rate",
    "aux_weight",
    "rate",
    "backend",
    "step_backend",
    "seq_len",
    "dims",
    "recompute",
)
"""Attributes of modules that do not decide what a model of these families computes."""


def family_of(model: LanguageModel, among: Iterable[str] = FAMILIES) -> tuple[Family | None, str]:
    """The first family that computes what a model does, and ""; or None, and what keeps it out of each."""
    reasons = []
    for family in map(FAMILIES.__getitem__, among):
        if set(split(model.letters)) <= set(family.letters):
            if not (reason := _misfit(model, family)):
                return family, ""
            reasons.append(f"{family.model_type}: {reason}")
    return None, "; ".join(reasons) or f"no family has layers {model.letters}"


def _misfit(model: LanguageModel, family: Family) -> str:
    """What a model has and its family's configuration cannot say; "" where that, read back, builds the same modules."""
    try:
        config, vocab_size, seq_len = family.model_config(family.published_config(model))
        again = on_meta(config, vocab_size=vocab_size, seq_len=seq_len)
    except (UserError, AttributeError, ValueError) as error:
        return str(error)
    linked = {name for link in family.links(again) for name in link.ours}
    for name, x in model.named_buffers():
        if name.endswith(".bias") and name not in linked and not x.is_meta and bool(x.any()):
            return f"{name} has no counterpart"
    ours, theirs = ({name: _facts(m) for name, m in x.named_modules()} for x in (model, again))
    for name in {**ours, **theirs}:
        if ours.get(name) != theirs.get(name):
            a, b = ours.get(name, {}), theirs.get(name, {})
            key = next(key for key in {**a, **b} if a.get(key, "of its own") != b.get(key, "of its own"))
            return f"{name or 'the model'}: {key} is {a.get(key, 'of its own')} and would be {b.get(key, 'none')}"
    return ""


def _facts(module: nn.Module) -> dict[str, Any]:
    """What decides what a module computes beside its parts: its class, plain attributes, shapes of its tensors."""
    facts = {"kind": type(module).__name__}
    for key, value in vars(module).items():
        if (
            key.startswith("_")
            or key in (*OF_TRAINING, "training")
            or isinstance(value, ModelConfig | Architecture | dict)
        ):
            continue
        if dataclasses.is_dataclass(value):
            kept = sorted(vars(value).items() - {(k, vars(value).get(k)) for k in (*OF_TRAINING, "hidden")})
            value = ", ".join(f"{k}={v}" for k, v in kept)
        facts[key] = value if isinstance(value, int | float | str | None) else type(value).__name__
    for name, x in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
        facts[name] = tuple(x.shape)
    return facts
