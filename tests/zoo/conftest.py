"""A block whose file cannot be imported has no tests that could fail: pytest says so at once and runs none."""

import pytest
from support.published import plain_kimi  # noqa: F401  a fixture

import zoo.probes  # noqa: F401 (imports every block and every measure)
from zoo.registry import left_out

if left_out():
    pytest.exit("; ".join(left_out()), returncode=pytest.ExitCode.USAGE_ERROR)
