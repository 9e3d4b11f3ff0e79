"""A run keeps its name: no option slips into the identity unseen, and none outside it loses a value in silence."""

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import identity_keys
from support.steady import changed, refusal, tiny_config

import experiments.planning.identity
import zoo.config
from experiments.configuration.schema import Config, TrainerConfig
from experiments.data import TASKS, DataConfig, TaskSet, resolve_task
from experiments.data.sources import hub
from experiments.data.tasks_base import IGNORE
from experiments.planning.identity import (
    TRAINER_KEYS,
    as_format_1,
    identify,
    leaves,
    recorded_config,
    refuse_lost_values,
    run_name,
    tell_earlier,
)
from experiments.planning.plan import Plan, plan
from experiments.runs import RunFolder
from zoo import ModelConfig, registry
from zoo.config import architecture_of
from zoo.errors import UserError
from zoo.options import added


def test_finished_runs_keep_their_names():
    """If this fails, do what it says; do not write the frozen list anew to silence it."""
    frozen = json.loads(identity_keys.FROZEN.read_text())
    assert identity_keys.broken(frozen, identity_keys.keys()) == []


@pytest.fixture
def frozen():
    return identity_keys.keys()


@pytest.fixture
def with_options(monkeypatch):
    """Give a mixer a dataclass of options in which some fields are new, as if its file had been edited."""

    def edit(name: str, *fields, without: str = "") -> None:
        block = registry.get("mixer", name)
        old = [(f.name, f.type, f) for f in dataclasses.fields(block.config) if f.name != without]
        new = {name: (name, kind, field) for name, kind, field in [*_copies(old), *fields]}
        made = dataclasses.make_dataclass(block.config.__name__, new.values())
        monkeypatch.setitem(registry._BLOCKS["mixer"], name, dataclasses.replace(block, config=made))
        mixers = zoo.config._node("Mixers", "mixer")
        model = dataclasses.make_dataclass(
            "ModelConfig",
            [("mixers", mixers, dataclasses.field(default_factory=mixers))],
            bases=(ModelConfig,),
        )
        config = dataclasses.make_dataclass(
            "Config", [("model", model, dataclasses.field(default_factory=model))], bases=(Config,)
        )
        for module in (identity_keys, experiments.planning.identity):
            monkeypatch.setattr(module, "Config", config)

    return edit


def _copies(fields):
    """Fields belong to the class that was made of them."""
    for name, kind, f in fields:
        yield name, kind, dataclasses.field(default=f.default, metadata=f.metadata)


def test_an_option_without_the_mark_is_refused_and_told_what_to_do(frozen, with_options):
    with_options("gsa", ("sharpness", float, dataclasses.field(default=1.0)))
    (said,) = identity_keys.broken(frozen, identity_keys.keys())
    assert said.startswith("mixer.gsa.sharpness is new in the identity")
    assert "added(DEFAULT, before=VALUE)" in said


def test_an_option_with_the_mark_and_new_blocks_are_fine(frozen, with_options):
    with_options("gsa", ("sharpness", float, added(1.0, before=1.0)))
    for new in ("mixer.mom", "residual.shc", "channel.moe"):
        del frozen[new]  # as if it had come since
    assert identity_keys.broken(frozen, identity_keys.keys()) == []
    assert identity_keys.keys()["mixer.gsa"]["added"]["sharpness"] == 1.0


def test_removing_marking_late_and_moving_the_mark_are_refused(frozen, with_options):
    with_options("gsa", without="beta")
    assert identity_keys.broken(frozen, identity_keys.keys()) == [
        "mixer.gsa.beta is gone: finished runs with mixer.gsa would get another name. Undo that."
    ]
    with_options("gsa", ("beta", float, added(1.0, before=1.0)))
    assert "as old as its runs" in identity_keys.broken(frozen, identity_keys.keys())[0]
    with_options(
        "gsa", ("beta", float, dataclasses.field(default=1.0)), ("scores", str, added("relu", before="relu"))
    )
    (said,) = identity_keys.broken(frozen, identity_keys.keys())
    assert said.startswith("mixer.gsa.scores has before='relu' where it was 'sigmoid'")
    with_options("gsa", without="scores")
    (said,) = identity_keys.broken(frozen, identity_keys.keys())
    assert said.startswith("mixer.gsa.scores is gone")
    assert identity_keys.broken(frozen, {**frozen, "more": {}})
    assert identity_keys.broken(frozen, {k: v for k, v in frozen.items() if k != "mixer.kda"})


def decided(config: Config, pattern: str = "G") -> dict[str, Any]:
    """What decides the run of a configuration with this pattern."""
    return identify(config, architecture_of(dataclasses.replace(config.model, pattern=pattern)), "")


def identity(config: Config) -> str:
    return run_name(decided(config))


def test_an_option_changes_the_name_where_it_does_something_new():
    plain, ranked = Config(), Config()
    ranked.model.mixers.gsa.scores = "relu"
    assert "scores" not in decided(plain)["model"]["mixers"]["gsa"]
    assert decided(ranked)["model"]["mixers"]["gsa"]["scores"] == "relu"
    assert identity(ranked) != identity(plain)


def test_a_changed_default_changes_the_name(with_options):
    """Runs that take the new default are other runs, marked or not."""
    before = identity(identity_keys.Config())
    with_options("gsa")
    assert identity(identity_keys.Config()) == before
    with_options("gsa", ("scores", str, added("relu", before="sigmoid")))
    assert identity(identity_keys.Config()) != before
    with_options("gsa", ("beta", float, dataclasses.field(default=2.0)))
    assert identity(identity_keys.Config()) != before


def test_folders_that_were_named_with_their_splits_are_found_again(tmp_path):
    config = Config(results=str(tmp_path))
    new = plan(config)
    assert new.run == run_name(new.identity)
    earlier = as_format_1(new.identity, config.evaluate.splits)
    (tmp_path / config.name / run_name(earlier)).mkdir(parents=True)
    assert (plan(config).run, plan(config).identity) == (run_name(earlier), earlier)
    new.folder.path.mkdir()
    assert plan(config).run == new.run


@pytest.mark.parametrize(
    ("data", "pattern", "accumulate", "moved"),
    [
        (DataConfig(name="flip_flop"), "F", 2, True),
        (DataConfig(name="flip_flop"), "F", 1, False),
        (DataConfig(name="mqar"), "S", 2, False),
        (DataConfig(pack="document"), "FS", 2, True),
        (DataConfig(pack="document"), "FS", 1, False),
        (DataConfig(pack="document"), "F", 2, False),
        (DataConfig(), "FS", 2, False),
    ],
)
def test_runs_that_took_unequal_micro_batches_alike_are_other_runs(data, pattern, accumulate, moved):
    """Their losses were means of micro-batches' means, and no mean over the step's answers and sequences."""
    config = Config(data=resolve_task(data) if data.name in TASKS else data)
    config.model.pattern, config.trainer.accumulate = pattern, accumulate
    found = decided(config, pattern)
    assert ("micro_batches" in found["recipe"]) == moved
    values = json.loads(json.dumps(dataclasses.asdict(config)))
    assert decided(recorded_config(values), pattern) == found


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_whether_answers_vary_is_told_by_a_few_sequences(name):
    task_set = TaskSet(DataConfig(name=name))
    counts = (task_set.held_out("validation").targets != IGNORE).sum(1)
    assert task_set.answers_vary == (len(set(counts)) > 1)


def test_a_recorded_configuration_is_read_as_it_was_meant(with_options):
    """What config.yaml says; an option younger than it stands where the program was then, whatever its default."""
    values = json.loads(json.dumps(dataclasses.asdict(Config(seed=3))))
    values["optim"]["lr"], values["trainer"]["val_every"] = 0.5, 7
    values["trainer"]["a_switch_of_then"], values["probe"] = True, {"unknown": 1}
    again = recorded_config(values)
    assert (again.seed, again.optim.lr, again.trainer.val_every) == (3, 0.5, 7)
    assert identity(again) != identity(Config(seed=3))
    with_options("gsa", ("scores", str, added("relu", before="sigmoid")))
    assert recorded_config(values).model.mixers.gsa.scores == "sigmoid"
    del values["model"]["mixers"]["gsa"]["scores"]
    assert recorded_config(values).model.mixers.gsa.scores == "sigmoid"
    assert identity(recorded_config(values)) == identity(again)


KEYS = [key for key in dict(leaves(dataclasses.asdict(Config()))) if key not in ("name", "results")]
# Options of blocks and tasks that a run may not have; where a text lies and how it is cut, whose content counts; ways
# to a rate, a length or a width that may come to the same.
MAY_CHANGE_NOTHING = (
    *("model.mixers.", "model.residual.", "model.channel.", "model.preset", "data.tasks.", "data.name"),
    *("data.path", "data.train_path", "data.tokenizer", "data.vocab_size", "data.gpt2_path"),
    *("data.revision", "data.text_column"),
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
        layers = architecture_of(config.model)
    except UserError:  # another pattern, of mixers or of channel mixers, or another residual scheme
        usual = {"pattern": "KK", "depth": 2, "channel__name": "mlp", "residual__name": "add"}
        config = dataclasses.replace(config, model=changed(config.model, **usual))
        layers = architecture_of(config.model)
    identity = identify(config, layers, "content")
    return Plan(config, layers, identity, RunFolder(place / run_name(identity)))


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
def test_a_complete_run_names_each_setting_of_the_trainer_that_it_was_not_made_with(complete, capsys):
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
def test_a_complete_run_names_where_and_how_it_was_made(keys, gpu, told, complete, capsys):
    made = complete(tiny_config(device="auto"), gpu)
    asked = dataclasses.replace(made, config=changed(tiny_config(device="auto"), **keys))
    found = said(capsys, asked)
    assert told in found
    assert bool(found) == bool(told)
