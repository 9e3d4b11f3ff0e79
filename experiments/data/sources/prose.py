"""Prose of a Python module: its docstrings and its comments, in source order, as readable text."""

from __future__ import annotations

import ast
import inspect
import textwrap
import warnings
from collections.abc import Iterator

_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_FEWEST_WORDS = 4


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
