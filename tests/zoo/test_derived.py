"""Derived tensors: computed once, and anew after every kind of change."""

import copy

import pytest
import torch
from torch import nn

from zoo.modules.layers import Derived


class Doubled(nn.Linear):
    """A layer that keeps twice its weight, and counts how often it was computed."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.derived, self.computed = Derived(), 0

    def compute(self) -> torch.Tensor:
        self.computed += 1
        return 2 * self.weight

    def twice(self) -> torch.Tensor:
        return self.derived(self.compute, self.weight)


@torch.no_grad()
def test_it_is_computed_once():
    layer = Doubled()
    assert layer.twice() is layer.twice()
    assert layer.computed == 1


def replaced_storage(layer):
    layer.weight.data = layer.weight.data + 1


def loaded(layer):
    layer.load_state_dict({name: x + 1 for name, x in layer.state_dict().items()})


def assigned(layer):
    layer.load_state_dict({name: x + 1 for name, x in layer.state_dict().items()}, assign=True)


def optimised(layer):
    with torch.enable_grad():
        layer(torch.ones(1, 2)).sum().backward()
    torch.optim.AdamW(layer.parameters(), lr=0.1).step()


def optimised_by_a_fused_step(layer):
    """It leaves the versions of parameters as they were."""
    with torch.enable_grad():
        layer(torch.ones(1, 2)).sum().backward()
    version = layer.weight._version
    torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True).step()
    assert layer.weight._version == version


CHANGES = {
    "in place": lambda layer: layer.weight.add_(1),
    "storage": replaced_storage,
    "loaded": loaded,
    "assigned": assigned,
    "optimised": optimised,
    "optimised by a fused step": optimised_by_a_fused_step,
    "dtype": lambda layer: layer.double(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@torch.no_grad()
def test_every_change_is_seen(change):
    layer = Doubled()
    for _ in range(3):
        layer.twice()
        change(layer)
        torch.testing.assert_close(layer.twice(), 2 * layer.weight)


@torch.no_grad()
def test_a_copy_has_its_own():
    layer = Doubled()
    layer.twice()
    other = copy.deepcopy(layer)
    other.weight.add_(1)
    torch.testing.assert_close(other.twice(), 2 * other.weight)
    torch.testing.assert_close(layer.twice(), 2 * layer.weight)


def test_tensors_without_versions_are_computed_anew():
    with torch.inference_mode():
        layer = Doubled()
        layer.twice()
        layer.weight.add_(1)
        torch.testing.assert_close(layer.twice(), 2 * layer.weight)
