"""What a sweep prints of cells that complete, fail, pause, are killed or left, and how it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.program import write_text
from support.recorded import check
from support.steady import changed, forget_texts, masked, refusal, said, tiny_config

from experiments import engines, sweep
from experiments.configuration.compose import architectures
from experiments.engines.engine import FAILED, PAUSED, Engine, State
from experiments.jobs.train import run_sweep
from experiments.planning.plan import plan
from experiments.training import execute

RECORDED = Path(__file__).parent / "recorded"


class _Pretended(Engine):
    """Ends cells as it is told to: the folder's record, then the states of every cell in turn."""

    capacity = 2

    def __init__(self, states: dict[str, list], log: list[str]) -> None:
        self.states, self.log, self.here = states, log, []

    def submit(self, planned) -> None:
        self.log.append(f"submit {planned.run}")
        self.here.append(planned)

    def changed(self):
        return list(self.here)

    def state(self, planned) -> State:
        act = self.states[planned.run].pop(0)
        state = act(planned) if callable(act) else act
        if state.ended:
            self.here.remove(planned)
        return state

    def cancel(self, planned) -> bool:
        return planned.config.seed > 0

    def close(self) -> None:
        self.log.append("close")


def _complete(metrics: dict):
    def act(planned) -> State:
        planned.folder.path.mkdir(parents=True, exist_ok=True)
        planned.folder.finish({"metrics": metrics})
        return State(ended=True, status=0)

    return act


def _fail(status):
    def act(planned) -> State:
        planned.folder.path.mkdir(parents=True, exist_ok=True)
        planned.folder.fail(ValueError("an earlier failure"))
        return State(ended=True, status=status, why="killed by signal 9")

    return act


@pytest.fixture
def place(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("ARCHZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    forget_texts()
    write_text(tmp_path / "book.txt", 30)
    monkeypatch.setattr(execute.peak_flops, "peak", lambda device, cache: None)
    return tmp_path


def _configs(count: int, **keys):
    config = tiny_config(data__name="text", data__path="book.txt", results="results", name="study", **keys)
    return [changed(config, seed=seed) for seed in range(count)]


def test_what_a_sweep_prints(place: Path, monkeypatch):
    text = {"test": {"loss": 1.23456, "bits_per_byte": 2.5}}
    task = {"test": {"loss": 0.5, "accuracy": 0.75}}

    def lines() -> Iterator[str]:
        cases = (
            (
                "all well",
                [
                    [State("train 1/2", 0.5), _complete(text)],
                    [_complete(task)],
                    [_complete({"validation": {}})],
                ],
                {},
            ),
            ("failures", [[_fail(FAILED)], [_fail(-9)], [_complete(text)]], {}),
            ("pauses", [[State(ended=True, status=PAUSED)], [_complete(text)]], {}),
            (
                "lost",
                [
                    [State(ended=True, lost=True, why="gone")] * 3,
                    [State(ended=True, lost=True), _complete(text)],
                ],
                {"sweep__retries": 2},
            ),
            ("left", [[State(ended=True, left=True, why="submitted: job 7")], [_complete(text)]], {}),
            ("cancelled", [[], [], []], {"sweep__action": "cancel", "sweep__engine": "ray"}),
        )
        for number, (name, acts, keys) in enumerate(cases):
            configs = _configs(
                len(acts),
                evaluate__splits=["test"] if name != "cancelled" else ["validation"],
                optim__lr=0.01 + number,
                **keys,
            )
            plans = [plan(config) for config in configs]
            log: list[str] = []
            states = {planned.run: list(act) for planned, act in zip(plans, acts, strict=True)}
            if name == "all well":
                states[plans[2].run] = [_complete({"test": {"loss": 2.0, "bits_per_byte": 3.0}})]
            monkeypatch.setattr(
                engines, "make_engine", lambda todo, states=states, log=log: _Pretended(states, log)
            )
            names = {planned.run: f"<run {n}>" for n, planned in enumerate(plans)}
            with said() as printed:
                end = refusal(run_sweep, [*configs, configs[0]])
            yield from masked([f"{name}: {end}", *printed, *log], names)
            with said() as printed:
                monkeypatch.setattr(engines, "make_engine", lambda todo: 1 / 0)
                again = refusal(run_sweep, configs)
            yield from masked([f"again: {again}", *printed], names)

    check(RECORDED / "printed.txt", masked(list(lines()), {str(place): "<place>"}))


def test_a_cell_that_was_complete_when_its_node_vanished_is_not_submitted_again(place: Path, monkeypatch):
    (config,) = _configs(1, evaluate__splits=["test"])
    planned, log = plan(config), []

    def complete_and_lost(cell) -> State:
        _complete({"test": {"loss": 1.0, "bits_per_byte": 1.0}})(cell)
        return State(ended=True, lost=True, why="its node is gone")

    engine = _Pretended({planned.run: [complete_and_lost]}, log)
    monkeypatch.setattr(engines, "make_engine", lambda todo: engine)
    with said() as printed:
        assert sweep.train_all([planned]) == []
    assert log == [f"submit {planned.run}", "close"]
    assert printed[-1].endswith("done: test loss 1.0000, 1.0000 bits/byte")


def test_every_text_of_a_sweep_is_prepared_once_before_its_cells(place: Path, monkeypatch):
    prepared: list[str] = []
    monkeypatch.setattr(execute.data, "prepare", lambda text, progress: prepared.append(text.path))
    one, other = _configs(2)
    cells = [one, other, changed(other, data__path="another.txt"), changed(other, optim__lr=0.1)]
    sweep._prepare([SimpleNamespace(config=config) for config in cells])
    assert prepared == ["book.txt", "another.txt"]


def test_the_peak_is_measured_with_the_threads_that_cells_have(monkeypatch):
    done: list[object] = []
    monkeypatch.setattr(execute.data, "prepare", lambda text, progress: None)
    monkeypatch.setattr(execute.torch, "set_num_threads", done.append)
    monkeypatch.setattr(execute.peak_flops, "peak", lambda device, cache: done.append(device.type))
    execute.prepare(tiny_config(trainer__threads=3))
    assert done == [3, "cpu"]
    execute.prepare(tiny_config(trainer__threads=4), trains=False)
    assert done == [3, "cpu"]


def test_names_of_cells(place: Path):
    """Models and seeds; where these are equal, the settings in which cells differ."""

    def lines() -> Iterator[str]:
        base, _ = _configs(2)
        kda = architectures(base.model)["kda_pure"]
        for configs in (
            [base, changed(base, seed=1)],
            [base, changed(base, optim__lr=0.1), changed(base, optim__lr=0.1, data__batch_size=9)],
            [base, changed(base, model=kda), changed(base, model=changed(kda, mixers__kda__neg_eigval=True))],
            [
                changed(base, model__residual__name="ohc"),
                changed(base, model__residual__name="ohc", model__pattern="K"),
            ],
        ):
            plans = [plan(config) for config in configs]
            yield f"{list(sweep.cell_names(plans).values())} {list(sweep.model_names(plans).values())}"

    check(RECORDED / "names.txt", lines())


def test_when_a_bar_is_drawn(monkeypatch):
    """Not more often than its interval, but for the end of a cell; it shows what every worker does."""
    clock, drawn = [100.0], []
    monkeypatch.setattr(sweep.time, "monotonic", lambda: clock[0])
    shown = sweep.SweepDisplay({"a": "A", "b": "B"}, show_bar=False)
    shown.interval = 10.0
    shown.bar = SimpleNamespace(
        n=0,
        total=2,
        clear=lambda: None,
        refresh=lambda: drawn.append(f"{clock[0]:g}: {shown.bar.n:.3f} {shown.bar.words}"),
        set_postfix_str=lambda words, refresh: setattr(shown.bar, "words", words),
    )
    cell, other = SimpleNamespace(run="a"), SimpleNamespace(run="b")
    for now, one, what, share in (
        (100.0, cell, "train 1/2", 0.5),
        (105.0, other, "train 1/4", 0.25),
        (110.0, other, "train 2/4", 0.5),
        (119.0, cell, "test 1/9", 0.1),
        (121.0, cell, "test 2/9", 0.2),
    ):
        clock[0] = now
        shown.update(one, what, share)
    with said():
        shown.end(cell, "done")
    check(RECORDED / "bar.txt", drawn)


def test_shares_of_a_bar():
    """Training is 85 % of a cell, and so is what comes after it once it has begun."""

    def lines() -> Iterator[str]:
        shown = sweep.SweepDisplay({"a": "A", "b": "B"}, show_bar=False)
        cell, other = SimpleNamespace(run="a"), SimpleNamespace(run="b")
        for what, share in (
            ("starting", 0.0),
            ("train 1/2", 0.5),
            ("train 2/2", 1.0),
            ("test 0/9", 0.0),
            ("test 1/9", 0.1),
        ):
            shown.update(cell, what, share)
            yield f"{what} {share}: {shown.share} {shown.doing}"
        shown.update(other, "train 1/4", 0.25)
        with said() as printed:
            shown.end(cell, "done")
            shown.end(other, "paused")
        yield f"{printed} {shown.share} {shown.doing} {shown.ended}"

    check(RECORDED / "shares.txt", lines())
