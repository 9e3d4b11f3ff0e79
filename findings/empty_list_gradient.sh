#!/usr/bin/env bash
# Guess:      The backward of a custom operator returns None for an argument that is a list of integers.
# Seen with:  torch 2.13.0
# Behaviour:  It does for a list with numbers in it. Where the operator takes a list of tensors too, an empty list of
#             integers passes for another one and has to get an empty list; None raises. So one operator needs two
#             answers for one argument, by what a call gives it.
# Output:     [3], None: gradient 2; [], None: RuntimeError, "same structure as the inputs"; [], []: gradient 2
# Matters:    An operator with optional sizes trains in every test that gives one and fails in the first call without.
#             Ours answer by what they were given.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --disable-pip-version-check -q torch==2.13.0 numpy==2.4.6
export OMP_NUM_THREADS=1

cat > lists.py <<'PY'
import torch
from torch import Tensor

answers = {"numbers": None}


@torch.library.custom_op("lists::twice", mutates_args=())
def twice(xs: list[Tensor], numbers: list[int]) -> Tensor:
    return 2 * xs[0]


twice.register_autograd(lambda ctx, gradient: ([2 * gradient], answers["numbers"]))


def outcome(numbers: list[int], answer: list | None) -> str:
    answers["numbers"] = answer
    x = torch.ones((), requires_grad=True)
    try:
        twice([x], numbers).backward()
    except RuntimeError as error:
        return f"RuntimeError: {error}"
    return f"gradient {x.grad.item():g}"


found = {
    "[3], None": outcome([3], None),
    "[], None": outcome([], None),
    "[], []": outcome([], []),
}
for case, said in found.items():
    print(f"{case}: {said[:120]}")
assert found["[3], None"] == found["[], []"] == "gradient 2"
assert "same structure as the inputs" in found["[], None"]
PY
venv/bin/python lists.py
