"""On Hopper GPUs kernels are compiled by an assembler that keeps the order of instructions."""

import os
from types import SimpleNamespace

import pytest
import torch
import triton

from kernels.triton_common import tiles

VARIABLE = "TRITON_PTXAS_PATH"


@pytest.fixture(autouse=True)
def _no_choice_yet(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    tiles.choose_ptxas.cache_clear()
    yield
    tiles.choose_ptxas.cache_clear()


def bundle(monkeypatch, usual: str, later: str) -> None:
    """Triton with assemblers of these versions."""
    tools = {"ptxas": usual, "ptxas_blackwell": later}
    found = {name: SimpleNamespace(path=f"/{name}", version=version) for name, version in tools.items()}
    monkeypatch.setattr(triton.knobs, "nvidia", SimpleNamespace(**found))


@pytest.mark.parametrize(
    ("usual", "later", "wanted"),
    [
        ("12.8", "12.9", "/ptxas_blackwell"),
        ("12.8", "13.1", "/ptxas_blackwell"),
        ("12.9", "13.1", None),
        ("13.0", "13.1", None),
        ("12.4", "12.8", None),
    ],
)
def test_the_later_one_replaces_one_that_is_too_old(usual, later, wanted, monkeypatch):
    bundle(monkeypatch, usual, later)
    tiles.take_sound_ptxas()
    assert os.environ.get(VARIABLE) == wanted


@pytest.mark.parametrize(("capability", "taken"), [((8, 0), False), ((9, 0), True), ((10, 0), False)])
def test_only_hopper_gpus_are_concerned(capability, taken, monkeypatch):
    bundle(monkeypatch, "12.8", "13.1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    tiles.choose_ptxas()
    assert (VARIABLE in os.environ) == taken


def test_a_choice_of_the_user_stands(monkeypatch):
    monkeypatch.setenv(VARIABLE, "/own/ptxas")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    tiles.choose_ptxas()
    assert os.environ[VARIABLE] == "/own/ptxas"


def test_the_installed_triton_has_one():
    tiles.take_sound_ptxas()
    major, minor = triton.knobs.nvidia.ptxas.version.split(".")
    assert (int(major), int(minor)) >= tiles.SOUND
