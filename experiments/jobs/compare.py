"""job=compare: which of several models is better, each at settings selected for it on the validation split."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from experiments.data import task_label
from experiments.jobs import Job, report
from experiments.system import signals
from zoo.errors import UserError

if TYPE_CHECKING:
    from experiments.compare.select import Selection
    from experiments.configuration.schema import Config


def run(config: Config) -> None:
    """Select and confirm the settings of one model alone; a comparison takes several (`run_sweep`)."""
    run_sweep([config])


def run_sweep(configs: list[Config]) -> None:
    """Compare the models, and report on the runs that confirm. With dry=true only the cost is said."""
    compare(configs)
    if not configs[0].dry:
        report.run(configs[0])


def compare(configs: list[Config]) -> None:
    """Select the settings of each model (a configuration), then confirm them; print what was selected.

    With dry=true only the runs and their cost are said.

    Several tasks are a comparison each: a model's settings are selected for every task by itself.
    The runs of the selection are those of the experiment NAME_selection, the confirming ones those of NAME. What is
    complete is not trained again. Raises UserError before anything is trained where the command has a mistake.
    """
    with signals.loading():
        from experiments.compare.length_generalization import longer_tasks, score_longer
        from experiments.compare.select import confirm, confirmations, select
        from experiments.compare.selection_record import write_record
        from experiments.compare.time_estimate import core_seconds, minutes

    selections = checked(configs)
    _announce(selections)
    if configs[0].dry:
        print(f"{minutes(*core_seconds(selections))}; start-up and scoring come on top", flush=True)
        return
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
    score_longer([planned for group in plans for planned in group if longer_tasks(planned.config)])


def checked(configs: list[Config]) -> list[Selection]:
    """Return the selections that would be run for each model. Raises UserError where the command has a mistake."""
    with signals.loading():
        from experiments.compare.length_generalization import longer_tasks
        from experiments.compare.select import named_models, start
        from experiments.planning.identity import refuse_lost_values

    configs = [made for config in configs for made in named_models(config)]
    _check(configs)
    for config in configs:
        longer_tasks(config)
    selections = start(configs)
    refuse_lost_values(trial.planned for selection in selections for trial in selection.trials)
    return selections


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
    cells = [(task_label(config.data), repr(config.model)) for config in configs]
    if len(set(cells)) < len(cells):
        raise UserError(
            "job=compare was given the same model several times; put other settings to select into compare.grid "
            "(several tasks, data=mqar,palindrome, make one comparison each)"
        )


def _announce(selections: list[Selection]) -> None:
    models = len({repr(selection.config.model) for selection in selections})
    tasks = len({task_label(selection.config.data) for selection in selections})
    more = max(_growth(selection) for selection in selections)
    seeds = selections[0].config.compare.selection_seeds
    print(
        f"{models} model{'s' * (models != 1)}{f' on {tasks} tasks' * (tasks > 1)}: "
        f"{sum(len(selection.trials) for selection in selections)} runs to select"
        f"{f', up to {more} more each where the best rate is at an end' * (more > 0)}"
        f"{f', the two best settings of each with {seeds} seeds' * (seeds > 1)}; then "
        f"{sum(selection.config.compare.seeds for selection in selections)} to confirm",
        flush=True,
    )


def _growth(selection: Selection) -> int:
    """The runs that may be added to a model's trials."""
    compare = selection.config.compare
    return 2 * compare.extend * len(selection.trials) // len(compare.rates)


def _chosen(selection: Selection) -> str:
    best = selection.best
    text = " ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in best.settings.items()
    )
    tried = ", ".join(f"{rate:g}" for rate in selection.rates)
    loss, runs = f"validation loss {selection.loss(best):.4f}", len(selection.runs(best))
    loss = f"mean {loss} of {runs} seeds" if runs > 1 else loss
    line = f"selected for {best.planned.title}: {text}, {loss} (rates tried: {tried})"
    way = "lower" if selection.edge == "lowest" else "higher"
    return line + (f"; at the {selection.edge} end: a {way} rate may be better" if selection.edge else "")


JOB = Job(
    "compare",
    "tune each model on the validation split, confirm with other seeds, and report which models differ",
    run,
    reads=("dry",),
    needs="--multirun model=A,B,... name=NAME",
    run_sweep=run_sweep,
)
