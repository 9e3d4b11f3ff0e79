"""The first to read a command: answers help, --cfg, job=list and a refused key at once, hands the rest to `cli`.

Importing all blocks, tasks and jobs takes seconds; what these answers need of them is plain values. `cli` has answered
such a command before, and it was written down: the catalogue, a file in the cache (ARCHZOO_CACHE), whose `digest` is
that of the project's files. Where any file has changed since, or came, or went, there is no catalogue, `cli` answers,
and it is written again. So is where something is amiss: a file that cannot be imported, a mistake of another kind.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import re
import sys
import typing
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from experiments.jobs import spelled_out
from experiments.system import signals
from experiments.system.paths import BLOCKS, CACHE, CONF, IN_WHEEL, ROOT
from experiments.system.processes import drop_output

_READ = ("zoo/**/*.py", "experiments/**/*.py", "analysis/**/*.py", "conf/**/*.yaml")
"""Files that decide what help, the keys and the lists say."""
_TYPES = {
    str(hint): hint
    for plain in (bool, int, float, str)
    for kind in (plain, list[plain])  # type: ignore[valid-type]
    for hint in (kind, kind | None)
} | {str(dict[str, Any]): dict[str, Any]}
"""Types of keys by name."""
_NAMES = {hint: name for name, hint in _TYPES.items()}


def main() -> int:
    """Answer the command line, from the catalogue or by `cli.main`; returns its exit status."""
    signals.exit_at_once()
    words = spelled_out(sys.argv[1:])
    if line := _other_kernels():
        print(f"notice: {line}", file=sys.stderr, flush=True)
    if line := _take_blocks(words):
        print(f"error: {line}", file=sys.stderr)
        return 2
    known = _read()
    status = None if os.environ.get(BLOCKS) else _answer(words, known)
    if status is not None:
        return status
    with signals.loading():
        from experiments import cli

    status = cli.main()
    kind = _kind(words)
    if (status == 0 and kind is not None) or (status == 2 and _KEYS not in known):
        with contextlib.suppress(OSError, KeyError, TypeError):  # then it is answered by `cli` again
            _write({**known, **_describe(kind)})
    return status


def _other_kernels() -> str | None:
    """Of a checkout: a line about another package `kernels` of this environment, which the checkout's own hides."""
    if IN_WHEEL:
        return None
    others = [place for place in sys.path if Path(place or ".").resolve() != ROOT]
    found = PathFinder.find_spec("kernels", others)
    place = (
        None if found is None else Path(found.origin or next(iter(found.submodule_search_locations or ["."])))
    )
    if place is None or place.resolve().is_relative_to(ROOT):
        return None
    sys.path.insert(0, str(ROOT))  # a command of an editable install would find that one first
    return (
        f"another package named kernels ({place.parent}) is hidden by that of this checkout: what imports it, as "
        "transformers does, may fail; use the wheel (make wheel), whose package has another name, or uninstall it"
    )


def _take_blocks(words: list[str]) -> str | None:
    """Name the folders of blocks=[FOLDER] in BLOCKS, which `zoo` and `analysis` read when they are imported.

    Returns what is wrong with the words or with a folder.
    """
    given = [word.removeprefix("blocks=") for word in words if word.startswith("blocks=")]
    if not given:
        return None
    import yaml

    try:
        folders = yaml.safe_load(given[0])
    except yaml.YAMLError:
        folders = None
    if not isinstance(folders, list) or not all(isinstance(folder, str) for folder in folders):
        return f"blocks={given[0]} must be a list of folders; write blocks=[FOLDER]"
    places: list[str] = []
    for folder in folders:
        place = Path(folder).expanduser().absolute()
        files = [file for file in sorted(place.glob("*.py")) if _registers(file.read_bytes())]
        if not files:
            return (
                f"blocks: {folder} has no file with a block or a figure; that is a *.py that calls register_mixer or "
                "another register_..., or sets FIGURES"
            )
        places.append(str(place))
        for file in files:
            found = PathFinder.find_spec(file.stem, [*sys.path, *places])
            if file.stem in sys.stdlib_module_names or found is None or found.origin != str(file):
                return f"blocks: {file} has the name of another module; rename it"
    os.environ[BLOCKS] = os.pathsep.join(places)
    return None


def _registers(source: bytes) -> bool:
    return b"register_" in source or b"FIGURES" in source


_HELP, _LIST, _KEYS = "help", "list", "keys"
_SETTING = re.compile(r"-m|--multirun|\+?[a-z][\w.]*=.*")


def _kind(words: list[str]) -> str | None:
    """The part of the catalogue that answers a command by which nothing is done; None for any other."""
    if words in (["--help"], ["-h"]):
        return _HELP
    if (
        "job=list" in words
        and all(re.fullmatch(r"(job|show)=\w+", word) for word in words)
        and len(words) < 3
    ):
        return _LIST
    # An experiment's own sweep, or another folder's choices, may need more than keys.
    shown = any(re.fullmatch(r"--cfg(=.*)?|-c", word) for word in words)
    plain = all(re.fullmatch(r"--cfg(=\w+)?|-c|job|hydra|all|[a-z][\w.]*=[^$]*", word) for word in words)
    return _KEYS if shown and plain and not any(word.startswith("hydra.") for word in words) else None


def _answer(words: list[str], known: dict[str, Any]) -> int | None:
    """Answer a command from the catalogue; returns the exit status, None where it does not answer that."""
    kind = _kind(words)
    if kind is not None and kind not in known:
        return None
    if kind == _HELP:
        return _print(known[_HELP])
    if kind == _LIST:
        parts = [word.removeprefix("show=") for word in words if word != "job=list"] or list(known[_LIST])
        return _print("".join(known[_LIST][part] for part in parts)) if {*parts} <= {*known[_LIST]} else None
    if kind == _KEYS:
        return _composed(words, known)
    line = _refused_choice(words, known) or _refused_key(words, known.get(_KEYS))
    if line is None:
        return None
    print(f"error: {line}", file=sys.stderr)
    return 2


def _refused_choice(words: list[str], known: dict[str, Any]) -> str | None:
    """The line about a file of conf/ that there is not (model=NAME); None where all are there, or several are not."""
    if _KEYS not in known or not all(map(_SETTING.fullmatch, words)):
        return None
    wrong = []
    for word in words:
        group, _, names = word.lstrip("+").partition("=")
        options = {path.stem for path in (CONF / group).glob("*.yaml")} if (CONF / group).is_dir() else set()
        options |= {*known["tasks"]} if group == "data" else set()
        for name in names.split(",") if options else ():
            if re.fullmatch(r"[a-z]\w*", name) and name not in {*options, "null"}:
                wrong.append((group, name, options))
    if len(wrong) != 1:
        return None
    from experiments.configuration.hydra_settings import unknown_choice

    return unknown_choice(*wrong[0])


def _refused_key(words: list[str], keys: list[str] | None) -> str | None:
    """The line about the first key that there is not; None where all are known, or another mistake comes first."""
    if keys is None or not all(map(_SETTING.fullmatch, words)):
        return None
    given = [word.partition("=")[0] for word in words if word[0] not in "+-"]
    wrong = [key for key in given if key not in keys and not (CONF / key).is_dir()]
    if not wrong or any(key.startswith("hydra") for key in given) or len(set(given)) < len(given):
        return None
    parts = wrong[0].split(".")
    above = [node for end in range(1, len(parts)) if (node := ".".join(parts[:end])) in keys]
    if any(
        not any(key.startswith(f"{node}.") for key in keys) for node in above
    ):  # a value, or keys of one's own
        return None
    from experiments.configuration.hydra_settings import unknown_key

    return unknown_key(wrong[0], keys)


def _composed(words: list[str], known: dict[str, Any]) -> int | None:
    """Have Hydra print a configuration; None where it raises, so that `cli` says what is wrong."""
    from hydra.core.config_store import ConfigStore

    from experiments.configuration import hydra_settings

    ConfigStore.instance().store(name="schema", node=_class(known["schema"]))
    for name, node in known["tasks"].items():
        ConfigStore.instance().store(group="data", name=name, node=node)
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            hydra_settings.collect(words)
    except Exception:
        return None
    return _print(out.getvalue())


def _print(text: str) -> int:
    """Print an answer; returns the exit status."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough
        drop_output()
        return 141
    except OSError as error:
        from experiments.system import machine

        drop_output()
        print(f"error: {machine.one_line(machine.explain(error))}", file=sys.stderr)
        return 2
    return 0


# The catalogue: "digest", "schema", "keys" and "tasks"; "help" and "list" once they have been asked for.


def _digest() -> str:
    """The hash of the names and contents of the files that decide what answers say, and of Python's version."""
    found = hashlib.sha256(sys.version.encode())
    for place in sys.path:  # a package that is installed there may have blocks as entry points
        if place.endswith("-packages") and os.path.isdir(place):
            found.update(f"{place} {os.stat(place).st_mtime_ns}\n".encode())
    for path in sorted(path for pattern in _READ for path in ROOT.glob(pattern)):
        content = path.read_bytes()
        found.update(f"{path.relative_to(ROOT)} {len(content)}\n".encode() + content)
    return found.hexdigest()


def _place() -> Path:
    return Path(os.environ.get("ARCHZOO_CACHE") or CACHE).expanduser().absolute() / "catalogue.json"


def _read() -> dict[str, Any]:
    """The catalogue; without entries where it is missing, damaged or of other files."""
    digest = _digest()
    try:
        found = json.loads(_place().read_text(encoding="utf-8"))
        return found if found["digest"] == digest else {"digest": digest}
    except (OSError, ValueError, LookupError, TypeError):
        return {"digest": digest}


def _write(catalogue: dict[str, Any]) -> None:
    from zoo.files import write_json

    _place().parent.mkdir(parents=True, exist_ok=True)
    write_json(_place(), catalogue)


def _describe(kind: str | None) -> dict[str, Any]:
    """The keys and, of this kind, another part of the catalogue; {} where answers have notices of files left out.

    Raises KeyError for a type of a key that `_TYPES` does not have.
    """
    from experiments.cli import help_text
    from experiments.configuration.explain import known_keys
    from experiments.configuration.schema import Config
    from experiments.data import TASKS
    from experiments.data.config import OF_TEXT
    from experiments.data.tasks_base import PACKAGE
    from experiments.jobs import all_jobs
    from experiments.jobs.list import texts
    from zoo.registry import left_out, own_modules

    unusable: list[str] = []
    if kind is not None:
        all_jobs(unusable.append)
    if own_modules() or left_out() or left_out(PACKAGE) or unusable:
        return {}
    found: dict[str, Any] = {
        "schema": _fields(Config),
        _KEYS: known_keys(),
        "tasks": {name: {"name": name, **OF_TEXT} for name in TASKS},
    }
    more: dict[str | None, Callable[[], Any]] = {_HELP: help_text, _LIST: texts}
    return {**found, kind: more[kind]()} if kind in more else found


def _fields(node: type) -> dict[str, Any]:
    """A dataclass of the configuration as plain values."""
    hints, made, fields = typing.get_type_hints(node), node(), {}
    for field in dataclasses.fields(node):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            fields[field.name] = _fields(hint)
        else:
            fields[field.name] = [_NAMES[hint], getattr(made, field.name)]
    return {"class": node.__name__, "fields": fields}


def _class(described: dict[str, Any]) -> type:
    """The dataclass that `_fields` described."""
    fields = []
    for name, field in described["fields"].items():
        if isinstance(field, dict):
            inner = _class(field)
            fields.append((name, inner, dataclasses.field(default_factory=inner)))
        else:
            fields.append((name, _TYPES[field[0]], dataclasses.field(default_factory=_always(field[1]))))
    return dataclasses.make_dataclass(described["class"], fields)


def _always(value: Any) -> Callable[[], Any]:
    return lambda: json.loads(json.dumps(value))
