"""The registry: names and letters are unique, unknown ones get a suggestion, unused blocks change nothing."""

import importlib
import importlib.util
import json
import os
from dataclasses import dataclass

import pytest

import zoo.config
from analysis.plotting.sketches import PATTERNS
from zoo import ModelConfig, UserError, register_channel, register_mixer, register_residual, registry
from zoo.interfaces import Mixer
from zoo.model import LanguageModel, letters_of


class Other(Mixer):
    """A mixer from another file."""


def test_a_block_without_a_method_is_refused_by_name_where_a_model_uses_it(register):
    register("other", letter="Z")(type("Other", (Mixer,), {"__module__": "mine"}))
    with pytest.raises(UserError, match=r"mixer other \(mine\) has no extend, forward, init_state; add it"):
        LanguageModel(ModelConfig(pattern="Z"), vocab_size=8, seq_len=8)


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


def another_config_module():
    """zoo/config.py executed once more, with the blocks that are registered now."""
    spec = importlib.util.spec_from_file_location("another_config", zoo.config.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_registering_an_unused_block_changes_no_identity(register):
    """Otherwise every new block would give every run a new hash."""
    before = {letters: zoo.config.used(ModelConfig(pattern=letters), letters) for letters in ("F", "SF")}
    register("other", letter="A", config=OtherConfig)(Other)
    register_residual("another", config=OtherConfig)(type("Another", (), {"__module__": "elsewhere"}))
    register_channel("another", config=OtherConfig)(type("Another", (), {"__module__": "elsewhere"}))
    after = another_config_module()
    for letters, wanted in before.items():
        config = after.ModelConfig(pattern=letters)
        assert config.mixers.other == OtherConfig()
        assert config.residual.another == OtherConfig()
        assert json.dumps(after.used(config, letters)) == json.dumps(wanted)
    used = after.used(after.ModelConfig(pattern="AF"), "AF")
    assert used["mixers"]["other"] == {"size": 3}
    assert "hypergraph" not in used["mixers"]


def test_identity_is_what_is_built():
    """Ways of writing one model agree; options of blocks in use count, those of others do not."""

    def identity(config: ModelConfig) -> dict:
        return zoo.config.used(config, letters_of(config))

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
