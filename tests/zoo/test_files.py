"""Checkpoints in parts: what stands for a tensor, and how parts become whole ones."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from support.formula import uniform

from zoo.files import marker, read_rest, read_whole, replace


def test_a_marker_says_name_shape_and_dtype():
    found = marker("layers.0.weight", torch.zeros(2, 3, dtype=torch.bfloat16))
    assert found == {"__sharded__": "layers.0.weight", "shape": [2, 3], "dtype": "bfloat16"}


def test_replacing_goes_into_dicts_and_lists_and_names_the_way():
    nested = {"a": [1, {"b": 2}], "c": (3, "x"), "d": 4.5}
    whole = lambda x: isinstance(x, int)  # noqa: E731
    assert replace(nested, whole, lambda x: -x) == {"a": [-1, {"b": -2}], "c": (-3, "x"), "d": 4.5}
    named = replace(nested, whole, lambda name, x: f"{name}={x}", "")
    assert named == {"a": ["a.0=1", {"b": "a.1.b=2"}], "c": ("c.0=3", "x"), "d": 4.5}
    assert replace(nested, whole, lambda name, x: name, "top")["a"][0] == "top.a.0"


def checkpoint(folder: Path) -> torch.Tensor:
    x = uniform("x", 4, 3).float()
    save_file({"w": x, "other": x + 1}, folder / "shard-00001-of-00001.safetensors")
    rest = {"state_dict": {"model.w": marker("w", x), "model.b": torch.ones(2)}, "step": 3}
    torch.save(rest, folder / "rest.pt")
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    (folder / "index.json").write_text(json.dumps(sizes))
    return x


def test_parts_become_whole_tensors(tmp_path):
    x = checkpoint(tmp_path)
    found = read_whole(tmp_path, "state_dict")
    assert torch.equal(found["model.w"], x)
    assert found["model.b"].tolist() == [1, 1]
    assert read_rest(tmp_path)["step"] == 3
