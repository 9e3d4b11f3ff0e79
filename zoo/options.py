"""Options: limits beside the key, one that is added later, checks of values, defaults that several blocks share.

A run's folder is named by a hash of what can change its result, so every option of a block or of the recipe is in that
hash. An option added today would be a new key in it, and every finished run would get another name and train again.
So an option that is added is declared with the value at which the program does what it did before the option existed:

    scores: str = added("sigmoid", before="sigmoid")

Where the option has that value, it is left out of the identity; with any other it is in it. A default may differ
from `before`: then runs that take the default are new runs, as they should be.

Limits stand beside the option, `steps: int = limited(300, least=1)`, and `check_limits` reads them. Checks raise
UserError; every refusal names the option and its value.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import keyword
import math
import operator
import types
import typing
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from zoo.errors import UserError, unknown

R = TypeVar("R")
_BEFORE = "before"
LARGEST = 2**31 - 1
"""The largest size of a whole number that an option takes, where no other limit stands beside it."""


def added(default: Any, *, before: Any, **limits: Any) -> Any:
    """A dataclass field for an option that earlier runs did not have.

    default: what it is from now on; before: the value that behaves as before the option existed; limits: as of
    `limited`.
    """
    return limited(default, before=before, **limits)


def limited(default: Any, **metadata: Any) -> Any:
    """A dataclass field for an option with limits, which `check_limits` reads.

    least, most: the lowest and the highest value; above, below: values that it does not reach; choices: the values that
    there are, or a function that returns them; check: a function of value and key that raises UserError; text: it may
    hold any characters. None is always allowed; of a list, limits are those of its items.

    Without any: a number is finite and a whole one at most LARGEST, a string has no control characters.
    """
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: copy.deepcopy(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def why_unusable(name: str, config: type) -> str | None:
    """Why no configuration can have a node of this name with these options, as one has of every block; None: it can."""
    if not (isinstance(name, str) and name.isidentifier()) or keyword.iskeyword(name) or name[0] == "_":
        return "a name is made of letters, digits and _, as my_block is"
    if name == "name":
        return "'name' is the key that chooses one; choose another"
    missing = dataclasses.MISSING
    if not dataclasses.is_dataclass(config) or any(
        f.init and f.default is missing and f.default_factory is missing for f in dataclasses.fields(config)
    ):
        return "its options are a dataclass whose every field has a default"
    try:
        hints, made = typing.get_type_hints(config), config()
    except Exception as error:
        return f"its options cannot be made ({type(error).__name__}: {error})"
    for field in dataclasses.fields(config):
        value, hint = getattr(made, field.name), hints[field.name]
        if not _holds(hint):
            return f"its option {field.name} is of a type that no configuration holds, {hint}; give a number or a text"
        if not fits(value, hint):
            return f"its option {field.name} has the default {value!r}, which is not of its type {hint}"
    return None


def _holds(hint: Any) -> bool:
    """Return whether a configuration file can have values of this annotation."""
    if isinstance(hint, type) and (dataclasses.is_dataclass(hint) or issubclass(hint, enum.Enum)):
        return True
    if hint in (int, float, str, bool, bytes, list, dict, tuple, types.NoneType, Any):
        return True
    kind = typing.get_origin(hint)
    allowed = (types.UnionType, typing.Union, list, dict, tuple)
    return kind in allowed and all(x is Ellipsis or _holds(x) for x in typing.get_args(hint))


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value has the type of a field's annotation; an int counts as a float, a bool as neither."""
    if hint is Any:
        return True
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return any(fits(value, option) for option in typing.get_args(hint))
    kind = typing.get_origin(hint) or hint
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)


def remembered(function: Callable[..., R]) -> Callable[..., R]:
    """The function, called once a process for equal arguments; the results of the last 64 are kept.

    For functions of configurations: these can be changed and have no hash, so arguments are told apart by their `repr`.
    What is returned is shared, so do not change it. `forget()` drops what is kept.
    """
    kept: dict[str, R] = {}

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> R:
        key = repr((args, kwargs))
        if key not in kept:
            result = function(*args, **kwargs)
            if len(kept) == 64:
                del kept[next(iter(kept))]
            kept[key] = result
        return kept[key]

    call.forget = kept.clear  # type: ignore[attr-defined]
    return call


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
    """Return whether an added option has its `before` value; False == 0 in Python, but an option may take both."""
    if _BEFORE not in field.metadata:
        return False
    before = field.metadata[_BEFORE]
    return value == before and isinstance(value, bool) == isinstance(before, bool)


def check_limits(config: Any, prefix: str = "") -> None:
    """Raise UserError for a value beyond the limits beside its key (`limited`), in a config dataclass or one inside it.

    prefix: what stands before its keys, "trainer.".
    """
    for field in dataclasses.fields(config):
        value, key = getattr(config, field.name), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value):
            check_limits(value, f"{key}.")
        elif isinstance(value, list):
            for i, item in enumerate(value):
                if isinstance(item, list | dict):
                    raise UserError(f"{key}[{i}]={item} must be one value")
                _check_value(item, f"{key}[{i}]", **field.metadata)
        elif value is not None:
            _check_value(value, key, **field.metadata)


def _check_value(
    value: Any,
    key: str,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Iterable[str] | Callable[[], Iterable[str]] | None = None,
    check: Callable[[Any, str], object] | None = None,
    text: bool = False,
    before: Any = None,
) -> None:
    if isinstance(value, str):
        _check_characters(value, key, text)
    if choices is not None and value not in (known := choices() if callable(choices) else choices):
        raise unknown(key, value, known)
    if check is not None:
        check(value, key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if (
        isinstance(value, int) and abs(value) > LARGEST
    ):  # else the message has only what stands beside the key
        most = LARGEST if most is None and below is None else most
        least = -LARGEST if least is None and above is None else least
    bounds = (
        ("at least", operator.ge, least),
        ("a number above", operator.gt, above),
        ("at most", operator.le, most),
        ("below", operator.lt, below),
    )
    given = [(words, fits, bound) for words, fits, bound in bounds if bound is not None]
    if not (-math.inf < value < math.inf and all(fits(value, bound) for _, fits, bound in given)):
        limits = " and ".join(f"{words} {x}" for words, _, x in given) or "a finite number"
        raise UserError(f"{key}={value} must be {limits}")


def _check_characters(value: str, key: str, text: bool) -> None:
    """Refuse what no file can hold, and beside texts what would control a terminal. Raises UserError."""
    if any("\ud800" <= c <= "\udfff" for c in value):  # bytes of a command line that are no UTF-8
        raise UserError(f"{key}={value!a} is no UTF-8; give it in UTF-8")
    if not text and any(unicodedata.category(c) == "Cc" for c in value):
        raise UserError(f"{key}={value!a} has control characters; leave them out")


def at_least(value: float | None, least: float, option: str, *, most: float | None = None) -> None:
    """Refuse an infinite number, NaN and one outside least to most; None stands for a default. Raises UserError."""
    if value is not None and not (least <= value < math.inf and (most is None or value <= most)):
        raise UserError(
            f"{option}={value} must be at least {least}"
            + (f" and at most {most}" if most is not None else "")
        )


def positive(value: float, option: str) -> None:
    """Raise UserError for a value that is not a finite number above 0."""
    if not 0 < value < math.inf:
        raise UserError(f"{option}={value} must be a number above 0")


def one_of(value: str, known: Sequence[str], option: str) -> None:
    """Raise UserError for a value that is not one of `known`."""
    if value not in known:
        raise UserError(f"{option} must be one of {', '.join(known)}, not '{value}'")


def head_width(d_model: int, n_heads: int, option: str, own: int | None = None) -> int:
    """d_model / n_heads, or a block's own head_width. Raises UserError where heads do not divide the width."""
    if own is not None:
        at_least(n_heads, 1, option)
        at_least(own, 1, option.replace("n_heads", "head_width"))
        return own
    if n_heads < 1 or d_model % n_heads:
        fits = [h for h in range(1, d_model + 1) if d_model % h == 0 and (d_model // h) % 2 == 0][-8:]
        advice = f"choose a divisor, e.g. one of {fits}" if fits else "choose an even model.d_model"
        raise UserError(f"{option}={n_heads} does not divide model.d_model={d_model}; {advice}")
    return d_model // n_heads


def even_width(width: int, block: str) -> int:
    """The head width. Raises UserError for an odd one: rotary positions turn pairs of channels."""
    if width % 2:
        raise UserError(
            f"{block}: head width {width} is odd, and rotary positions rotate pairs; use an even width"
        )
    return width


def kv_heads(own: int | None, n_heads: int, block: str, *, default: int) -> int:
    """The number of KV heads, `default` where `own` is None. Raises UserError unless it divides n_heads."""
    heads = default if own is None else own
    if heads < 1 or n_heads % heads:
        raise UserError(f"{block}.n_kv_heads={heads} does not divide n_heads={n_heads}")
    return heads


def default_kv_heads(n_heads: int) -> int:
    """The most KV heads that divide the heads and are at most a third of them; at least 1."""
    return grouped_kv_heads(n_heads, n_heads // 3)


def grouped_kv_heads(n_heads: int, most: int) -> int:
    """The most KV heads, up to `most`, that divide the heads and are fewer than they are; at least 1."""
    return max(n for n in range(1, max(1, min(most, n_heads - 1)) + 1) if n_heads % n == 0)


def default_recurrent_heads(n_heads: int) -> int:
    """Half the model's heads, each twice as wide; all of them where they are odd."""
    return n_heads // 2 if n_heads % 2 == 0 else n_heads
