#!/usr/bin/env bash
# Guess:      An option that a model's configuration in transformers has and keeps in config.json changes the model.
# Seen with:  transformers 5.23.0, torch 2.13.0
# Behaviour:  YaRN's mscale counts only beside mscale_all_dim; DeepSeek-V2 weighs its experts alike whatever norm_topk_prob
#             says; Kimi Linear has a head of its own also with tie_word_embeddings. No warning in any of the three.
# Output:     YaRN's factor 1.1386 without mscale, 1.1386 with mscale 0.7, 0.9753 with mscale_all_dim 0.9 too; weights of
#             DeepSeek-V2's experts equal: True, of DeepSeek-V3's: False; Kimi Linear tied: False, Llama: True
# Matters:    We load such folders as transformers computes them, or refuse them: what config.json says is not enough.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --disable-pip-version-check -q torch==2.13.0 numpy==2.4.6 transformers==5.23.0
export OMP_NUM_THREADS=1

cat > options.py <<'PY'
import torch
import transformers
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

SIZES = dict(
    vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
    num_key_value_heads=4, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)
YARN = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=16)


def factor(**options):
    config = transformers.LlamaConfig(**SIZES, rope_parameters=YARN | options)
    return round(transformers.LlamaForCausalLM(config).model.rotary_emb.attention_scaling, 4)


plain, one, both = factor(), factor(mscale=0.7), factor(mscale=0.7, mscale_all_dim=0.9)
print(f"YaRN's factor {plain}, with mscale {one}, with both {both}")
assert plain == one == 1.1386
assert both == 0.9753


@torch.no_grad()
def output(config, kind, norm):
    experts = dict(n_routed_experts=6, num_experts_per_tok=3, n_shared_experts=1, moe_intermediate_size=8)
    more = dict(topk_method="greedy") if kind is DeepseekV2Moe else dict(n_group=1, topk_group=1)
    moe = kind(config(**SIZES, **experts, **more, norm_topk_prob=norm, routed_scaling_factor=1.0)).eval()
    generator = torch.Generator().manual_seed(0)
    for x in moe.parameters():
        x.copy_(0.3 * torch.randn(x.shape, generator=generator))
    return moe(torch.randn(1, 5, 32, generator=generator))


for config, kind, alike in (
    (transformers.DeepseekV2Config, DeepseekV2Moe, True),
    (transformers.DeepseekV3Config, DeepseekV3MoE, False),
):
    same = torch.equal(output(config, kind, False), output(config, kind, True))
    print(f"{kind.__name__} with and without norm_topk_prob equal: {same}")
    assert same == alike

latent = dict(kv_lora_rank=12, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8, linear_num_heads=2)
latent |= dict(linear_head_dim=12, layer_types=["full_attention"])
for name, more, shared in (("Llama", {}, True), ("KimiLinear", latent, False)):
    config = getattr(transformers, f"{name}Config")(**SIZES, **more, tie_word_embeddings=True)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    tied = model.lm_head.weight is model.get_input_embeddings().weight
    print(f"{name} with tie_word_embeddings shares its matrix: {tied}")
    assert tied == shared
PY
venv/bin/python options.py
