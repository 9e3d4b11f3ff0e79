"""The terminal display of a sweep: a progress bar, a line a finished cell, and the cells' names."""

from __future__ import annotations

import dataclasses
import sys
import time

from tqdm import tqdm

from experiments.configuration.compose import short_labels
from experiments.planning.outside_identity import leaves
from experiments.planning.plan import Plan
from experiments.system.progress import MIN_SECONDS


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
    return short_labels([(p.config, p.letters) for p in plans])


def _distinguished(plans: list[Plan], titles: list[str]) -> dict[str, str]:
    settings = {p.run: dict(leaves(dataclasses.asdict(p.config))) for p in plans}
    named = dict(zip(settings, titles, strict=True))
    names = {}
    for run, title in named.items():
        twins = [settings[other] for other in named if named[other] == title]
        apart = [
            f"{key}={value}"
            for key, value in settings[run].items()
            if any(twin[key] != value for twin in twins)
        ]
        names[run] = " ".join([title, *apart])
    return names


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
        tqdm.write(f"[{self.ended}/{self.bar.total}] {self.names[planned.run]}: {what}", file=sys.stdout)
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
