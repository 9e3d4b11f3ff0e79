#!/usr/bin/env bash
# Guess:      A causal model of transformers that gets a cache counts the positions of new tokens from the
#             cache's length.
# Seen with:  transformers 5.23.0, torch 2.13.0
# Behaviour:  Llama does. Bamba counts from 0 at every call, so that its attention layers rotate each new
#             token as the first; with position_ids given (as generate gives them) it is right.
# Output:     differences of decoding from one forward, in fp64, relative to the largest logit: Llama 2e-16,
#             Bamba 2e-01, Bamba with position_ids 4e-16
# Matters:    Decoding through the cache by hand, as benchmarks do, is wrong without a word for some hybrid
#             models: a peer's decoding has to be compared with its own forward before it is timed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --disable-pip-version-check -q torch==2.13.0 transformers==5.23.0 numpy==2.4.6
export OMP_NUM_THREADS=1

cat > positions.py <<'PY'
import torch
from transformers import BambaConfig, BambaForCausalLM, LlamaConfig, LlamaForCausalLM

sizes = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
llama = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
mamba = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 8}
bamba = BambaForCausalLM(BambaConfig(**sizes, **mamba, attn_layer_indices=[0, 1])).eval()
tokens = torch.randint(50, (1, 20))


@torch.no_grad()
def decoding_error(model, **given):
    wanted = model(tokens).logits[:, 1:]
    cache, logits = model(tokens[:, :1], use_cache=True).past_key_values, []
    for t in range(1, 20):
        positions = {"position_ids": torch.tensor([[t]])} if given else {}
        logits.append(model(tokens[:, t : t + 1], past_key_values=cache, use_cache=True, **positions).logits)
    return ((torch.cat(logits, 1) - wanted).abs().max() / wanted.abs().max()).item()


for model in (llama, bamba):
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(4)  # a new model's logits hardly depend on the past
found = decoding_error(llama), decoding_error(bamba), decoding_error(bamba, position_ids=True)
print("Llama {:.0e}, Bamba {:.0e}, Bamba with position_ids {:.0e}".format(*found))
assert found[0] < 1e-6
assert found[1] > 0.01
assert found[2] < 1e-6
PY
venv/bin/python positions.py
