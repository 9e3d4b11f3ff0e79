"""A plan as plain values, from which another process trains the run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from experiments.configuration.schema import Config
from experiments.planning.plan import Plan
from experiments.runs.folders import RunFolder
from zoo.config import from_dict


def to_record(planned: Plan) -> dict[str, Any]:
    """The plan as values that JSON holds, without its folder."""
    return {
        "letters": planned.letters,
        "identity": planned.identity,
        "config": dataclasses.asdict(planned.config),
    }


def from_record(record: dict[str, Any], folder: Path) -> Plan:
    """The plan in a record, for the run in `folder`.

    Raises LookupError or TypeError where a part is missing, UserError where the configuration is none of this version.
    """
    config = from_dict(Config, record["config"], "config")
    return Plan(config, record["letters"], record["identity"], RunFolder(folder))
