#!/usr/bin/env bash
# Guess:      FlopCounterMode counts the products of a model's layers, the same in training and in evaluation,
#             and a backward twice its forward.
# Seen with:  torch 2.13.0, on a CPU
# Behaviour:  Fused attention, a Transformer layer in evaluation, an LSTM and a product of a matrix with a
#             vector count 0 (a GRU counts); the backward of a depthwise convolution counts nine times its
#             forward, its weight's gradient as if channels were no groups.
# Output:     attention 0, by its parts 524288; Transformer layer in training 524288, in evaluation 0; LSTM 0,
#             GRU 1296; matrix times vector 0; depthwise convolution 6208, its backward 55872 (twice: 12416)
# Matters:    FLOPs decide which models are compared at equal cost: our counts come from formulas of our own.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --disable-pip-version-check -q torch==2.13.0 numpy==2.4.6
export OMP_NUM_THREADS=1

cat > counts.py <<'PY'
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def count(call):
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def attend(backend):
    q = torch.randn(1, 2, 64, 16)
    with sdpa_kernel(backend):
        F.scaled_dot_product_attention(q, q, q)


def convolve():
    return F.conv1d(x, weight, groups=8)


products = 2 * 2 * 2 * 64 * 64 * 16  # of each of two heads two, of 64 × 64 × 16
fused, parts = (count(lambda b=b: attend(b)) for b in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH))
print(f"attention {fused}, by its parts {parts}")
assert (fused, parts) == (0, products)

layer, tokens = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), torch.randn(1, 64, 16)
trained = count(lambda: layer.train()(tokens))
with torch.no_grad():
    evaluated = count(lambda: layer.eval()(tokens))
print(f"Transformer layer in training {trained}, in evaluation {evaluated}")
assert trained > 0
assert evaluated == 0

lstm, gru = (count(lambda kind=kind: kind(6, 6)(torch.randn(3, 1, 6))) for kind in (nn.LSTM, nn.GRU))
print(f"LSTM {lstm}, GRU {gru}")
assert lstm == 0
assert gru == 3 * 2 * 2 * 18 * 6  # of each of three tokens two products, of 18 × 6

by_vector = count(lambda: torch.randn(5, 6) @ torch.randn(6))
print(f"matrix times vector {by_vector}")
assert by_vector == 0

x, weight = torch.randn(1, 8, 100, requires_grad=True), torch.randn(8, 1, 4, requires_grad=True)
forward = count(convolve)
backward = count(lambda: convolve().sum().backward()) - forward
print(f"depthwise convolution {forward}, its backward {backward}")
assert forward == 2 * 8 * 97 * 4
assert backward == 9 * forward
PY
venv/bin/python counts.py
