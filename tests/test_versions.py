"""The versions that are admitted, pinned, checked by make, tested and named in the README are the same."""

import re
import tomllib
from pathlib import Path

import matrix
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
README, PAGE = (
    " ".join((ROOT / name).read_text(encoding="utf-8").split())
    for name in ("README.md", "docs/development.md")
)
PYTHONS = [f"3.{minor}" for minor in range(30) if f"3.{minor}" in SpecifierSet(PROJECT["requires-python"])]
RANGES = {r.name: r.specifier for r in map(Requirement, PROJECT["dependencies"])}


def environment(python: str) -> dict[str, str]:
    """What markers are evaluated in."""
    return {"python_version": python, "platform_system": "Linux"}


def pins(python: str) -> dict[str, list[SpecifierSet]]:
    """The pins of constraints.txt that hold on a Python, by package."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found: dict[str, list[SpecifierSet]] = {}
    for pin in (Requirement(line) for line in lines if not line.startswith("#")):
        if pin.marker is None or pin.marker.evaluate(environment(python)):
            found.setdefault(pin.name.lower(), []).append(pin.specifier)
    return found


def pinned(python: str, name: str) -> Version:
    """The one version of a package that `make` sets up on a Python."""
    (specifier,) = pins(python)[name]
    return Version(next(iter(specifier)).version)


def test_python_is_admitted_from_3_11_to_3_14():
    assert PYTHONS == ["3.11", "3.12", "3.13", "3.14"]


@pytest.mark.parametrize("python", PYTHONS)
def test_every_python_has_one_pin_a_package_within_the_admitted_ranges(python):
    held = pins(python)
    assert all(len(specifiers) == 1 for specifiers in held.values())
    for name, admitted in RANGES.items():
        assert pinned(python, name.lower()) in admitted, name


def test_make_and_the_readme_say_which_pythons():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (lowest, above), (said,) = (
        re.findall(r"\(3, (\d+)\) <= v < \(3, (\d+)\)", makefile)[0],
        re.findall(r"Archzoo needs Python ([\d.]+ to [\d.]+)", makefile),
    )
    span = f"{PYTHONS[0]} to {PYTHONS[-1]}"
    assert [f"3.{minor}" for minor in range(int(lowest), int(above))] == PYTHONS
    assert said == span
    assert f"needs Python {span}" in README
    assert f"Python ({span})" in PAGE


def test_the_matrix_covers_what_make_sets_up_and_both_ends():
    torches = sorted(matrix.TRITON_OF, key=Version)
    for python in PYTHONS:
        torch = str(pinned(python, "torch"))
        assert (python, torch) in matrix.PAIRS
        assert matrix.TRITON_OF[torch] == str(pinned(python, "triton"))
    assert (PYTHONS[0], torches[0]) in matrix.PAIRS
    assert (PYTHONS[-1], torches[-1]) in matrix.PAIRS
    for torch, triton in matrix.TRITON_OF.items():
        assert torch in RANGES["torch"]
        assert triton in RANGES["triton"]
    first, last = (".".join(torches[end].split(".")[:2]) for end in (0, -1))
    assert f"torch ({first} to {last})" in PAGE


def test_the_matrix_runs_what_make_test_fast_runs():
    assert f'test-fast: $(PEERS)\n\t$(PY) -m pytest tests $(SPREAD) -m "{matrix.FAST}"\n' in (
        ROOT / "Makefile"
    ).read_text(encoding="utf-8")


def test_a_matrix_without_a_tested_pair_fails(monkeypatch, capsys):
    assert matrix.verdict(["passed: 3 passed in 1s", "not run: no Python 3.14 here"]) == 0
    assert matrix.verdict(["passed: 3 passed in 1s", "FAILED: 1 failed in 1s"]) == 1
    assert matrix.verdict(["not run: no Python 3.14 here"]) == 1
    assert "nothing was tested" in capsys.readouterr().out
    monkeypatch.setattr(matrix, "find_python", lambda version: None)
    assert matrix.attempt("3.14", "2.15.0") == "not run: no Python 3.14 here"


def test_one_pair_of_the_matrix_can_be_named():
    assert matrix.chosen(None) == list(matrix.PAIRS)
    assert matrix.chosen("3.13-2.15.0") == [("3.13", "2.15.0")]
    with pytest.raises(SystemExit, match=r"MATRIX_ONLY=3\.9-1\.0 is none of 3\.11-2\.11\.0, "):
        matrix.chosen("3.9-1.0")
