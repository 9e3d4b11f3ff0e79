"""The registry: names and letters are unique; a file that cannot be imported takes only itself away."""

import importlib
import importlib.util
import itertools
import json
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import zoo.config
import zoo.probes.measure
from analysis.plotting.sketches import PATTERNS
from zoo import ModelConfig, UserError, config, register_channel, register_mixer, register_residual, registry
from zoo.config import architecture_of, from_dict
from zoo.interfaces import Mixer
from zoo.model import LanguageModel


class Other(Mixer):
    """A mixer from another file."""


@pytest.mark.parametrize(("letter", "pattern"), [("Z", "Z"), ("", "{other}")])
def test_a_block_without_a_method_is_refused_by_name_where_a_model_uses_it(register, letter, pattern):
    register("other", letter=letter)(type("Other", (Mixer,), {"__module__": "mine"}))
    with pytest.raises(UserError, match=r"mixer other \(mine\) has no extend, forward, init_state; add it"):
        LanguageModel(ModelConfig(pattern=pattern), vocab_size=8, seq_len=8)


@dataclass
class OtherConfig:
    size: int = 3


@pytest.fixture
def register(monkeypatch):
    """Registering that the end of the test undoes."""
    copies = {kind: dict(blocks) for kind, blocks in registry._BLOCKS.items()}
    monkeypatch.setattr(registry, "_BLOCKS", copies)
    return register_mixer


@pytest.mark.parametrize(
    ("name", "letter", "said"),
    [
        ("attention", "Z", "name 'attention' is taken by zoo.mixers.attention"),
        ("other", "F", "letter 'F' is taken by zoo.mixers.attention"),
        ("hypergraph", "S", "taken by zoo.mixers.hypergraph"),
    ],
)
def test_a_taken_name_or_letter_is_refused(register, name, letter, said, monkeypatch):
    monkeypatch.setattr(registry, "_written", lambda cls: float(cls is Other))
    before = registry.blocks("mixer")
    with pytest.raises(ValueError) as caught:
        register(name, letter=letter)(Other)
    assert said in str(caught.value)
    assert registry.blocks("mixer") == before


def test_other_kinds_clash_by_name_only(register):
    with pytest.raises(ValueError, match="'add' is taken"):
        register_residual("add")(Other)
    with pytest.raises(ValueError, match="'swiglu' is taken"):
        register_channel("swiglu")(Other)
    register_channel("add")(Other)
    register_channel("one_more")(type("OneMore", (), {"__module__": "elsewhere"}))
    assert {"add", "one_more", "swiglu"} <= registry.blocks("channel").keys()


def test_the_newcomer_of_a_clash_is_the_file_written_last(register, tmp_path, monkeypatch):
    """In whatever order files are imported: `aaa.py` comes before `attention.py`."""
    source = "class Block: pass\n"
    for name in ("aaa", "older"):
        (tmp_path / f"{name}.py").write_text(source)
    os.utime(tmp_path / "older.py", (1, 1))
    monkeypatch.syspath_prepend(tmp_path)
    new, old = (importlib.import_module(name).Block for name in ("aaa", "older"))
    for first, second in ((new, old), (old, new)):
        monkeypatch.setattr(registry, "_BLOCKS", {kind: {} for kind in registry.KINDS})
        register_mixer("first", letter="Z")(first)
        with pytest.raises(ValueError, match=r"^aaa: mixer letter 'Z' is taken by older; .*job=list` shows"):
            register_mixer("second", letter="Z")(second)


def test_a_sketch_is_rows_of_boxes():
    lines = """
        x
        router | S₁ ↻ #0 | S₂ #2
    """
    assert registry.sketch_rows(lines) == [[["x", None]], [["router", None], ["S₁ ↻", 0], ["S₂", 2]]]
    assert registry.sketch_rows("") == []
    for wrong in ("x | | y", "x #3", "#1"):
        with pytest.raises(ValueError, match="a box of a sketch"):
            registry.sketch_rows(wrong)


def test_unknown_names_suggest():
    with pytest.raises(UserError) as caught:
        registry.get("mixer", "hypergraf")
    assert str(caught.value).startswith("unknown mixer 'hypergraf'; did you mean 'hypergraph'? Known: ")
    with pytest.raises(UserError) as caught:
        registry.get("residual", "zzz")
    assert "did you mean" not in str(caught.value)
    assert "Known: add" in str(caught.value)


def test_a_block_describes_itself_for_figures():
    for kind in registry.KINDS:
        for name, block in registry.blocks(kind).items():
            looks = block.describe()
            assert all(row for row in looks["sketch"])
            assert looks["name"] == name
            assert looks["title"]
            assert looks["family"]
            assert len(looks["color"]) == 7
            assert int(looks["color"].removeprefix("#"), 16) >= 0
            assert (len(looks["letter"]) == 1) == (kind == "mixer")
            assert json.loads(json.dumps(looks)) == looks


def identity(config: ModelConfig, module: Any = zoo.config) -> dict:
    """What decides the built model, by zoo/config.py or by another copy of it."""
    return module.used(config, module.architecture_of(config))


def another_config_module():
    """zoo/config.py executed once more, with the blocks that are registered now."""
    spec = importlib.util.spec_from_file_location("another_config", zoo.config.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_registering_an_unused_block_changes_no_identity(register):
    """Otherwise every new block would give every run a new hash."""
    before = {letters: identity(ModelConfig(pattern=letters)) for letters in ("F", "SF")}
    register("other", letter="A", config=OtherConfig)(Other)
    register_residual("another", config=OtherConfig)(type("Another", (), {"__module__": "elsewhere"}))
    register_channel("another", config=OtherConfig)(type("Another", (), {"__module__": "elsewhere"}))
    after = another_config_module()
    for letters, wanted in before.items():
        config = after.ModelConfig(pattern=letters)
        assert config.mixers.other == OtherConfig()
        assert config.residual.another == OtherConfig()
        assert json.dumps(identity(config, after)) == json.dumps(wanted)
    used = identity(after.ModelConfig(pattern="AF"), after)
    assert used["mixers"]["other"] == {"size": 3}
    assert "hypergraph" not in used["mixers"]


def test_identity_is_what_is_built():
    """Ways of writing one model agree; options of blocks in use count, those of others do not."""

    grouped = ModelConfig(pattern="(SF)*2", depth=None, preset="x", backend="torch")
    assert identity(ModelConfig(pattern="SF", depth=4)) == identity(grouped)
    config = ModelConfig(pattern="F")
    before = identity(config)
    config.mixers.hypergraph.n_timelines = 3
    assert identity(config) == before
    config.mixers.attention.window = 3
    assert identity(config) != before
    before = identity(config)
    config.channel.swiglu.hidden = 24
    assert identity(config) != before


def test_a_mask_that_figures_do_not_know_is_refused_and_they_know_all_others(register):
    with pytest.raises(
        ValueError, match=r"^elsewhere: the mask of mixer 'blurred' must be one of .*, not 'fadin'"
    ):
        register_mixer("blurred", letter="Z", mask="fadin")(type("Blurred", (), {"__module__": "elsewhere"}))
    assert set(registry.MASKS) == set(PATTERNS)


GOOD = """
from zoo.interfaces import Mixer
from zoo.registry import register_mixer

@register_mixer("NAME", letter="LETTER")
class Block(Mixer):
    pass
"""
LINE = "zoo/mixers/absent.py, line 3: SyntaxError: '(' was never closed"
numbers = itertools.count()


@pytest.fixture
def discovered(tmp_path: Path, monkeypatch):
    """discovered({file: source}) discovers a new package of these files; returns the lines about those left out."""
    monkeypatch.setattr(registry, "_BLOCKS", {kind: dict(b) for kind, b in registry._BLOCKS.items()})
    monkeypatch.setattr(zoo.probes.measure, "_MEASURES", dict(zoo.probes.measure._MEASURES))
    monkeypatch.setattr(registry, "_left_out", {})
    monkeypatch.setattr(registry, "_ROOT", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def discover(sources: dict[str, str]) -> list[str]:
        package = f"found_{next(numbers)}"
        folder = tmp_path / "zoo" / package
        folder.mkdir(parents=True)
        monkeypatch.syspath_prepend(folder.parent)
        for age, (name, source) in enumerate(sources.items()):
            (folder / f"{name}.py").write_text(source)
            os.utime(folder / f"{name}.py", (age, age))
        registry.discover(package)
        return [line.replace(package, "P") for line in registry.left_out(package)]

    return discover


def good(name: str, letter: str) -> str:
    return GOOD.replace("NAME", name).replace("LETTER", letter)


@pytest.mark.parametrize(
    ("source", "line", "said"),
    [
        ("x = 1\ndef f(:\n", 2, "SyntaxError: invalid syntax"),
        ("\n\nimport nothing_there\n", 3, "ModuleNotFoundError: No module named 'nothing_there'"),
        ("class Block:\n    size = undefined\n", 2, "NameError: name 'undefined' is not defined"),
        ("def f():\n    return 1 / 0\n\nf()\n", 2, "ZeroDivisionError: division by zero"),
        (good("late", "Z") + "\nundefined\n", 9, "NameError"),
        (good("attention", "Z"), 5, "Clash: P.bad: mixer name 'attention' is taken by zoo.mixers.attention"),
        ("raise SystemExit", 1, "SystemExit: "),
        (
            good("my-bad", "Z"),
            5,
            "ValueError: P.bad: mixer 'my-bad': a name is made of letters, digits and _",
        ),
        (good("name", "Z"), 5, "ValueError: P.bad: mixer 'name': 'name' is the key that chooses one"),
        (good("bad", "z"), 5, "ValueError: a mixer's letter must be one capital letter A-Z, not 'z'"),
    ],
)
def test_a_file_that_cannot_be_imported_is_named_and_left_out(discovered, monkeypatch, source, line, said):
    monkeypatch.setattr(registry, "_written", lambda cls: cls.__module__.endswith(".bad"))
    (found,) = discovered({"bad": source, "fine": good("fine", "Y")})
    assert found.startswith(f"zoo/P/bad.py, line {line}: {said}"), found
    assert found.endswith(" (left out until this is fixed: P.bad)")
    assert "\n" not in found
    assert registry.mixer_by_letter()["Y"].name == "fine"
    assert not {"late", "bad"} & registry.blocks("mixer").keys()
    assert registry.get("mixer", "attention").cls.__module__ == "zoo.mixers.attention"


def test_of_two_files_with_one_letter_the_older_stays(discovered):
    """Also where the newcomer is imported first: models of the other would be something else without a word."""
    (found,) = discovered({"older": good("older", "Z"), "again": good("again", "Z")})
    assert found.startswith("zoo/P/again.py, line 5: Clash: P.again: mixer letter 'Z' is taken by P.older")
    assert registry.mixer_by_letter()["Z"].name == "older"
    assert "again" not in registry.blocks("mixer")


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("size: int", "its options are a dataclass whose every field has a default"),
        ("size: int = 'x'", "its option size has the default 'x', which is not of its type"),
        ("size: object = None", "its option size is of a type that no configuration holds"),
        ("size: 'nothing' = 1", "its options cannot be made (NameError"),
    ],
)
def test_options_that_no_configuration_holds_are_refused_where_they_are_registered(discovered, field, said):
    options = f"from dataclasses import dataclass\n@dataclass\nclass C:\n    {field}\n"
    (found,) = discovered({"bad": options + good("bad", "Z").replace('"Z"', '"Z", config=C')})
    assert f"mixer 'bad': {said}" in found


def test_a_model_that_wants_it_says_why_it_is_not_there(monkeypatch):
    monkeypatch.setattr(registry, "_left_out", {"zoo.mixers.absent": LINE})
    with pytest.raises(
        UserError, match=r"'E' at position 1 is not a known mixer.*zoo/mixers/absent.py, line 3"
    ):
        architecture_of(ModelConfig(pattern="EF"))
    with pytest.raises(UserError, match=r"unknown residual scheme 'absent'.*zoo/mixers/absent.py, line 3"):
        registry.get("residual", "absent")
    assert architecture_of(ModelConfig(pattern="SF", depth=2)).letters == "SF"


def test_records_of_a_run_are_read_while_a_block_in_them_cannot_be_imported(monkeypatch):
    values = {"pattern": "F", "mixers": {"absent": {"size": 3}, "attention": {"window": 8}}}
    with pytest.raises(UserError, match=r"unknown key in model\.mixers 'absent'"):
        from_dict(ModelConfig, values, recorded=True)
    monkeypatch.setattr(registry, "_left_out", {"zoo.mixers.absent": LINE})
    assert from_dict(ModelConfig, values, recorded=True).mixers.attention.window == 8
    with pytest.raises(UserError, match=r"unknown key in model\.mixers 'absent'"):
        from_dict(ModelConfig, values)


def test_a_configuration_reaches_a_worker_that_knows_other_blocks(monkeypatch):
    sent = ModelConfig(pattern="SF")
    sent.mixers.attention.window = 8
    assert pickle.loads(pickle.dumps(sent)) == sent
    packed = pickle.dumps(sent)
    fewer = {name: block for name, block in registry.blocks("mixer").items() if name != "kda"}
    with monkeypatch.context() as patch:
        patch.setitem(registry._BLOCKS, "mixer", fewer)
        patch.setattr(config, "Mixers", config._node("Mixers", "mixer"))
        patch.setattr(config, "_CHOICES", (config.Mixers,))
        patch.setattr(registry, "_left_out", {"zoo.mixers.kda": LINE})
        received = pickle.loads(packed)
        assert received.mixers.attention.window == 8
        assert not hasattr(received.mixers, "kda")
        packed = pickle.dumps(received)
    assert pickle.loads(packed) == sent
