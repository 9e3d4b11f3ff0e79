"""The rows that probes write, of small models and of made-up events; recorded checkpoints in parts."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support import recorded
from support.block_options import SEQ_LEN, VOCAB, config, recorded_blocks
from support.formula import fill, uniform, whole

from zoo import LanguageModel
from zoo.files import marker, read_rest, read_whole, replace
from zoo.interfaces import set_step
from zoo.probes import probe_model
from zoo.probes.measure import Row

FOLDER = Path(__file__).parent / "recorded" / "probes"


def lines_of(rows: list[Row]) -> Iterator[str]:
    """A line a measure and place, with the values of all heads."""
    by_place: dict[tuple, list[Row]] = {}
    for row in rows:
        by_place.setdefault((*row[:3], *row[4:8], row.count, row.head is None), []).append(row)
    for (layer, part, block, axis, start, end, measure, count, _), found in by_place.items():
        where = f" {axis} {start} to {end}" if axis else ""
        heads = [row.head for row in found]
        values = recorded.short([row.value for row in found])
        shown = (
            "" if heads == [None] else f" heads {heads}" if heads != list(range(len(heads))) else " by head"
        )
        yield f"{layer} {part} {block} {measure}{where}{shown}: {values} of {count}"


def model_of(kind: str, name: str) -> LanguageModel:
    made = config(kind, name)
    if kind == "residual":
        made.depth = 2
    model = fill(LanguageModel(made, vocab_size=VOCAB, seq_len=SEQ_LEN))
    set_step(model, 2, 20)
    return model


@pytest.mark.parametrize(("kind", "name"), recorded_blocks(FOLDER), ids=lambda x: x)
def test_rows_of_a_small_model(kind, name):
    rows = probe_model(model_of(kind, name), whole("tokens", VOCAB, 2, SEQ_LEN))
    own = [row for row in rows if row.part == kind or kind == "residual" or row.part == "head"]
    # The loss and the gates are computed in fp32.
    recorded.check(FOLDER / f"{kind}-{name}.txt", lines_of(own), relative=1e-4, absolute=1e-9)


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
