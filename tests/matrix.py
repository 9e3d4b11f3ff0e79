"""make test-matrix: the fast tests on pairs of Python and torch that can be had here; why not, of the others.

Can be had: the interpreter is installed, and the package index offers a build of torch for it without CUDA packages
(set MATRIX_CUDA=1 to take several gigabytes of those too). MATRIX_ONLY=3.13-2.15.0 runs one pair.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAST = "not slow and not long and not gpu and not browser"
"""What `make test-fast` runs."""

TRITON_OF = {"2.11.0": "3.6.0", "2.12.1": "3.7.1", "2.13.0": "3.7.1", "2.14.1": "3.8.0", "2.15.0": "3.9.0"}
"""torch -> the triton that its CUDA builds ask for; builds without CUDA ask for none, and would get the newest."""
PAIRS = (
    *(("3.11", torch) for torch in TRITON_OF),
    *(("3.12", torch) for torch in ("2.13.0", "2.15.0")),
    *(("3.13", torch) for torch in ("2.11.0", "2.15.0")),
    ("3.14", "2.15.0"),
)
"""What is run: the oldest pair and the newest, every torch on the oldest Python, what `make` sets up on each Python."""


def main() -> int:
    """Run the pairs; returns 1 if any of those that could be had failed, or none could."""
    results = {(py, torch): attempt(py, torch) for py, torch in chosen(os.environ.get("MATRIX_ONLY"))}
    print("\nPython  torch   result")
    for (py, torch), outcome in results.items():
        print(f"{py:<7} {torch:<7} {outcome}")
    return verdict(list(results.values()))


def chosen(only: str | None) -> list[tuple[str, str]]:
    """The pairs to run: all, or the one that `only` names as PYTHON-TORCH."""
    pairs = [pair for pair in PAIRS if only in (None, "", "-".join(pair))]
    if not pairs:
        sys.exit(f"MATRIX_ONLY={only} is none of {', '.join('-'.join(pair) for pair in PAIRS)}")
    return pairs


def verdict(outcomes: list[str]) -> int:
    """The exit status: 0 if some pair passed and none failed."""
    if any(outcome.startswith("FAILED") for outcome in outcomes):
        return 1
    if not any(outcome.startswith("passed") for outcome in outcomes):
        print("error: no pair could be run, so nothing was tested")
        return 1
    return 0


def attempt(py: str, torch: str) -> str:
    """Set up one pair and run the fast tests in it; a word on the outcome."""
    interpreter = find_python(py)
    if interpreter is None:
        return f"not run: no Python {py} here"
    home = ROOT / ".matrix" / f"{py}-{torch}"
    python = home / "bin" / "python"
    new = not python.exists()
    if new:
        subprocess.run([interpreter, "-m", "venv", home], check=True)
    reason = why_not(python, torch)
    if reason:
        if new:
            shutil.rmtree(home)
        return f"not run: {reason}"
    print(f"== Python {py}, torch {torch}", flush=True)
    # Exact pins hold for one torch; others take what the ranges in pyproject.toml admit.
    exact = [f"torch=={torch}", f"triton=={TRITON_OF[torch]}; platform_system == 'Linux'"]
    # Triton 3.6's interpreter fails with newer ones: findings/triton_interpreter_loop_bound.sh.
    exact += ["numpy<2.4"] if TRITON_OF[torch].startswith("3.6.") else []
    install = [python, "-m", "pip", "install", "-q", *exact, "-e", f"{ROOT}[dev]"]
    if subprocess.run(install, cwd=ROOT).returncode:
        return "FAILED to install"
    return tested(python)


def tested(python: Path) -> str:
    """Run the fast tests with this interpreter: "passed" or "FAILED", and pytest's count of them."""
    fast = [python, "-m", "pytest", "tests", "-m", FAST]
    last = ""
    with subprocess.Popen(fast, cwd=ROOT, stdout=subprocess.PIPE, text=True, errors="replace") as run:
        for line in run.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    return f"{'FAILED' if run.returncode else 'passed'}: {last}"


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
    # Installed or not: what an earlier run has set up would leave nothing to plan.
    plan = ["-m", "pip", "install", "-q", "--dry-run", "--no-deps", "--ignore-installed", "--report", "-"]
    done = subprocess.run([python, *plan, f"torch=={torch}"], capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["pip says nothing"]
        return f"no torch {torch} for this Python: {said[-1]}"
    needs = json.loads(done.stdout)["install"][0]["metadata"].get("requires_dist", [])
    with_cuda = sys.platform == "linux" and any(need.startswith(("nvidia-", "cuda-")) for need in needs)
    if with_cuda and not os.environ.get("MATRIX_CUDA"):
        return "only with several gigabytes of CUDA packages (MATRIX_CUDA=1 takes them)"
    return None


if __name__ == "__main__":
    sys.exit(main())
