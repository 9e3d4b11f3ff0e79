#!/usr/bin/env bash
# Guess:      Triton 3.6.0 declares no limit on NumPy, so its interpreter runs a kernel whose loop is bounded by a
#             run-time integer with any NumPy 2.
# Seen with:  triton 3.6.0 and 3.7.1, numpy 2.3.5 and 2.4.6, torch 2.13.0
# Behaviour:  The interpreter of 3.6.0 holds a scalar as an array of one element and makes the loop's bound with
#             int(): NumPy 2.3 warns of that, NumPy 2.4 raises a TypeError. The interpreter of 3.7.1 runs with both.
# Output:     3.6.0 2.3.5 sum 10.0; 3.6.0 2.4.6 TypeError; 3.7.1 2.4.6 sum 10.0
# Matters:    torch 2.11 asks for Triton 3.6.0, and a fresh install takes the newest NumPy: kernels that compile
#             cannot be tested there without a GPU until numpy<2.4 is asked for.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
pip() { venv/bin/python -m pip install --disable-pip-version-check -q "$@"; }
export TRITON_INTERPRET=1 OMP_NUM_THREADS=1

cat > loop.py <<'PY'
import numpy
import torch
import triton
import triton.language as tl


@triton.jit
def total(x, out, n):
    s = 0.0
    for i in range(n):
        s += tl.load(x + i)
    tl.store(out, s)


out = torch.zeros(1)
try:
    total[(1,)](torch.arange(5.0), out, 5)
    result = f"sum {out.item()}"
except Exception as error:
    result = type(error.__cause__ or error).__name__
print(triton.__version__, numpy.__version__, result)
PY

pip torch==2.13.0 triton==3.6.0 numpy==2.3.5
venv/bin/python -W ignore loop.py | tee seen.txt
pip numpy==2.4.6
venv/bin/python -W ignore loop.py | tee -a seen.txt
pip triton==3.7.1
venv/bin/python -W ignore loop.py | tee -a seen.txt
cat > expected.txt <<'TXT'
3.6.0 2.3.5 sum 10.0
3.6.0 2.4.6 TypeError
3.7.1 2.4.6 sum 10.0
TXT
diff expected.txt seen.txt
