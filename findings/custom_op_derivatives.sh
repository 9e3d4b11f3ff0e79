#!/usr/bin/env bash
# Guess:      Forward mode through a torch.library.custom_op that has a backward only is refused, as it is
#             through an autograd.Function; and inside of one autograd works as elsewhere, with grad mode on.
# Seen with:  torch 2.13.0
# Behaviour:  torch.func.jvp and jacfwd give zeros, and a dual number loses its tangent, without a word.
#             (Where the input also requires grad, it is refused.) Inside of a custom_op, autograd records
#             nothing even under enable_grad; torch.func.grad works there.
# Output:     jvp of x³ at 2: 0 (right: 12); jacfwd 0; tangent None; inside: requires_grad False,
#             torch.func.grad 12
# Matters:    Kernels are such operators: forward mode through a model would give zeros for a whole layer.
#             Ours refuse it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --disable-pip-version-check -q torch==2.13.0 numpy==2.4.6
export OMP_NUM_THREADS=1

cat > derivatives.py <<'PY'
import torch
import torch.autograd.forward_ad as forward_mode
from torch import Tensor


@torch.library.custom_op("findings::cube", mutates_args=())
def cube(x: Tensor) -> Tensor:
    return x**3


@cube.register_fake
def _(x):
    return torch.empty_like(x)


cube.register_autograd(
    lambda ctx, grad: grad * 3 * ctx.saved_tensors[0] ** 2,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
x, one = torch.tensor(2.0), torch.tensor(1.0)
leaf = x.clone().requires_grad_()
cube(leaf).backward()
assert leaf.grad == 12

value, tangent = torch.func.jvp(cube, (x,), (one,))
print(f"jvp: {tangent.item()}, right: {torch.func.jvp(lambda x: x**3, (x,), (one,))[1].item()}")
assert (value, tangent) == (8, 0)
print("jacfwd:", torch.func.jacfwd(cube)(x).item())
assert torch.func.jacfwd(cube)(x) == 0
with forward_mode.dual_level():
    tangent = forward_mode.unpack_dual(cube(forward_mode.make_dual(x, one))).tangent
print("tangent of a dual number:", tangent)
assert tangent is None
with forward_mode.dual_level():
    try:
        cube(forward_mode.make_dual(leaf, one))
        raise SystemExit("an input that requires grad was not refused")
    except NotImplementedError as error:
        print("where the input requires grad:", error)

seen = {}


@torch.library.custom_op("findings::slope", mutates_args=())
def slope(x: Tensor) -> Tensor:
    with torch.enable_grad():
        seen["recorded"] = (x.detach().clone().requires_grad_() ** 3).requires_grad
    return torch.func.grad(lambda x: x**3)(x)


found = slope(x)
print(f"inside: requires_grad {seen['recorded']}, torch.func.grad {found.item()}")
assert seen["recorded"] is False
assert found == 12
PY
venv/bin/python derivatives.py
