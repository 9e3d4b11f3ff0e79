#!/usr/bin/env bash
# Guess:      generate() that is given a cache reads on behind what the cache has, for every causal model, so
#             the whole prompt and its new tokens alone (with a mask of the whole) give the same.
# Seen with:  transformers 5.24.0, torch 2.13.0 (5.23.0 gives the same numbers)
# Behaviour:  It does so for Llama. Where every layer is recurrent (Mamba-2) the prompt is never cut: given
#             whole, its first tokens are read a second time, into a state that has them already. Given as
#             new tokens with the whole mask it is right.
# Output:     Llama 0.0e+00 both ways; Mamba-2: whole 9.2e-02, new 3.5e-07 (differences from
#             generating without a cache, relative to the largest logit)
# Matters:    A chat that goes on from its cache is another model's, without a word. A class of one's own with
#             no layers in its cache counts as recurrent; the one here says that it is not, and a test holds
#             generate() with a carried state to the whole prompt.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --disable-pip-version-check -q torch==2.13.0 transformers==5.24.0 numpy==2.4.6
export OMP_NUM_THREADS=1

cat > go_on.py <<'PY'
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Mamba2Config, Mamba2ForCausalLM

ids = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": None}
sizes = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "initializer_range": 1.0, **ids}
torch.manual_seed(0)
llama = LlamaForCausalLM(LlamaConfig(**sizes, intermediate_size=64, num_attention_heads=4)).eval()
mamba = Mamba2ForCausalLM(
    Mamba2Config(**sizes, state_size=16, num_heads=8, head_dim=8, n_groups=1, chunk_size=8)
).eval()
prompt, before = torch.randint(1, 97, (1, 12)), 7
how = {"max_new_tokens": 4, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}


@torch.no_grad()
def difference(model, tokens, **more):
    cache = model(prompt[:, :before], use_cache=True).cache
    found = torch.stack(model.generate(tokens, cache=cache, **how, **more).logits)
    wanted = torch.stack(model.generate(prompt, **how).logits)
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


for name, model in (("Llama", llama), ("Mamba-2", mamba)):
    whole = difference(model, prompt)
    new = difference(model, prompt[:, before:], attention_mask=torch.ones_like(prompt))
    print(f"{name}: whole {whole:.1e}, new {new:.1e}")
    assert new < 1e-4, "only the new tokens no longer do"
    assert (whole < 1e-4) == (model is llama), "a recurrent model reads on behind its cache now"
PY
venv/bin/python go_on.py
