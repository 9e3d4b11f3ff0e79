#!/usr/bin/env bash
# Guess:      TRITON_INTERPRET=1 computes in bf16 what compiled code computes, but for the order of sums.
# Seen with:  triton 3.7.1, torch 2.13.0, numpy 2.4.6
# Behaviour:  The interpreter keeps bf16 as the bits of integers. fp32 -> bf16 cuts the lower bits off, and
#             makes another number of a subnormal one; compiled code rounds to the nearest (cvt.rn). Sums,
#             products and tl.dot of bf16 work on the bits, so that 1 + 1 is 1.7e38, without a word. fp16 and
#             fp32 are right.
# Output:     1.005859375 -> 1.0 (nearest: 1.0078125); 1 + 1 = 1.7014118346046923e+38; error of tl.dot: fp32
#             0.0, fp16 0.0, bf16 above 1e9; compiled for sm_90: cvt.rn.bf16.f32
# Matters:    A kernel that is right on a GPU fails under the interpreter, and a rounding that a test saw
#             there is another on a GPU: our tests interpret in fp32 and fp16, and read compiled code for what
#             depends on rounding.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --disable-pip-version-check -q torch==2.13.0 triton==3.7.1 numpy==2.4.6
export OMP_NUM_THREADS=1

cat > kernels_.py <<'PY'
import triton
import triton.language as tl


@triton.jit
def rounded(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(y + i, tl.load(x + i).to(tl.bfloat16).to(tl.float32))


@triton.jit
def doubled(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(y + i, (tl.load(x + i) + tl.load(x + i)).to(tl.float32))


@triton.jit
def squared(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    at = i[:, None] * n + i[None, :]
    tl.store(y + at, tl.dot(tl.load(x + at), tl.load(x + at)))
PY

cat > interpreted.py <<'PY'
import torch
from kernels_ import doubled, rounded, squared

x = torch.tensor([1 + 3 * 2.0**-9, 1e-40])
y = torch.empty(2)
rounded[(1,)](x, y, 2)
nearest = x.bfloat16().float()
for given, found, right in zip(x.tolist(), y.tolist(), nearest.tolist()):
    print(f"fp32 -> bf16: {given:.10g} -> {found:.3g}, nearest: {right:.10g}")
assert nearest[0] == 1.0078125 and y[0] == 1
assert y[1] != nearest[1]

ones, y = torch.ones(2, dtype=torch.bfloat16), torch.empty(2)
doubled[(1,)](ones, y, 2)
print(f"bf16: 1 + 1 = {y[0]}")
assert y[0] > 1e38

x = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    y = torch.empty(16, 16)
    squared[(1,)](x.to(dtype), y, 16)
    error = (y - x.to(dtype).float() @ x.to(dtype).float()).abs().max()
    print(f"tl.dot, {dtype}: error {error:.1e}")
    assert error > 1e9 if dtype == torch.bfloat16 else error < 1e-4
PY
TRITON_INTERPRET=1 venv/bin/python interpreted.py

cat > compiled.py <<'PY'
import triton
from kernels_ import rounded
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

types = {"x": "*fp32", "y": "*fp32", "n": "constexpr"}
made = triton.compile(ASTSource(rounded, types, {"n": 128}), target=GPUTarget("cuda", 90, 32))
words = {word for word in made.asm["ptx"].split() if word.startswith("cvt.")}
narrowing = {word for word in words if word.endswith((".bf16.f32", ".bf16x2.f32"))}
print("compiled for sm_90:", *narrowing)
assert narrowing
assert all(word.startswith("cvt.rn.") for word in narrowing)
PY
TRITON_CACHE_DIR="$folder/compiled" venv/bin/python compiled.py
