#!/usr/bin/env bash
# Guess:      A function whose backward is marked @once_differentiable refuses to be differentiated twice.
# Seen with:  torch 2.13.0
# Behaviour:  It refuses only where the arriving gradient needs one and backward() is called. After out.sum()
#             the gradient is a constant, torch.autograd.grad with inputs goes around the node that raises,
#             and autograd.functional.hessian fills what it does not find with zeros: wrong second
#             derivatives, without a word.
# Output:     at 2, of x⁶ and the square of its gradient: backward() raises, autograd.grad with inputs gives 192
#             (right: 184512); of x³ and the square of its gradient: backward() gives 12 (right: 300); hessian of
#             x³: 0 (right: 12)
# Matters:    Fused kernels that have no second derivative would let a gradient penalty train on half of its
#             gradient: ours refuse by a way of their own.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --disable-pip-version-check -q torch==2.13.0 numpy==2.4.6
export OMP_NUM_THREADS=1

cat > twice.py <<'PY'
import torch
from torch.autograd.function import once_differentiable


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x**2


def penalised(cube, loss):
    """A loss of x³ at 2 and the square of its gradient, and x."""
    x = torch.tensor(2.0, requires_grad=True)
    y = loss(cube(x))
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    return y + gradient.square(), x


def by_backward(cube, loss):
    y, x = penalised(cube, loss)
    y.backward()
    return x.grad.item()


def by_inputs(cube, loss):
    y, x = penalised(cube, loss)
    return torch.autograd.grad(y, x)[0].item()


def cubed(x):
    return x**3


try:
    by_backward(Cube.apply, torch.square)
    raise SystemExit("backward() did not refuse")
except RuntimeError as error:
    print("backward() after a square:", error)
    assert "once_differentiable" in str(error)
for ask, loss in ((by_inputs, torch.square), (by_backward, torch.sum)):
    found, right = ask(Cube.apply, loss), ask(cubed, loss)
    print(f"{ask.__name__} after {loss.__name__}: {found}, right: {right}")
    assert abs(found) < abs(right) / 10
found, right = (torch.autograd.functional.hessian(f, torch.tensor(2.0)).item() for f in (Cube.apply, cubed))
print(f"hessian: {found}, right: {right}")
assert (found, right) == (0, 12)
PY
venv/bin/python twice.py
