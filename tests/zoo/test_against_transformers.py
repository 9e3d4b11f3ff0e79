"""Against independent code: Qwen3-Next's attention and the published Kimi Linear in transformers.

Whole models of its other families come in and go out (test_import_published.py, test_export_published.py).

An optional dependency of the tests: without it they are skipped.
"""

import copy

import pytest
import torch
from support.contract_cases import tokens
from support.margins import below
from torch import Tensor, nn

from experiments.bench.hugging_face import in_transformers
from experiments.configuration.compose import overlay
from zoo import Context, LanguageModel, ModelConfig
from zoo.config import from_dict
from zoo.pretrained.families import FAMILIES, family_of
from zoo.pretrained.links import rotated

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


@pytest.mark.parametrize("window", [None, 5])
def test_sinks_are_those_of_gpt_oss(window: int | None):
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention, GptOssConfig

    options = {"sinks": "learned", "window": window, "positions": "none", "n_kv_heads": 2}
    mixer = ours("F", attention=options).layers[0].mixer
    sizes = {"hidden_size": D, "num_attention_heads": HEADS, "head_dim": D // HEADS, "num_key_value_heads": 2}
    theirs = GptOssAttention(
        GptOssConfig(**sizes, attention_bias=False, num_hidden_layers=1, attn_implementation="eager"), 0
    )
    theirs.load_state_dict(mixer.state_dict())
    x = torch.randn(2, TIME, D, generator=torch.Generator().manual_seed(3))
    age = torch.arange(TIME)[:, None] - torch.arange(TIME)
    hidden = (age < 0) | (age >= (window or TIME))
    unrotated = torch.ones(1, TIME, D // HEADS // 2), torch.zeros(1, TIME, D // HEADS // 2)
    with torch.no_grad():
        wanted = theirs(x, unrotated, torch.zeros(TIME, TIME).masked_fill(hidden, -torch.inf))[0]
        below(error(mixer(x, Context.of(torch.zeros(2, TIME)))[0], wanted), CLOSE, "whole")
        state, rows = mixer.init_state(2), []
        for token in x.split(1, 1):
            y, state = mixer.extend(token, state)
            rows.append(y)
        below(error(torch.cat(rows, 1), wanted), CLOSE, "decoded")


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
    (first,) = rotated("", "", turned).write(heads[:, :turned].flatten(0, 1))
    first = first.unflatten(0, (-1, turned))
    return torch.cat([first, heads[:, turned:]], 1).flatten(0, 1)


def test_the_published_kimi_linear_made_small_is_theirs(plain_kimi):
    """Options of conf/model/published with other sizes: all but widths, heads and depth stays as published."""
    preset = copy.deepcopy(overlay("published/kimi_linear_48b"))
    preset["mixers"]["kda"] |= {"n_heads": HEADS, "head_width": 12}
    preset["mixers"]["mla"] |= {"kv_rank": 20, "head_width": 10, "rope_dim": 6}
    preset["channel"]["swiglu"] |= {"hidden": HIDDEN}
    preset["channel"]["moe"] |= {"n_experts": 12, "top_k": 3, "hidden": 16}
    model = ours("F", preset | {"pattern": "KKKL", "depth": 4, "d_model": D, "n_heads": HEADS})
    with torch.no_grad():
        for layer in model.layers[1:]:
            layer.channel.balance.bias.copy_(torch.linspace(-0.4, 0.4, 12))
    assert_same_logits(model, in_transformers(model, FAMILIES["kimi_linear"]))


def test_a_bias_of_kdas_gate_is_not_kimis():
    for bias in (False, True):
        mixers = {"kda": {"gate_bias": bias}, "mla": {"q_rank": 0, "positions": "none"}}
        model = ours("KL", {"tie_embeddings": False}, **mixers)
        family, reason = family_of(model)
        assert (family is None) == bias, reason
    assert "gate_up" in reason


def test_kimis_latent_attention_keeps_a_key_that_our_preset_leaves_out():
    """What docs/blocks/kda.md says of both: 64 numbers a token more, and queries without a latent."""
    module = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
    config = transformers.KimiLinearConfig(
        hidden_size=D, num_attention_heads=HEADS, num_key_value_heads=HEADS, num_hidden_layers=1
    )
    theirs = module.KimiLinearAttention(config, 0)
    assert theirs.kv_a_proj_with_mqa.out_features == config.kv_lora_rank + config.qk_rope_head_dim
    assert (config.qk_rope_head_dim, config.q_lora_rank) == (64, None)
    preset = from_dict(ModelConfig, {**overlay("kda"), "d_model": D, "n_heads": HEADS})
    model = LanguageModel(preset, vocab_size=VOCAB, seq_len=TIME)
    (latent,) = (
        layer.mixer for layer, letter in zip(model.layers, model.letters, strict=True) if letter == "L"
    )
    assert latent.state_bytes(latent.init_state(1, capacity=TIME)) == 4 * TIME * latent.kv_rank
