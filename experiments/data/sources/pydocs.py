"""The embedded default: the prose that ships with every Python.

Documents are the help topics of `pydoc_data.topics` (the language reference) and, one document a module, the
docstrings and comments of the standard library's own sources. Nothing is downloaded. The text differs a
little between Python versions; so does the fingerprint, and the label names the version. Licence: PSF.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import json
import os
import platform
import sys
import sysconfig
import textwrap
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from experiments.data.cache import build_once, content_hash
from experiments.data.config import DataConfig
from experiments.data.sources.base import (
    EVALUATION_SHARE,
    SPLITS,
    Document,
    Source,
    count_lines,
    files_stamp,
    refuse,
    register_source,
)
from zoo.errors import UserError

_FOREIGN = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
_SHORTEST_DOCUMENT = 200
_SHORTEST_REPEAT = 40
_VERSION = 2
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_FEWEST_WORDS = 4
"""Of a docstring or a comment that is kept."""


@register_source("pydocs")
class PyDocs(Source):
    """Split rule: SHA-256 of the document's name modulo 20; 0 is test, 1 is validation, the rest training."""

    rule = f"pydocs {_VERSION}: sha256(name) mod 20, 0 test, 1 validation"

    def check(self, cfg: DataConfig) -> None:
        """Raise UserError for settings of other sources, and where this Python has no sources of its library."""
        refuse(cfg, "path", "text_column", "train_path", "revision")
        if not _modules() or importlib.util.find_spec("pydoc_data.topics") is None:
            raise UserError(
                f"this Python has no sources of its standard library in {_stdlib()}; use another Python, or "
                "your own text with data.name=text data.path=FILE"
            )

    def stamp(self, cfg: DataConfig) -> dict[str, Any]:
        """Version of Python, and times and sizes of its library's files."""
        # Nobody edits the standard library while runs start, so files just installed are good too.
        return {
            "rule": self.rule,
            "python": sys.version,
            "files": files_stamp(_modules().values(), settled_ns=0),
        }

    def documents(self, cfg: DataConfig, split: str, cache: Path) -> Iterator[Document]:
        """The documents of a split, from the extraction in the cache."""
        folder = build_once(cache / "pydocs", content_hash(self.stamp(cfg)), _extract, _problem)
        with (folder / f"{split}.jsonl").open(encoding="utf-8") as lines:
            for line in lines:
                text = json.loads(line)["text"]
                yield Document(text, count_lines(text))

    def label(self, cfg: DataConfig, split: str, read: dict | None = None) -> str:
        """The name and Python's version, for every split."""
        return f"pydocs (Python {platform.python_version()})"


def split_of_name(name: str) -> str:
    """SHA-256 of ``name`` modulo 20: 0 is test, 1 is validation, the other eighteen are training."""
    bucket = int(hashlib.sha256(name.encode()).hexdigest(), 16) % EVALUATION_SHARE
    return {0: "test", 1: "validation"}.get(bucket, "train")


def _stdlib() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _modules() -> dict[str, Path]:
    """Source file of every module of the standard library by dotted name, sorted; tests left out."""
    root, modules = _stdlib(), {}
    for folder, inner, files in os.walk(root):
        place = Path(folder).relative_to(root).parts
        inner[:] = [
            name for name in inner if name not in _FOREIGN and (place or name in sys.stdlib_module_names)
        ]
        for stem in (file[:-3] for file in files if file.endswith(".py")):
            if place or stem in sys.stdlib_module_names:
                modules[".".join(place if stem == "__init__" else (*place, stem))] = Path(
                    folder, f"{stem}.py"
                )
    return dict(sorted(modules.items()))


def _extract(folder: Path) -> None:
    """Write the documents of every split to ``folder/<split>.jsonl``."""
    files = {split: (folder / f"{split}.jsonl").open("w", encoding="utf-8") for split in SPLITS}
    try:
        for name, text in _distinct(_named_blocks()):
            print(json.dumps({"name": name, "text": text}), file=files[split_of_name(name)])
    finally:
        for file in files.values():
            file.close()
    (folder / "complete").write_text("\n")


def _problem(folder: Path) -> str | None:
    return None if (folder / "complete").exists() else "extraction did not finish"


def _named_blocks() -> Iterator[tuple[str, list[str]]]:
    from pydoc_data.topics import topics

    for name, text in sorted(topics.items()):
        yield f"topic {name}", [text.strip("\n")]
    for name, path in _modules().items():
        try:
            blocks = module_blocks(importlib.util.decode_source(path.read_bytes()))
        except (SyntaxError, UnicodeDecodeError):
            # Some distributions keep files for other versions of the language among their sources.
            continue
        yield name, [name, *blocks]


def _distinct(named: Iterable[tuple[str, list[str]]]) -> Iterator[tuple[str, str]]:
    """Join the blocks of each document, dropping any longer paragraph that an earlier document has already.

    Licence headers, inherited docstrings and twins (`decimal`, `_pydecimal`) would otherwise stand in both
    training and test.
    """
    seen: set[str] = set()
    for name, blocks in named:
        here: set[str] = set()
        kept = []
        for paragraph in "\n\n".join(blocks).split("\n\n"):
            essence = " ".join(paragraph.split())
            if len(essence) >= _SHORTEST_REPEAT:
                here.add(essence)
            if essence not in seen:
                kept.append(paragraph)
        seen |= here
        # Docstrings may hold escapes for lone surrogates, which no encoding can write.
        text = ("\n\n".join(kept) + "\n").encode("utf-8", "replace").decode("utf-8")
        if len(text) >= _SHORTEST_DOCUMENT:
            yield name, text


def module_blocks(source: str) -> list[str]:
    """Docstrings (under a heading that names what they describe) and comments on lines of their own.

    Comments behind code are left out: away from their code they say nothing, and tables have thousands of
    them. Raises SyntaxError if ``source`` does not parse.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    blocks = [*_docstrings(tree, ""), *_comments(tree, source)]
    return [text for _, text in sorted(blocks)]


def _docstrings(node: ast.AST, prefix: str) -> Iterator[tuple[int, str]]:
    text = ast.get_docstring(node, clean=True) if isinstance(node, (*_DEFINITIONS, ast.Module)) else None
    if text and len(text.split()) >= _FEWEST_WORDS:
        line = node.body[0].lineno
        if isinstance(node, ast.Module):
            yield line, text
        else:
            yield line, f"{_heading(node, prefix)}\n\n{textwrap.indent(text, '    ')}"
    if isinstance(node, _DEFINITIONS):
        prefix = f"{prefix}{node.name}."
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*_DEFINITIONS, ast.If, ast.Try, ast.With)):
            yield from _docstrings(child, prefix)


def _heading(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, prefix: str) -> str:
    if isinstance(node, ast.ClassDef):
        return f"class {prefix}{node.name}"
    return f"{prefix}{node.name}({ast.unparse(node.args)})"


def _comments(tree: ast.Module, source: str) -> Iterator[tuple[int, str]]:
    """Runs of whole-line comments. A `#` line inside a string that spans lines is not a comment."""
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and node.end_lineno > node.lineno:
            inside.update(range(node.lineno + 1, node.end_lineno + 1))
    run: list[str] = []
    start = 0
    for number, line in enumerate([*source.split("\n"), ""], start=1):
        stripped = line.strip()
        if stripped.startswith("#") and not stripped.startswith("#!") and number not in inside:
            start = start if run else number
            run.append(stripped.lstrip("#").rstrip())
            continue
        if run:
            text = inspect.cleandoc("\n".join(["", *run])).strip("\n")
            if sum(word[:1].isalpha() for word in text.split()) >= _FEWEST_WORDS:
                yield start, text
            run = []
