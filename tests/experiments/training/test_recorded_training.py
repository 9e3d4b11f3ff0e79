"""What runs write: rows, summaries, cards, scores, answers, from weights of a formula; schedules, groups, messages."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import errno
import itertools
import json
import math
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from support.program import write_text
from support.recorded import check, flat
from support.steady import (
    changed,
    files_in,
    forget_texts,
    masked,
    pretended_machine,
    refusal,
    said,
    set_by_formula,
    tiny_config,
)

from experiments.configuration.compose import architectures
from experiments.costs import model_costs, peak_flops
from experiments.planning.plan import plan
from experiments.runs import MetricLog, RunFolder, RunPaused, read_metrics
from experiments.system import signals
from experiments.system.paths import ROOT
from experiments.system.processes import MARK
from experiments.training import callbacks, lightning_modules, rank, train
from experiments.training import execute as execute_module
from experiments.training.execute import _explain, execute
from experiments.training.lightning_modules import clip_gradients, lr_factor, make_optimizer
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
def place(tmp_path: Path, monkeypatch) -> Path:
    """A working folder with a text, a peak rate that is given, and no machine."""
    monkeypatch.setenv("ARCHZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    forget_texts()
    write_text(tmp_path / "book.txt", 40)
    monkeypatch.setattr(peak_flops, "peak", lambda device, cache, above=0.0: peak_flops.Peak(1e8, "given"))
    monkeypatch.setattr("experiments.system.machine.peak_memory", lambda _device: 2**20)
    monkeypatch.setattr("experiments.system.machine.load", lambda: 0.5)
    monkeypatch.setattr("experiments.system.machine.versions", lambda: {"python": "3"})
    monkeypatch.setattr("experiments.system.machine.command", lambda: "python run.py")
    monkeypatch.setattr(model_costs, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    made = train.make_model
    monkeypatch.setattr(train, "make_model", lambda config, corpus: set_by_formula(made(config, corpus)))
    ticks = Ticks()
    for module in (callbacks, callbacks, train):
        monkeypatch.setattr(module, "time", ticks)
    with pretended_machine(torch_version=None):
        yield tmp_path


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


TEXT = {
    "data__name": "text",
    "data__path": "book.txt",
    "results": "results",
    "trainer__max_steps": 5,
    "trainer__log_every": 2,
    "trainer__val_every": 2,
    "trainer__val_tokens": 100,
    "trainer__checkpoint_every": 3,
    "optim__warmup_steps": 2,
    "trainer__precision": "fp32",
    "evaluate__batch_size": 3,
    "optim__eps": 1e-3,  # with AdamW's own, the rounding of small gradients would decide the signs of whole updates
}


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


def test_a_run_on_packed_documents_without_checkpoints(place: Path):
    config = tiny_config(
        **{**TEXT, "evaluate__stride": 8},
        data__pack="document",
        trainer__keep_checkpoints=False,
        trainer__patience=1,
        seed=4,
        optim__lr=0.01,
        optim__lr_min=0.01,
        trainer__recompute="full",
        evaluate__windows=3,
    )

    def lines() -> Iterator[str]:
        folder, told = _run(config)
        yield from (line for line in told if line.startswith(("test", "validation")))
        yield from (
            line for line in _written(folder) if not line.startswith(("model.", "machine.", "versions."))
        )

    check(
        RECORDED / "run_packed.txt",
        masked(list(lines()), {str(place): "<place>"}),
        relative=1e-3,
        absolute=1e-5,
    )


def test_a_run_on_a_task(place: Path):
    config = tiny_config(
        **{**TEXT, "data__name": "mqar", "data__path": None, "trainer__val_tokens": 160},
        data__vocab_size=4096,
        data__seq_len=128,
        evaluate__windows=20,
        model__pattern="K",
        model__residual__name="ohc",
    )
    config = changed(config, data__tokenizer="bpe", data__tasks__mqar__length=16, data__tasks__mqar__pairs=2)

    def lines() -> Iterator[str]:
        folder, told = _run(config)
        yield from (line for line in told if line.startswith(("test", "validation")))
        yield from (line for line in _written(folder) if not line.startswith(("machine.", "versions.")))

    check(
        RECORDED / "run_on_task.txt",
        masked(list(lines()), {str(place): "<place>"}),
        relative=1e-3,
        absolute=1e-5,
    )


def test_runs_that_stop(place: Path):
    """Paused at a step, told to make room, out of time, diverged, failing: what is said, recorded and left."""
    base = tiny_config(**TEXT)

    def lines() -> Iterator[str]:
        yield refusal(_run, changed(base, trainer__pause_at=2, name="paused"))
        yield from files_in(place / "results" / "paused")
        folder, _ = _run(changed(base, name="paused"))
        yield (
            f"then complete: {folder.complete}, "
            f"{[row['step'] + row['split'] for row in read_metrics(folder.path / 'metrics.csv')]}"
        )
        yield refusal(_run, changed(base, trainer__max_minutes=1e-9, name="late"))
        with mock.patch.object(signals, "_received", [signal.SIGUSR2.value]):
            yield refusal(_run, changed(base, name="told"))
        made = changed(
            base, name="diverged", optim__lr=1e30, optim__lr_min=0.0, optim__warmup_steps=0, optim__clip=1e30
        )
        yield re.sub("first in module '[^']*'", "first in a module", refusal(_run, made))
        planned = plan(made)
        failure = planned.folder.failure()
        yield (
            f"{failure['kind']} at {failure['step']}: {sorted(failure)}, {planned.folder.failed} "
            f"{planned.folder.resumable}"
        )
        with mock.patch.object(train, "Attempt", side_effect=OSError(28, "No space left")):
            yield refusal(_run, changed(base, name="full"))
        yield f"{_explain(planned, ValueError('x'))}"
        planned.folder.finish({})
        yield f"{_explain(planned, ValueError('x'))}, failed {planned.folder.failed}"

    check(RECORDED / "runs_that_stop.txt", masked(list(lines()), {str(place): "<place>"}))


def test_schedules():
    def lines() -> Iterator[str]:
        for keys in (
            {},
            {"warmup_steps": 0},
            {"warmup_steps": 99},
            {"lr_min": 0.0},
            {"lr_min": 3e-3},
            {"warmup_steps": 10},
        ):
            config = changed(tiny_config().optim, **{"warmup_steps": 4, **keys})
            yield f"{keys}: {[float(f'{lr_factor(step, config, 10):.9g}') for step in range(13)]}"
        yield (
            f"one step {lr_factor(0, changed(config, warmup_steps=1), 1)} "
            f"{lr_factor(1, changed(config, warmup_steps=1), 1)}"
        )
        yield f"due {[(step, callbacks.is_due(step, 4, 10)) for step in range(1, 11)]}"

    check(RECORDED / "schedules.txt", lines())


def test_parameter_groups_of_every_preset():
    """Which parameters learn at which rate, with which decay, clipped together with which."""

    def lines() -> Iterator[str]:
        config = tiny_config(
            optim__lr=0.5, optim__weight_decay=0.25, optim__beta1=0.7, optim__beta2=0.8, optim__eps=1e-3
        )
        for name, model in architectures(config.model).items():
            made = LanguageModel(model, vocab_size=8, seq_len=16)
            names = {id(parameter): key for key, parameter in made.named_parameters()}
            optimizer = make_optimizer(made, config.optim)
            yield (
                f"{name}: {optimizer.defaults['betas']} {optimizer.defaults['eps']} "
                f"{optimizer.defaults['lr']}"
            )
            for group in optimizer.param_groups:
                short = sorted(
                    {
                        names[id(p)].replace("layers.0.", "*").replace("layers.1.", "*")
                        for p in group["params"]
                    }
                )
                yield (
                    f"  {group['clip_group']} lr {group['lr']:.6g} {group['initial_lr']:.6g} decay "
                    f"{group['weight_decay']}: {' '.join(short)}"
                )

    check(RECORDED / "parameter_groups.txt", lines())


def test_clipping():
    """Every clipping group by itself; the norm over all."""
    a, b, c = (torch.nn.Parameter(torch.zeros(2)) for _ in range(3))
    groups = [
        {"params": [a], "clip_group": "one"},
        {"params": [b], "clip_group": "two"},
        {"params": [c], "clip_group": "one"},
    ]

    def lines() -> Iterator[str]:
        for chosen, limit in ((groups, 1.0), (groups, 100.0), (groups[:1], 1.0)):
            a.grad, b.grad, c.grad = (
                torch.tensor([3.0, 0.0]),
                torch.tensor([0.0, 12.0]),
                torch.tensor([0.0, 4.0]),
            )
            norm = clip_gradients(torch.optim.SGD([dict(group) for group in chosen], lr=1.0), limit)
            yield (
                f"{limit}: norm {float(norm):.5f}, "
                f"{[[round(x, 4) for x in p.grad.tolist()] for p in (a, b, c)]}"
            )
        c.grad = None
        yield (
            f"without one: "
            f"{float(clip_gradients(torch.optim.SGD([dict(g) for g in groups], lr=1.0), 9.0)):.5f}"
        )

    check(RECORDED / "clipping.txt", lines())


def test_metric_rows_by_hand(tmp_path: Path, monkeypatch):
    """Means over micro-batches and intervals, speeds without pauses, shares above 1 left out; what is kept."""
    clock = itertools.count(100.0, 2.0)
    monkeypatch.setattr(callbacks.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr("experiments.system.machine.peak_memory", lambda _device: 77)
    log = MetricLog(tmp_path / "metrics.csv", ["b", "aux:a"])
    peaks = iter([1e5, 1e5, 1e4])

    def utilisation(rate: float) -> float | None:
        return peak_flops.utilisation(rate * 1000.0, next(peaks))

    utilisation.seconds = 0.0
    rows = callbacks.MetricRows(log, 2, 64, utilisation)
    trainer = SimpleNamespace(
        global_step=0,
        max_steps=5,
        loggers=[],
        optimizers=[SimpleNamespace(param_groups=[{"lr": 0.25}, {"lr": 9.0}])],
    )
    rows.on_train_start(trainer, None)
    for step in range(1, 6):
        trainer.global_step = step
        losses = {"loss": torch.tensor(step + 0.5), "aux_loss": torch.tensor(0.5)}
        rows.paused += 1.0 if step == 3 else 0.0
        rows.on_before_optimizer_step(trainer, None, *trainer.optimizers)
        rows.after_step(
            trainer,
            SimpleNamespace(last_step={**losses, "grad_norm": torch.tensor(7.0)}, device=torch.device("cpu")),
        )
        if step == 3:
            state = rows.state_dict()
    again = callbacks.MetricRows(log, 2, 64, utilisation)
    again.load_state_dict(state)

    def lines() -> Iterator[str]:
        yield from (tmp_path / "metrics.csv").read_text().splitlines()
        yield (
            f"{ ({k: float(v) for k, v in state['sums'].items()}) } {state['count']} "
            f"{state['seconds']}, again {again.state_dict() == state}"
        )
        with open(tmp_path / "metrics.csv", "a") as file:
            file.write("9,1,train,0.5")
        yield f"torn {len(read_metrics(tmp_path / 'metrics.csv'))}"
        log.cut(4)
        yield from (tmp_path / "metrics.csv").read_text().splitlines()
        yield (
            f"utilisation {peak_flops.utilisation(3.0, 4.0)} {peak_flops.utilisation(4.0, 4.0)} "
            f"{peak_flops.utilisation(4.1, 4.0)}"
        )
        summary_log = MetricLog(tmp_path / "other.csv", [])
        summary_log.cut(0)
        yield f"no rate {train._median_rate(summary_log)}"
        for rate in (5.0, 1.0, 3.0, 9.0):
            summary_log.append({"step": 1, "split": "train", "tokens_per_second": rate})
        summary_log.append({"step": 1, "split": "validation", "tokens_per_second": 100.0})
        yield f"median rate {train._median_rate(summary_log)}"

    check(RECORDED / "metric_rows.txt", lines())


def test_validation_and_weights_by_hand(tmp_path: Path, monkeypatch):
    """Better and worse losses in turn: what is best, when training stops, what is exported, what stays."""
    exported: list[str] = []
    monkeypatch.setattr(
        callbacks, "export", lambda model, folder, step, **card: exported.append(f"{folder.name} {step}")
    )
    losses = iter([3.0, 2.0, 2.0, 2.5, 1.0, 1.5, 1.5, 1.5])
    config = tiny_config(trainer__val_every=2, trainer__patience=3, trainer__val_tokens=70)
    written: list[dict] = []
    rows = SimpleNamespace(write=lambda trainer, row: written.append(row), paused=0.0)
    check_ = callbacks.Validation(config, None, rows, tmp_path / "run", None)
    check_.scores = lambda model, trainer: {"loss": next(losses)}
    weights = callbacks.ExportWeights([4, 5], check_, rows, tmp_path / "run")
    trainer = SimpleNamespace(global_step=0, max_steps=99, should_stop=False)
    task = SimpleNamespace(model=None, data_card={})

    def lines() -> Iterator[str]:
        for step in range(1, 17):
            trainer.global_step = step
            check_.after_step(trainer, task)
            weights.after_step(trainer, task)
            yield (
                f"{step}: best {check_.best} at {check_.best_step}, worse {check_.worse}, stop "
                f"{trainer.should_stop}"
            )
            if trainer.should_stop:
                break
        yield f"{exported} {written}"
        yield f"{check_.state_dict()}"
        fresh = callbacks.Validation(config, None, rows, tmp_path, None)
        fresh.load_state_dict(check_.state_dict())
        fresh.on_train_start(trainer, task)
        yield f"going on: {trainer.should_stop}, {fresh.out_of_patience}"
        for tokens in (None, 1, 63, 64, 130):
            fresh.config = changed(config, trainer__val_tokens=tokens)
            yield f"{tokens}: {fresh.windows(SimpleNamespace(seq_len=32))} windows"
        for number in (3, 12, 100_000_000, 7):
            (tmp_path / f"step-{number:08d}.ckpt").touch()
        yield f"{[path.name for path in callbacks.list_checkpoints(tmp_path)]}"
        callbacks.remove_checkpoints(tmp_path)
        yield f"{files_in(tmp_path)}"
        for precision in ("bf16-mixed", "32-true"):
            yield f"{precision}: {callbacks.scoring_precision(SimpleNamespace(precision=precision))}"

    check(RECORDED / "validation.txt", lines())


def test_pausing_by_hand(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(callbacks, "save_checkpoint", lambda trainer, folder: None)
    clock = iter([0.0, 59.0, 60.0, 61.0, 61.0])
    monkeypatch.setattr(callbacks.time, "monotonic", lambda: next(clock))
    trainer = SimpleNamespace(global_step=4, max_steps=9)

    def lines() -> Iterator[str]:
        timed = callbacks.Pause(1.0, None, tmp_path)
        for step in (4, 5, 9):
            trainer.global_step = step
            yield f"time at {step}: {refusal(timed.after_step, trainer, None)}"
        planned = callbacks.Pause(None, 5, tmp_path)
        for step in (4, 5, 6, 9):
            trainer.global_step = step
            yield f"planned at {step}: {refusal(planned.after_step, trainer, None)}"

    check(RECORDED / "pausing.txt", lines())


def test_what_is_not_finite():
    class Part(torch.nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor, self.weight = factor, torch.nn.Parameter(torch.ones(1))

        def forward(self, x):
            return {"y": (x["y"] if isinstance(x, dict) else x) * self.factor * self.weight}

    def lines() -> Iterator[str]:
        for factors in ((1.0, 1.0), (1.0, math.inf), (math.nan, 1.0)):
            model = torch.nn.Sequential(*map(Part, factors))
            yield f"{factors}: {lightning_modules.first_bad_module(model, lambda model=model: model(torch.ones(1)))}"
        model[1].weight.data.fill_(math.nan)
        yield f"weights: {lightning_modules.first_bad_module(model, lambda: None)}"
        for grads in ((1.0, 1.0), (math.nan, 1.0), (math.nan, math.inf)):
            for part, grad in zip(model, grads, strict=True):
                part.weight.grad = torch.tensor([grad])
            yield f"gradients {grads}: {lightning_modules.first_bad_gradient(model)}"
        error = lightning_modules.NonFinite("the loss is not finite", 7, "layers.1")
        yield f"{error} {error.step} {error.module}"
        values = (1, "a", [torch.ones(1), (torch.tensor([math.nan]),)], torch.tensor([1]))
        yield f"{[lightning_modules._finite(x) for x in values]}"

    check(RECORDED / "not_finite.txt", lines())


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
            f"{again.letters}"
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
            yield f"{keys}: matched at {train._match_length(changed(config, **keys))}"

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
        model=LanguageModel(planned.config.model, vocab_size=8, seq_len=16),
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


def test_peaks(tmp_path: Path, monkeypatch):
    """A peak is measured once, again where training was faster, and the higher one is kept; of GPUs by data sheets."""
    rates = iter([5e9, 4e9, 9e9])
    monkeypatch.setattr(peak_flops, "_measure", lambda _device: next(rates))
    device = torch.device("cpu")

    def lines() -> Iterator[str]:
        for above in (0.0, 1e9, 5e9, 6e9, 8e9, 9.5e9):
            yield f"above {above:g}: {refusal(peak_flops.peak, device, tmp_path, above)}"
        (file,) = (tmp_path / "peaks").glob("*.json")
        yield f"{sorted(json.loads(file.read_text()))}"
        for text in (
            "[]",
            "{}",
            '{"flops": -1}',
            '{"flops": "x"}',
            '{"flops": 1e999}',
            '{"flops": 7}',
            "broken",
        ):
            file.write_text(text)
            yield f"{text}: {peak_flops._cached(file)}"
        for name in (
            "NVIDIA H200",
            "NVIDIA H100 80GB HBM3",
            "NVIDIA A100-SXM4-80GB",
            "NVIDIA L40S",
            "NVIDIA GeForce RTX 4090",
        ):
            monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device, name=name: name)
            yield f"{name}: {peak_flops.peak(torch.device('cuda'), tmp_path)}"
        yield f"{peak_flops.SIZES} {peak_flops.ROUNDS}"

    with pretended_machine():
        found = list(lines())
    check(RECORDED / "peaks.txt", found)


def test_notices_of_changed_blocks(place: Path, monkeypatch):
    """One line a file that changed under runs that are complete, and one for those that have begun."""
    from experiments.planning.identity import block_files, tell_earlier

    plans = [plan(tiny_config(**TEXT, seed=seed, model__pattern="K")) for seed in range(4)]
    own = block_files(plans[0].config.model, plans[0].letters)
    mixer = next(path for path in own if "mixers" in path)
    for number, planned in enumerate(plans[:3]):
        planned.folder.begin(planned.yaml(), planned.identity, {**own, mixer: "0" * 16})
        if number < 2:
            planned.folder.finish({"block_files": {**own, mixer: "0" * 16}})
        else:
            planned.folder.checkpoints.mkdir()
            (planned.folder.checkpoints / "x").touch()
    with said() as printed:
        tell_earlier(plans)
    paths = [f"{sorted(own)} {[len(digest) for digest in own.values()]}"]
    names = {planned.run: f"<run {number}>" for number, planned in enumerate(plans)}
    check(RECORDED / "changed_blocks.txt", masked([*paths, *printed], {str(place): "<place>", **names}))


def test_columns_of_rows():
    """The header of metrics.csv is what readers know: its order too."""
    log = MetricLog(Path("nowhere"), ["b", "a"])
    check(RECORDED / "columns.txt", [",".join(log.columns), csv.__name__])
