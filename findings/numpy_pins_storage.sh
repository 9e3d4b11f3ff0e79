#!/usr/bin/env bash
# Guess:      An array from Tensor.numpy() holds the tensor's memory as long as the array lives, and no
#             longer.
# Seen with:  torch 2.13.0, numpy 2.4.6
# Behaviour:  It makes the storage one that cannot be resized, for good: also when the array is gone.
#             numpy.asarray does so too; numpy.from_dlpack does not.
# Output:     numpy(): Trying to resize storage that is not resizable; asarray: the same; from_dlpack: 0 bytes
#             left
# Matters:    FSDP gives gathered parameters back by resizing their storage to nothing: training ended in that
#             error after a kernel had looked at a parameter as an array.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --disable-pip-version-check -q torch==2.13.0 numpy==2.4.6
export OMP_NUM_THREADS=1

cat > views.py <<'PY'
import numpy as np
import torch

for name, view in (("numpy()", torch.Tensor.numpy), ("asarray", np.asarray), ("from_dlpack", np.from_dlpack)):
    x = torch.ones(4)
    array = view(x)
    assert array.sum() == 4
    del array
    storage = x.untyped_storage()
    assert storage.resizable() == (name == "from_dlpack")
    try:
        storage.resize_(0)
        print(f"{name}: {storage.nbytes()} bytes left")
        assert name == "from_dlpack"
    except RuntimeError as error:
        print(f"{name}: {error}")
        assert name != "from_dlpack"
        assert "not resizable" in str(error)
PY
venv/bin/python views.py
