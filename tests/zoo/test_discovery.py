"""A file that cannot be imported takes only itself away, and is named with the line of the mistake."""

import itertools
import os
import pickle
from pathlib import Path

import pytest

import zoo.probes.measure
from zoo import ModelConfig, UserError, config, registry
from zoo.config import from_dict
from zoo.model import letters_of

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
        letters_of(ModelConfig(pattern="EF"))
    with pytest.raises(UserError, match=r"unknown residual scheme 'absent'.*zoo/mixers/absent.py, line 3"):
        registry.get("residual", "absent")
    assert letters_of(ModelConfig(pattern="SF", depth=2)) == "SF"


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
