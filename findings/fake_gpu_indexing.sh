#!/usr/bin/env bash
# Guess:      Under FakeTensorMode a build of PyTorch without CUDA runs a model on device "cuda" for its shapes:
#             what works by one spelling works by another.
# Seen with:  torch 2.13.0, the CPU's wheel
# Behaviour:  Tensors can be made there, multiplied and reshaped. Square brackets fail, also where the method that does
#             the same works, and so does moving a fake tensor there.
# Output:     product, sum, unsqueeze, narrow, select: cuda:0; x[:, None], x[1:3], x[0], x[0] = 1, to("cuda"): "PyTorch
#             is not linked with support for cuda devices"
# Matters:    Counting a GPU's kernels on a machine without one needs another way: ours compiles each launch of the real
#             host code on tensors of a CPU.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --disable-pip-version-check -q torch==2.13.0 numpy==2.4.6
export OMP_NUM_THREADS=1

cat > indexing.py <<'PY'
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

if torch.version.cuda is not None:
    raise SystemExit("this is about builds without CUDA; install the CPU's wheel")


def outcome(call):
    try:
        return str(call().device)
    except RuntimeError as error:
        return str(error).splitlines()[0]


def assign(x):
    x[0] = 1
    return x


with FakeTensorMode(), torch.no_grad():
    x, w = torch.zeros(4, 8, device="cuda"), torch.zeros(8, 8, device="cuda")
    works = {
        "product": lambda: x @ w,
        "sum": lambda: x.sum(0),
        "unsqueeze": lambda: x.unsqueeze(1),
        "narrow": lambda: x.narrow(0, 1, 2),
        "select": lambda: x.select(0, 0),
    }
    fails = {
        "x[:, None]": lambda: x[:, None],
        "x[1:3]": lambda: x[1:3],
        "x[0]": lambda: x[0],
        "x[0] = 1": lambda: assign(x),
        'to("cuda")': lambda: torch.zeros(3).to("cuda"),
    }
    for name, call in (works | fails).items():
        print(f"{name}: {outcome(call)}")
    assert all(outcome(call) == "cuda:0" for call in works.values())
    assert all("not linked with support for cuda" in outcome(call) for call in fails.values())
PY
venv/bin/python indexing.py
