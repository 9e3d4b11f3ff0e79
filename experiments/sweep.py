"""Sweeps: planned cells are handed to an engine; the names of cells, and what a sweep shows."""

from __future__ import annotations

import dataclasses
import operator
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tqdm import tqdm

from experiments import engines
from experiments.configuration.compose import short_labels
from experiments.engines.engine import FAILED, PAUSED, CellsLeft, Engine, State
from experiments.parallel.group import pick_device
from experiments.planning.identity import tell_earlier
from experiments.planning.plan import Plan
from experiments.system.machine import one_line
from experiments.system.processes import MIN_SECONDS
from experiments.training.execute import prepare

# On the terminal: a progress bar, a line a finished cell, and the cells' names.


def cell_names(plans: list[Plan]) -> dict[str, str]:
    """Run -> the name of its cell: model and seed, and where those are equal the settings in which cells differ.

    Differences from the presets that all models of the sweep share are left out.
    """
    return _distinguished(
        plans, [f"{name} seed {p.config.seed}" for p, name in zip(plans, _labels(plans), strict=True)]
    )


def model_names(plans: list[Plan]) -> dict[str, str]:
    """Run -> the name of its model, as `cell_names` without the seed."""
    return _distinguished(plans, _labels(plans))


def _labels(plans: list[Plan]) -> list[str]:
    return short_labels([(p.config, p.layers) for p in plans])


def _distinguished(plans: list[Plan], titles: list[str]) -> dict[str, str]:
    named = {p.run: (title, p.config) for p, title in zip(plans, titles, strict=True)}
    alike: dict[str, list[Any]] = {}
    for title, config in named.values():
        alike.setdefault(title, []).append(config)
    apart = {title: list(_apart(configs)) for title, configs in alike.items()}
    return {
        run: " ".join([title, *(f"{key}={operator.attrgetter(key)(config)}" for key in apart[title])])
        for run, (title, config) in named.items()
    }


def _apart(nodes: list[Any], prefix: str = "") -> Iterator[str]:
    """The dotted keys in which dataclasses of one kind differ."""
    for field in dataclasses.fields(nodes[0]):
        values = [getattr(node, field.name) for node in nodes]
        if all(value is values[0] for value in values):  # cells share what the sweep does not change
            continue
        if dataclasses.is_dataclass(values[0]):
            yield from _apart(values, f"{prefix}{field.name}.")
        elif any(value != values[0] for value in values):
            yield f"{prefix}{field.name}"


class SweepDisplay:
    """One bar for the sweep with what every worker is doing; finished cells are printed above it.

    names: of the cells, by run; show_bar: whether there is a bar (trainer.progress).
    """

    def __init__(self, names: dict[str, str], show_bar: bool = True) -> None:
        self.names = names
        interval = MIN_SECONDS if sys.stderr.isatty() else 10.0
        self.bar = tqdm(
            total=len(names),
            file=sys.stderr,
            disable=not show_bar,
            unit="cell",
            mininterval=interval,
            dynamic_ncols=True,
            bar_format="{percentage:3.0f}%|{bar:12}| {n:.1f}/{total} cells [{elapsed}<{remaining}]{postfix}",
        )
        self.doing: dict[str, str] = {}
        self.share: dict[str, float] = {}
        self.ended = 0
        self.interval, self.last = interval, 0.0

    def update(self, planned: Plan, what: str, share: float = 0.0) -> None:
        """Show what the worker of a cell is doing; share: the finished part of that phase."""
        self.doing[planned.run] = what
        # Scoring the splits comes after training, whose share of a cell is most of its time.
        self.share[planned.run] = 0.85 * share if what.startswith("train") else 0.85 * (share > 0)
        self._refresh()

    def end(self, planned: Plan, what: str) -> None:
        """Print the result of a cell."""
        self.doing.pop(planned.run, None)
        self.share.pop(planned.run, None)
        self.ended += 1
        self.bar.clear()
        line = one_line(f"{self.names[planned.run]}: {what}")  # the message may be that of a file
        tqdm.write(f"[{self.ended}/{self.bar.total}] {line}", file=sys.stdout)
        sys.stdout.flush()
        self._refresh(force=True)

    def close(self) -> None:
        """Close the bar."""
        self.bar.close()

    def _refresh(self, force: bool = False) -> None:
        now = time.monotonic()
        if now - self.last < self.interval and not force:
            return
        self.last = now
        self.bar.n = self.ended + sum(self.share.values())
        self.bar.set_postfix_str(
            " | ".join(f"{self.names[k]}: {v}" for k, v in self.doing.items()), refresh=False
        )
        self.bar.refresh()


# Training the cells (experiments.engines runs them).


def train_all(plans: list[Plan]) -> list[Plan]:
    """Have the planned runs that are not done trained by `sweep.engine`; returns those that failed.

    Runs that paused have not failed and are not done. Raises CellsLeft where the engine does not wait for its cells.
    """
    todo = [p for p in plans if not p.done]
    print(f"{len(plans)} cells: {len(plans) - len(todo)} complete, {len(todo)} to train", flush=True)
    tell_earlier(plans)
    if not todo:
        return []
    engine = engines.make_engine(todo)  # before any work: it may not be here
    try:
        if todo[0].config.sweep.action == "cancel":
            _cancel(engine, todo)
        _prepare(todo)
    except BaseException:
        engine.close()
        raise
    return Sweep(engine, todo).run()


def _prepare(plans: list[Plan]) -> None:
    """Make what cells share, so that they do not wait for each other."""
    for config in {repr(p.config.data): p.config for p in plans}.values():
        prepare(config, pick_device(config.device) if config.sweep.engine == "pool" else None)


def _cancel(engine: Engine, plans: list[Plan]) -> None:
    """End cells that earlier commands left with the engine, and raise CellsLeft with their number."""
    ended = sum(engine.cancel(planned) for planned in plans)
    raise CellsLeft(
        f"{ended} cells cancelled; without sweep.action=cancel the same command resumes it with them"
    )


class Sweep:
    """Cells on their way through an engine, as many at once as it is to have."""

    def __init__(self, engine: Engine, plans: list[Plan]) -> None:
        self.engine, self.waiting = engine, list(plans)
        self.running: dict[str, Plan] = {}
        self.display = SweepDisplay(cell_names(plans), plans[0].config.trainer.progress)
        self.failed: list[Plan] = []
        self.left: list[Plan] = []
        self.losses: Counter[str] = Counter()

    def run(self) -> list[Plan]:
        """Have every cell trained; returns those that failed. Raises CellsLeft where some are not waited for."""
        try:
            while self.waiting or self.running:
                while self.waiting and len(self.running) < self.engine.capacity:
                    self._submit(self.waiting.pop(0))
                for planned in self.engine.changed():
                    if planned.run in self.running:
                        self._take(planned, self.engine.state(planned))
        finally:
            self.engine.close()
            self.display.close()
        if self.left:
            raise CellsLeft(self.engine.detached_message(len(self.left)))
        return self.failed

    def _submit(self, planned: Plan) -> None:
        self.engine.submit(planned)
        self.running[planned.run] = planned
        self.display.update(planned, "starting")

    def _take(self, planned: Plan, state: State) -> None:
        if not state.ended:
            self.display.update(planned, state.doing, state.share)
            return
        del self.running[planned.run]
        if state.lost and not planned.done and self.losses[planned.run] < planned.config.sweep.retries:
            self.losses[planned.run] += 1
            self.waiting.append(planned)
            return
        self._finish(planned, state)

    def _finish(self, planned: Plan, state: State) -> None:
        if state.left:
            self.left.append(planned)
            self.display.end(planned, state.why)
            return
        if planned.done:
            self.display.end(planned, _result(planned))
            return
        if state.status == PAUSED:
            self.display.end(planned, "paused")
            return
        self.failed.append(planned)
        # A killed worker leaves at most an earlier attempt's record.
        recorded = planned.folder.failed and state.status == FAILED
        why = planned.folder.failure()["message"] if recorded else state.why
        self.display.end(planned, f"FAILED: {why} ({planned.folder.path})")


def _result(planned: Plan) -> str:
    test = planned.folder.summary()["metrics"].get("test")
    if test is None:
        return "done"
    more = f"{test['accuracy']:.2%} right" if "accuracy" in test else f"{test['bits_per_byte']:.4f} bits/byte"
    return f"done: test loss {test['loss']:.4f}, {more}"
