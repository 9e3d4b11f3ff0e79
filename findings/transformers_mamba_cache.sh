#!/usr/bin/env bash
# Guess:      A Mamba of transformers goes on from its cache by chunks of any length, as a Transformer does,
#             and takes the cache by the name that the other models have for it.
# Seen with:  transformers 5.23.0, torch 2.13.0, the PyTorch form (no mamba_ssm, no causal_conv1d installed)
# Behaviour:  Token by token it is right. A second chunk of several tokens gives other logits; Mamba-2 is
#             right. Its cache is called cache_params: past_key_values, or a misspelt name, is taken and
#             dropped, and the model starts afresh.
# Output:     Mamba: tokens 2.8e-07, chunk 1.5e+00; Mamba-2: tokens 3.1e-07, chunk 3.1e-07 (differences from
#             one forward, in fp64, relative to the largest logit); past_key_values, cache_parms: as without a
#             cache
# Matters:    Perplexity or prefill in chunks would be another model's, without a word. Blocks here equal
#             their forward for any way of cutting a sequence, and a test holds them to it; a peer has to be
#             held to its own forward first.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --disable-pip-version-check -q torch==2.13.0 transformers==5.23.0 numpy==2.4.6
export OMP_NUM_THREADS=1

cat > cache.py <<'PY'
import torch
from transformers import Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM

ids = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, **ids}
torch.manual_seed(0)
models = [
    MambaForCausalLM(MambaConfig(**sizes, state_size=4)),
    Mamba2ForCausalLM(Mamba2Config(**sizes, state_size=8, num_heads=8, head_dim=8, n_groups=1, chunk_size=8)),
]
tokens = torch.randint(50, (1, 20))


def relative(found, wanted):
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


@torch.no_grad()
def check(model):
    model.double().eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.mul_(4)  # a new model's logits hardly depend on the past
    wanted = model(tokens).logits[:, 6:]
    chunk = model(tokens[:, 6:], cache_params=model(tokens[:, :6]).cache_params).logits
    cache, logits = model(tokens[:, :6]).cache_params, []
    for t in range(6, 20):
        out = model(tokens[:, t : t + 1], cache_params=cache)
        cache = out.cache_params
        logits.append(out.logits)
    return relative(torch.cat(logits, 1), wanted), relative(chunk, wanted)


for model in models:
    by_token, by_chunk = check(model)
    print(f"{model.config.model_type}: tokens {by_token:.1e}, chunk {by_chunk:.1e}")
    assert by_token < 1e-5
    assert by_chunk > 0.05 if model.config.model_type == "mamba" else by_chunk < 1e-5

model, here = models[0], slice(6, 7)
with torch.no_grad():
    begun, afresh = model(tokens[:, :6]).cache_params, model(tokens[:, here]).logits
    for name in ("past_key_values", "cache_parms"):
        same = torch.equal(model(tokens[:, here], **{name: begun}).logits, afresh)
        print(f"{name}: {'as without a cache' if same else 'used'}")
        assert same
    assert relative(model(tokens[:, here], cache_params=begun).logits, afresh) > 0.05
PY
venv/bin/python cache.py
