"""Checkpoints of any number of processes are gone on from by any other number, with the same state."""

import json
from pathlib import Path

import pytest
import torch
from support.parallel_runs import VOCAB, configured, in_processes, models, train
from support.program import differences

import zoo
from experiments.parallel.checkpoint import save
from zoo.errors import UserError
from zoo.files import INDEX, read_whole

pytestmark = pytest.mark.xdist_group("checkpoints")  # or every test process makes its own
MODEL = "orthgsa"  # with a scalar parameter, rows that two does not divide, groups and schedules


def checkpoint(folder: Path) -> Path:
    (path,) = folder.glob("step-*.ckpt")
    return path


@pytest.fixture(scope="module")
def states(tmp_path_factory) -> dict[str, Path]:
    """Where the same ten steps are: of one process, taken over by two, by three and by one again."""
    places = {name: tmp_path_factory.mktemp(name) for name in ("one", "two", "three", "again", "work")}
    config = configured(models()[MODEL], max_steps=10, accumulate=6)
    train(config, places["work"], end=str(places["one"]))
    for before, name, processes in (("one", "two", 2), ("two", "three", 3)):
        case = {"model": MODEL, "strategy": "fsdp", "devices": processes, "max_steps": 10, "accumulate": 6}
        start = str(checkpoint(places[before]))
        case |= {"start": start, "end": str(places[name])}
        in_processes({"case": case}, places["work"], processes=processes)
    train(config, places["work"], start=str(checkpoint(places["three"])), end=str(places["again"]))
    return places


@pytest.mark.long
def test_one_two_three_one_is_the_same_state(states: dict[str, Path]):
    first, last = (torch.load(checkpoint(states[name]), weights_only=True) for name in ("one", "again"))
    assert first["global_step"] == 10
    assert differences(first, last) == []


@pytest.mark.long
def test_a_sharded_checkpoint_is_a_folder_of_every_process_s_part(states: dict[str, Path]):
    for name, processes in (("two", 2), ("three", 3)):
        folder = checkpoint(states[name])
        assert len(list(folder.glob("shard-*.safetensors"))) == processes
        assert {x.name for x in folder.iterdir()} == {*json.loads((folder / INDEX).read_text()), INDEX}
        whole = torch.load(checkpoint(states["one"]), weights_only=True)
        for key in ("state_dict", "optimizer_states"):
            assert differences(read_whole(folder, key), whole[key]) == []


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_a_killed_run_left_of_a_checkpoint_is_no_part_of_the_next(tmp_path: Path):
    path, left = tmp_path / "step-1.ckpt", tmp_path / ".step-1.ckpt.partial"
    left.mkdir()
    (left / "shard-00009-model-00009-of-00009.safetensors").write_bytes(b"left")
    save({"state_dict": {"weight": torch.ones(2)}, "card": {"format": 1}}, path)
    assert {x.name for x in path.iterdir()} == {*json.loads((path / INDEX).read_text()), INDEX}
    assert not list(path.glob("*00009*"))
    assert not left.exists()


@pytest.mark.long
def test_a_sharded_checkpoint_is_a_model(states: dict[str, Path], tmp_path: Path):
    one, two = (zoo.load(checkpoint(states[name])) for name in ("one", "two"))
    tokens = torch.arange(20)[None] % VOCAB
    assert torch.equal(one(tokens)[0], two(tokens)[0])
    shard = next(checkpoint(states["three"]).glob("shard-*"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"cannot read checkpoint .*bytes that were written"):
        zoo.load(checkpoint(states["three"]))


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_training_goes_on_in_two_processes(strategy: str, tmp_path: Path):
    """Six steps of one process, paused, and six of two: the weights of twelve of one."""
    config = configured(models()["kda"], pause_at=6)
    work = tmp_path / "work"
    whole = train(configured(models()["kda"]), tmp_path)
    train(config, tmp_path, end=str(work))
    case = {"model": "kda", "strategy": strategy, "devices": 2, "start": str(checkpoint(work))}
    found = in_processes({"case": case}, tmp_path)["case"]
    assert len(found["losses"]) == 12  # six steps of two micro-batches
    limit = 0 if strategy == "ddp" else 1e-6
    for name, x in whole["weights"].items():
        torch.testing.assert_close(x, found["weights"][name], rtol=0, atol=limit, msg=name)
