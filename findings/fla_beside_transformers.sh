#!/usr/bin/env bash
# Guess:      Installing fla-core changes no model of transformers on a machine without a GPU: its kernels are
#             for GPUs.
# Seen with:  transformers 5.23.0, fla-core 0.6.0, triton 3.7.1, torch 2.13.0, on a CPU
# Behaviour:  Qwen3-Next runs without it. With it, transformers takes fla's kernels wherever they can be
#             imported, and the same forward on a CPU raises from Triton.
# Output:     without fla-core: logits; with fla-core: 0 active drivers ([]). There should only be one.
# Matters:    `pip install archzoo[peers]` brings both: a comparison with transformers' Qwen3-Next would need
#             a GPU for that reason alone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --disable-pip-version-check -q torch==2.13.0 transformers==5.23.0 numpy==2.4.6
export OMP_NUM_THREADS=1

cat > forward.py <<'PY'
import sys

import torch
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

config = Qwen3NextConfig(
    vocab_size=50,
    hidden_size=32,
    num_hidden_layers=2,
    intermediate_size=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=16,
    shared_expert_intermediate_size=16,
    layer_types=["linear_attention", "full_attention"],
)
assert not torch.cuda.is_available(), "asks for a machine without a GPU"
model = Qwen3NextForCausalLM(config).eval()
try:
    with torch.no_grad():
        print(f"{sys.argv[1]}: logits {tuple(model(torch.arange(9)[None]).logits.shape)}")
    assert sys.argv[1] == "without fla-core"
except RuntimeError as error:
    print(f"{sys.argv[1]}: {error}")
    assert sys.argv[1] == "with fla-core"
    assert "active drivers" in str(error)
PY
venv/bin/python forward.py "without fla-core"
venv/bin/python -m pip install --disable-pip-version-check -q fla-core==0.6.0 triton==3.7.1
CUDA_VISIBLE_DEVICES= venv/bin/python forward.py "with fla-core"
