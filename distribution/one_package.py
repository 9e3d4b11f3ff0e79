"""Builds the wheel: one package, `archzoo`, that holds the rooms, conf/ and the command. A build backend (PEP 517).

In the checkout the rooms are packages of their own (`from zoo.context import Context`); in the wheel they stand inside
`archzoo` (`from archzoo.zoo.context import Context`), because others own names such as `kernels`. So a copy of the
sources is rewritten, import statements by Python's own grammar, and setuptools builds the copy. Line numbers stay.
`archzoo/built.json` says what it was built from. An editable install is the checkout as it is.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import re
import shutil
import subprocess
import tempfile
import tokenize
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import NamedTuple

from setuptools import build_meta
from setuptools.build_meta import (  # noqa: F401 (hooks of the backend that the wheel needs no copy for)
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
)

PACKAGE = "archzoo"
ROOMS = ("zoo", "kernels", "experiments", "analysis")
SAID = {"python run.py": PACKAGE, "pip install -e '.[": f"pip install '{PACKAGE}["}
"""What texts say in a checkout, and in a wheel in its place: how to call the command, and how to add extras."""
_TEXTS = (".yaml", ".toml", ".j2")
_ABOUT = '''"""Archzoo: compare sequence-model blocks on equal terms, and look inside them.

The command `archzoo` does the work; in Python: `from archzoo import zoo, analysis`.
"""
'''


def build_wheel(
    wheel_directory: str, config_settings: dict | None = None, metadata_directory: str | None = None
) -> str:
    """Build the wheel of the checkout that is the working folder; returns its file name."""
    with tempfile.TemporaryDirectory() as folder:
        stage(Path.cwd(), Path(folder))
        target = str(Path(wheel_directory).absolute())
        with chdir(folder):
            return build_meta.build_wheel(target, config_settings)


def stage(checkout: Path, folder: Path) -> None:
    """Write the package and what setuptools reads into an empty folder.

    Raises ValueError where a name of a module stands in an f-string, where it cannot be told from code.
    """
    package = folder / PACKAGE
    ignored = shutil.ignore_patterns("__pycache__", "notebooks")
    for room in (*ROOMS, "conf"):
        shutil.copytree(checkout / room, package / room, ignore=ignored)
    shutil.copy(checkout / "run.py", package / "__main__.py")
    for study in (checkout / "results" / "published").glob(
        "*/selection.csv"
    ):  # rates that recipes take from them
        copy = package / study.relative_to(checkout)
        copy.parent.mkdir(parents=True)
        shutil.copy(study, copy)
    shutil.copy(checkout / "README.md", folder)
    shutil.copy(checkout / "LICENSE", folder)
    project = (checkout / "pyproject.toml").read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text(
        project.replace('"experiments.', f'"{PACKAGE}.experiments.'), encoding="utf-8"
    )
    names, hashes = modules(checkout), {}
    for file in sorted(path for path in package.rglob("*") if path.suffix in (".py", *_TEXTS)):
        before = file.read_text(encoding="utf-8")
        after = inside(before, names, code=file.suffix == ".py")
        file.write_text(after, encoding="utf-8")
        hashes[_digest(after)] = _digest(before)
    (package / "__init__.py").write_text(_ABOUT, encoding="utf-8")
    (package / "hf.py").write_text(f"from {PACKAGE}.zoo.hf import *  # noqa: F403\n", encoding="utf-8")
    (package / "py.typed").touch()
    built = {"commit": _commit(checkout), "sources": hashes}
    (package / "built.json").write_text(json.dumps(built, indent=0), encoding="utf-8")


def modules(checkout: Path) -> set[str]:
    """The names of all modules and packages of the rooms."""
    files = (file.relative_to(checkout) for room in ROOMS for file in (checkout / room).rglob("*.py"))
    return {".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files}


def _digest(text: str) -> str:
    """As `zoo.registry.source_hash`."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _commit(checkout: Path) -> list[str | bool | None]:
    """The commit, and whether tracked files differ from it; [None, None] where this is no repository."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", checkout, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    if not (checkout / ".git").exists():  # an unpacked source distribution, perhaps inside another repository
        return [None, None]
    return [git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))]


# Rewriting a file.


def inside(text: str, modules: set[str], code: bool) -> str:
    """The text of a file as it stands inside the package. code: whether it is a Python module."""
    text = rewritten(text, modules) if code else _renamed(text, modules)
    for said, instead in SAID.items():
        text = text.replace(said, instead)
    return text


class Edit(NamedTuple):
    """Characters of a source to replace; places are (line, column), the line from 1."""

    start: tuple[int, int]
    end: tuple[int, int]
    text: str


def rewritten(source: str, modules: set[str]) -> str:
    """The source of a module as it stands inside the package: its imports, and modules that its strings name."""
    lines = source.splitlines(keepends=True)
    for edit in sorted([*_imports(source), *_strings(source, modules)], reverse=True):
        (first, begin), (last, end) = edit.start, edit.end
        text = lines[first - 1][:begin] + edit.text + lines[last - 1][end:]
        lines[first - 1 : last] = text.splitlines(keepends=True)
    return "".join(lines)


def _imports(source: str) -> Iterator[Edit]:
    lines = source.splitlines()

    def column(line: int, offset: int) -> int:
        """The place in characters of one in bytes, as `ast` counts them."""
        return len(lines[line - 1].encode()[:offset].decode())

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and _room(node.module) in ROOMS:
            begin = column(node.lineno, node.col_offset) + len("from ")
            yield Edit((node.lineno, begin), (node.lineno, begin), f"{PACKAGE}.")
        elif isinstance(node, ast.Import) and any(_room(alias.name) in ROOMS for alias in node.names):
            text = "; ".join(_import(alias) for alias in node.names)
            yield Edit(
                (node.lineno, column(node.lineno, node.col_offset)),
                (node.end_lineno, column(node.end_lineno, node.end_col_offset)),
                text,
            )


def _room(module: str) -> str:
    return module.partition(".")[0]


def _import(alias: ast.alias) -> str:
    """The statement that binds what `import NAME` binds in the checkout: `import zoo.io` binds zoo."""
    if _room(alias.name) not in ROOMS:
        return ast.unparse(ast.Import([alias]))
    if alias.asname:
        return f"import {PACKAGE}.{alias.name} as {alias.asname}"
    bound = f"from {PACKAGE} import {_room(alias.name)}"
    return f"import {PACKAGE}.{alias.name}; {bound}" if "." in alias.name else bound


def _strings(source: str, modules: set[str]) -> Iterator[Edit]:
    for node in ast.walk(ast.parse(source)):
        parts = node.values if isinstance(node, ast.JoinedStr) else ()
        for part in parts:
            text = part.value if isinstance(part, ast.Constant) else ""
            if (
                re.fullmatch(r"[\w.]+", text) and _renamed(text, modules) != text
            ):  # a message may name one further on
                raise ValueError(f"an f-string names a module, {text!r}: say it with {{package.__name__}}")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.STRING and "f" not in token.string.partition(token.string[-1])[0].lower():
            yield Edit(token.start, token.end, _renamed(token.string, modules))


def _renamed(text: str, modules: set[str]) -> str:
    """The text with names of modules below a room, and `from ROOM import`, as they are inside the package."""
    rooms = "|".join(ROOMS)
    text = re.sub(rf"(?<![\w./-])from ({rooms}) import", rf"from {PACKAGE}.\1 import", text)

    def inside(found: re.Match) -> str:
        room, first, *_ = found[0].split(".")
        return f"{PACKAGE}.{found[0]}" if f"{room}.{first}" in modules else found[0]

    return re.sub(rf"(?<![\w./-])(?:{rooms})(?:\.[a-z_]\w*)+", inside, text)
