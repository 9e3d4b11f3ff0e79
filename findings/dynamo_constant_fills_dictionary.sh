#!/usr/bin/env bash
# Guess:      A function under torch.compiler.assume_constant_result runs while a graph is traced, so that what it puts
#             into a dictionary can be read in the next line.
# Seen with:  torch 2.13.0
# Behaviour:  It runs, and the key is there for Python. The tracer sees it in a dictionary that it had not read before in
#             this trace; in one that it had, the key is missing and the compiled function raises. Uncompiled, both work.
# Output:     one dictionary a name: 3.0; one for all names: KeyError('double'), of a key that the dictionary then has
# Matters:    A registry filled at first use works under fullgraph=True for the first entry of a model and fails for the
#             second. Ours has a dictionary an entry.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --disable-pip-version-check -q torch==2.13.0 numpy==2.4.6
export OMP_NUM_THREADS=1

cat > registry.py <<'PY'
import torch

WORK = {"double": lambda x: 2 * x, "add": lambda x: x + 1}
shared = {}
apart = {name: {} for name in WORK}


@torch.compiler.assume_constant_result
def load(name):
    shared[name] = apart[name]["run"] = WORK[name]


def by_shared(x):
    load("add")
    x = shared["add"](x)
    load("double")
    return shared["double"](x) - 1


def by_apart(x):
    load("add")
    x = apart["add"]["run"](x)
    load("double")
    return apart["double"]["run"](x) - 1


def outcome(function) -> str:
    shared.clear()
    for entry in apart.values():
        entry.clear()
    try:
        return str(torch.compile(function, fullgraph=True, backend="eager")(torch.ones(())).item())
    except Exception as error:
        return str(error)


assert by_shared(torch.ones(())).item() == by_apart(torch.ones(())).item() == 3.0
separate, common = outcome(by_apart), outcome(by_shared)
print(f"one dictionary a name: {separate}")
print(f"one for all names: {next(line.strip() for line in common.splitlines() if 'KeyError' in line)}")
assert separate == "3.0"
assert "KeyError('double')" in common
assert "double" in shared
PY
venv/bin/python registry.py
