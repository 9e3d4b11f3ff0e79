"""job=compare: which of several models is better, each at settings selected for it on the validation split."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from experiments import interrupts
from experiments.jobs import Job
from zoo.errors import UserError

if TYPE_CHECKING:
    from experiments.compare.select import Selection
    from experiments.schema import Config


def run(config: Config) -> None:
    """Compare needs several models; one alone is selected and confirmed too."""
    run_sweep([config])


def run_sweep(configs: list[Config]) -> None:
    """Select the settings of each model (a configuration), then confirm them; print what was selected.

    The runs of the selection are those of the experiment NAME_selection, the confirming ones those of NAME. What is
    complete is not trained again. Raises UserError before anything is trained where the command has a mistake.
    """
    with interrupts.exiting():
        from experiments.compare.confirm import confirm, confirmations
        from experiments.compare.record import write_record
        from experiments.compare.select import select, start

    _check(configs)
    selections = start(configs)
    _announce(selections)
    folder = Path(configs[0].results) / configs[0].name
    plans = []

    def record() -> None:
        write_record(folder, selections, plans or [[] for _ in selections])

    select(selections, record)
    plans = [confirmations(selection) for selection in selections]
    record()
    for selection in selections:
        print(_chosen(selection))
    confirm(plans)


def _check(configs: list[Config]) -> None:
    """Refuse sweeps over what the job selects or repeats by itself. Raises UserError."""
    for key, what, instead in (
        ("seed", {config.seed for config in configs}, "compare.seeds=N"),
        ("optim.lr", {config.optim.lr for config in configs}, "compare.rates=[...]"),
    ):
        if len(what) > 1:
            raise UserError(f"job=compare goes through {key} itself; leave {key}=... out and give {instead}")
    if "test" not in configs[0].evaluate.splits:
        raise UserError(
            "job=compare scores the confirming runs on the test split; leave evaluate.splits out, or give "
            "evaluate.splits=[validation,test]"
        )
    models = [repr(config.model) for config in configs]
    if len(set(models)) < len(models):
        raise UserError(
            "job=compare was given one model several times; what else is to be selected goes into compare.grid"
        )


def _announce(selections: list[Selection]) -> None:
    compare, models = selections[0].config.compare, len(selections)
    grid = len(selections[0].trials)
    more = f", up to {2 * compare.extend * grid // len(compare.rates)} more each where the best rate is at an end"
    print(
        f"{models} model{'s' * (models != 1)}: {models * grid} runs to select{more * (compare.extend > 0)}; then "
        f"{models * compare.seeds} to confirm",
        flush=True,
    )


def _chosen(selection: Selection) -> str:
    best = selection.best
    text = " ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in best.settings.items()
    )
    tried = ", ".join(f"{rate:g}" for rate in selection.rates)
    line = (
        f"selected for {best.planned.title}: {text}, validation loss {best.loss:.4f} (rates tried: {tried})"
    )
    way = "lower" if selection.edge == "lowest" else "higher"
    return line + (f"; at the {selection.edge} end: a {way} rate may be better" if selection.edge else "")


JOB = Job(
    "compare",
    "select each model's settings on the validation split, confirm them with other seeds, and say who differs",
    run,
    needs="--multirun model=A,B,... name=NAME",
    run_sweep=run_sweep,
)
