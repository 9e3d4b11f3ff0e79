#!/usr/bin/env bash
# Guess:      PyTorch adds up bf16 and fp16 on a CPU in fp32 where it reduces; if one of these is bad, it is
#             cumsum.
# Seen with:  torch 2.13.0
# Behaviour:  sum, cumsum, dot and scatter_add are right to the last digit of the result. index_add, and with
#             it the gradient of an embedding, adds one by one in 16 bit and stops growing at 2^8 (bf16) or
#             2^11 (fp16) times the term. So does the gradient of layer_norm's bias, on each thread.
# Output:     20,000 ones, in bf16: sum, cumsum, dot, scatter_add 19968; index_add and the two gradients 256.
#             In fp16: 20000 and 2048.
# Matters:    A token that is seen often, or a bias, hardly learns in a model held in 16 bit on a CPU:
#             references and tests add learned tensors in fp32, and no oracle is trusted in 16 bit before it
#             is held against fp64.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --disable-pip-version-check -q torch==2.13.0 numpy==2.4.6
export OMP_NUM_THREADS=1

cat > sums.py <<'PY'
import torch
import torch.nn.functional as F

N = 20_000
STOPS = {torch.bfloat16: 2**8, torch.float16: 2**11}


def embedding(x):
    table = torch.zeros(1, 1, dtype=x.dtype, requires_grad=True)
    (F.embedding(torch.zeros(N, dtype=torch.long), table)[:, 0] * x).sum().backward()
    return table.grad[0, 0]


def layer_norm(x):
    bias = torch.zeros(8, dtype=x.dtype, requires_grad=True)
    rows = torch.arange(8).to(x.dtype).expand(N, 8)
    F.layer_norm(rows, (8,), torch.ones(8, dtype=x.dtype), bias).sum().backward()
    return bias.grad[0]


for dtype, stop in STOPS.items():
    x, first = torch.ones(N, dtype=dtype), torch.zeros(N, dtype=torch.long)
    nothing = torch.zeros(1, dtype=dtype)
    right = {
        "sum": x.sum(),
        "cumsum": x.cumsum(0)[-1],
        "dot": x @ x,
        "scatter_add": nothing.scatter_add(0, first, x)[0],
    }
    wrong = {
        "index_add": nothing.index_add(0, first, x)[0],
        "gradient of an embedding": embedding(x),
        "gradient of layer_norm's bias": layer_norm(x),
    }
    print(dtype, {name: found.item() for name, found in (right | wrong).items()})
    assert all(found == torch.tensor(float(N)).to(dtype) for found in right.values())
    assert all(found == stop for found in wrong.values())
PY
venv/bin/python sums.py
