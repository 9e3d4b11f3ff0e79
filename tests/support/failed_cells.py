"""The row that a cell of a bench leaves where its model fails."""

from collections.abc import Callable
from typing import Any

import pytest

from experiments.bench.result_table import Crashed


def row_of_failure(measure: Callable[[], list[dict[str, Any]]], words: str, *, ends: bool) -> dict[str, Any]:
    """The row of the transformer whose error has these words; ends: it breaks the GPU, and ends the suite."""
    if ends:
        with pytest.raises(Crashed, match=f"transformer: {words}") as crash:
            measure()
        (row,) = crash.value.rows
    else:
        (row,) = measure()
    assert row["note"] == f"RuntimeError: {words}"
    return row
