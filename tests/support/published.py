"""Small published models, made by transformers with random weights, and their folders."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import nn

VOCAB, TIME = 97, 33
_LATENT = {"num_key_value_heads": 4, "kv_lora_rank": 12, "q_lora_rank": 20, "qk_rope_head_dim": 4}
_LATENT |= {"qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 6, "num_experts_per_tok": 2}
_LATENT |= {"moe_intermediate_size": 24, "n_shared_experts": 2}
_GROUPED = {**_LATENT, "n_group": 3, "topk_group": 2, "first_k_dense_replace": 1}
_LINEAR = {"linear_num_heads": 2, "linear_head_dim": 12, "num_hidden_layers": 3, "num_local_experts": 6}
_LINEAR |= {"layer_types": ["linear_attention", "full_attention", "linear_attention"], "q_lora_rank": None}
_CONV = {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 16}
SIZES: dict[str, dict[str, Any]] = {
    "Llama": {"rms_norm_eps": 1e-5},
    "Mistral": {"sliding_window": 7},
    "Qwen2": {},
    "Qwen3": {"head_dim": 16},
    "Lfm2": _CONV,
    "DeepseekV2": {**_GROUPED, "q_lora_rank": None, "topk_method": "group_limited_greedy"},
    "DeepseekV3": {**_GROUPED, "num_hidden_layers": 3},
    "KimiLinear": {**_LATENT, **_LINEAR},
}
"""The name that a family's classes begin with -> what its small model has beside `made`'s sizes."""


def made(family: str, **options: Any) -> nn.Module:
    """A model of transformers, its weights moved far enough from their start that every term counts."""
    import transformers

    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    sizes |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **SIZES[family], **options}
    config = getattr(transformers, f"{family}Config")(**sizes)
    with torch.random.fork_rng():
        torch.manual_seed(1)  # the same weights, whatever ran before
        model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, x in (*model.named_parameters(), *model.named_buffers()):
            if x.is_floating_point() and not name.endswith("inv_freq"):
                x.add_(0.2 * torch.randn(x.shape, generator=generator))
    return model


@pytest.fixture
def plain_kimi(monkeypatch):
    """Kimi Linear in PyTorch: where fla is installed transformers calls its Triton kernels, on a CPU too."""
    module = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
    for name in ("chunk_kimi_delta_attention", "recurrent_kimi_delta_attention"):
        rule = getattr(module, name)
        monkeypatch.setattr(module, name, getattr(rule, "__wrapped__", rule))


def saved(folder: Path, family: str, shard: str = "1GB", **options: Any) -> tuple[Path, nn.Module]:
    """A folder of such a model as transformers writes it, and the model."""
    model = made(family, **options)
    model.save_pretrained(folder, max_shard_size=shard)
    return folder, model


def with_tokenizer(folder: Path) -> Tokenizer:
    """Write tokenizer.json of at most 290 tokens into a folder: a byte-level BPE that normalises, as Qwen's does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=["<|begin|>", "<|separator|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the cat sat on the mat, hello world"] * 5, trainer)
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer
