"""Models on disk that are damaged, wrong or missing, and the harness's checkpoints."""

import dataclasses
import json

import pytest
import torch
from support.contract_cases import SEQ_LEN, VOCAB, build, tokens

import zoo
from zoo import ModelConfig, UserError
from zoo.config import from_dict
from zoo.files import INDEX, REST, read_rest, write_atomic
from zoo.io import card, read_card


@pytest.fixture
def model():
    return build(ModelConfig(pattern="SF", depth=2, d_model=16, n_heads=2), dtype=torch.float32).eval()


@pytest.fixture
def folder(model, tmp_path):
    return zoo.export(model, tmp_path / "model", tokenizer={"kind": "bytes"})


def refused(path) -> str:
    with pytest.raises(UserError) as caught:
        zoo.load(path)
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 600
    return said


def rewrite(folder, change) -> None:
    description = json.loads((folder / "model.json").read_text())
    change(description)
    (folder / "model.json").write_text(json.dumps(description))


def test_a_loaded_model_evaluates(folder):
    assert not any(module.training for module in zoo.load(folder).modules())


def test_a_card_goes_round(model, folder):
    found = read_card(folder)
    assert found["tokenizer"] == {"kind": "bytes"}
    assert (found["vocab_size"], found["seq_len"], found["format"]) == (VOCAB, SEQ_LEN, 1)
    assert from_dict(ModelConfig, found["model"]) == model.config
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "model.json"}


def test_weights_that_are_given_are_written_in_the_place_of_the_models_own(model, tmp_path):
    given = {name: torch.zeros_like(x) for name, x in model.state_dict().items()}
    found = zoo.load(zoo.export(model, tmp_path / "given", weights=given))
    assert not any(x.any() for x in found.parameters())


@pytest.mark.parametrize("left", [0, 5, 200, -1])
def test_truncated_weights_are_refused(folder, left):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:left])
    assert "model.safetensors" in refused(folder)


def test_missing_weights_are_refused(folder):
    (folder / "model.safetensors").unlink()
    assert "model.safetensors" in refused(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"format": 1}', "\x00\x01"])
def test_a_card_that_is_none_is_refused(folder, text):
    (folder / "model.json").write_text(text)
    assert "model.json" in refused(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(vocab_size=VOCAB + 1), "do not match its"),
        (lambda d: d["model"].update(d_model=32), "do not match its"),
        (lambda d: d["model"].update(pattern="SS"), "do not match its"),
        (lambda d: d["model"].update(depth=3), "do not match its"),
        (lambda d: d.update(format=2), "format 1"),
        (lambda d: d.pop("seq_len"), "seq_len"),
        (lambda d: d.update(vocab_size="many"), "vocab_size"),
        (lambda d: d["model"].update(pattern="SX"), "'X' at position 2"),
        (lambda d: d["model"].update(d_modl=16), "did you mean 'd_model'?"),
        (lambda d: d["model"].update(d_model="16"), "model.d_model='16'"),
        (lambda d: d["model"]["mixers"].update(kdaa={}), "model.mixers 'kdaa'"),
        (lambda d: d["model"]["mixers"]["attention"].update(windw=3), "did you mean 'window'?"),
        (lambda d: d["model"].update(mixers=3), "model.mixers=3"),
        (lambda d: d["model"]["residual"].update(name="ad"), "did you mean 'add'?"),
    ],
)
def test_a_wrong_card_is_refused(folder, change, said):
    rewrite(folder, change)
    assert said in refused(folder)


def test_what_is_no_model_is_refused_with_how_to_get_one(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    for path in (tmp_path, tmp_path / "nope", tmp_path / "notes.txt"):
        said = refused(path)
        assert "model.safetensors" in said
        assert "checkpoints" in said


def test_a_checkpoint_of_the_harness_loads(model, tmp_path):
    """It holds the model under `model.`, and a compiled one under another name too."""
    path = tmp_path / "step-00000010.ckpt"
    names = ("model", "compute._orig_mod")
    state = {f"{prefix}.{name}": x for prefix in names for name, x in model.state_dict().items()}
    torch.save({"card": card(model), "state_dict": state, "global_step": 10}, path)
    batch = tokens(2, 9)
    assert torch.equal(zoo.load(path)(batch)[0], model(batch)[0])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "another checkpoint of its folder" in refused(path)
    torch.save({"weights": 1}, path)
    assert "not a checkpoint of this project" in refused(path)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    write_atomic(path, "old")
    with pytest.raises(TypeError):
        write_atomic(path, 3)
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write_atomic(tmp_path / "folder", "new")
    assert path.read_text() == "old"
    assert {p.name for p in tmp_path.iterdir()} == {"file", "folder"}


def test_a_config_goes_through_plain_values():
    config = ModelConfig(pattern="SF", depth=None, preset="hypergraph")
    config.mixers.hypergraph.positions = "global"
    config.mixers.attention.rope_base = 1000000
    config.channel.swiglu.hidden = 24
    plain = json.loads(json.dumps(dataclasses.asdict(config)))
    assert from_dict(ModelConfig, plain) == config


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"d_model": 2.5}, "model.d_model=2.5 must be of type int, not float"),
        ({"d_model": True}, "model.d_model=True"),
        ({"depth": True}, "model.depth=True must be of type int | None, not bool"),
        ({"tie_embeddings": 1}, "model.tie_embeddings=1 must be of type bool, not int"),
        ({"mixers": {"attention": {"rope_base": True}}}, "model.mixers.attention.rope_base=True"),
        ({"d_model": None}, "model.d_model=None"),
        ({"pattern": 7}, "model.pattern=7"),
        ({"tie_embeddings": "yes"}, "model.tie_embeddings='yes'"),
        ({"depth": "4"}, "model.depth='4' must be of type int | None, not str"),
        ({"mixers": {"attention": {"rope_base": "big"}}}, "model.mixers.attention.rope_base='big'"),
        ({"mixers": {"attention": []}}, "model.mixers.attention=[]"),
        ({"residual": "add"}, "model.residual='add'"),
    ],
)
def test_values_of_the_wrong_kind_are_refused(values, said):
    with pytest.raises(UserError) as caught:
        from_dict(ModelConfig, values)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "change", [lambda x: x, lambda x: x[:-1], lambda x: x + b"x"], ids=["as written", "cut", "grown"]
)
def test_a_file_of_a_sharded_checkpoint_has_the_bytes_that_were_written(change, tmp_path):
    torch.save({"step": 3}, tmp_path / REST)
    content = (tmp_path / REST).read_bytes()
    (tmp_path / INDEX).write_text(json.dumps({REST: len(content)}))
    (tmp_path / REST).write_bytes(change(content))
    if change(content) == content:
        assert read_rest(tmp_path) == {"step": 3}
    else:
        with pytest.raises(OSError, match=f"does not have the {len(content)} bytes"):
            read_rest(tmp_path)
