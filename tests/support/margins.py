"""How near the suite's numbers come to its limits: `pytest tests --margins` or `--margins=FILE`.

Every comparison made by `torch.testing.assert_close`, `torch.allclose`, `numpy.testing.assert_allclose`,
`math.isclose`, `pytest.approx`, and by `below` and `above` below, is recorded as error / limit, the largest of each
(test function, line). The table is printed worst first; FILE (CSV) holds all of it. Some such files become one
Markdown table: `python tests/support/margins.py default=a.csv avx2=b.csv`.

How to choose a limit
  1. Say what is promised. Equal bits follow from the same code on the same shapes in the same order, and from
     nothing else: BLAS rounds by the place in a tile, so another batch, slice, padding or column rounds otherwise.
  2. Take it from arithmetic: units of rounding (1.1e-16, 6e-8, 4.9e-4, 3.9e-3 in fp64, fp32, fp16, bf16) times what the
     case makes of them (the length of its sums, its condition), or from the error of a plain PyTorch form in the same
     dtype on the same machine times a stated factor. Never from what one machine gave.
  3. Leave room: error / limit at most 1/4 (`ROOM`), on every processor that one can imitate:
     ATEN_CPU_CAPABILITY=default and avx2 (PyTorch's own loops), MKL_CBWR=COMPATIBLE and AVX2 (its BLAS),
     OPENBLAS_CORETYPE=Haswell (NumPy's, with which Triton's interpreter multiplies), ARCHZOO_TEST_THREADS=2.
  4. A wrong formula still has to show: where that is not plain, the test says how large a real mistake is.
     `above` is for the other side, and wants the same room.
  5. Bounds on what no processor changes (counts, bytes, FLOPs, statistics of draws under a fixed seed), and on losses
     after training, are plain asserts and not in the table.
  6. If no limit does both, better condition the case, or better the code.
"""

from __future__ import annotations

import csv
import functools
import math
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

ROOM = 0.25  # the wanted error / limit
SHOWN = 30  # rows printed
TESTS = Path(__file__).parents[1]
FIELDS = ("ratio", "limit_at", "test", "case", "kind", "times")

_rows: dict[tuple[str, str, str], dict] = {}
_recording = False

# What torch.testing.assert_close allows where nothing is said (its documentation): rtol, atol.
_DEFAULTS = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
}


def below(error: float | Tensor, limit: float, name: str = "") -> None:
    """Fails unless error < limit (error = limit = 0 holds); recorded as error / limit. name: what is compared."""
    error, limit = _number(error), _number(limit)
    record(_ratio(error, limit), name)
    assert error < limit or error == limit == 0, f"{name or 'error'}: {error:.3e}, limit {limit:.1e}"


def above(value: float | Tensor, least: float, name: str = "") -> None:
    """Fails unless value > least, of what has to show; recorded as least / value."""
    value, least = _number(value), _number(least)
    record(_ratio(least, value), name)
    assert value > least, f"{name or 'value'}: {value:.3e}, not above {least:.1e}"


def _number(x: float | Tensor) -> float:
    return x.item() if isinstance(x, Tensor) else float(x)


def record(ratio: float, name: str = "", kind: str = "limit") -> None:
    """Keeps the worst ratio of the line of the test module that is being executed."""
    if not _recording:
        return
    test, _, case = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0].partition("[")
    case = " ".join(x for x in ("[" + case if case else "", name) if x)
    row = {"ratio": ratio, "limit_at": _place(), "test": test, "case": case, "kind": kind, "times": 1}
    _keep(row)


def _keep(row: dict) -> None:
    key = row["limit_at"], row["test"], row["kind"]
    if (known := _rows.get(key)) is None:
        _rows[key] = row
        return
    times = known["times"] + row["times"]
    if not row["ratio"] <= known["ratio"]:
        known.update(row)
    known["times"] = times


def _place() -> str:
    """File and line of the nearest caller in a test module."""
    frame = sys._getframe(2)
    while frame and not Path(frame.f_code.co_filename).name.startswith("test_"):
        frame = frame.f_back
    if frame is None:
        return "?"
    path = Path(frame.f_code.co_filename)
    return f"{path.relative_to(TESTS) if path.is_relative_to(TESTS) else path.name}:{frame.f_lineno}"


def _ratio(error: float, limit: float) -> float:
    return 0.0 if error == 0 else error / limit if limit > 0 else math.inf


def _worst(actual: object, expected: object, rtol: float | None, atol: float | None) -> float:
    """The largest |actual − expected| / (atol + rtol·|expected|), of tensors, arrays, numbers and nests of them."""
    worst = 0.0
    if any(hasattr(x, "__array__") and not isinstance(x, Tensor) for x in (actual, expected)):  # pandas' too
        actual, expected = (np.array(x, dtype=np.float64) for x in (actual, expected))
    for a, b in zip(tree_leaves(actual), tree_leaves(expected), strict=False):
        if not isinstance(a, Tensor | np.ndarray | float) and not isinstance(b, Tensor | np.ndarray | float):
            continue
        a, b = torch.as_tensor(a).detach(), torch.as_tensor(b).detach()
        least = [max(pair) for pair in zip(*(_DEFAULTS.get(x.dtype, (0, 0)) for x in (a, b)), strict=True)]
        relative, absolute = least if rtol is None else (rtol, atol)
        a, b = a.cpu().double(), b.cpu().double()
        error = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs())
        ratio = torch.where(error == 0, 0.0, error / (absolute + relative * b.abs()))
        worst = max(worst, float(ratio.max()) if ratio.numel() else 0.0)
    return worst


def _met(ratio: float, equal: bool) -> float:
    """A comparison that came out unequal in a test that passed was meant to: its room is on the other side."""
    return ratio if equal else _ratio(1.0, ratio)


def _watched(function: Callable, rtol: float | None, atol: float | None) -> Callable:
    """`function(a, b, ...)` with its comparison recorded; rtol and atol are its defaults."""

    @functools.wraps(function)
    def compare(a, b, *rest, **options):
        caller = Path(sys._getframe(1).f_code.co_filename)
        if not (caller.is_relative_to(TESTS) or caller.name.startswith("test_")):
            return function(a, b, *rest, **options)  # a library compares, not a test
        given = dict(zip(("rtol", "atol"), rest, strict=False)) | options
        one = "rel_tol" in given
        limits = (given["rel_tol"], 0.0) if one else (given.get("rtol", rtol), given.get("atol", atol))
        try:
            result = function(a, b, *rest, **options)
        except AssertionError:
            record(_worst(a, b, *limits))
            raise
        record(_met(_worst(a, b, *limits), result is not False))
        return result

    return compare


def _watch_approx() -> None:
    scalar = type(pytest.approx(1.0))  # of sequences, mappings and arrays too, every number is one of these
    equals = scalar.__eq__

    def compare(self, actual):
        result = equals(self, actual)
        if isinstance(actual, int | float | np.number) and isinstance(self.expected, int | float | np.number):
            ratio = _ratio(abs(float(actual) - float(self.expected)), float(self.tolerance))
            record(_met(ratio, bool(result)))
        return result

    scalar.__eq__, scalar.__hash__ = compare, scalar.__hash__


def _watch_bits() -> None:
    equal = torch.equal

    def compare(a, b):
        if a.is_floating_point():
            record(0.0, kind="equal bits")
        return equal(a, b)

    torch.equal = compare


def _watch() -> None:
    global _recording
    _recording = True
    torch.testing.assert_close = _watched(torch.testing.assert_close, None, None)
    torch.allclose = _watched(torch.allclose, 1e-5, 1e-8)
    np.allclose = _watched(np.allclose, 1e-5, 1e-8)
    np.testing.assert_allclose = _watched(np.testing.assert_allclose, 1e-7, 0.0)
    math.isclose = _watched(math.isclose, 1e-9, 0.0)
    _watch_approx()
    _watch_bits()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--margins",
        nargs="?",
        const="",
        metavar="FILE",
        help="print the worst error over each numerical limit; FILE: all of them, as CSV",
    )


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("margins")
    if file is not None:
        # A path of tests that follows --margins would be taken for the file, and overwritten.
        if file and Path(file.partition("::")[0]).suffix != ".csv":
            raise pytest.UsageError(
                f"--margins={file}: the table goes into a *.csv; tests come before --margins"
            )
        _watch()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # a worker of xdist hands its rows to the process that prints
        session.config.workeroutput["margins"] = list(_rows.values())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    for row in getattr(node, "workeroutput", {}).get("margins", ()):
        _keep(row)


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    if not _recording:
        return
    rows = sorted(_rows.values(), key=lambda row: -row["ratio"])
    limits = [row for row in rows if row["kind"] == "limit"]
    narrow = sum(row["ratio"] > ROOM for row in limits)
    terminalreporter.section("error / limit, worst first")
    terminalreporter.line(f"{len(limits)} limits, {narrow} with less than {1 / ROOM:.0f} times of room")
    for row in limits[:SHOWN]:
        name = row["test"].rpartition("::")[2]
        terminalreporter.line(f"{row['ratio']:9.2g}  {row['limit_at']}  {name}{row['case']}")
    if path := config.getoption("margins"):
        with Path(path).open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(rows)


def markdown(files: Iterable[str], shown: int = SHOWN) -> str:
    """One table of several files given as NAME=FILE: a row a limit, a column a file, worst first."""
    columns, table = [], {}
    for text in files:
        column, _, path = text.partition("=")
        columns.append(column)
        with Path(path).open(newline="") as file:
            for row in csv.DictReader(file):
                if row["kind"] == "limit":
                    name = row["test"].rpartition("::")[2]
                    table.setdefault((row["limit_at"], name), {})[column] = float(row["ratio"])
    ranked = sorted(table.items(), key=lambda item: -max(item[1].values()))
    lines = [
        f"| limit at | test | {' | '.join(columns)} |",
        "|---|---|" + "---:|" * len(columns),
    ]
    for (place, name), ratios in ranked[:shown]:
        cells = (f"{ratios[c]:.2g}" if c in ratios else "–" for c in columns)
        lines.append(f"| `{place}` | `{name}` | {' | '.join(cells)} |")
    largest = (f"{max(ratios.get(c, 0.0) for ratios in table.values()):.2g}" for c in columns)
    return "\n".join([*lines, f"| worst of {len(table)} limits | | {' | '.join(largest)} |"])


if __name__ == "__main__":
    print(markdown(sys.argv[1:]))
