#!/usr/bin/env bash
# Guess:      save_pretrained writes a layer's weights under the names that published checkpoints have for it.
# Seen with:  transformers 5.23.0, torch 2.13.0
# Behaviour:  Kimi Linear's dense layers (mlp.gate_proj in the published files, and in the model itself) are written as
#             block_sparse_moe.gate_proj, the folder of a mixture of experts. transformers reads its own files back.
# Output:     in the model: mlp.gate_proj; in the file: block_sparse_moe.gate_proj; loaded again: equal
# Matters:    A reader by published names finds weights missing in a folder that transformers wrote: ours takes both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --disable-pip-version-check -q torch==2.13.0 numpy==2.4.6 transformers==5.23.0
export OMP_NUM_THREADS=1

cat > names.py <<'PY'
import torch
import transformers
from safetensors.torch import load_file

config = transformers.KimiLinearConfig(
    vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=4, kv_lora_rank=12, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8,
    linear_num_heads=2, linear_head_dim=12, num_experts=6, num_experts_per_token=2, num_shared_experts=1,
    moe_intermediate_size=24, layer_types=["full_attention"] * 2, first_k_dense_replace=1,
    pad_token_id=0, bos_token_id=1, eos_token_id=2,
)
model = transformers.KimiLinearForCausalLM(config).eval()
own = {name for name, _ in model.named_parameters() if name.startswith("model.layers.0.") and "gate_proj" in name}
model.save_pretrained("saved")
written = {
    name for name in load_file("saved/model.safetensors") if name.startswith("model.layers.0.") and "gate_proj" in name
}
print(f"in the model: {own}; in the file: {written}")
assert own == {"model.layers.0.mlp.gate_proj.weight"}
assert written == {"model.layers.0.block_sparse_moe.gate_proj.weight"}
again = transformers.AutoModelForCausalLM.from_pretrained("saved").state_dict()
assert all(torch.equal(x, again[name]) for name, x in model.state_dict().items())
print("loaded again: equal")
PY
venv/bin/python names.py
