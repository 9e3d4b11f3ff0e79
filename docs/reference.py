"""Writes the pages of docs/reference/ from the registry, the operations and the configuration schema."""

from __future__ import annotations

import dataclasses
import inspect
import json
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docstrings import escaped, key_meanings, markdown
from matplotlib.figure import Figure

import kernels
from analysis.gallery import listed
from analysis.plotting.sketches import GROUPS, path, sketch
from analysis.plotting.style import series_styles
from experiments.configuration import schema
from experiments.data import TASKS
from zoo import registry
from zoo.residuals import hyper_connections

CHOICES = ("model.residual", "model.channel")
CATALOGUED = ("model.mixers", "data.tasks")
"""Nodes that have no keys but those of blocks and tasks."""
OUT = Path(__file__).with_name("reference")
BLOCKS = Path(__file__).with_name("blocks")
"""Pages on where blocks depart from their documents, by the block's name."""
KINDS = {"mixer": "Mixers", "residual": "Residual schemes", "channel": "Channel mixers"}
SHARED = {"residual": ("What schemes with several streams share", hyper_connections)}
"""Kind -> the title and the module of the equations that several of its blocks share."""


def write() -> None:
    """Write every page; a page that stays as it is keeps its time, so that only what changed is built again."""
    (OUT / "sketches").mkdir(parents=True, exist_ok=True)
    for block in registry.blocks("mixer").values():
        if block.sketch:
            _draw_sketch(block).savefig(OUT / "sketches" / f"{block.name}.svg")
    pages = {f"{kind}s.md": blocks_page(kind, title) for kind, title in KINDS.items()}
    pages |= {
        "tasks.md": tasks_page(),
        "operations.md": operations_page(),
        "keys.md": keys_page(),
        "figures.md": figures_page(),
    }
    for name, text in pages.items():
        path = OUT / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def blocks_page(kind: str, title: str) -> str:
    """Return the catalogue of one kind of block: equation, shapes, decode state, options and source of each.

    Equations that several of its blocks share stand first.
    """
    parts = [f"# {title}"]
    if kind in SHARED:
        heading, module = SHARED[kind]
        parts += [f"## {heading}", f"In `{module.__name__}`.", markdown(module.__doc__)]
    return "\n\n".join([*parts, *map(_block, registry.blocks(kind).values())]) + "\n"


def _block(block: registry.Block) -> str:
    name = f"`{block.letter}`: " if block.letter else ""
    about = markdown(block.cls.__doc__)
    where = {"mixer": f"model.mixers.{block.name}"}.get(block.kind, f"model.{block.kind}.{block.name}")
    parts = [f"({block.kind}-{block.name})=", f"## {name}{escaped(block.title)} (`{block.name}`)"]
    if block.source:
        parts.append(f"Source: {escaped(block.source)}.")
    if (BLOCKS / f"{block.name}.md").exists():
        parts.append(f"[Where Archzoo departs from it](../blocks/{block.name}.md).")
    if block.sketch:
        title = f"A token's way through {block.title}"
        parts.append(f"```{{image}} sketches/{block.name}.svg\n:alt: {title}\n:width: 360px\n```")
    parts += [about, _keys_table(block.config, where)]
    return "\n\n".join(part for part in parts if part)


def tasks_page() -> str:
    """The catalogue of synthetic tasks: what is asked, options and source of each."""
    parts = ["# Synthetic tasks", "What they have in common stands in [tasks](../tasks.md)."]
    for name, task in sorted(TASKS.items()):
        parts += [
            f"## {escaped(task.title)} (`{name}`)",
            f"Source: {escaped(task.source)}.",
            markdown(task.__doc__),
        ]
        parts.append(f"Difficulty of an answer: {escaped(task.hardness)}.")
        parts.append(_keys_table(task.config, f"data.tasks.{name}"))
    return "\n\n".join(parts) + "\n"


def _draw_sketch(block: registry.Block) -> Figure:
    """A token's way through a mixer, as figures of a report show it."""
    figure = Figure(figsize=(3.6, 2.6))
    groups = [
        style.color for style in series_styles((str(group), block.color) for group in range(GROUPS)).values()
    ]
    rows = path(block.mask, block.describe()["sketch"])
    sketch(figure.add_axes((0, 0, 1, 1)), rows, block.color, groups)
    return figure


def keys_page() -> str:
    """Every key of the configuration with its default and meaning."""
    parts = [
        "# Every key",
        "Set a key with `python run.py KEY=VALUE`; add `--cfg job` to print every key with its value. Options of "
        "blocks and tasks have their own pages: [mixers](mixers.md), [residual schemes](residuals.md), "
        "[channel mixers](channels.md), [tasks](tasks.md).",
        "## General",
        markdown(_first(schema.Config)),
        _keys_table(schema.Config, ""),
    ]
    for where, cls in _nodes(schema.Config):
        parts += [f"## `{where}`", markdown(_first(cls)), _keys_table(cls, where)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _nodes(cls: type, where: str = "") -> Iterator[tuple[str, type]]:
    """The nodes of a dataclass and theirs, but for those of blocks and tasks, which have pages of their own."""
    for field in dataclasses.fields(cls):
        node, key = field.default_factory, f"{where}{field.name}"
        if not dataclasses.is_dataclass(node) or key in CATALOGUED:
            continue
        yield key, node
        # The nodes inside a choice (model.residual.mhc) are those of blocks.
        if key not in CHOICES:
            yield from _nodes(node, f"{key}.")


def _first(cls: type) -> str:
    """The first sentence of a docstring."""
    return inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0]


def _keys_table(cls: type, where: str) -> str:
    """The keys of one dataclass, without its nodes. Raises ValueError for a key whose meaning is not written down."""
    meanings, rows = key_meanings(cls), []
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(hints[field.name]):
            continue
        if field.name not in meanings:
            raise ValueError(f"the docstring of {cls.__name__} does not say what {field.name} is")
        key = f"{where}.{field.name}" if where else field.name
        rows.append(f"| `{key}` | {_default(field)} | {escaped(meanings[field.name])} |")
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows]) if rows else "No options."


def _default(field: dataclasses.Field) -> str:
    """A default as the command line writes it."""
    value: Any = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if value is None or isinstance(value, bool):
        return f"`{json.dumps(value)}`"
    return f"`{value}`" if value != "" else "`''`"


def operations_page() -> str:
    """Every public operation with its signature and docstring."""
    parts = [
        "# Operations",
        "Tensors are `[B, T, H, D]`. `g` is a log gate (at most 0). All operations take `backend=`: `auto`, "
        "`reference` (the definition, any dtype), `torch` (vectorised, what CPUs run), `triton` (GPUs) or a library's.",
    ]
    for name, function in _operations():
        parts += [
            f"## {name}",
            f"```python\nkernels.{name}{_signature(function)}\n```",
            markdown(function.__doc__),
        ]
    return "\n\n".join(parts) + "\n"


def _operations() -> Iterator[tuple[str, Any]]:
    for name in kernels.__all__:
        yield name, getattr(kernels, name)


def _signature(function: Any) -> str:
    """The signature as it is written in the source, an argument a line where it is long."""
    found = inspect.signature(function)
    arguments, named = [], False
    for parameter in found.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not named:
            arguments.append("*")
            named = True
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        arguments.append(f"{parameter.name}: {parameter.annotation}{default}")
    returns = "" if inspect.isclass(function) else f" -> {found.return_annotation}"
    line = f"({', '.join(arguments)}){returns}"
    return (
        line if len(line) <= 90 else "(\n" + "".join(f"    {each},\n" for each in arguments) + f"){returns}"
    )


def figures_page() -> str:
    """Every figure of a report by section, with what it needs."""
    rows = []
    for entry in listed():
        needs = ", ".join(f"`{need}`" for need in entry.needs)
        rows.append(f"| `{entry.name}` | {escaped(entry.title)} | {entry.section} | {needs} |")
    head = [
        "# Figures",
        "Names for `figures=[...]` of job=publish and for `analysis.gallery.draw`. `runs.X` and `metrics.X` are "
        "columns of the results, `measures.X` and `table.X` come from job=probe, `bench.X` from job=bench.",
        "| name | title | section | needs |\n|---|---|---|---|",
    ]
    return "\n\n".join(head) + "\n" + "\n".join(rows) + "\n"
