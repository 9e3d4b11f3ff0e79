"""What a command would train, and how far its runs are (dry=true)."""

from __future__ import annotations

from collections import Counter

from experiments.configuration.schema import Config
from experiments.planning.outside_identity import tell_other_settings
from experiments.planning.plan import Plan, tell_changed
from experiments.sweeps.sweep import checked


def list_cells(configs: list[Config]) -> None:
    """Print a line a cell: its state, its run folder, and the words of the command in which it differs from others.

    Everything is checked as for training. Raises UserError.
    """
    plans = checked(configs)
    shared = set.intersection(*(set(config.overrides) for config in configs))
    states = {planned.folder.path: _state(planned) for planned in plans}
    width = max(map(len, states.values()))
    for config, planned in zip(configs, plans, strict=True):
        own = [word for word in config.overrides if word not in shared]
        print(
            "  ".join(
                [
                    states[planned.folder.path].ljust(width),
                    str(planned.folder.path),
                    *(own or [planned.title]),
                ]
            )
        )
    counted = ", ".join(f"{count} {state}" for state, count in Counter(states.values()).items())
    equal = f" ({len(states)} runs: equal cells are one)" if len(states) < len(plans) else ""
    print(f"{len(plans)} cell{'s' * (len(plans) != 1)}{equal}: {counted}; dry=true trains nothing")
    unique = {planned.folder.path: planned for planned in plans}.values()
    tell_changed(unique)
    tell_other_settings(unique)


def _state(planned: Plan) -> str:
    if planned.done:
        return "complete"
    if planned.folder.complete:
        return "to score"
    if planned.folder.resumable:
        return "to resume"
    return "failed" if planned.folder.failed else "new"
