"""Settings that name no run: no sweep over them loses a value in silence, and no complete run passes for another."""

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.steady import changed, refusal, tiny_config

from experiments.configuration.schema import Config, TrainerConfig
from experiments.data.sources import hub
from experiments.planning.identity import (
    TRAINER_KEYS,
    identify,
    leaves,
    refuse_lost_values,
    run_name,
    tell_earlier,
)
from experiments.planning.plan import Plan
from experiments.runs import RunFolder
from zoo.config import read_channels
from zoo.errors import UserError
from zoo.model import letters_of

KEYS = [key for key in dict(leaves(dataclasses.asdict(Config()))) if key not in ("name", "results")]
# Options of blocks and tasks that a run may not have; where a text lies and how it is cut, whose content counts; ways
# to a rate, a length or a width that may come to the same.
MAY_CHANGE_NOTHING = (
    *("model.mixers.", "model.residual.", "model.channel.", "model.preset", "data.tasks.", "data.name"),
    *(
        "data.path",
        "data.train_path",
        "data.tokenizer",
        "data.vocab_size",
        "data.gpt2_path",
        "data.revision",
        "data.text_column",
    ),
    *(f"data.{key}" for key in hub.KEYS),
    "start.",  # without weights it is refused
    *("optim.lr_study", "match", "trainer.tokens_per_parameter"),
)
# What a command does, and no complete run shows.
LEAVES_NO_TRACE = {"progress", "max_minutes", "pause_at", "checkpoint_every", "tokens_per_parameter"}


def value_at(config: Config, key: str) -> Any:
    return functools.reduce(getattr, key.split("."), config)


def another(value: Any) -> Any:
    """A value that is not this one, of its type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return [*value, 1] if isinstance(value, list) else f"{value or ''}x"


def planned_at(place: Path, config: Config) -> Plan:
    """The plan of a configuration, whether it could be trained or not."""
    try:
        letters = letters_of(config.model)
        read_channels(config.model.channel.name, len(letters))
    except UserError:  # another pattern, of mixers or of channel mixers
        letters = "KK"
        config = dataclasses.replace(config, model=changed(config.model, channel__name="mlp"))
    identity = identify(config, letters, "content")
    return Plan(config, letters, identity, RunFolder(place / run_name(identity)))


def with_another(key: str) -> Config:
    config = tiny_config()
    return changed(config, **{key.replace(".", "__"): another(value_at(config, key))})


@pytest.mark.slow
def test_of_every_setting_two_values_are_two_runs_or_refused(tmp_path: Path):
    plain, silent = planned_at(tmp_path, tiny_config()), []
    for key in KEYS:
        other = planned_at(tmp_path, with_another(key))
        told = refusal(refuse_lost_values, [plain, other])
        if other.folder != plain.folder:
            assert told == "taken: None", key
        elif key not in told.replace(",", " ").split():
            silent.append(key)
    assert [key for key in silent if not key.startswith(MAY_CHANGE_NOTHING)] == []
    assert "trainer.threads" in KEYS  # among hundreds
    refuse_lost_values([plain, plain])


@pytest.fixture
def complete(tmp_path: Path) -> Callable[..., Plan]:
    """Make the complete run of a configuration, on a CPU or a GPU."""

    def make(config: Config, gpu: str | None = None) -> Plan:
        made = planned_at(tmp_path, config)
        made.folder.begin(made.yaml(), made.identity, {})
        made.folder.finish({"metrics": {}, "machine": {"gpu": gpu}})
        return made

    return make


def said(capsys, *plans: Plan) -> str:
    tell_earlier(plans)
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


@pytest.mark.slow
def test_a_complete_run_names_each_setting_of_the_trainer_that_it_was_not_made_with(
    complete: Callable[..., Plan], capsys
):
    made = complete(tiny_config())
    assert said(capsys, made) == ""
    for name in (field.name for field in dataclasses.fields(TrainerConfig)):
        asked = dataclasses.replace(made, config=with_another(f"trainer.{name}"))
        told = said(capsys, asked)
        if name in LEAVES_NO_TRACE or name in TRAINER_KEYS:  # of other runs, these
            assert told == "", name
            continue
        before, now = (value_at(plan.config, f"trainer.{name}") for plan in (made, asked))
        words = [x if isinstance(x, str) else json.dumps(x) for x in (before, now)]
        assert f"trainer.{name}={words[0]} (asked: {words[1]})" in told, name
        assert told.startswith(f"notice: {made.folder.path} is complete")
        assert told.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "gpu", "told"),
    [
        ({"device": "cpu"}, "H200", "device=cuda (asked: cpu)"),
        ({"device": "cuda"}, None, "device=cpu (asked: cuda)"),
        ({"device": "cuda"}, "H200", ""),
        ({"device": "auto"}, "H200", ""),  # nothing is asked for
        ({"model__backend": "torch"}, None, "model.backend=auto (asked: torch)"),
        ({"probe__at": "last"}, None, "probe.at=null (asked: last)"),
        ({"probe__windows": 9}, None, ""),  # job=probe probes anew
        ({"probe__windows": 9, "trainer__probe_every": 5}, None, "probe.windows=4 (asked: 9)"),
        ({"sweep__workers": 9, "results": "elsewhere"}, None, ""),
    ],
)
def test_a_complete_run_names_where_and_how_it_was_made(
    keys: dict[str, Any], gpu: str | None, told: str, complete: Callable[..., Plan], capsys
):
    made = complete(tiny_config(device="auto"), gpu)
    asked = dataclasses.replace(made, config=changed(tiny_config(device="auto"), **keys))
    found = said(capsys, asked)
    assert told in found
    assert bool(found) == bool(told)
