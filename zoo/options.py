"""Options that came later than the first runs: how to declare one so that no run changes its name.

A run's folder is named by a hash of what can change its result, so every option of a block or of the recipe is in that
hash. An option added today would be a new key in it, and every finished run would get another name and train again.
So an option that is added is declared with the value at which the program does what it did before the option existed:

    scores: str = added("sigmoid", before="sigmoid")

Where the option has that value, it is left out of the identity; with any other it is in it. A default may differ
from `before`: then runs that take the default are new runs, as they should be.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable
from typing import Any

_BEFORE = "before"


def added(default: Any, *, before: Any) -> Any:
    """A dataclass field for an option that earlier runs did not have.

    default: what it is from now on; before: the value that behaves as before the option existed.
    """
    metadata = {_BEFORE: before}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: copy.deepcopy(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def has_defaults(config: type) -> bool:
    """Whether it is a dataclass that can be made from nothing, as every configuration has one of every block."""
    missing = dataclasses.MISSING
    return dataclasses.is_dataclass(config) and not any(
        f.init and f.default is missing and f.default_factory is missing for f in dataclasses.fields(config)
    )


def deciding(config: Any, keys: Iterable[str] | None = None) -> dict[str, Any]:
    """The values of a config dataclass that enter a run's identity, nested ones too; keys: only these options.

    All of them except options added later that have their `before` value.
    """
    wanted = None if keys is None else set(keys)
    out = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if (wanted is not None and field.name not in wanted) or _as_before(field, value):
            continue
        nested = dataclasses.is_dataclass(value)
        out[field.name] = deciding(value) if nested else copy.deepcopy(value)
    return out


def before_they_existed(cls: type) -> dict[str, Any]:
    """Option name -> `before` value, for the options of a config dataclass that were added later."""
    fields = dataclasses.fields(cls)
    return {f.name: copy.deepcopy(f.metadata[_BEFORE]) for f in fields if _BEFORE in f.metadata}


def _as_before(field: dataclasses.Field, value: Any) -> bool:
    """Whether an added option has its `before` value; False == 0 in Python, but an option may take both."""
    if _BEFORE not in field.metadata:
        return False
    before = field.metadata[_BEFORE]
    return value == before and isinstance(value, bool) == isinstance(before, bool)
