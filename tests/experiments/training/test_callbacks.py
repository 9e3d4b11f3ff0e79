"""What happens at the end of a step, with a clock, a trainer and a task of our own: rows, validation, time limit."""

import json
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from experiments.configuration.schema import Config
from experiments.costs import model_costs
from experiments.costs.model_costs import Utilisation
from experiments.data import Split
from experiments.probing import held_out, probe_run
from experiments.runs import MetricLog, read_metrics
from experiments.system import signals
from experiments.training import callbacks
from experiments.training.train import make_loggers
from zoo import LanguageModel, ModelConfig

CPU = torch.device("cpu")
TEXT = Split(np.arange(400, dtype=np.uint16), 1, 1, 1)


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def perf_counter(self) -> float:
        return self.now

    monotonic = perf_counter


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(callbacks, "time", made)
    return made


@pytest.fixture
def saved(monkeypatch) -> list[int]:
    """The steps whose checkpoints are saved."""
    steps: list[int] = []
    monkeypatch.setattr(callbacks, "save_checkpoint", lambda trainer, _: steps.append(trainer.global_step))
    return steps


def trainer(step: int = 0, last: int = 100, **more) -> SimpleNamespace:
    """As much of a trainer as the callbacks look at."""
    optimizer = SimpleNamespace(param_groups=[{"lr": 0.125}])
    found = {"global_step": step, "max_steps": last, "optimizers": [optimizer], "loggers": []}
    found |= {"accumulate_grad_batches": 2, "should_stop": False, "precision": "32-true"}
    return SimpleNamespace(**{**found, **more})


def rows_in(path: Path) -> callbacks.MetricRows:
    """A row every four steps of 100 tokens."""
    return callbacks.MetricRows(MetricLog(path, []), 4, 100, Utilisation(lambda: 1.0, lambda: 1.0))


def micro_batch(callback, at: SimpleNamespace, index: int, **seen: float) -> None:
    """The end of a micro-batch; every second one completes a step, and has the step's losses.

    After a step the optimiser has the rate of the next, half of it.
    """
    if index % 2:
        at.global_step += 1
        (optimizer,) = at.optimizers
        callback.on_before_optimizer_step(at, None, optimizer)
        optimizer.param_groups[0]["lr"] /= 2
    task = SimpleNamespace(last_step={k: torch.tensor(v) for k, v in seen.items()}, device=CPU)
    callback.on_train_batch_end(at, task, None, None, index)


def test_rows_are_means_over_steps_and_speed_is_of_training_alone(tmp_path: Path, clock: Clock):
    at, path = trainer(), tmp_path / "metrics.csv"
    rows = callbacks.MetricRows(MetricLog(path, ["aux:x"]), 2, 100, Utilisation(lambda: 7.0, lambda: 1e4))
    rows.on_train_start(at, None)
    for i in range(8):
        clock.now += 1
        if i == 2:
            clock.now += 5
            rows.paused += 5  # a validation, say
        micro_batch(rows, at, i, loss=float(i), aux_loss=0.5 * i, grad_norm=10.0 + i, **{"aux:x": -float(i)})
    first, second = read_metrics(path)
    assert (first["step"], first["tokens"], second["step"], second["tokens"]) == ("2", "200", "4", "400")
    for row, mean in ((first, 2.0), (second, 6.0)):  # of steps 1 and 3, 5 and 7
        assert [float(row[name]) for name in ("loss", "aux_loss", "aux:x")] == [mean, mean / 2, -mean]
    assert [float(row["grad_norm"]) for row in (first, second)] == [13.0, 17.0]  # of the last step
    assert [float(row["seconds"]) for row in (first, second)] == [4.0, 8.0]
    for row in (first, second):
        assert float(row["tokens_per_second"]) == 200 / 4
        assert float(row["mfu"]) == 200 / 4 * 7 / 1e4
    assert [float(row["lr"]) for row in (first, second)] == [0.125 / 2, 0.125 / 8]  # that the last step took


def test_a_row_has_the_largest_gradient_norm_since_the_last_one_across_a_resume_too(tmp_path, clock):
    path = tmp_path / "metrics.csv"
    norms = iter([1.0, 9.0, 2.0, 3.0, 4.0, 7.0, 5.0, 1.0])  # a step each; rows after the fourth and eighth

    def attempt(steps: range, state: dict[str, object] | None) -> dict[str, object]:
        rows = rows_in(path)
        if state:
            rows.load_state_dict(state)
        at = trainer(step=steps.start)
        rows.on_train_start(at, None)
        for step in steps:
            clock.now += 1
            norm = next(norms)
            micro_batch(rows, at, 2 * step, loss=1.0, grad_norm=norm)
            micro_batch(rows, at, 2 * step + 1, loss=1.0, grad_norm=norm)
        return rows.state_dict()

    attempt(range(6, 8), attempt(range(6), None))
    assert [float(row["grad_norm_max"]) for row in read_metrics(path)] == [9.0, 7.0]
    assert [float(row["grad_norm"]) for row in read_metrics(path)] == [3.0, 1.0]


def test_flops_and_peak_are_found_once_with_the_first_row_and_that_is_no_training_time(
    tmp_path: Path, clock: Clock, monkeypatch
):
    monkeypatch.setattr(model_costs, "time", clock)
    asked = []

    def slow(name: str, found: float) -> float:
        clock.now += 30
        asked.append((name, clock.now))
        return found

    share = Utilisation(lambda: slow("flops", 7.0), lambda: slow("peak", 1e4))
    at, path = trainer(), tmp_path / "metrics.csv"
    rows = callbacks.MetricRows(MetricLog(path, []), 1, 100, share)
    rows.on_train_start(at, None)
    assert asked == []
    for i in range(6):
        clock.now += 1
        micro_batch(rows, at, i, loss=1.0, grad_norm=1.0)
    assert asked == [("flops", 1032.0), ("peak", 1062.0)]
    assert share.seconds == 60.0
    assert [float(row["seconds"]) for row in read_metrics(path)] == [2.0, 4.0, 6.0]
    assert {float(row["mfu"]) for row in read_metrics(path)} == {100 / 2 * 7 / 1e4}


def test_a_resumed_run_goes_on_with_sums_and_seconds_but_not_with_the_time_between(tmp_path, clock):
    at, path = trainer(), tmp_path / "metrics.csv"
    first = rows_in(path)
    first.on_train_start(at, None)
    for i in range(4):
        clock.now += 1
        micro_batch(first, at, i, loss=float(i), grad_norm=1.0)
    state = first.state_dict()
    clock.now += 500
    second = rows_in(path)
    second.load_state_dict(state)
    second.on_train_start(at, None)
    for i in range(4, 8):
        clock.now += 1
        micro_batch(second, at, i, loss=float(i), grad_norm=1.0)
    (row,) = read_metrics(path)
    assert float(row["loss"]) == 4.0  # of 1, 3, 5 and 7
    assert float(row["tokens_per_second"]) == 2 * 100 / 4  # of the steps of this attempt


@pytest.mark.slow
def test_a_row_that_was_not_written_to_its_end_is_no_row(tmp_path: Path):
    """Wherever a kill or a full disk cut it: of a cut number the rest would pass for the number."""
    log = MetricLog(tmp_path / "metrics.csv", ["aux:x"])
    log.cut(0)
    for step in (1, 2):
        log.append(dict.fromkeys(log.columns, "12345") | {"step": step, "split": "train"})
    text = log.path.read_text()
    assert [row["step"] for row in read_metrics(log.path)] == ["1", "2"]
    assert set(read_metrics(log.path)[1].values()) == {"2", "train", "12345"}
    for length in range(len(text)):
        log.path.write_text(text[:length])
        assert len(read_metrics(log.path)) == max(0, text[:length].count("\n") - 1), text[:length]
    head, row, _ = text.splitlines(keepends=True)
    for length in range(row.rfind(",")):  # with an end of line behind it
        log.path.write_text(f"{head}{row[:length]}\n{row}")
        assert len(read_metrics(log.path)) == 1, row[:length]


@pytest.mark.parametrize(("minutes", "seconds"), [(1.0, 60), (0.5, 30)])
def test_a_time_limit_is_in_minutes(tmp_path: Path, clock: Clock, saved, minutes: float, seconds: int):
    limit = callbacks.Pause(minutes, None, tmp_path)
    clock.now += seconds - 0.5
    limit.after_step(trainer(3), None)
    clock.now += 1
    limit.after_step(trainer(100), None)  # the last step needs no pause
    assert saved == []
    with pytest.raises(callbacks.Paused, match="time is up at step 4 of 100"):
        limit.after_step(trainer(4), None)
    assert saved == [4]


def test_a_pause_at_a_step_saves_there_and_not_before(tmp_path: Path, saved):
    pause = callbacks.Pause(None, 4, tmp_path)
    pause.after_step(trainer(3), None)
    assert saved == []
    with pytest.raises(callbacks.Paused, match=r"paused at step 4 of 100; .* without trainer\.pause_at"):
        pause.after_step(trainer(4), None)
    assert saved == [4]


def test_a_run_that_is_told_to_make_room_saves_at_the_end_of_the_step(tmp_path: Path, saved, monkeypatch):
    monkeypatch.setattr(signals, "_received", [])
    pause, before = callbacks.Pause(None, None, tmp_path), signal.getsignal(signal.SIGUSR2)
    try:
        signals.pause_on(signal.SIGUSR2)
        pause.after_step(trainer(3), None)
        assert saved == []
        signal.raise_signal(signal.SIGUSR2)
        assert saved == [], "not amid a step"
        with pytest.raises(callbacks.Paused, match=r"stopped by SIGUSR2 at step 4 of 100"):
            pause.after_step(trainer(4), None)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert saved == [4]


def test_checkpoints_come_when_due_at_the_end_and_where_training_stops(tmp_path: Path, clock, saved):
    callback = callbacks.Checkpoints(tmp_path, 3, SimpleNamespace(paused=0.0))
    for step in range(1, 9):
        callback.after_step(trainer(step, 8), None)
    callback.after_step(trainer(5, 8, should_stop=True), None)
    assert saved == [3, 6, 8, 5]


def test_the_last_two_checkpoints_stay(tmp_path: Path):
    def write(path: Path) -> None:
        path.write_text("x")

    for step in (9, 10, 100, 1000):
        callbacks.save_checkpoint(trainer(step, save_checkpoint=write), tmp_path)
    assert [path.name for path in callbacks.list_checkpoints(tmp_path)] == [
        "step-00001000.ckpt",
        "step-00000100.ckpt",
    ]


@pytest.fixture
def validated(tmp_path: Path):
    """A validation with these settings, the losses that it is given, and the windows that it asked for."""
    model = LanguageModel(ModelConfig(pattern="F", depth=1, d_model=16, n_heads=2), vocab_size=9, seq_len=8)
    split = Split(np.arange(100, dtype=np.uint16) % 9, 1, 1, 1)
    task = SimpleNamespace(model=model, data_card={"tokenizer": "a tokenizer"})

    def make(monkeypatch, losses: list[float], **settings):
        config, windows, given = Config(), [], iter(losses)
        for name, value in {"val_every": 1, **settings}.items():
            setattr(config.trainer, name, value)

        def score(_model, asked, **options):
            windows.append((list(asked), options))
            return 10 * next(given), 10

        monkeypatch.setattr(callbacks, "score_windows", score)
        written = SimpleNamespace(paused=0.0, rows=[])
        written.write = lambda trainer, row: written.rows.append((trainer.global_step, row["loss"]))
        return callbacks.Validation(config, split, written, tmp_path, None), task, written, windows

    return make


@pytest.mark.parametrize(("limit", "count"), [(None, 13), (24, 3), (31, 3), (1, 1)])
def test_val_tokens_counts_tokens(validated, monkeypatch, limit, count: int):
    callback, task, _, windows = validated(monkeypatch, [1.0], val_tokens=limit)
    callback.after_step(trainer(1), task)
    ((asked, options),) = windows
    assert len(asked) == count
    assert options["precision"] == "fp32"


def test_the_best_weights_are_exported_with_their_step_and_patience_ends_it(validated, monkeypatch, tmp_path):
    callback, task, written, _ = validated(monkeypatch, [3.0, 2.0, 2.5, 2.0, 2.1], patience=3)
    stopped = []
    for step in range(1, 6):
        at = trainer(10 * step, val_every=1)
        callback.after_step(at, task)
        stopped.append(at.should_stop)
    assert written.rows == [(10, 3.0), (20, 2.0), (30, 2.5), (40, 2.0), (50, 2.1)]
    assert stopped == [False, False, False, False, True]
    assert (callback.best, callback.best_step, callback.worse) == (2.0, 20, 3)
    card = json.loads((tmp_path / "model.json").read_text())
    assert (card["step"], card["tokenizer"]) == (20, "a tokenizer")


def test_patience_counts_from_the_last_improvement(validated, monkeypatch):
    """Two validations were worse before the third was the best so far; they count no longer."""
    callback, task, _, _ = validated(monkeypatch, [3.0, 3.2, 3.1, 2.0, 2.1, 2.2, 2.3], patience=3)
    stopped = []
    for step in range(1, 8):
        at = trainer(step)
        callback.after_step(at, task)
        stopped.append(at.should_stop)
    assert stopped == [False] * 6 + [True]


def test_probed_rows_up_to_the_checkpoint_stay(tmp_path: Path):
    """Those of its own step were written before it, and nobody would take them again; later ones are."""
    place = 0, "mixer", "attention", None, "", None, None
    rows = [(step, *place, "size", 1.0, 2, "validation") for step in (3, 6, 9)]
    probe_run.write(tmp_path, probe_run.TRAINING, rows)
    callback = callbacks.ProbeTraining(Config(), TEXT, None, tmp_path)
    callback.on_train_start(trainer(6), None)
    assert callback.rows == probe_run.read(tmp_path, probe_run.TRAINING) == rows[:2]


def test_probed_are_the_steps_asked_for_the_last_one_and_the_one_that_training_stops_at(
    tmp_path: Path, monkeypatch
):
    """The state that a run ended in belongs to its curve, whether its steps were done or its patience."""
    row = (0, "mixer", "attention", None, "", None, None, "size", 1.0, 2)
    monkeypatch.setattr(held_out, "probe_windows", lambda *_: [row])
    config, task = Config(), SimpleNamespace(model=None)
    config.trainer.probe_every = 20

    def probed(*steps: int, stop: int | None = None) -> list[int]:
        callback = callbacks.ProbeTraining(config, TEXT, SimpleNamespace(paused=0.0), tmp_path)
        for step in steps:
            callback.after_step(trainer(step, 50, should_stop=step == stop), task)
        return [found[0] for found in probe_run.read(tmp_path, probe_run.TRAINING)]

    assert probed(*range(1, 51)) == [20, 40, 50]
    assert probed(*range(1, 31), stop=30) == [20, 30]


def test_bf16_training_is_validated_in_bf16(validated, monkeypatch):
    callback, task, _, windows = validated(monkeypatch, [1.0])
    callback.after_step(trainer(1, precision="bf16-mixed"), task)
    assert windows[0][1]["precision"] == "bf16"


def test_a_damaged_checkpoint_gives_way_to_the_one_before_and_leftovers_go(tmp_path: Path):
    """One of an earlier attempt at the same step may lie under the name that the damaged one gets, as a folder too."""
    for step in (3, 6):
        torch.save({"step": step}, tmp_path / f"step-{step:08d}.ckpt")
    damaged = tmp_path / "step-00000009.ckpt"
    for folder in (damaged, damaged.with_suffix(".damaged"), tmp_path / ".step-00000012.ckpt.partial"):
        folder.mkdir()
        (folder / "shard").touch()
    assert callbacks.latest_checkpoint(tmp_path, lambda step, found: None) == tmp_path / "step-00000006.ckpt"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-00000003.ckpt",
        "step-00000006.ckpt",
        "step-00000009.damaged",
    ]


def test_any_process_that_is_told_to_make_room_pauses_all(tmp_path: Path, saved, monkeypatch):
    monkeypatch.setattr(callbacks.group, "from_all", lambda own: [own, signal.SIGUSR2])
    monkeypatch.setattr(signals, "_received", [])
    with pytest.raises(callbacks.Paused, match="SIGUSR2"):
        callbacks.Pause(None, None, tmp_path).after_step(trainer(4), None)
    assert saved == [4]


def test_sigterm_does_during_training_what_it_did_before():
    def ours(*_: object) -> None:
        pass

    def of_a_library(*_: object) -> None:
        pass

    before = signal.signal(signal.SIGTERM, ours)
    try:
        callback = callbacks.OwnSignals()
        signal.signal(signal.SIGTERM, of_a_library)
        callback.on_train_start(trainer(), None)
        assert signal.getsignal(signal.SIGTERM) is ours
    finally:
        signal.signal(signal.SIGTERM, before)


def test_progress_is_reported_now_and_then_and_always_at_the_last_step(clock: Clock):
    told: list[int] = []
    callback = callbacks.ReportProgress(lambda phase, done, total, *_: told.append(done))
    task = SimpleNamespace(last_step={"loss": torch.tensor(2.0)})
    for step in (97, 98, 99, 100):
        callback.after_step(trainer(step, 100), task)
    assert told == [97, 100], "the clock stands still"


def test_a_stop_that_something_else_asked_for_outlives_a_validation(validated, monkeypatch):
    callback, task, _, _ = validated(monkeypatch, [3.0], patience=3)
    at = trainer(1, should_stop=True)
    callback.after_step(at, task)
    assert at.should_stop


def test_runs_of_an_experiment_are_a_group_in_other_loggers_and_one_process_logs(tmp_path: Path, monkeypatch):
    made: list[dict] = []
    monkeypatch.setattr("lightning.pytorch.loggers.WandbLogger", lambda **options: made.append(options) or 1)
    config = Config(name="experiment")
    config.trainer.loggers = ["wandb"]
    assert make_loggers(config, tmp_path / "run") == [1]
    assert (made[0]["group"], made[0]["name"]) == ("experiment", "run")
    assert Path(made[0]["save_dir"]) == tmp_path / "run"
    monkeypatch.setattr("experiments.parallel.group.is_main", lambda: False)
    assert make_loggers(config, tmp_path / "run") is False
    assert len(made) == 1


def test_a_resumed_run_remembers_its_best_weights_and_its_patience(validated, monkeypatch):
    """It exports no worse ones as the best, and one that had stopped early at its checkpoint stops at once."""
    callback, task, _, _ = validated(monkeypatch, [2.0, 2.5], patience=2)
    for step in (10, 20):
        callback.after_step(trainer(step), task)
    resumed, task, _, _ = validated(monkeypatch, [2.25], patience=2)
    resumed.load_state_dict(callback.state_dict())
    assert (resumed.best, resumed.best_step, resumed.worse) == (2.0, 10, 1)
    at = trainer(20)
    resumed.on_train_start(at, task)
    assert not at.should_stop
    resumed.after_step(trainer(30), task)
    again, _, _, _ = validated(monkeypatch, [], patience=2)
    again.load_state_dict(resumed.state_dict())
    again.on_train_start(at, task)
    assert at.should_stop
