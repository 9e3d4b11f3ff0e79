"""The operations, a room each: a public function, a reference to read, a PyTorch form, and further backends.

A small one is NAME.py, with its kernels in NAME_triton.py. A large one is a package: its `__init__` has the public
function, its checks and its cost; `reference` the definition; `torch_form` vectorised PyTorch; `triton_ops` the
forward and backward pass on a GPU, with kernels in `triton_forward`, `triton_backward` and `triton_step` (decoding).
"""
