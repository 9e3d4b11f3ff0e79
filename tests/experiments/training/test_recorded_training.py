"""What a run writes, from weights of a formula; how its processes start, speak and end."""

import contextlib
import dataclasses
import errno
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.program import write_text
from support.recorded import check, flat
from support.steady import changed, files_in, masked, pretended_machine, refusal, set_by_formula, tiny_config

from experiments.costs import model_costs, peak_flops
from experiments.planning.plan import plan
from experiments.runs import MetricLog, RunFolder, RunPaused, read_metrics
from experiments.system.paths import ROOT
from experiments.system.processes import MARK
from experiments.training import callbacks, rank, summary, train
from experiments.training import execute as execute_module
from experiments.training.execute import _explain, execute
from zoo import LanguageModel
from zoo.errors import UserError
from zoo.io import read_card

RECORDED = Path(__file__).parent / "recorded"


class Ticks:
    """The time of those who measure training: a second goes by whenever one of them looks at the clock."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        self.now += 1.0
        return self.now

    monotonic = staticmethod(time.monotonic)
    strftime = staticmethod(time.strftime)


@pytest.fixture
def place(place: Path, monkeypatch) -> Path:
    """A working folder with a text, a peak rate that is given, and no machine."""
    write_text(place / "book.txt", 40)
    monkeypatch.setattr(peak_flops, "peak", lambda device, cache, above=0.0: peak_flops.Peak(1e8, "given"))
    monkeypatch.setattr("experiments.system.machine.peak_memory", lambda _device: 2**20)
    monkeypatch.setattr("experiments.system.machine.load", lambda: 0.5)
    monkeypatch.setattr("experiments.system.machine.versions", lambda: {"python": "3"})
    monkeypatch.setattr("experiments.system.machine.command", lambda: "python run.py")
    monkeypatch.setattr(model_costs, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    made = train.make_model
    monkeypatch.setattr(train, "make_model", lambda config, corpus: set_by_formula(made(config, corpus)))
    ticks = Ticks()
    for module in (callbacks, train):
        monkeypatch.setattr(module, "time", ticks)
    with pretended_machine(torch_version=None):
        yield place


def _run(config) -> tuple[RunFolder, list[str]]:
    """Train; returns the run's folder and what its sink was told, without repetitions."""
    planned = plan(config)
    told: list[str] = []

    def sink(phase: str, done: int, total: int, note: str = "") -> None:
        told.append(f"{phase} {done}/{total} {note}".strip())

    execute(planned, sink)
    return planned.folder, told


def _written(folder: RunFolder) -> Iterator[str]:
    """All that a run wrote: its files, rows without what the clock decides, summary, card, scores by document."""
    yield from files_in(folder.path)
    for row in read_metrics(folder.path / "metrics.csv"):
        yield "; ".join(f"{key}={value}" for key, value in row.items())
    found = folder.summary()
    for key in ("commit", "finished", "block_files"):
        yield f"{key}: {type(found.pop(key)).__name__}"
    yield from flat(found)
    yield from flat(
        {key: value for key, value in read_card(folder.path).items() if key != "tokenizer"}, "card"
    )
    for name in ("documents.csv", "answers.csv"):
        if (folder.path / name).is_file():
            yield from (folder.path / name).read_text().splitlines()


TRAINER = {"max_steps": 5, "log_every": 2, "val_every": 2, "val_tokens": 100, "checkpoint_every": 3}
TEXT = {f"trainer__{key}": value for key, value in {**TRAINER, "precision": "fp32"}.items()}
TEXT |= {"data__name": "text", "data__path": "book.txt", "results": "results", "evaluate__batch_size": 3}
# With AdamW's own eps, the rounding of small gradients would decide the signs of whole updates.
TEXT |= {"optim__warmup_steps": 2, "optim__eps": 1e-3}


def test_a_run_on_text(place: Path):
    """Two micro-batches a step, a part of the weights kept, both splits scored; then scored on what was left out."""
    config = tiny_config(
        **TEXT, trainer__accumulate=2, trainer__keep_steps=[3], model__pattern="SF", evaluate__splits=["test"]
    )

    def lines() -> Iterator[str]:
        folder, told = _run(config)
        yield from (line for line in told if not line.startswith("train") or line.endswith("/5"))
        yield from _written(folder)
        yield f"again: {execute(plan(config), print)}"
        more = changed(config, evaluate__splits=["validation", "test"], evaluate__windows=None)
        planned = plan(more)
        yield (
            f"left: {planned.unscored}, {planned.done}, {execute(planned, lambda *_: None)}, then "
            f"{planned.unscored}"
        )
        again = planned.folder.summary()
        yield from flat({**again["metrics"], "later": sorted(again["scored_later"])}, "later")

    check(
        RECORDED / "run_on_text.txt",
        masked(list(lines()), {str(place): "<place>"}),
        relative=1e-4,
        absolute=1e-6,
    )


@pytest.mark.parametrize("linked", ["", execute_module.LOG])
def test_processes_write_through_no_link(place: Path, monkeypatch, linked: str):
    """Neither into a folder elsewhere nor over a file of somebody's: refused before anything starts."""
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    run = place / "results" / "run"
    run.parent.mkdir(parents=True, exist_ok=True)
    if linked:
        run.mkdir()
        (elsewhere / "file").write_text("theirs")
        (run / linked).symlink_to(elsewhere / "file")
    else:
        run.symlink_to(elsewhere)
    monkeypatch.setattr(execute_module.data, "prepare", lambda *_: None)
    monkeypatch.setattr(execute_module.peak_flops, "peak", lambda *_: None)
    monkeypatch.setattr(
        execute_module.subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started")
    )
    planned = SimpleNamespace(
        config=tiny_config(trainer__devices=2, device="cpu"), run="run", folder=SimpleNamespace(path=run)
    )
    with pytest.raises(UserError, match="link"):
        execute_module.launch(planned, lambda *_: None, 1)
    assert [path.name for path in elsewhere.iterdir()] == (["file"] if linked else [])


@pytest.fixture
def launched(place: Path, monkeypatch):
    """`launched(lines, status)`: what a run's launch hears of its pretended processes and asks of them."""

    def run(lines: list[dict], status: int | None, sink):
        asked, concluded = [], []

        class Torchrun:
            stdout = tuple(f"{MARK}{json.dumps(line)}\n" for line in lines)

            def __init__(self, command, **options) -> None:
                self.status = status
                asked.append(("start", options["start_new_session"], Path(options["stderr"].name).name))

            def wait(self) -> int:
                asked.append("wait")
                self.status = self.status or 0
                return self.status

            def poll(self) -> int | None:
                return self.status

            def send_signal(self, number) -> None:
                asked.append(("signal", number))

        monkeypatch.setattr(execute_module.data, "prepare", lambda *given: asked.append("data"))
        monkeypatch.setattr(execute_module.peak_flops, "peak", lambda *given: asked.append("peak"))
        monkeypatch.setattr(execute_module.subprocess, "Popen", Torchrun)
        monkeypatch.setattr(
            execute_module, "_plan_file", lambda *_: contextlib.nullcontext(place / "plan.json")
        )
        monkeypatch.setattr(
            execute_module, "_conclude", lambda planned, outcome, status: concluded.append((outcome, status))
        )
        planned = SimpleNamespace(
            config=tiny_config(trainer__devices=2, device="cpu"),
            run="run",
            folder=SimpleNamespace(path=place / "results" / "run"),
        )
        try:
            execute_module.launch(planned, sink, 1)
        finally:
            run.asked, run.concluded = asked, concluded

    return run


STARTED = ["data", "peak", ("start", True, execute_module.LOG)]
"""Once for all processes, before they start; Ctrl-C in a terminal reaches none of them."""


def test_a_run_of_several_processes_ends_as_the_first_of_them_says(launched):
    heard: list[tuple] = []
    first, later = {"outcome": "refused", "message": "first"}, {"outcome": "paused", "message": "later"}
    launched([{"progress": ["train", 1, 2, ""]}, first, later], 1, lambda *message: heard.append(message))
    assert heard == [("train", 1, 2, "")]
    assert launched.concluded == [(first, 1)]
    assert launched.asked == [*STARTED, "wait"]


def test_processes_of_a_run_end_with_the_one_that_started_them(launched):
    def interrupted(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launched([{"progress": ["train", 1, 2, ""]}], None, interrupted)
    assert launched.asked == [*STARTED, ("signal", execute_module.END), "wait"]
    assert launched.concluded == []


def test_a_node_has_as_many_processes_as_devices_whatever_the_number_of_nodes():
    config = tiny_config(trainer__devices=2, trainer__nodes=3)
    assert "--nproc-per-node=2" in execute_module.ranks_command(Path("plan.json"), config, [])


def test_processes_of_a_run(place: Path, monkeypatch):
    """The commands and environments of several processes, and what is concluded from what they tell."""
    config = tiny_config(**TEXT, trainer__devices=2, trainer__accumulate=2, trainer__threads=3)
    planned = dataclasses.replace(plan(tiny_config(**TEXT)), config=config)
    planned.folder.path.mkdir(parents=True)
    log = planned.folder.path / execute_module.LOG

    def lines() -> Iterator[str]:
        yield f"{changed(config, trainer__nodes=3).trainer.processes} processes"
        yield " ".join(execute_module.ranks_command(Path("plan.json"), config, ["--standalone"])[1:])
        monkeypatch.delenv(execute_module.RENDEZVOUS, raising=False)
        for nodes in (1, 2):
            yield f"{nodes} nodes: {refusal(execute_module._meeting, changed(config, trainer__nodes=nodes), 'abc')}"
        monkeypatch.setenv(execute_module.RENDEZVOUS, "there:29500")
        yield f"{execute_module._meeting(changed(config, trainer__nodes=2), 'abc')}"
        yield f"threads {execute_module._environment(config)['OMP_NUM_THREADS']}"
        with execute_module._plan_file(planned, 5) as file:
            again, workers = execute_module.read_plan(file)
        yield (
            f"{again.config == planned.config} {again.folder.path.name == planned.run} {workers} "
            f"{again.layers.letters}"
        )
        record = {"kind": "ValueError", "message": "bad"}
        for text, outcome, status in (
            ("", None, 0),
            ("", None, 3),
            ("Signal 9 (SIGKILL) received by PID 5", None, 1),
            ("Signal 15 (SIGTERM) received by PID 5", None, 1),
            ("", {"outcome": "paused", "message": "later"}, 0),
            ("", {"outcome": "refused", "message": "no"}, 1),
            ("", {"outcome": "failed", "record": record}, 1),
            ("Signal 11 (SIGSEGV) received by PID 7", {"outcome": "failed", "record": record}, 1),
            ("Signal 11 (SIGSEGV) received by PID 7", {"outcome": "paused", "message": "later"}, 1),
        ):
            log.write_text(text)
            yield (
                f"{text!r} {outcome and outcome['outcome']} {status}: "
                f"{refusal(execute_module._conclude, planned, outcome, status)}"
            )
            yield f"  recorded {planned.folder.failure()['message'] if planned.folder.failed else 'nothing'}"
        for keys in ({}, {"match": "params"}, {"match": "flops"}, {"match": "flops", "match_length": 99}):
            yield f"{keys}: matched at {summary._match_length(changed(config, **keys))}"

    check(RECORDED / "processes.txt", masked(list(lines()), {str(place): "<place>"}))


def test_what_processes_are_started_with(place: Path, monkeypatch):
    """This source tree before others of the environment, and the command line of who started them."""
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    places = execute_module._environment(tiny_config())["PYTHONPATH"].split(os.pathsep)
    assert places == [str(ROOT), "/elsewhere"]
    command = ["run.py", "model=kda"]
    monkeypatch.setattr(sys, "argv", command)
    with execute_module._plan_file(plan(tiny_config(**TEXT)), 1) as file:
        monkeypatch.setattr(sys, "argv", ["rank.py", str(file)])
        execute_module.read_plan(file)
        assert sys.argv == command


ENDS = {
    None: (0, None),
    RunPaused("later" * 999): (0, ("paused", "later" * 200)),
    UserError("no" * 999): (1, ("refused", "no" * 500)),
    ValueError("bad"): (1, ("failed", "bad")),
}


@pytest.mark.parametrize("number", ["0", "1"])
@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
def test_how_a_process_of_several_ends(place: Path, monkeypatch, capsys, error, number: str):
    """A failure with a status of 0 would have torchrun wait for the others, and call the run a success."""
    told: list[tuple[str, str]] = []

    def tell(outcome: str | None = None, message: str = "", **_) -> None:
        told.extend([(outcome, message)] if outcome else [])

    def take_part(planned, send, workers) -> None:
        print("a word")
        assert not planned.config.trainer.progress
        if error is not None:
            raise error

    monkeypatch.setenv("LOCAL_RANK", number)
    monkeypatch.setattr(rank.signals, "pause_on", lambda *_: None)
    monkeypatch.setattr(train.group, "joined", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr("experiments.training.execute.take_part", take_part)
    monkeypatch.setattr(rank, "tell", tell)
    monkeypatch.setattr(rank, "tell_failure", lambda _, record: tell("failed", record["message"]))
    status, outcome = ENDS[error]
    with execute_module._plan_file(plan(tiny_config(**TEXT)), 1) as file:
        assert rank.main(file) == status
    assert told == ([] if outcome is None else [outcome])
    assert capsys.readouterr().out == ("a word\n" if number == "0" else ""), "words are said once a node"


def test_the_utilisation_of_several_processes_is_of_all_their_devices(place: Path, monkeypatch):
    """Four devices of 100 FLOP/s that do 200 together; each has to have done 50 for its peak to be in doubt."""
    planned, asked = plan(tiny_config(**TEXT)), []

    def peak(device: torch.device, cache: Path, above: float) -> peak_flops.Peak:
        asked.append(above)
        return peak_flops.Peak(100.0, "given")

    monkeypatch.setattr(peak_flops, "peak", peak)
    monkeypatch.setattr(train.group, "size", lambda: 4)
    log = MetricLog(place / "rows.csv", [])
    log.cut(0)
    log.append({"step": 1, "split": "train", "tokens_per_second": 10.0})
    attempt = SimpleNamespace(
        planned=planned,
        log=log,
        costs=SimpleNamespace(forward_flops=6.0, training_flops=20.0, state_bytes={}),
        device=torch.device("cpu"),
        corpus=SimpleNamespace(describe=dict),
        precision="fp32",
        on_meta=LanguageModel(planned.config.model, vocab_size=8, seq_len=16),
        validation=SimpleNamespace(best_step=1, out_of_patience=False),
        metrics=SimpleNamespace(seconds=1.0),
        steps=1,
    )
    found = train.summarise(attempt, {}, 1.0)
    assert (found["mfu"], found["mfu_peak_flops"], found["processes"]) == (0.5, 100.0, 4)
    assert asked == [50.0]


@pytest.mark.parametrize("reshard", [True, False])
def test_parameters_are_given_back_between_layers_where_that_is_asked_for(reshard: bool, monkeypatch):
    config = tiny_config(trainer__strategy="fsdp", trainer__reshard=reshard)
    monkeypatch.setattr(train.group, "size", lambda: 2)
    monkeypatch.setattr(train, "shard", lambda model, device, *, reshard: reshard)
    assert train.spread(None, config, torch.device("cpu")) is reshard


@pytest.mark.parametrize("own", [15, 1])
def test_a_signal_of_torchrun_itself_killed_nobody(tmp_path: Path, own: int):
    """It ends the others with SIGTERM, or SIGHUP where it is ended itself; what one of them told stays the reason."""
    log = tmp_path / execute_module.LOG
    ended = f"Signal {own} ({signal.Signals(own).name}) received by PID 5\n"
    log.write_text(ended)
    assert execute_module._killed(log) is None
    log.write_text(f"{ended}Signal 9 (SIGKILL) received by PID 7\n")
    assert "SIGKILL" in execute_module._killed(log)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_and_a_full_quota_have_the_same_remedy(tmp_path: Path, code: int):
    planned = SimpleNamespace(title="a run", folder=RunFolder(tmp_path))
    assert "free some space" in str(_explain(planned, OSError(code, "no room")))
