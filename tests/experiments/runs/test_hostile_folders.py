"""Run folders that a stranger made decide no place that is written to; failures that cannot be recorded."""

import dataclasses
import errno
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from support.program import Lab, Outcome

from experiments import runs
from experiments.data import DataConfig
from experiments.runs import LoadedRun, RunFolder, load_corpus
from zoo.tokenization import ByteTokenizer


@pytest.fixture
def guest(lab: Lab, finished: Lab) -> Path:
    """A copy of the finished run, which tests may change."""
    shutil.copytree(finished.results, lab.results)
    return lab.run_folder()


def assert_one_line(outcome: Outcome, *says: str) -> None:
    assert outcome.status == 2, outcome
    assert outcome.err.startswith("error: "), outcome
    assert outcome.err.count("\n") == 1, outcome
    for words in says:
        assert words in outcome.err, outcome


def linked(place: Path, target: Path) -> Path:
    """Move what is there to the target and put a link to it in its place."""
    shutil.move(place, target)
    place.symlink_to(target)
    return target


@pytest.mark.parametrize(
    "job",
    [["evaluate"], ["generate", "generate.tokens=2"], ["probe", "probe.prompts=[]", "probe.extrapolate=1"]],
)
@pytest.mark.slow
def test_the_config_of_a_run_chooses_no_place(lab: Lab, guest: Path, tmp_path: Path, job: list[str]):
    config = yaml.safe_load((guest / "config.yaml").read_text())
    config["data"]["cache_dir"] = str(tmp_path / "theirs")
    config["results"] = config["bench"]["out"] = config["gpu"]["inputs"] = str(tmp_path / "theirs")
    config["trainer"]["loggers"] = ["tensorboard"]
    (guest / "config.yaml").write_text(yaml.safe_dump(config))
    lab.done(f"job={job[0]}", f"run={guest}", *job[1:])
    assert not (tmp_path / "theirs").exists()
    assert not (guest / "tensorboard").exists()
    if job[0] == "evaluate":
        assert lab.here("job=evaluate", f"run={guest}", f"data.cache_dir={tmp_path / 'mine'}").status == 0
        assert (tmp_path / "mine").is_dir(), "the place that was given here"


@pytest.mark.parametrize(
    "name",
    [
        *(".lock", "checkpoints", "metrics.csv", "model.safetensors", "summary.json", "probes"),
        "tensorboard",
        *("checkpoints/step-00000020.ckpt", "."),
    ],
)
@pytest.mark.slow
def test_a_link_in_a_run_folder_is_refused(lab: Lab, guest: Path, tmp_path: Path, name: str):
    if name != "summary.json":
        (guest / "summary.json").unlink()
    for folder in ("probes", "tensorboard"):
        (guest / folder).mkdir()
    place = guest / name if name != "." else guest
    target = linked(place, tmp_path / "target")
    before = {path: path.read_bytes() for path in [target, *target.rglob("*")] if path.is_file()}
    assert_one_line(lab.here(), f"{place} is a link to {target}", "remove it")
    assert {path: path.read_bytes() for path in [target, *target.rglob("*")] if path.is_file()} == before
    if name == "tensorboard":
        place.unlink()
        assert lab.here().status == 0


@pytest.mark.slow
def test_probes_are_not_written_through_links(lab: Lab, guest: Path, finished: Lab, tmp_path: Path):
    (tmp_path / "target").mkdir()
    (guest / "probes").symlink_to(tmp_path / "target")
    stranger = shutil.copytree(guest, tmp_path / "stranger", ignore=lambda *_: ["probes"])
    (guest.parent / "other").symlink_to(stranger)
    outcome = lab.here("job=probe", f"runs={guest.parent}")
    assert outcome.status == 1
    assert f"probes is a link to {tmp_path / 'target'}" in outcome.out
    assert f"skipped {guest.parent / 'other'}: is a link to {stranger}; name that" in outcome.out
    assert list((tmp_path / "target").iterdir()) == []
    assert not (stranger / "probes").exists()


@pytest.mark.slow
def test_what_a_killed_pass_of_the_probes_left_goes(lab: Lab, guest: Path):
    (guest / "probes").mkdir()
    (guest / "probes" / ".measures.parquet.123.partial").touch()
    assert lab.here("job=probe", f"run={guest}", "probe.prompts=[]", "probe.extrapolate=1").status == 0
    assert not list((guest / "probes").glob(".*"))


@pytest.mark.parametrize("text", ["{", "[]", "{}", "[" * 100_000, '{"parameters": "x", "best_step": 1}'])
@pytest.mark.slow
def test_a_damaged_summary_is_one_line(lab: Lab, guest: Path, text: str):
    (guest / "summary.json").write_text(text)
    outcome = lab.here()
    assert outcome.status == 2, outcome
    assert outcome.err.count("\n") == 1, outcome
    assert "summary.json cannot be read" in outcome.err
    assert "remove it" in outcome.err


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer": "no JSON"},
        {"tokenizer": {"a": 1}},
        {"tokenizer": '{"kind": "bpe"}'},
        {"vocab_size": -1},
        {"vocab_size": 10**15},
        {"vocab_size": 200},
        "null",
        "[" * 100_000,
    ],
    ids=lambda change: str(change)[:30],
)
def test_a_damaged_model_is_one_line(lab: Lab, guest: Path, change: dict | str):
    path = guest / "model.json"
    path.write_text(
        change if isinstance(change, str) else json.dumps({**json.loads(path.read_text()), **change})
    )
    assert_one_line(lab.here("job=generate", f"run={guest}", "generate.tokens=1"))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Glyph")
def test_names_do_not_write_over_the_terminal(lab: Lab, guest: Path):
    summary = json.loads((guest / "summary.json").read_text())
    name = "left\x1b[2J\x1b]0;title\x07\nright"
    (guest / "summary.json").write_text(json.dumps({**summary, "name": name}))
    (guest / "model.json").write_text("null")
    for words in (
        ["job=report", "sweep.workers=1"],
        ["job=probe", f"run={guest}"],
        ["run=/nope\x1b[2J", "job=evaluate"],
    ):
        outcome = lab.here(*words)
        assert "\x1b" not in outcome.out + outcome.err
        assert ("left" in outcome.out) == ("evaluate" not in words[-1])


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_damaged_record_of_a_failure_is_told_as_that(tmp_path: Path, text: str):
    (tmp_path / "failure.json").write_text(text)
    said = RunFolder(tmp_path).failure()["message"]
    assert said == "no message" if text == "{}" else "failure.json" in said or "list" in said


def test_a_failure_that_cannot_be_recorded_is_not_hidden_by_another(tmp_path: Path, monkeypatch):
    """Where the disk is full the error of the run itself is what its command tells."""

    def full(path: Path, values: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(runs, "write_json", full)
    RunFolder(tmp_path).fail(ValueError("the run's own"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", ["path", "train_path", "gpt2_path", "cache_dir"])
def test_a_text_that_moved_is_read_where_the_command_says(tmp_path: Path, monkeypatch, key: str):
    own, tokenizer = DataConfig(path="a", train_path="b", gpt2_path="c"), ByteTokenizer()
    monkeypatch.setattr(runs.data, "check", lambda asked: None)
    monkeypatch.setattr(
        runs.data,
        "prepare",
        lambda asked, progress: SimpleNamespace(config=asked, tokenizer=tokenizer),
    )
    found = load_corpus(LoadedRun(None, tokenizer, tmp_path, own), DataConfig(**{key: "moved"}))
    assert found.config == dataclasses.replace(own, **{key: "moved"})
