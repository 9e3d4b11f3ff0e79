"""make test-matrix: the fast tests on every supported Python and torch that can be had here; the others are named.

Can be had: the interpreter is installed, and the package index offers a build of torch for it without CUDA packages
(set MATRIX_CUDA=1 to take several gigabytes of those too).
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12")
TORCHES = ("2.11.0", "2.12.0", "2.13.0")


def main() -> int:
    """Run all combinations; returns 1 if any of those that could be had failed."""
    results = {(py, torch): attempt(py, torch) for py in PYTHONS for torch in TORCHES}
    print("\nPython  torch   result")
    for (py, torch), outcome in results.items():
        print(f"{py:<7} {torch:<7} {outcome}")
    return int(any(outcome.startswith("FAILED") for outcome in results.values()))


def attempt(py: str, torch: str) -> str:
    """Set up one combination and run the fast tests in it; a word on the outcome."""
    interpreter = find_python(py)
    if interpreter is None:
        return f"not run: no Python {py} here"
    home = ROOT / ".matrix" / f"{py}-{torch}"
    python = home / "bin" / "python"
    if not python.exists():
        subprocess.run([interpreter, "-m", "venv", home], check=True)
    reason = why_not(python, torch)
    if reason:
        shutil.rmtree(home)
        return f"not run: {reason}"
    print(f"== Python {py}, torch {torch}", flush=True)
    # Exact pins hold for one torch; others take what the ranges in pyproject.toml admit.
    install = [python, "-m", "pip", "install", "-q", f"torch=={torch}", "-e", f"{ROOT}[dev]"]
    if subprocess.run(install, cwd=ROOT).returncode:
        return "FAILED to install"
    fast = [python, "-m", "pytest", "tests", "-m", "not slow and not gpu and not browser"]
    return "passed" if subprocess.run(fast, cwd=ROOT).returncode == 0 else "FAILED"


def find_python(version: str) -> str | None:
    """An interpreter of that version that starts (a version manager's stand-in may not)."""
    candidates = [f"python{version}", *sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
    for name in candidates:
        if shutil.which(str(name)) is None:
            continue
        done = subprocess.run(
            [name, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True
        )
        if done.returncode == 0 and done.stdout.decode().strip() == version:
            return str(name)
    return None


def why_not(python: Path, torch: str) -> str | None:
    """Why this torch cannot be had for this interpreter, from pip's own plan; None if it can."""
    plan = [
        python,
        "-m",
        "pip",
        "install",
        "-q",
        "--dry-run",
        "--no-deps",
        "--report",
        "-",
        f"torch=={torch}",
    ]
    done = subprocess.run(plan, capture_output=True, text=True)
    if done.returncode:
        return f"the package index has no torch {torch} for this Python"
    needs = json.loads(done.stdout)["install"][0]["metadata"].get("requires_dist", [])
    with_cuda = any(need.startswith(("nvidia-", "cuda-")) for need in needs)
    if with_cuda and not os.environ.get("MATRIX_CUDA"):
        return "only with several gigabytes of CUDA packages (MATRIX_CUDA=1 takes them)"
    return None


if __name__ == "__main__":
    sys.exit(main())
