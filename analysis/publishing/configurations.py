"""The resolved configurations and the identities of a study's runs, in two files.

Both have `common`, what all runs share, and `runs`, that in which each run differs; a section that several runs have
alike stands once, in `parts`, and the runs have its name. Merged recursively, they are a run's config.yaml, except that
folders of the machine are cut to their last part, and its identity: of that as JSON with sorted keys and without spaces
the SHA-256 gives the run's name (its first 12 digits). Earlier publications have no `parts`, and their identities.json
has every run's identity whole.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from analysis.errors import ResultsError
from analysis.files import write_text
from analysis.loading.results import Results
from analysis.loading.safe_read import read_text
from analysis.units import listing

CONFIGS, IDENTITIES = "configs.yaml", "identities.json"
_HEAD = (
    "# `common` is the same for all runs, `runs` is what each has beside it (and over it, node by node); `model-2` is\n"
    "# the section of this name in `parts`.\n"
)
Tree = dict[str, Any]


class _Plain(yaml.SafeLoader):
    """YAML loader without aliases, with which a few lines can expand to gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("it has aliases, which no run writes")
        return super().compose_node(parent, index)


def gather(results: Results) -> tuple[dict[str, Tree], dict[str, Tree]]:
    """Return run -> configuration and run -> identity of all runs, from run folders or published files.

    Raises ResultsError where a run has none that can be read.
    """
    stored = {folder: read(folder) for folder in dict.fromkeys(results.exported.values())}
    configs, identities, unreadable = {}, {}, []
    for home, row in zip(results.run_folders(), results.runs.itertuples(), strict=True):
        try:
            if home is None:
                found = _stored(stored[results.exported[row.experiment, row.run]], row.run)
            else:
                found = _load(home, "config.yaml"), _load(home, "identity.json")
        except Unreadable as error:
            unreadable.append(f"{row.experiment}/{row.run} ({error})")
            continue
        configs[row.run], identities[row.run] = found
    if unreadable:
        raise ResultsError(
            f"no configuration or identity of {listing(unreadable, limit=3)}: a study is published from the folders of "
            f"its runs, or from a published folder with {CONFIGS} and {IDENTITIES}"
        )
    return configs, identities


class Unreadable(Exception):
    """Raised for a configuration or identity file that is missing or damaged."""


def _load(folder: Path, name: str) -> Tree:
    """The mapping in a YAML or JSON file of a folder. Raises Unreadable."""
    try:
        text = read_text(folder, name)
        value = json.loads(text) if name.endswith(".json") else yaml.load(text, Loader=_Plain)
    except FileNotFoundError:
        raise Unreadable(f"no {name}") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise Unreadable(f"{name} cannot be read: {' '.join(str(error).split())}") from error
    except RecursionError:
        raise Unreadable(f"{name} is nested too deep") from None
    if not isinstance(value, dict):
        raise Unreadable(f"{name} holds no mapping")
    return value


def _stored(published: tuple[dict[str, Tree], dict[str, Tree]], run: str) -> tuple[Tree, Tree]:
    """A run's two mappings among those of a published folder. Raises Unreadable."""
    for rows, name in zip(published, (CONFIGS, IDENTITIES), strict=True):
        if not isinstance(rows.get(run), dict):
            raise Unreadable(f"not in {name}")
    return published[0][run], published[1][run]


def read(folder: Path) -> tuple[dict[str, Tree], dict[str, Tree]]:
    """Read run -> configuration and run -> identity of a published folder; empty where a file cannot be read."""
    try:
        configs = _whole(_load(folder, CONFIGS))
    except (Unreadable, KeyError, AttributeError, TypeError):
        configs = {}
    try:
        file = _load(folder, IDENTITIES)
        identities = _whole(file) if "runs" in file else file
    except (Unreadable, KeyError, AttributeError, TypeError):
        identities = {}
    return configs, identities


def _whole(file: Tree) -> dict[str, Tree]:
    """Return run -> tree of what `_shared` made."""
    parts = file.get("parts", {})

    def section(key: str, value: Any) -> Any:
        return parts.get(value, value) if isinstance(value, str) and value.startswith(f"{key}-") else value

    named = {
        run: {key: section(key, value) for key, value in own.items()} for run, own in file["runs"].items()
    }
    return {run: joined(file["common"], own) for run, own in named.items()}


def _shared(trees: dict[str, Tree]) -> Tree:
    """Return `common`, `parts` (if there are any) and `runs` of run -> tree; `_whole` is the inverse."""
    same = common(list(trees.values()))
    rest = {run: difference(same, tree) for run, tree in trees.items()}
    found: dict[tuple[str, str], list[Tree]] = {}  # the sections of equal text
    for own in rest.values():
        for key, value in own.items():
            if isinstance(value, dict):
                found.setdefault((key, _text(value)), []).append(value)
    names: dict[tuple[str, str], str] = {}
    parts: Tree = {}
    for (key, text), sections in found.items():
        if len(sections) > 1:
            name = f"{key}-{1 + sum(other == key for other, _ in names)}"
            names[key, text], parts[name] = name, sections[0]
    runs = {
        run: {
            key: names.get((key, _text(value)), value) if isinstance(value, dict) else value
            for key, value in own.items()
        }
        for run, own in rest.items()
    }
    return {"common": same, **({"parts": parts} if parts else {}), "runs": runs}


def write(folder: Path, configs: dict[str, Tree], identities: dict[str, Tree]) -> list[Path]:
    """Write configs.yaml and identities.json into a folder; returns their paths."""
    told = _shared({run: _portable(config) for run, config in configs.items()})
    # leaves in one line, or the settings of 198 runs take 200 kB
    text = yaml.safe_dump(told, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)
    return [
        write_text(folder / CONFIGS, _HEAD + text),
        write_text(folder / IDENTITIES, _lines(_shared(identities))),
    ]


def _hashed(identity: Tree) -> str:
    """Return the text whose hash is a run's name."""
    return json.dumps(identity, sort_keys=True, separators=(",", ":"))


def _lines(told: Tree) -> str:
    """Return JSON with a line for what is common, for every part and for every run."""
    blocks = [f'"common": {_hashed(told["common"])}']
    for name in ("parts", "runs"):
        rows = ",\n".join(f"{json.dumps(key)}: {_hashed(value)}" for key, value in told.get(name, {}).items())
        blocks += [f'"{name}": {{\n{rows}\n}}'] if rows else []
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def _portable(value: Any) -> Any:
    """A configuration without this machine's folders (of an absolute path, its last part), in the order of its keys."""
    if isinstance(value, dict):
        return {key: _portable(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, list):
        return [_portable(item) for item in value]
    return PurePosixPath(value).name if isinstance(value, str) and value.startswith(("/", "~")) else value


def common(trees: list[Tree]) -> Tree:
    """Return the part of nested dictionaries that is equal in all of them, node by node."""
    first, out = trees[0], {}
    for key, value in first.items():
        others = [tree.get(key) for tree in trees]
        if not all(key in tree for tree in trees):
            continue
        if all(isinstance(other, dict) for other in others):
            out[key] = common(others)
        elif all(_same(value, other) for other in others):
            out[key] = value
    return out


def difference(shared: Tree, tree: Tree) -> Tree:
    """Return the part of a tree that the shared part does not have; `joined` is the inverse."""
    out = {}
    for key, value in tree.items():
        if key not in shared:
            out[key] = value
        elif isinstance(value, dict) and (rest := difference(shared[key], value)):
            out[key] = rest
    return out


def joined(shared: Tree, own: Tree) -> Tree:
    """Merge a shared part and the rest into one tree."""
    out = dict(shared)
    for key, value in own.items():
        nested = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = joined(out[key], value) if nested else value
    return out


def _same(a: Any, b: Any) -> bool:
    """Python takes 1, 1.0 and True for equal; a configuration does not."""
    return _text(a) == _text(b)


def _text(value: Any) -> str:
    return json.dumps(value, default=repr)
