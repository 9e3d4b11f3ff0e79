"""Which weights a run keeps beside its best, and probing all runs of a study at one step."""

import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch
from support.program import Lab

import zoo
from analysis import load_results
from experiments import runs
from experiments.configuration.schema import ProbeConfig
from experiments.probing import probe_run
from experiments.training.callbacks import Validation
from zoo.errors import UserError
from zoo.probes import Measure
from zoo.probes.measure import row

STEPS = 20
QUICK = ["probe.windows=1", "probe.extrapolate=1", "probe.long_windows=1", "probe.prompts=[]"]


class StreamSize(Measure):
    """Mean absolute value of the streams before a sub-block: differs between any two steps."""

    name, kinds = "stream_size", ("streams",)

    def update(self, event):
        yield row(event, "stream_size", event.values["streams"].abs().mean(), count=1)


def first_is_best(patch: pytest.MonkeyPatch) -> None:
    """Let every validation find a higher loss than the one before."""
    losses = itertools.count(1.0)
    patch.setattr(Validation, "scores", lambda *_: {"loss": next(losses), "perplexity": 1.0})


@pytest.fixture(scope="module")
def early(tmp_path_factory, small_text: Path, shared_cache: Path) -> Lab:
    """A run that was best at step 10 of 20 and kept step 7 on demand: not to be changed by tests."""
    lab = Lab(tmp_path_factory.mktemp("early") / "lab", small_text, shared_cache)
    with pytest.MonkeyPatch.context() as patch:
        first_is_best(patch)
        outcome = lab.here("trainer.keep_steps=[7]")
    assert outcome.status == 0, outcome.err
    return lab


@pytest.fixture
def run(early: Lab, tmp_path: Path) -> Path:
    return Path(
        shutil.copytree(early.run_folder(), tmp_path / "results" / "default" / early.run_folder().name)
    )


@pytest.fixture(autouse=True)
def one_measure(monkeypatch):
    monkeypatch.setattr("zoo.probes.measure._MEASURES", {"stream_size": StreamSize})


def probe(lab: Lab, run: Path, *words: str):
    return lab.here("job=probe", *QUICK, f"run={run}", *words)


def probed_step(run: Path) -> int:
    (step,) = set(load_results(run).table("measures")["step"])
    assert json.loads((run / "probes" / "probes.json").read_text())["step"] == step
    return step


@pytest.mark.slow
def test_the_last_and_the_asked_steps_are_kept_beside_the_best(run: Path):
    assert json.loads((run / "model.json").read_text())["step"] == 10
    assert sorted(path.name for path in (run / "weights").iterdir()) == ["step-00000007", "step-00000020"]
    of_checkpoint = zoo.load(run / "checkpoints" / "step-00000020.ckpt").state_dict()
    for name, tensor in zoo.load(run / "weights" / "step-00000020").state_dict().items():
        assert torch.equal(tensor, of_checkpoint[name]), name
    assert not torch.equal(zoo.load(run).embedding.weight, of_checkpoint["embedding.weight"])
    assert list(runs.available(run)) == [7, 10, 15, 20], "15: the checkpoint before the last"


def test_a_last_step_that_is_the_best_is_not_kept_twice(finished: Lab):
    run = finished.run_folder()
    assert json.loads((run / "model.json").read_text())["step"] == STEPS
    assert not (run / "weights").exists()
    assert runs.find(run, "last") == runs.find(run, "best") == (run, STEPS)


@pytest.mark.long
def test_a_study_is_probed_at_the_best_the_last_or_a_stated_step(early: Lab, run: Path):
    values = {}
    for words, step in (([], 10), (["probe.at=last"], 20), (["probe.at=7"], 7), (["probe.at=best"], 10)):
        outcome = probe(early, run, *words)
        assert outcome.status == 0, outcome
        assert "1 to probe" in outcome.out
        assert probed_step(run) == step
        table = load_results(run).table("measures").query("measure == 'stream_size'")
        values.setdefault(step, []).append(tuple(table["value"]))
    assert values[10][0] == values[10][1]
    assert len({values[10][0], values[20][0], values[7][0]}) == 3
    assert "1 probed before, 0 to probe" in probe(early, run, "probe.at=best").out


@pytest.mark.slow
def test_weights_of_a_step_can_be_scored_too(early: Lab, run: Path):
    outcome = early.done("job=evaluate", f"run={run / 'weights' / 'step-00000007'}")
    assert "test: loss" in outcome.out


@pytest.mark.slow
def test_checkpoints_that_are_not_kept_go_and_the_last_weights_stay(lab: Lab, monkeypatch):
    first_is_best(monkeypatch)
    assert lab.here("trainer.keep_checkpoints=false").status == 0
    run = lab.run_folder()
    assert list(run.glob("checkpoints/*.ckpt")) == []
    assert list(runs.available(run)) == [10, 20]
    assert "already complete" in lab.here("trainer.keep_checkpoints=false").out


@pytest.mark.parametrize("at", ["first", "0", "-3", "1.5", "[7]", "true"])
def test_weights_that_a_run_s_configuration_names_are_checked_as_those_of_the_command(tmp_path, at):
    """A configuration may have been edited, or be of another version."""
    (tmp_path / "config.yaml").write_text(f"probe: {{at: {at}}}\n")
    with pytest.raises(UserError, match=r"probe\.at=.* must be best, last or the number of a step"):
        probe_run.weights_to_probe(tmp_path, ProbeConfig())
    assert not probe_run.is_probed(tmp_path, ProbeConfig())
