"""What takes long and every test process wants: computed by one of them."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from filelock import FileLock


def once(factory: pytest.TempPathFactory, name: str, compute: Callable[[], Any]) -> Any:
    """compute(), tensors and plain values, by the first process of this run of the tests that asks for `name`."""
    base = factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"{name}.pt"
    with FileLock(f"{place}.lock"):
        if not place.is_file():
            found = compute()
            torch.save(found, place)
        return torch.load(place, weights_only=True)
