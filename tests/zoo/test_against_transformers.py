"""Whole models against independent code: the same weights in transformers' Llama, LFM2 and DeepSeek-V3.

An optional dependency of the tests: without it they are skipped.
"""

from __future__ import annotations

import pytest
import torch
from support.contract_cases import tokens
from torch import nn

from experiments.bench.hugging_face.architectures import family_of, make_deepseek, make_lfm2, make_llama
from zoo import LanguageModel, ModelConfig
from zoo.config import from_dict

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

VOCAB, D, HEADS, HIDDEN, TIME = 29, 32, 4, 48, 37


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


def assert_same_logits(model: LanguageModel, theirs: nn.Module) -> None:
    """Whole sequences, and decoding token by token."""
    batch = tokens(2, TIME)
    with torch.no_grad():
        wanted = theirs(input_ids=batch, use_cache=False).logits
        torch.testing.assert_close(model(batch)[0], wanted, rtol=1e-4, atol=1e-4)
        state = model.init_state(2)
        for t in range(TIME):
            logits, state = model.step(batch[:, t], state)
            torch.testing.assert_close(logits, wanted[:, t], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_full_attention_is_llama(kv_heads):
    model = ours("FF", attention={"n_kv_heads": kv_heads, "rope_base": 500.0})
    theirs = make_llama(model)
    assert theirs.config.num_key_value_heads == kv_heads
    assert_same_logits(model, theirs)


def test_gated_convolution_and_normalised_attention_are_lfm2():
    model = ours("CCFCCF", attention={"n_kv_heads": 2, "qk_norm": True, "rope_base": 1e6})
    assert_same_logits(model, make_lfm2(model))


@pytest.mark.parametrize("interleaved", [True, False], ids=["pairs", "halves"])
def test_latent_attention_is_deepseek(interleaved):
    model = ours("LL", mla={"kv_rank": 12, "q_rank": 20, "rope_dim": 6, "rope_base": 500.0})
    theirs = make_deepseek(model, interleaved)
    assert theirs.config.rope_interleave == interleaved
    assert_same_logits(model, theirs)


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
