"""How near the suite's numbers come to its limits: `pytest tests --margins`.

Every comparison made by `torch.testing.assert_close`, `torch.allclose`, `numpy.testing.assert_allclose`,
`math.isclose`, `pytest.approx`, and by `below` and `above` below, is recorded as error / limit, the largest of each
(test function, line), and printed worst first.

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

import functools
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

ROOM = 0.25  # the wanted error / limit
SHOWN = 30  # rows printed
TESTS = Path(__file__).parents[1]

_rows: dict[tuple[str, str], dict] = {}
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


def record(ratio: float, name: str = "") -> None:
    """Keeps the worst ratio of the line of the test module that is being executed."""
    if not _recording:
        return
    test, _, case = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0].partition("[")
    case = " ".join(x for x in ("[" + case if case else "", name) if x)
    _keep({"ratio": ratio, "limit_at": _place(), "test": test, "case": case})


def _keep(row: dict) -> None:
    known = _rows.setdefault((row["limit_at"], row["test"]), row)
    if not row["ratio"] <= known["ratio"]:
        known.update(row)


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


def _watch() -> None:
    global _recording
    _recording = True
    torch.testing.assert_close = _watched(torch.testing.assert_close, None, None)
    torch.allclose = _watched(torch.allclose, 1e-5, 1e-8)
    np.allclose = _watched(np.allclose, 1e-5, 1e-8)
    np.testing.assert_allclose = _watched(np.testing.assert_allclose, 1e-7, 0.0)
    math.isclose = _watched(math.isclose, 1e-9, 0.0)
    _watch_approx()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--margins", action="store_true", help="print the worst error over each numerical limit")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("margins"):
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
    narrow = sum(row["ratio"] > ROOM for row in rows)
    terminalreporter.section("error / limit, worst first")
    terminalreporter.line(f"{len(rows)} limits, {narrow} with less than {1 / ROOM:.0f} times of room")
    for row in rows[:SHOWN]:
        name = row["test"].rpartition("::")[2]
        terminalreporter.line(f"{row['ratio']:9.2g}  {row['limit_at']}  {name}{row['case']}")
