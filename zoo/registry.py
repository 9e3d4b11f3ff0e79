"""The registry of blocks: what exists, under which name and letter, and how it is drawn.

A block registers itself where it is defined:

    @register_mixer("attention", letter="F", config=AttentionConfig, title="Full attention", ...)
    class Attention(Mixer): ...

Config schema, pattern language, contract tests, cost tables and figures read this table and nothing else, so that a
new file in `zoo/mixers/`, `zoo/residuals/` or `zoo/channels/` is all a new block needs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from zoo import discovery
from zoo.discovery import Clash
from zoo.errors import UserError, unknown
from zoo.options import has_defaults

KINDS = ("mixer", "residual", "channel")
_CALLED = {"mixer": "mixer", "residual": "residual scheme", "channel": "channel mixer"}
MASKS = (
    *("causal", "fading", "window", "timeline", "topk", "blocks"),
    *("recurrent", "memories", "convolution", "none"),
)
"""The kinds of mask that figures can draw (Block.mask): which tokens a token may attend to."""


@dataclasses.dataclass(frozen=True)
class Block:
    """One registered block.

    name: used in configs; letter: used in patterns (mixers only); cls: the module; config: its dataclass of options;
    title, family, color (#rrggbb), mask: how figures name, group, colour and sketch it (mask: which tokens a token
    may attend to, one of MASKS);
    source: the paper; choice: a noun for what its router chooses ("timeline"), if it has one;
    sketch: a token's way through the block for figures, a line of text a row, boxes separated by "|", "↻" for a state
    carried from token to token; "#0", "#1", "#2" after a box draw it in the colour of that group of the mask:

        x
        router | q | k | v
        line 1 #0 | line 2 #1 | line 3 #2
        y
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
    choice: str = ""
    sketch: str = ""

    def describe(self) -> dict[str, Any]:
        """Plain values, for JSON, from which a figure draws this block without importing it.

        sketch: rows of boxes from the input to the output, a box [text, group], the group None or 0, 1, 2; [] where
        the block has none.
        """
        keys = ("letter", "name", "title", "family", "color", "mask", "choice")
        return {**{key: getattr(self, key) for key in keys}, "sketch": sketch_rows(self.sketch)}


def sketch_rows(sketch: str) -> list[list[list[Any]]]:
    """Lines of boxes "text | text #group" -> rows of [text, group]. Raises ValueError for a box without text."""
    rows = []
    for line in filter(None, map(str.strip, sketch.splitlines())):
        row: list[list[Any]] = []
        for box in line.split("|"):
            text, _, group = (part.strip() for part in box.partition("#"))
            if not text or group not in ("", "0", "1", "2"):
                raise ValueError(f"a box of a sketch is text, or text #0, #1 or #2, not '{box}' in '{line}'")
            row.append([text, int(group) if group else None])
        rows.append(row)
    return rows


@dataclasses.dataclass
class NoOptions:
    """The config of a block without options."""


_BLOCKS: dict[str, dict[str, Block]] = {kind: {} for kind in KINDS}


def _register(kind: str, name: str, config: type | None, **metadata: Any) -> Callable[[type], type]:
    def add(cls: type) -> type:
        block = Block(kind=kind, name=name, cls=cls, config=config or NoOptions, **metadata)
        if block.mask not in MASKS:
            raise ValueError(
                f"{cls.__module__}: figures draw the masks {', '.join(MASKS)}, not '{block.mask}' of {kind} '{name}'"
            )
        if not has_defaults(block.config):
            raise ValueError(
                f"{cls.__module__}: the options of {kind} '{name}' are a dataclass whose every field has a default"
            )
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
            newer, older = discovery.newest_first(block.cls, other.cls)
            advice = "; the letters in use are in `python run.py job=list`" if same_letter else ""
            raise Clash(
                f"{newer.__module__}: {block.kind} {what} is taken by {older.__module__}; choose another{advice}",
                newer,
            )


def register_mixer(
    name: str, *, letter: str, config: type | None = None, **metadata: Any
) -> Callable[[type], type]:
    """Register a sequence mixer under a config name and a pattern letter. Raises ValueError unless it is one of A-Z."""
    if not (len(letter) == 1 and letter.isascii() and letter.isupper()):
        raise ValueError(f"a mixer's letter is one capital letter A-Z, not {letter!r}")
    return _register("mixer", name, config, letter=letter, **metadata)


def register_residual(name: str, *, config: type | None = None, **metadata: Any) -> Callable[[type], type]:
    """Register a residual scheme."""
    return _register("residual", name, config, **metadata)


def register_channel(name: str, *, config: type | None = None, **metadata: Any) -> Callable[[type], type]:
    """Register a channel mixer (feed-forward network)."""
    return _register("channel", name, config, **metadata)


def blocks(kind: str) -> dict[str, Block]:
    """All registered blocks of a kind ("mixer", "residual", "channel") by name."""
    return dict(_BLOCKS[kind])


def get(kind: str, name: str) -> Block:
    """The block of that name. Raises UserError with a suggestion for an unknown one."""
    if name not in _BLOCKS[kind]:
        error = unknown(_CALLED[kind], name, _BLOCKS[kind])
        raise UserError("; ".join([str(error), *discovery.left_out()]))
    return _BLOCKS[kind][name]


def mixer_by_letter() -> dict[str, Block]:
    """Pattern letter -> mixer, in alphabetical order."""
    return {b.letter: b for b in sorted(_BLOCKS["mixer"].values(), key=lambda b: b.letter)}


def discover(package_name: str) -> None:
    """Import every module of a package, so that the blocks in it register themselves (zoo.discovery.import_all)."""
    discovery.import_all(package_name, _forget)


def _forget(module: str) -> None:
    for kind, registered in _BLOCKS.items():
        _BLOCKS[kind] = {key: b for key, b in registered.items() if b.cls.__module__ != module}
