"""Which numbers a process holds whole where a sharded model (FSDP2) is trained, and which in parts."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.ranks import on_ranks
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import zoo
from experiments.parallel import strategies
from experiments.parallel.checkpoint import fill, has_shards, read, save
from experiments.parallel.strategies import is_sharded, shard, whole
from zoo import LanguageModel, ModelConfig
from zoo.files import INDEX

pytestmark = pytest.mark.xdist_group("sharded")  # or every test process trains the models


@pytest.mark.long
def test_layers_are_given_back_after_their_forward_or_kept_until_their_backward():
    for zero_3, zero_2 in on_ranks(2, _given_back):
        assert zero_3 == {"forward": [True, True], "backward": [True, True]}
        assert zero_2 == {"forward": [False, False], "backward": [True, True]}


def _given_back() -> list[dict[str, list[bool]]]:
    """With resharding and without: whether this process has only its parts of each layer after either pass."""
    found = []
    for reshard in (True, False):
        model = LanguageModel(ModelConfig(d_model=16, n_heads=2, depth=2), vocab_size=8, seq_len=4)
        shard(model, torch.device("cpu"), reshard=reshard)
        logits = model(torch.arange(4).unsqueeze(0))[0]
        after = {"forward": [is_sharded(layer) for layer in model.layers]}
        logits.sum().backward()
        after["backward"] = [is_sharded(layer) for layer in model.layers]
        found.append(after)
    return found


@pytest.mark.long
def test_a_checkpoint_of_one_process_is_cut_into_parts_but_for_scalars():
    for found in on_ranks(2, _filled):
        assert found == {"weight": (4, True), "moment": (4, True), "step": (None, True)}


def _filled() -> dict[str, tuple[int | None, bool]]:
    """Rows of this process's part (None: no part), and whether all parts are what the checkpoint had."""
    model = LanguageModel(ModelConfig(d_model=16, n_heads=2, depth=1), vocab_size=8, seq_len=4)
    weight, moment, step = torch.randn(8, 16), torch.randn(8, 16), torch.tensor(3.0)
    for number in (weight, moment):  # alike on both
        torch.distributed.broadcast(number, 0)
    checkpoint = {
        "state_dict": {"model.embedding.weight": weight},
        "optimizer_states": [{"state": {0: {"step": step, "exp_avg": moment}}}],
    }
    fill(checkpoint, shard(model, torch.device("cpu"), reshard=True))
    state = checkpoint["optimizer_states"][0]["state"][0]
    pairs = {
        "weight": (checkpoint["state_dict"]["model.embedding.weight"], weight),
        "moment": (state["exp_avg"], moment),
        "step": (state["step"], step),
    }
    return {
        name: (len(x.to_local()) if isinstance(x, DTensor) else None, torch.equal(whole(x), before))
        for name, (x, before) in pairs.items()
    }


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> list[dict[str, Any]]:
    """What two processes found, and a folder with the model that they exported."""
    return on_ranks(2, _found, str(tmp_path_factory.mktemp("exported")))


def _found(folder: str) -> dict[str, Any]:
    found = {"clipped": _clipped(), "state": _whole_state(folder), "saved": _saved(folder), "folder": folder}
    return {**found, "scalars": _scalars(), "cache": torch.is_autocast_cache_enabled()}


@pytest.mark.slow
def test_clipping_parts_has_the_bits_of_clipping_the_whole_and_scalars_count(two):
    """Also where rows do not divide by the processes; the norm before is every process's, and so is the limit."""
    for found in (rank["clipped"] for rank in two):
        assert found["norms"] == [found["one"]] * 2
        assert found["bits"] == [True, True]
        assert found["scalar_gradients"] == [3.0, 1.0], (
            "summed over the processes, but only where there are parts"
        )


def _clipped() -> dict[str, Any]:
    """A model in parts with a scalar beside them, and the same whole: norms, and whether gradients agree."""
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    gradients = {"weight": torch.randn(5, 3), "scalar": torch.tensor(0.7)}
    mesh_of_all = strategies.mesh(torch.device("cpu"))
    part = torch.nn.Parameter(distribute_tensor(torch.zeros(5, 3), mesh_of_all, [Shard(0)]))
    part.grad = distribute_tensor(gradients["weight"], mesh_of_all, [Shard(0)])
    parts, plain = (
        _model(weight=part, scalar=torch.zeros(())),
        _model(weight=torch.zeros(5, 3), scalar=torch.zeros(())),
    )
    parts.scalar.grad, plain.scalar.grad = gradients["scalar"].clone(), gradients["scalar"].clone()
    plain.weight.grad = gradients["weight"].clone()
    norms, bits = [], []
    for limit in (1e9, 0.5):
        norm, one = (strategies.clip([m.weight, m.scalar], limit) for m in (parts, plain))
        norms.append(norm.item())
        bits.append(torch.equal(whole(parts.weight.grad), plain.weight.grad))
    scalars = []
    for model in (parts, plain):
        model.scalar.grad = torch.tensor(1.0 + rank if model is parts else 1.0)
        strategies.sum_whole_gradients(model)
        scalars.append(model.scalar.grad.item())
    return {"norms": norms, "one": one.item(), "bits": bits, "scalar_gradients": scalars}


def _model(**parameters: torch.Tensor) -> torch.nn.Module:
    model = torch.nn.Module()
    for name, x in parameters.items():
        setattr(model, name, x if isinstance(x, torch.nn.Parameter) else torch.nn.Parameter(x))
    return model


@pytest.mark.long
def test_the_main_process_has_the_whole_state_of_a_model_in_parts_and_the_others_none(two):
    """Exported as a model that one process reads."""
    main, other = (rank["state"] for rank in two)
    exported, expected = zoo.load(Path(two[0]["folder"])), _small().state_dict()
    assert main.keys() == exported.state_dict().keys() == expected.keys()
    for name, x in expected.items():
        assert torch.equal(main[name], x)
        assert torch.equal(exported.state_dict()[name], x)
    assert other == {}


@pytest.mark.slow
def test_a_checkpoint_in_parts_is_gone_on_from_by_two_processes_or_by_one(two):
    """What is in parts comes back in parts, what is whole and what is no tensor as it was; its size is checked."""
    for rank in two:
        assert rank["saved"] == {"parts": [True, True], "whole": [True, True], "step": 7, "bytes": True}
    path = Path(two[0]["folder"]) / "step-7.ckpt"
    found = read(path)
    fill(found, _small())
    for name, x in _small().state_dict().items():
        assert torch.equal(found["state_dict"][f"model.{name}"], x)
    assert found["global_step"] == 7
    assert not path.with_name(".step-7.ckpt.partial").exists()


def _saved(folder: str) -> dict[str, Any]:
    model, path = shard(_small(), torch.device("cpu"), reshard=True), Path(folder) / "step-7.ckpt"
    weights = {f"model.{name}": x for name, x in model.state_dict().items()}
    moments = {0: {"step": torch.tensor(7.0), "exp_avg": next(iter(weights.values())).clone()}}
    made = {
        "state_dict": weights,
        "optimizer_states": [{"state": moments}],
        "global_step": 7,
        "card": {"format": 1},
    }
    assert has_shards(made)
    save(made, path)
    found = read(path)
    fill(found, model)
    state = found["optimizer_states"][0]["state"][0]
    pairs = [(found["state_dict"][name], x) for name, x in weights.items()] + [
        (state["exp_avg"], moments[0]["exp_avg"])
    ]
    parts = [isinstance(x, DTensor) == isinstance(y, DTensor) for x, y in pairs]
    return {
        "parts": [all(parts), len(parts) > 5],
        "whole": [all(torch.equal(whole(x), whole(y)) for x, y in pairs), state["step"].item() == 7],
        "step": found["global_step"],
        "bytes": all(
            (path / name).stat().st_size == size
            for name, size in json.loads((path / INDEX).read_text()).items()
        ),
    }


@pytest.mark.slow
def test_no_copies_of_all_weights_in_16_bits_are_kept_where_models_are_in_parts(two):
    """Autocast would keep those of every gathered layer until the forward is done."""
    assert [rank["cache"] for rank in two] == [False, False]


@pytest.mark.slow
def test_scalar_parameters_of_a_model_in_parts_stay_whole(two):
    """FSDP2 cannot cut them; a checkpoint of one process gives them to every process."""
    for rank in two:
        assert rank["scalars"]
        assert all(rank["scalars"].values())


def _scalars() -> dict[str, bool]:
    """By name of a scalar parameter: whether it is no part after the model and a checkpoint were cut."""
    model = _small()
    weights = {f"model.{name}": x.clone() for name, x in model.state_dict().items()}
    scalars = [name for name, p in model.named_parameters() if p.dim() == 0]
    checkpoint = {"state_dict": weights, "optimizer_states": []}
    sharded_model = shard(model, torch.device("cpu"), reshard=True)
    fill(checkpoint, sharded_model)
    held = dict(sharded_model.named_parameters())
    filled = checkpoint["state_dict"]
    return {
        name: not isinstance(held[name], DTensor)
        and not isinstance(filled[f"model.{name}"], DTensor)
        and torch.equal(filled[f"model.{name}"], held[name])
        for name in scalars
    }


def _small() -> LanguageModel:
    return LanguageModel(
        ModelConfig(d_model=16, n_heads=2, depth=1, pattern="G"), vocab_size=9, seq_len=4, seed=3
    )


def _whole_state(folder: str) -> dict[str, torch.Tensor]:
    model = shard(_small(), torch.device("cpu"), reshard=True)
    strategies.export(model, Path(folder))
    return strategies.whole_state(model)


def test_a_model_that_is_not_in_parts_has_its_state_on_every_process():
    model = _small()
    state = strategies.whole_state(model)
    assert state.keys() == model.state_dict().keys()
    assert not is_sharded(model)
