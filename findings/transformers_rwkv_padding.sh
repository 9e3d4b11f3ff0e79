#!/usr/bin/env bash
# Guess:      A recurrent model of transformers that takes an attention_mask leaves masked tokens out, so that
#             a batch padded on the left continues as its sequences would alone.
# Seen with:  transformers 5.23.0, torch 2.13.0
# Behaviour:  Mamba and Mamba-2 do. RWKV takes the mask and does not use it: padding runs through its state.
# Output:     differences of the last logits from those of the sequence alone, in fp64, relative to the
#             largest: Mamba and Mamba-2 0.0, RWKV 9.1e-01; RWKV with and without the mask: equal
# Matters:    What a recurrent peer answers in a batch would depend on how long its neighbours are; that a
#             mask is taken does not say that it is used.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --disable-pip-version-check -q torch==2.13.0 transformers==5.23.0 numpy==2.4.6
export OMP_NUM_THREADS=1

cat > padding.py <<'PY'
import torch
from transformers import Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM
from transformers import RwkvConfig, RwkvForCausalLM

ids = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, **ids}
torch.manual_seed(0)
models = [
    MambaForCausalLM(MambaConfig(**sizes, state_size=4)),
    Mamba2ForCausalLM(Mamba2Config(**sizes, state_size=8, num_heads=8, head_dim=8, n_groups=1)),
    RwkvForCausalLM(RwkvConfig(**sizes, attention_hidden_size=32, context_length=64)),
]
alone = torch.randint(1, 50, (1, 9))
padded = torch.cat([alone.new_zeros(1, 5), alone], 1)
mask = (padded > 0).long()
for model in models:
    model.double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(4)  # a new model's logits hardly depend on the past
        wanted, found = model(alone).logits[:, -1], model(padded, attention_mask=mask).logits[:, -1]
        unmasked = model(padded).logits[:, -1]
    error = ((found - wanted).abs().max() / wanted.abs().max()).item()
    ignored = torch.equal(found, unmasked)
    without = "equal" if ignored else "different"
    print(f"{model.config.model_type}: {error:.1e}, with and without the mask: {without}")
    rwkv = model.config.model_type == "rwkv"
    assert error > 0.05 if rwkv else error < 1e-6
    assert ignored == rwkv
PY
venv/bin/python padding.py
