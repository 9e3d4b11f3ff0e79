#!/usr/bin/env bash
# Guess:      A function with cache=True computes the same bits in the process that compiles it and in those
#             that load it.
# Seen with:  numba 0.68.1 (llvmlite 0.50.0), numpy 2.4.6
# Behaviour:  The sums of a fastmath function that another one calls differ in the last digits. A caller's
#             machine code brings a copy of what it calls, optimised together with it; in the process that
#             compiles, the linker prefers the callee's own code, which was compiled alone. With
#             forceinline=True no call is left to link.
# Output:     plain: compiled cca5b20d, loaded 09bb6808; forceinline: compiled 09bb6808, loaded 09bb6808
#             (digests of the results; other processors have others)
# Matters:    The first run on a machine had other weights than every later run of the same configuration.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --disable-pip-version-check -q numba==0.68.1 numpy==2.4.6
export OMP_NUM_THREADS=1

cat > attention.py <<'PY'
import hashlib, sys
import numpy as np
from numba import njit

options = {"cache": True, "fastmath": True, "forceinline": "forceinline" in sys.argv}


@njit(**options)
def attend(q, k, v, out):
    weights = np.empty(k.shape[0], np.float32)
    for j in range(k.shape[0]):
        score = np.float32(0)
        for d in range(q.size):
            score += q[d] * k[j, d]
        weights[j] = score
    highest = weights[0]
    for j in range(weights.size):
        highest = max(highest, weights[j])
    total = np.float32(0)
    for j in range(weights.size):
        weights[j] = np.exp(weights[j] - highest)
        total += weights[j]
    for j in range(weights.size):
        for d in range(out.size):
            out[d] += weights[j] / total * v[j, d]


@njit(**options)
def attend_to_both(q, k, v, w, out):
    for t in range(q.shape[0]):
        attend(q[t], k, v, out[t])
        attend(q[t], w, v, out[t])


q, k, v, w = np.random.default_rng(0).standard_normal((4, 200, 24), dtype=np.float32)
out = np.zeros_like(q)
attend_to_both(q, k, v, w, out)
loaded = sum(attend_to_both.stats.cache_hits.values())
assert loaded == ("loaded" in sys.argv), loaded
print(hashlib.sha256(out).hexdigest()[:8])
PY

for way in plain forceinline; do
  export NUMBA_CACHE_DIR="$folder/cache-$way"
  compiled=$(venv/bin/python attention.py "$way")
  again=$(venv/bin/python attention.py "$way" loaded)
  echo "$way: compiled $compiled, loaded $again"
  if [ "$way" = plain ]; then [ "$compiled" != "$again" ]; else [ "$compiled" = "$again" ]; fi
done
