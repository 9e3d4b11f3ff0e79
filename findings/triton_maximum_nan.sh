#!/usr/bin/env bash
# Guess:      tl.maximum gives NaN where an argument is NaN, as torch.maximum and numpy.maximum do; at least
#             Triton's interpreter and its compiled code agree.
# Seen with:  triton 3.7.1 and 3.8.0, torch 2.13.0, numpy 2.4.6
# Behaviour:  Compiled code drops the NaN in both (max.f32), unless propagate_nan=ALL asks for it
#             (max.NaN.f32). The interpreter of 3.7.1 keeps it, that of 3.8.0 drops it.
# Output:     3.7.1: interpreter [nan, nan], compiled max.f32, propagate_nan max.NaN.f32 3.8.0: interpreter
#             [1.0, 2.0], compiled max.f32, propagate_nan max.NaN.f32
# Matters:    A gate held above a least value by tl.maximum hides a NaN on a GPU and the loss stays finite,
#             while tests under the older interpreter see it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --disable-pip-version-check -q torch==2.13.0 triton==3.7.1 numpy==2.4.6
export OMP_NUM_THREADS=1

cat > greater.py <<'PY'
import triton
import triton.language as tl


@triton.jit
def greater(x, y, out, n: tl.constexpr, keep: tl.constexpr):
    i = tl.arange(0, n)
    mode: tl.constexpr = tl.PropagateNan.ALL if keep else tl.PropagateNan.NONE
    tl.store(out + i, tl.maximum(tl.load(x + i), tl.load(y + i), propagate_nan=mode))
PY

cat > interpreted.py <<'PY'
import sys
import torch
import triton
from greater import greater

nan, out = float("nan"), torch.empty(2)
x, y = torch.tensor([nan, 2.0]), torch.tensor([1.0, nan])
greater[(1,)](x, y, out, 2, False)
print(f"triton {triton.__version__}: interpreter {out.tolist()}")
assert triton.__version__ == sys.argv[1]
assert out.isnan().all() if sys.argv[1] == "3.7.1" else out.tolist() == [1, 2]
greater[(1,)](x, y, out, 2, True)
assert out.isnan().all()
assert torch.maximum(x, y).isnan().all()
PY

cat > compiled.py <<'PY'
import triton
from greater import greater
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

types = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "constexpr", "keep": "constexpr"}
for keep, wanted in ((False, "max.f32"), (True, "max.NaN.f32")):
    source = ASTSource(greater, types, {"n": 128, "keep": keep})
    words = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"].split()
    found = {word for word in words if word.startswith("max.")}
    print(f"compiled for sm_90{', propagate_nan' if keep else ''}:", *found)
    assert found == {wanted}
PY

for version in 3.7.1 3.8.0; do
  venv/bin/python -m pip install --disable-pip-version-check -q triton==$version
  TRITON_INTERPRET=1 venv/bin/python interpreted.py $version
  TRITON_CACHE_DIR="$folder/compiled-$version" venv/bin/python compiled.py
done
