"""The registry of blocks: what exists, under which name and letter, and how it is drawn.

A block registers itself where it is defined:

    @register_mixer("attention", letter="F", config=AttentionConfig, title="Full attention", ...)
    class Attention(Mixer): ...

Config schema, pattern language, contract tests, cost tables and figures read this table and nothing else, so that a
new file in `zoo/mixers/`, `zoo/residuals/` or `zoo/channels/` is all a new block needs.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from zoo.errors import unknown

KINDS = ("mixer", "residual", "channel")


@dataclasses.dataclass(frozen=True)
class Block:
    """One registered block.

    name: used in configs; letter: used in patterns (mixers only); cls: the module; config: its dataclass of options;
    title, family, color (#rrggbb), mask: how figures name, group, colour and sketch it (mask: what a token may
    attend to, one of "causal", "window", "timeline", "topk", "blocks", "recurrent", "convolution", "none");
    source: the paper.
    """

    kind: str
    name: str
    cls: type
    config: type
    letter: str = ""
    title: str = ""
    family: str = ""
    color: str = "#555555"
    mask: str = "none"
    source: str = ""

    def describe(self) -> dict[str, str]:
        """What a result file needs to draw this block without importing it."""
        return {key: getattr(self, key) for key in ("letter", "name", "title", "family", "color", "mask")}


@dataclasses.dataclass
class NoOptions:
    """The config of a block without options."""


_BLOCKS: dict[str, dict[str, Block]] = {kind: {} for kind in KINDS}


def _register(kind: str, name: str, config: type | None, **looks: Any) -> Callable[[type], type]:
    def add(cls: type) -> type:
        block = Block(kind=kind, name=name, cls=cls, config=config or NoOptions, **looks)
        _refuse_clash(block)
        _BLOCKS[kind][name] = block
        return cls

    return add


def _refuse_clash(block: Block) -> None:
    """Two files may not claim one name or one letter; importing the same file twice is no clash."""
    for other in _BLOCKS[block.kind].values():
        same_source = (other.cls.__module__, other.cls.__qualname__) == (
            block.cls.__module__,
            block.cls.__qualname__,
        )
        same_letter = block.letter and other.letter == block.letter
        if (other.name == block.name or same_letter) and not same_source:
            what = f"letter '{block.letter}'" if same_letter else f"name '{block.name}'"
            raise ValueError(f"{block.kind} {what} is taken by {other.cls.__module__}; choose another")


def register_mixer(
    name: str, *, letter: str, config: type | None = None, **looks: Any
) -> Callable[[type], type]:
    """Register a sequence mixer under a config name and a pattern letter (one capital letter)."""
    if not (len(letter) == 1 and letter.isascii() and letter.isupper()):
        raise ValueError(f"a mixer's letter is one capital letter A-Z, not {letter!r}")
    return _register("mixer", name, config, letter=letter, **looks)


def register_residual(name: str, *, config: type | None = None, **looks: Any) -> Callable[[type], type]:
    """Register a residual scheme."""
    return _register("residual", name, config, **looks)


def register_channel(name: str, *, config: type | None = None, **looks: Any) -> Callable[[type], type]:
    """Register a channel mixer (feed-forward network)."""
    return _register("channel", name, config, **looks)


def blocks(kind: str) -> dict[str, Block]:
    """All registered blocks of a kind ("mixer", "residual", "channel") by name."""
    return dict(_BLOCKS[kind])


def get(kind: str, name: str) -> Block:
    """The block of that name. Raises UserError with a suggestion for an unknown one."""
    if name not in _BLOCKS[kind]:
        raise unknown(kind if kind == "mixer" else f"{kind} scheme", name, _BLOCKS[kind])
    return _BLOCKS[kind][name]


def mixer_by_letter() -> dict[str, Block]:
    """Pattern letter -> mixer, in alphabetical order."""
    return {b.letter: b for b in sorted(_BLOCKS["mixer"].values(), key=lambda b: b.letter)}


def discover(package_name: str) -> None:
    """Import every module of a package, so that the blocks in it register themselves."""
    package = importlib.import_module(package_name)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package_name}.{module.name}")
