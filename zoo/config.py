"""The configuration of a model, made from the registry.

`ModelConfig` has a node for every registered block (`mixers.attention`, `residual.add`, `channel.swiglu`), so that any
pattern and any block's options can be named without unions. Only `from_dict`/`to_dict` cross a process border.
"""

import dataclasses
import types
import typing
from typing import Any

from zoo import registry
from zoo.errors import UserError, unknown
from zoo.options import added, before_they_existed, deciding

__all__ = ["ModelConfig", "added", "check_positive", "from_dict", "used"]

for _package in ("zoo.mixers", "zoo.residuals", "zoo.channels"):
    registry.discover(_package)


def _node(name: str, kind: str, chosen: str | None = None) -> type:
    """A dataclass with a field for each registered block, and a field `name` where one of them is chosen."""
    fields: list[Any] = [] if chosen is None else [("name", str, chosen)]
    for block in registry.blocks(kind).values():
        fields.append((block.name, block.config, dataclasses.field(default_factory=block.config)))
    made = dataclasses.make_dataclass(name, fields, namespace={"__reduce__": _as_values})
    made.__module__ = __name__
    return made


def _as_values(node: Any) -> tuple[Any, ...]:
    """Pickled by its values: a worker that starts while somebody writes a block may know one more or one fewer."""
    return _from_values, (type(node).__name__, dataclasses.asdict(node))


def _from_values(name: str, values: dict[str, Any]) -> Any:
    return from_dict(globals()[name], values, recorded=True)


Mixers = _node("Mixers", "mixer")
ResidualChoice = _node("ResidualChoice", "residual", "add")
ChannelChoice = _node("ChannelChoice", "channel", "swiglu")
_CHOICES = (Mixers, ResidualChoice, ChannelChoice)


@dataclasses.dataclass
class ModelConfig:
    """A language model.

    preset: what a legend calls it (None: named after its pattern); pattern, depth: see zoo.pattern; d_model: width;
    n_heads: heads of every mixer that does not set its own; tie_embeddings: the LM head shares the embedding's
    weights; backend: kernels' backend, in decoding too (varlen and flash_attn serve whole sequences; a step of decoding
    then takes what "auto" does).
    """

    preset: str | None = None
    pattern: str = "F"
    depth: int | None = 4
    d_model: int = 64
    n_heads: int = 4
    tie_embeddings: bool = True
    backend: str = "auto"
    mixers: Mixers = dataclasses.field(default_factory=Mixers)  # type: ignore[valid-type]
    residual: ResidualChoice = dataclasses.field(default_factory=ResidualChoice)  # type: ignore[valid-type]
    channel: ChannelChoice = dataclasses.field(default_factory=ChannelChoice)  # type: ignore[valid-type]


def from_dict(cls: type, values: dict[str, Any], where: str = "model", recorded: bool = False) -> Any:
    """A (nested) config dataclass from plain values.

    recorded: the values come from a record of every option that existed then, so that a missing option was added
    later and takes its `before` value (see zoo.options), and while the file of a block cannot be imported
    (zoo.registry) nodes of unknown blocks are skipped; without it a missing option takes its default.
    Raises UserError for a key that does not exist and for a value of the wrong type.
    """
    hints = typing.get_type_hints(cls)
    known = [f.name for f in dataclasses.fields(cls)]
    out = before_they_existed(cls) if recorded else {}
    for key, value in values.items():
        if key not in known:
            # Perhaps the node of a block that is left out; a model that uses it is refused where it is built.
            if recorded and cls in _CHOICES and registry.left_out():
                continue
            raise unknown(f"key in {where}", key, known)
        if dataclasses.is_dataclass(hints[key]) and isinstance(value, dict):
            value = from_dict(hints[key], value, f"{where}.{key}", recorded)
        elif not _fits(value, hints[key]):
            kind = hints[key].__name__ if isinstance(hints[key], type) else hints[key]
            raise UserError(f"{where}.{key}={value!r} must be of type {kind}, not {type(value).__name__}")
        out[key] = value
    return cls(**out)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value has the type of a field's annotation; an int counts as a float, a bool as neither."""
    if hint is Any:
        return True
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return any(_fits(value, option) for option in typing.get_args(hint))
    kind = typing.get_origin(hint) or hint
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)


def used(config: ModelConfig, letters: str) -> dict[str, Any]:
    """The options that decide the built model, as plain values: only blocks that the pattern uses, without the backend.

    A run's identity hashes these, so that registering a new block changes no existing run; an option that was
    added to a block later (zoo.options.added) is included only where it differs from its `before` value.
    """
    mixers = registry.mixer_by_letter()
    out = deciding(config)
    names = {mixers[letter].name for letter in letters}
    out["mixers"] = {name: options for name, options in out["mixers"].items() if name in names}
    for part in ("residual", "channel"):
        name = out[part]["name"]
        out[part] = {"name": name, **({name: out[part][name]} if name in out[part] else {})}
    out.update(pattern=letters, depth=len(letters))
    for key in ("preset", "backend"):
        del out[key]
    return out


def check_positive(config: ModelConfig) -> None:
    """Refuse sizes below one. Raises UserError."""
    for key in ("d_model", "n_heads"):
        if getattr(config, key) < 1:
            raise UserError(f"model.{key}={getattr(config, key)} must be at least 1")
