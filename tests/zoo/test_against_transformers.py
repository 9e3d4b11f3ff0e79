"""Against independent code: whole models in transformers' Llama, LFM2 and DeepSeek-V3, and layers of Kimi Linear.

An optional dependency of the tests: without it they are skipped.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator

import pytest
import torch
from support.contract_cases import tokens
from support.margins import below
from torch import Tensor, nn

from experiments.bench.hugging_face import (
    by_head,
    copy_weights,
    family_of,
    half_split,
    llama_layer,
    llama_settings,
    make_deepseek,
    make_lfm2,
    make_llama,
)
from experiments.configuration.compose import overlay
from zoo import Context, LanguageModel, ModelConfig
from zoo.config import from_dict

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

VOCAB, D, HEADS, HIDDEN, TIME = 29, 32, 4, 48, 37
CLOSE = 1e-5


def ours(pattern: str, model: dict | None = None, **mixers) -> LanguageModel:
    """A model of this project, its weights moved far enough from their start that every term counts.

    model: keys of the model beside the mixers'.
    """
    values = {"pattern": pattern, "depth": len(pattern), "d_model": D, "n_heads": HEADS, "mixers": mixers}
    values |= {"channel": {"swiglu": {"hidden": HIDDEN}}} | (model or {})
    config = from_dict(ModelConfig, values)
    model = LanguageModel(config, vocab_size=VOCAB, seq_len=TIME)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def assert_same_logits(model: LanguageModel, theirs: nn.Module, time: int = TIME) -> None:
    """Whole sequences, and decoding token by token; errors relative to the root mean square of the logits."""
    batch = tokens(2, time)
    with torch.no_grad():
        wanted = theirs(input_ids=batch, use_cache=False).logits
        below(error(model(batch)[0], wanted), CLOSE, "whole")
        state, rows = model.init_state(2), []
        for token in batch.T:
            logits, state = model.step(token, state)
            rows.append(logits)
        below(error(torch.stack(rows, 1), wanted), CLOSE, "decoded")


def error(found: Tensor, wanted: Tensor) -> float:
    """The norm of the difference over that of what is wanted."""
    return ((found - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_full_attention_is_llama(kv_heads):
    model = ours("FF", attention={"n_kv_heads": kv_heads, "rope_base": 500.0})
    theirs = make_llama(model)
    assert theirs.config.num_key_value_heads == kv_heads
    assert_same_logits(model, theirs)


def test_gated_convolution_and_normalised_attention_are_lfm2():
    model = ours("CCFCCF", attention={"n_kv_heads": 2, "qk_norm": True, "rope_base": 1e6})
    assert_same_logits(model, make_lfm2(model))


@pytest.mark.parametrize(("pattern", "make"), [("FF", make_llama), ("CFC", make_lfm2)])
def test_the_epsilon_of_norms_is_theirs(pattern, make):
    """With another of ours the logits are others: an embedding this small makes it count."""
    attention = {"qk_norm": pattern != "FF"}
    model, other = (ours(pattern, {"norm_eps": eps}, attention=attention) for eps in (1e-3, 1e-6))
    with torch.no_grad():
        for each in (model, other):
            each.embedding.weight.mul_(0.1)
    assert_same_logits(model, make(model))
    assert error(other(tokens(2, TIME))[0], model(tokens(2, TIME))[0]) > 100 * CLOSE


def test_biases_of_q_k_and_v_are_qwen2s():
    model = ours("FF", attention={"n_kv_heads": 2, "qkv_bias": True, "rope_base": 1e6})
    assert family_of(model) is None
    theirs = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**llama_settings(model)))
    copy_weights(model, theirs, llama_layer, "model.norm.weight")
    assert_same_logits(model, theirs.eval())


SCALINGS = {
    "linear": {"rope_scaling": "linear", "rope_factor": 4.0},
    "llama3": {
        "rope_scaling": "llama3",
        "rope_factor": 8.0,
        "rope_length": 64,
        "rope_slow": 1.0,
        "rope_fast": 4.0,
    },
    "yarn": {"rope_scaling": "yarn", "rope_factor": 4.0, "rope_length": 64},
}


@pytest.mark.parametrize("scaling", SCALINGS)
def test_frequencies_for_longer_texts_are_llamas(scaling):
    """Over three times the pretraining's length; without scaling the logits are others."""
    options = {"n_kv_heads": 2, "rope_base": 500.0, "head_width": 16}
    model, plain = (ours("FF", attention=options | more) for more in (SCALINGS[scaling], {}))
    assert_same_logits(model, make_llama(model), time=200)
    assert error(plain(tokens(2, 200))[0], model(tokens(2, 200))[0]) > 0.05


@pytest.mark.parametrize("factors", [(1.0, 1.0), (0.707, 0.5), (None, None)], ids=str)
@pytest.mark.parametrize("q_rank", [20, 0])
def test_yarns_factor_on_the_scores_is_deepseeks(q_rank, factors):
    sizes = {"kv_rank": 12, "q_rank": q_rank, "rope_dim": 8, "head_width": 6, "value_width": 10}
    on = dict(zip(("rope_mscale", "rope_mscale_all"), factors, strict=True))
    model = ours("LL", mla={**sizes, "rope_base": 500.0, **SCALINGS["yarn"], **on})
    assert_same_logits(model, make_deepseek(model), time=200)


def test_partial_rotation_is_qwen3_nexts():
    """Its attention: norms per head before the rotation, whose gains are around 1 there, and a gate beside q."""
    found = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    options = {"n_kv_heads": 2, "head_width": 16, "rope_dim": 4, "qk_norm": True, "output_gate": True}
    mixer = ours("F", attention=options | {"rope_base": 1e3}).layers[0].mixer.eval()
    with torch.no_grad():
        mixer.output_gate.bias.zero_()  # which theirs does not have
    config = transformers.Qwen3NextConfig(
        hidden_size=D,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        head_dim=16,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.25},
    )
    config._attn_implementation = "eager"
    theirs = found.Qwen3NextAttention(config, 3).eval()
    q, k = (_halves_first(p.weight, 4) for p in (mixer.q_proj, mixer.k_proj))
    gate = mixer.output_gate.weight
    theirs.load_state_dict(
        {
            "q_proj.weight": torch.cat([x.unflatten(0, (HEADS, 16)) for x in (q, gate)], 1).flatten(0, 1),
            "k_proj.weight": k,
            "v_proj.weight": mixer.v_proj.weight,
            "o_proj.weight": mixer.o_proj.weight,
            "q_norm.weight": _halves_first(mixer.q_norm.weight, 4) - 1,
            "k_norm.weight": _halves_first(mixer.k_norm.weight, 4) - 1,
        }
    )
    x = torch.randn(2, TIME, D, generator=torch.Generator().manual_seed(2))
    mask = torch.full((TIME, TIME), -torch.inf).triu(1).expand(2, 1, -1, -1)
    with torch.no_grad():
        turns = found.Qwen3NextRotaryEmbedding(config)(x, torch.arange(TIME).expand(2, -1))
        wanted, _ = theirs(x, position_embeddings=turns, attention_mask=mask)
        below(error(mixer(x, Context.of(x[..., 0]))[0], wanted), CLOSE)


def _halves_first(x: Tensor, turned: int) -> Tensor:
    """Rows [heads·16, ...] with the adjacent pairs of every head's first channels moved into halves."""
    heads = x.unflatten(0, (-1, 16))
    first = half_split(heads[:, :turned].flatten(0, 1), turned).unflatten(0, (-1, turned))
    return torch.cat([first, heads[:, turned:]], 1).flatten(0, 1)


@pytest.mark.parametrize("interleaved", [True, False], ids=["pairs", "halves"])
def test_latent_attention_is_deepseek(interleaved):
    model = ours("LL", mla={"kv_rank": 12, "q_rank": 20, "rope_dim": 6, "rope_base": 500.0})
    theirs = make_deepseek(model, interleaved)
    assert theirs.config.rope_interleave == interleaved
    assert_same_logits(model, theirs)


MIXTURES = {
    "deepseek_v3": {"groups": 4, "top_groups": 2, "top_k": 3, "scale": 2.5},
    "deepseek_v3_no_groups": {"top_k": 3, "renormalise": False},
    "deepseek_v2": {
        "scores": "softmax",
        "renormalise": False,
        "groups": 4,
        "top_groups": 2,
        "top_k": 3,
        "scale": 4.0,
    },
    "deepseek_v2_lite": {"scores": "softmax", "renormalise": False, "top_k": 3},
}


@pytest.mark.parametrize("case", MIXTURES)
@torch.no_grad()
def test_the_choice_of_experts_is_deepseeks(case):
    """Scores, groups, weights and biases; another option changes the output."""
    options = MIXTURES[case]
    model = ours(
        "F", {"channel": {"name": "moe", "moe": {"n_experts": 12, "hidden": 24, "n_shared": 2, **options}}}
    )
    moe = model.layers[0].channel
    second = case.startswith("deepseek_v2")
    name = "DeepseekV2" if second else "DeepseekV3"
    config = getattr(transformers, f"{name}Config")(
        hidden_size=D,
        moe_intermediate_size=24,
        n_routed_experts=12,
        num_experts_per_tok=moe.config.top_k,
        n_shared_experts=2,
        n_group=moe.config.groups,
        topk_group=moe.config.top_groups or 1,
        topk_method="group_limited_greedy" if moe.config.groups > 1 else "greedy",
        norm_topk_prob=moe.config.renormalise,
        routed_scaling_factor=moe.config.scale,
    )
    folder = "deepseek_v2" if second else "deepseek_v3"
    module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    theirs = getattr(module, f"{name}Moe" if second else f"{name}MoE")(config).eval()
    shared = {
        f"shared_experts.{part}_proj.weight": getattr(moe.shared, part).weight
        for part in ("gate", "up", "down")
    }
    routed = {"experts.gate_up_proj": torch.cat([moe.gate, moe.up], 1), "experts.down_proj": moe.down}
    if not second:
        moe.balance.bias.copy_(torch.linspace(-0.4, 0.4, 12))
        routed["gate.e_score_correction_bias"] = moe.balance.bias
    theirs.load_state_dict({"gate.weight": moe.router.weight, **routed, **shared})
    x = torch.randn(2, TIME, D, generator=torch.Generator().manual_seed(2))
    below(error(moe(x)[0], theirs(x)), CLOSE)
    other = ours(
        "F", {"channel": {"name": "moe", "moe": {"n_experts": 12, "hidden": 24, "n_shared": 2, "top_k": 3}}}
    )
    other.layers[0].channel.load_state_dict(moe.state_dict())
    assert error(other.layers[0].channel(x)[0], moe(x)[0]) > 0.05


@pytest.fixture(scope="module")
def kimi():
    """Kimi Linear in transformers, and a configuration of it of the size of `ours`."""
    found = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
    sizes = {
        "hidden_size": D,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "num_hidden_layers": 1,
    }
    sizes |= {"linear_num_heads": HEADS // 2, "linear_head_dim": 2 * D // HEADS, "vocab_size": VOCAB}
    sizes |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
    return found, transformers.KimiLinearConfig(layer_types=["linear_attention"], rms_norm_eps=1e-6, **sizes)


def delta_attention_weights(mixer: nn.Module) -> dict[str, Tensor]:
    """Our weights by Kimi's names; of ours a gate's bias may be left over, and nothing else."""
    own = dict(mixer.state_dict())
    names = {
        "conv1d.weight": own.pop("convolution.weight").unsqueeze(1),
        "forget_gate.f_a_proj.weight": own.pop("decay_down.weight"),
        "forget_gate.f_b_proj.weight": own.pop("decay_up.weight"),
        "forget_gate.A_log": own.pop("decay.A_log").view(1, 1, -1, 1),
        "forget_gate.dt_bias": own.pop("decay.dt_bias").flatten(),
        "b_proj.weight": own.pop("beta_proj.weight"),
        "g_a_proj.weight": own.pop("gate_down.weight"),
        "g_b_proj.weight": own.pop("gate_up.weight"),
        "o_norm.weight": own.pop("o_norm.weight"),
        "o_proj.weight": own.pop("o_proj.weight"),
    }
    names |= zip(
        ("q_proj.weight", "k_proj.weight", "v_proj.weight"), own.pop("qkv_proj.weight").chunk(3), strict=True
    )
    assert set(own) <= {"gate_up.bias"}
    return names


def kimi_layer(layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """A layer of Kimi Linear by its names."""
    m, channel = layer.mixer, layer.channel
    if layer.mixer_name == "kda":
        attention = delta_attention_weights(m)
    else:
        attention = {
            "q_proj.weight": by_head(m.heads, m.q_up.weight, m.q_rope.weight),
            "kv_a_proj_with_mqa.weight": torch.cat([m.kv_down.weight, m.k_rope.weight]),
            "kv_a_layernorm.weight": m.kv_norm.weight,
            "kv_b_proj.weight": by_head(m.heads, m.k_up.weight, m.v_up.weight),
            "o_proj.weight": m.o_proj.weight,
        }
    yield from ((f"self_attn.{name}", weight) for name, weight in attention.items())
    yield "input_layernorm.weight", layer.mixer_norm.weight
    yield "post_attention_layernorm.weight", layer.channel_norm.weight
    dense, folder = channel, ""
    if layer.channel_name == "moe":
        yield "mlp.gate.weight", channel.router.weight
        yield "mlp.gate.e_score_correction_bias", channel.balance.bias
        yield "mlp.experts.gate_up_proj", torch.cat([channel.gate, channel.up], 1)
        yield "mlp.experts.down_proj", channel.down
        dense, folder = channel.shared, "shared_experts."
    for name in ("gate", "up", "down"):
        yield f"mlp.{folder}{name}_proj.weight", getattr(dense, name).weight


def test_the_published_kimi_linear_made_small_is_theirs(kimi, monkeypatch):
    """Options of conf/model/published with other sizes: all but widths, heads and depth stays as published."""
    module, _ = kimi
    rule = getattr(module.chunk_kimi_delta_attention, "__wrapped__", module.chunk_kimi_delta_attention)
    monkeypatch.setattr(module, "chunk_kimi_delta_attention", rule)
    preset = copy.deepcopy(overlay("published/kimi_linear_48b"))
    preset["mixers"]["kda"] |= {"n_heads": HEADS, "head_width": 12}
    preset["mixers"]["mla"] |= {"kv_rank": 20, "head_width": 10, "rope_dim": 6}
    preset["channel"]["swiglu"] |= {"hidden": HIDDEN}
    preset["channel"]["moe"] |= {"n_experts": 12, "top_k": 3, "hidden": 16}
    depth = 4
    model = ours("F", preset | {"pattern": "KKKL", "depth": depth, "d_model": D, "n_heads": HEADS})
    with torch.no_grad():
        for layer in model.layers[1:]:
            layer.channel.balance.bias.copy_(torch.linspace(-0.4, 0.4, 12))
    sizes = {"kv_lora_rank": 20, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 10}
    sizes |= {"linear_num_heads": HEADS, "linear_head_dim": 12, "intermediate_size": HIDDEN}
    sizes |= {"num_experts": 12, "num_experts_per_token": 3, "moe_intermediate_size": 16}
    config = transformers.KimiLinearConfig(
        hidden_size=D,
        vocab_size=VOCAB,
        num_hidden_layers=depth,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        layer_types=["linear_attention" if x == "K" else "full_attention" for x in model.letters],
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0),
        **sizes,
    )
    theirs = transformers.KimiLinearForCausalLM(config)
    copy_weights(model, theirs, kimi_layer, "model.norm.weight")
    assert_same_logits(model, theirs.eval())


@pytest.mark.parametrize("bias", [False, True])
def test_kimi_delta_attention_is_the_published_layer_and_a_bias_of_the_gate_by_option(
    kimi, monkeypatch, bias
):
    module, config = kimi
    # Where fla is installed transformers calls its Triton kernels, on a CPU too.
    rule = getattr(module.chunk_kimi_delta_attention, "__wrapped__", module.chunk_kimi_delta_attention)
    monkeypatch.setattr(module, "chunk_kimi_delta_attention", rule)
    mixer = ours("K", kda={"gate_bias": bias}).layers[0].mixer
    theirs = module.KimiLinearDeltaAttention(config, 0).eval()
    theirs.load_state_dict(delta_attention_weights(mixer))
    x = torch.randn(2, TIME, D, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        wanted = theirs(x)
        wanted = wanted[0] if isinstance(wanted, tuple) else wanted
        if bias:
            assert error(mixer(x, Context.of(x[..., 0]))[0], wanted) > 1e-2
            mixer.gate_up.bias.zero_()
        below(error(mixer(x, Context.of(x[..., 0]))[0], wanted), CLOSE)


def test_kimis_latent_attention_keeps_a_key_that_our_preset_leaves_out(kimi):
    """What docs/blocks/kda.md says of both: 64 numbers a token more, and queries without a latent."""
    module, config = kimi
    theirs = module.KimiLinearAttention(config, 0)
    assert theirs.kv_a_proj_with_mqa.out_features == config.kv_lora_rank + config.qk_rope_head_dim
    assert (config.qk_rope_head_dim, config.q_lora_rank) == (64, None)
    preset = from_dict(ModelConfig, {**overlay("kda"), "d_model": D, "n_heads": HEADS})
    model = LanguageModel(preset, vocab_size=VOCAB, seq_len=TIME)
    (latent,) = (
        layer.mixer for layer, letter in zip(model.layers, model.letters, strict=True) if letter == "L"
    )
    assert latent.state_bytes(latent.init_state(1, capacity=TIME)) == 4 * TIME * latent.kv_rank


@pytest.mark.parametrize(
    ("family", "pattern", "mixers"),
    [
        ("Llama", "FF", {}),
        ("Lfm2", "CF", {"attention": {"qk_norm": True}}),
        ("DeepseekV3", "LL", {}),
        (None, "CF", {}),
        (None, "FF", {"attention": {"qk_norm": True}}),
        (None, "FF", {"attention": {"window": 8}}),
        (None, "FF", {"attention": {"output_gate": True}}),
        (None, "FF", {"attention": {"positions": "none"}}),
        (None, "LL", {"mla": {"rope_dim": 0}}),
        (None, "LL", {"mla": {"rope_keys": "per_head"}}),
        (None, "KL", {}),
        (None, "CC", {}),
    ],
)
def test_a_model_that_transformers_does_not_have_is_none_of_its_families(family, pattern, mixers):
    assert family_of(ours(pattern, **mixers)) == family
