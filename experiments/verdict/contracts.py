"""The contract tests of one block, run by pytest in a process of their own, and their outcomes as rows."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from experiments.system.paths import ROOT
from zoo import registry
from zoo.errors import UserError

TESTS = ROOT / "tests" / "zoo"
COLUMNS = ("contract", "cases", "failed", "skipped", "case", "reason")


def run_contracts(block: registry.Block) -> list[dict[str, Any]]:
    """A row for every contract (docs/extend.md): its name, cases, how many failed or were skipped; the first failure.

    Defaults and variants of the block, without what is only in make test-long. Raises UserError where pytest or the
    tests are not there, or where none of them is about the block.
    """
    if importlib.util.find_spec("pytest") is None or not TESTS.is_dir():
        raise UserError(
            "the contracts of a block are tests: they need tests/, which a checkout has, and pytest "
            "(pip install -e '.[dev]')"
        )
    with tempfile.TemporaryDirectory() as folder:
        outcome, log = Path(folder) / "outcome.xml", Path(folder) / "log"
        with log.open("w") as out:
            subprocess.run(
                _command(block, outcome), cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, check=False
            )
        if not outcome.is_file():
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise UserError(f"the contract tests of {block.name} did not run: {' '.join(last)}")
        rows = summarise(list(_cases(ElementTree.parse(outcome))))
    if not rows:
        raise UserError(
            f"no contract test is about {block.name}; run pytest {TESTS.relative_to(ROOT)} -k {block.name}"
        )
    return rows


def _command(block: registry.Block, outcome: Path) -> list[str]:
    files = [str(path) for path in sorted(TESTS.glob("test_contract_*.py"))]
    chosen = ["-k", f"{block.kind}-{block.name}", "-m", "not long and not gpu"]
    quiet = ["-q", "--no-header", "-p", "no:cacheprovider", "-o", "junit_family=xunit1"]
    return [sys.executable, "-m", "pytest", *files, *chosen, *quiet, f"--junitxml={outcome}"]


def _cases(tree: ElementTree.ElementTree) -> Iterator[tuple[str, str, str, str]]:
    """Yield of every test the contract's name, its case, "failed", "skipped" or "", and the reason in a line."""
    for element in tree.iter("testcase"):
        name, _, case = element.get("name", "").partition("[")
        for outcome, nodes in (("failed", ("failure", "error")), ("skipped", ("skipped",))):
            node = next((element.find(tag) for tag in nodes if element.find(tag) is not None), None)
            if node is not None:
                lines = (node.get("message") or node.text or "").strip().splitlines()
                yield name, case.removesuffix("]"), outcome, " ".join(lines[:1])
                break
        else:
            yield name, case.removesuffix("]"), "", ""


def summarise(cases: list[tuple[str, str, str, str]]) -> list[dict[str, Any]]:
    """The rows of these cases, in the order of their contracts."""
    rows = []
    for contract in dict.fromkeys(case[0] for case in cases):
        selected = [case for case in cases if case[0] == contract]
        failures = [case for case in selected if case[2] == "failed"]
        first = failures[0] if failures else ("", "", "", "")
        counts = (len(selected), len(failures), sum(case[2] == "skipped" for case in selected))
        name = contract.removeprefix("test_").replace("_", " ")
        rows.append(dict(zip(COLUMNS, (name, *counts, first[1], first[3]), strict=True)))
    return rows
