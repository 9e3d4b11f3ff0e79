#!/usr/bin/env bash
# Guess:      Annotations of a DDP communication hook do nothing: a correctly annotated one registers from any module.
# Seen with:  torch 2.13.0
# Behaviour:  register_comm_hook compares annotations with classes by identity. A correctly annotated hook is refused if
#             its module has `from __future__ import annotations`, which makes strings of them; without the import, or
#             without annotations, the same hook registers.
# Output:     plain: registered; bare: registered; postponed: ValueError, "bucket annotation should be
#             dist.GradBucket"
# Matters:    Moving a hook into a module with that import, as tidying tools do, stops data-parallel training at its
#             start. Ours stands in a module without it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --disable-pip-version-check -q torch==2.13.0 numpy==2.4.6
export OMP_NUM_THREADS=1

cat > plain.py <<'PY'
import torch
import torch.distributed as dist


def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])
PY
{ echo "from __future__ import annotations"; cat plain.py; } > postponed.py
sed 's/(state.*:/(state, bucket):/' plain.py > bare.py
cat > register.py <<'PY'
import importlib
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meeting", rank=0, world_size=1)


def outcome(module: str) -> str:
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    try:
        model.register_comm_hook(None, importlib.import_module(module).hook)
    except ValueError as error:
        return f"ValueError: {error}"
    model(torch.ones(1, 2)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    return "registered"


found = {module: outcome(module) for module in ("plain", "bare", "postponed")}
for module, said in found.items():
    print(f"{module}: {said}")
assert found["plain"] == found["bare"] == "registered"
assert "bucket annotation should be dist.GradBucket" in found["postponed"]
dist.destroy_process_group()
PY
venv/bin/python register.py
