"""The registry of blocks: what exists, under which name and letter, how it is drawn; and finding it in its folders.

A block registers itself where it is defined:

    @register_mixer("attention", letter="F", config=AttentionConfig, title="Full attention", ...)
    class Attention(Mixer): ...

Config schema, pattern language, contract tests, cost tables and figures read this table and nothing else, so that a
new file in `zoo/mixers/`, `zoo/residuals/` or `zoo/channels/` is all a new block needs. Somebody may be writing a block
while others train: a file that is half there takes only itself away (`import_all`).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import importlib.metadata
import inspect
import json
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zoo.errors import UserError, unknown
from zoo.options import why_unusable

_ROOT = Path(__file__).resolve().parents[1]
_left_out: dict[str, str] = {}  # module -> its mistake
_own: list[str] = []  # modules that `discover_own` found

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

    name: used in configs; letter: used in patterns (mixers only; "": {name} is); cls: the module; config: its dataclass
    of options; title, family, color (#rrggbb), mask: how figures name, group, colour and sketch it (mask: which tokens
    a token may attend to, one of MASKS);
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

    @property
    def word(self) -> str:
        """What stands for a mixer in a pattern: its letter, or its name in braces."""
        return self.letter or word(self.name)

    def describe(self) -> dict[str, Any]:
        """Plain values, for JSON, from which a figure draws this block without importing it.

        sketch: rows of boxes from the input to the output, a box [text, group], the group None or 0, 1, 2; [] where
        the block has none.
        """
        keys = ("letter", "name", "title", "family", "color", "mask", "choice")
        return {**{key: getattr(self, key) for key in keys}, "sketch": sketch_rows(self.sketch)}


def word(name: str) -> str:
    """What stands for a name in a pattern: a capital letter itself, another name in braces."""
    return name if re.fullmatch("[A-Z]", name) else f"{{{name}}}"


def sketch_rows(sketch: str) -> list[list[list[Any]]]:
    """Lines of boxes "text | text #group" -> rows of [text, group]. Raises ValueError for a box without text."""
    rows = []
    for line in filter(None, map(str.strip, sketch.splitlines())):
        row: list[list[Any]] = []
        for box in line.split("|"):
            text, _, group = (part.strip() for part in box.partition("#"))
            if not text or group not in ("", "0", "1", "2"):
                raise ValueError(
                    f"a box of a sketch must be text, or text followed by #0, #1 or #2, not '{box}' in '{line}'"
                )
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
                f"{cls.__module__}: the mask of {kind} '{name}' must be one of {', '.join(MASKS)}, not '{block.mask}'"
            )
        if not re.fullmatch("#[0-9a-fA-F]{6}", block.color):
            raise ValueError(
                f"{cls.__module__}: the color of {kind} '{name}' must be #rrggbb, not '{block.color}'"
            )
        if wrong := why_unusable(name, block.config):
            raise ValueError(f"{cls.__module__}: {kind} '{name}': {wrong}")
        if wrong := ", ".join(key for key, value in metadata.items() if not isinstance(value, str)):
            raise ValueError(f"{cls.__module__}: {kind} '{name}': {wrong} must be a text")
        sketch_rows(block.sketch)
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
            newer, older = newest_first(block.cls, other.cls)
            advice = "; `python run.py job=list` shows the letters in use" if same_letter else ""
            raise Clash(
                f"{newer.__module__}: {block.kind} {what} is taken by {older.__module__}; choose another{advice}",
                newer,
            )


def register_mixer(
    name: str, *, letter: str = "", config: type | None = None, **metadata: Any
) -> Callable[[type], type]:
    """Register a sequence mixer under a config name and a pattern letter, one of A-Z; without one it is {name} there.

    Raises ValueError for another letter.
    """
    if letter and not (len(letter) == 1 and letter.isascii() and letter.isupper()):
        raise ValueError(f"a mixer's letter must be one capital letter A-Z, not {letter!r}")
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
        raise UserError("; ".join([str(error), *left_out()]))
    return _BLOCKS[kind][name]


def source_file(cls: type) -> Path | None:
    """The file that defines a class; None where it was defined in a notebook."""
    try:
        source = inspect.getsourcefile(cls)
    except (TypeError, OSError):
        return None
    return Path(source).resolve() if source else None


def source_hash(cls: type) -> str:
    """Hash of the file that defines a class, 16 hex digits, in a wheel as in the checkout; "" for one of a notebook."""
    file = source_file(cls)
    if file is None:
        return ""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    return _in_checkout().get(digest, digest)


@functools.cache
def _in_checkout() -> dict[str, str]:
    """The hash of a file of the wheel -> that of the file in the checkout, whose imports are others; else empty."""
    built = _ROOT / "built.json"
    return json.loads(built.read_text(encoding="utf-8"))["sources"] if built.is_file() else {}


def mixer_by_letter() -> dict[str, Block]:
    """Pattern letter, or name in braces where a mixer has none -> mixer, in alphabetical order."""
    return {b.word: b for b in sorted(_BLOCKS["mixer"].values(), key=lambda b: b.word)}


def discover(package_name: str) -> None:
    """Import every module of a package, so that the blocks in it register themselves (`zoo.registry.import_all`)."""
    import_all(package_name, _forget)


def discover_own() -> None:
    """Import the modules with blocks that stand in no room, as `discover` does with those of a package.

    They are the files that register something (`register_mixer`, `register_measure`, ...) in the folders of the
    environment variable ARCHZOO_BLOCKS, which `blocks=[FOLDER]` sets and processes of a run inherit, and the modules
    that installed packages name as entry points of the group archzoo.blocks.
    """
    for folder in filter(None, os.environ.get("ARCHZOO_BLOCKS", "").split(os.pathsep)):
        sys.path += [folder] * (folder not in sys.path)
        files = sorted(Path(folder).glob("*.py"))
        _own.extend(file.stem for file in files if b"register_" in file.read_bytes())
    _own.extend(entry.module for entry in importlib.metadata.entry_points(group="archzoo.blocks"))
    _import_each(_own, _forget)


def own_modules() -> tuple[str, ...]:
    """The modules with blocks that stand in no room (`discover_own`)."""
    return tuple(_own)


def _forget(module: str) -> None:
    for kind, registered in _BLOCKS.items():
        _BLOCKS[kind] = {key: b for key, b in registered.items() if b.cls.__module__ != module}


class Clash(ValueError):
    """Two files claim one name; newcomer: the class in the file that was written last."""

    def __init__(self, message: str, newcomer: type) -> None:
        super().__init__(message)
        self.newcomer = newcomer


def modules_of(package_name: str) -> list[str]:
    """The full names of a package's modules, in alphabetical order."""
    package = importlib.import_module(package_name)
    return [f"{package_name}.{module.name}" for module in pkgutil.iter_modules(package.__path__)]


def import_error(name: str) -> BaseException | None:
    """Import a module; returns what was raised, sys.exit() included, None where all went well."""
    try:
        importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error
    return None


def import_all(package_name: str, forget: Callable[[str], None]) -> None:
    """Import every module of a package, so that what is in it registers itself.

    A module that cannot be imported is left out (`left_out`); of two files that claim one name, the one written last.
    forget: called with the name of a module that is left out, to remove what it had registered.
    """
    _import_each(modules_of(package_name), forget)


def _import_each(names: list[str], forget: Callable[[str], None]) -> None:
    for name in names:
        while error := import_error(name):
            loser = error.newcomer.__module__ if isinstance(error, Clash) else name
            leave_out(loser, error)
            forget(loser)
            if loser == name:
                break


def newest_first(*classes: type) -> list[type]:
    """Classes by when their files were written: the newcomer's came last, in whatever order files are imported."""
    return sorted(classes, key=_written, reverse=True)


def _written(cls: type) -> float:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return Path(file).stat().st_mtime if file else float("inf")


def leave_out(name: str, error: BaseException) -> None:
    """Remember that this module could not be imported, and why."""
    _left_out[name] = _describe(error)


def is_left_out(name: str) -> bool:
    """Return whether the module could not be imported."""
    return name in _left_out


def left_out(package_name: str = __package__) -> list[str]:
    """A line for each mistake that kept modules of a package from being imported: file, line, error and modules.

    zoo/mixers/ema.py, line 12: SyntaxError: '(' was never closed (left out until this is fixed: zoo.mixers.ema)
    """
    modules: dict[str, list[str]] = {}
    for name, mistake in _left_out.items():
        if name.startswith(f"{package_name}.") or (package_name == __package__ and name in _own):
            modules.setdefault(mistake, []).append(name)
    return [
        f"{mistake} (left out until this is fixed: {', '.join(names)})" for mistake, names in modules.items()
    ]


def _describe(error: BaseException) -> str:
    """`zoo/mixers/ema.py, line 12: NameError: name 'nn' is not defined`."""
    file, line = _place(error)
    path = Path(file)
    relative = path.relative_to(_ROOT) if path.is_relative_to(_ROOT) else path
    message = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    inside = f"{__package__.rpartition('.')[0]}.{getattr(error, 'name', None)}"
    # In the wheel, of a file that is for a checkout.
    if isinstance(error, ModuleNotFoundError) and inside in sys.modules:
        message += f"; here it is {inside}"
    return f"{relative}, line {line}: {type(error).__name__}: {message}"


def _place(error: BaseException) -> tuple[str, int | None]:
    """File and line of the mistake: in the file whose import failed, not in what it called."""
    # A newcomer that was imported already: the traceback is of the file that it clashed with.
    if isinstance(error, Clash) and error.newcomer.__module__ in sys.modules:
        return inspect.getsourcefile(error.newcomer) or "?", inspect.getsourcelines(error.newcomer)[1]
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if f.name == "<module>" and _is_ours(Path(f.filename))]
    file = (ours or frames)[-1].filename
    return file, [f.lineno for f in frames if f.filename == file][-1]


def _is_ours(file: Path) -> bool:
    rooms = any(file.is_relative_to(_ROOT / room) for room in ("zoo", "experiments"))
    return rooms or file in (Path(getattr(sys.modules.get(name), "__file__", "")) for name in _own)
