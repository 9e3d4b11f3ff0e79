#!/usr/bin/env bash
# Guess:      A package is there if importlib finds its name, and flash-attn-4 brings the functions of flash-attn 2.
# Seen with:  flash-attn-4 4.0.0b36, without its dependencies
# Behaviour:  It installs a folder flash_attn with cute/ in it and no __init__.py. importlib finds that folder as a
#             package without a file of its own, and nothing can be imported from it.
# Output:     found: True, a file: None, flash_attn_func: ImportError
# Matters:    "Installed" has to be asked of the function that is to be called, by importing it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --disable-pip-version-check -q --no-deps flash-attn-4==4.0.0b36

cat > find.py <<'PY'
import importlib.util

spec = importlib.util.find_spec("flash_attn")
assert spec is not None
try:
    from flash_attn import flash_attn_func  # noqa: F401
except ImportError as error:
    told = type(error).__name__
else:
    told = "imported"
print(f"found: {spec is not None}, a file: {spec.origin}, flash_attn_func: {told}")
assert spec.origin is None
assert importlib.util.find_spec("flash_attn.cute") is not None
assert told == "ImportError"
PY
venv/bin/python find.py
