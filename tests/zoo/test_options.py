"""Options that came later: left out of the identity where they do what was done before."""

import json
from dataclasses import dataclass, field

import pytest

import zoo.io
from zoo import LanguageModel, ModelConfig
from zoo.config import from_dict
from zoo.options import added, before_they_existed, deciding, remembered


@dataclass
class Inner:
    old: int = 1
    late: str = added("new way", before="old way")


@dataclass
class Outer:
    size: int = 8
    switch: bool = added(False, before=False)
    count: int = added(0, before=0)
    names: list[str] = added(["a"], before=[])  # noqa: RUF009, it makes a field
    inner: Inner = field(default_factory=Inner)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"names": []}, {"size": 8}),
        ({}, {"size": 8, "names": ["a"]}),
        ({"names": [], "switch": True}, {"size": 8, "switch": True}),
        ({"names": [], "count": False}, {"size": 8, "count": False}),
    ],
)
def test_what_does_as_before_is_left_out(values, wanted):
    found = deciding(Outer(**values))
    assert found.pop("inner") == {"old": 1, "late": "new way"}
    assert found == wanted
    assert deciding(Inner(late="old way")) == {"old": 1}


def test_values_are_copies_and_keys_choose():
    config = Outer()
    deciding(config)["names"].append("b")
    Outer().names.append("c")
    assert config.names == Outer().names == ["a"]
    assert deciding(config, ["size", "switch"]) == {"size": 8}
    assert before_they_existed(Outer) == {"switch": False, "count": 0, "names": []}


def test_a_recorded_file_without_a_younger_option_means_what_was_done_then():
    given = {"inner": {"old": 3}}
    assert from_dict(Outer, given, recorded=True) == Outer(names=[], inner=Inner(3, "old way"))
    assert from_dict(Outer, given) == Outer(inner=Inner(3, "new way"))


def test_a_model_from_before_an_option_is_built_as_it_was(monkeypatch):
    description = json.loads(
        json.dumps(zoo.io.card(LanguageModel(ModelConfig(pattern="G"), vocab_size=32, seq_len=16)))
    )
    gsa = description["model"]["mixers"]["gsa"]
    del gsa["scores"]
    mark = type(ModelConfig().mixers.gsa).__dataclass_fields__["scores"]
    monkeypatch.setattr(mark, "metadata", {"before": "relu"})
    gsa["adaptive"] = "none"  # which ReLU scores need
    assert zoo.io.build(description).config.mixers.gsa.scores == "relu"


def test_what_is_remembered_is_made_once_for_equal_configurations_and_again_for_changed_ones():
    made = []

    @remembered
    def described(config: ModelConfig, *, length: int) -> str:
        made.append(config.d_model)
        return f"{config.d_model} {length}"

    config = ModelConfig(d_model=8)
    assert described(config, length=4) == described(ModelConfig(d_model=8), length=4) == "8 4"
    config.d_model = 16
    assert described(config, length=4) == "16 4"
    assert described(config, length=5) == "16 5"
    assert made == [8, 16, 16]
    described.forget()
    described(config, length=5)
    assert made == [8, 16, 16, 16]
