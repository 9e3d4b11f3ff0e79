"""Under Triton's interpreter kernels may touch their own tensors only; a GPU needs no interpreter."""

import torch

if not torch.cuda.is_available():
    from support.bounds import kernels_stay_in_their_tensors  # noqa: F401
