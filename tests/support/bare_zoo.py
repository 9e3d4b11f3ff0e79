"""The package zoo without a line of probing: its own sources, stripped, imported under another name.

Taken out of every module: statements that call `record`, `_record` or `record_…`; calls of `.at(...)` (what is left is
what they were called on); and then assignments to names that nothing but those statements had read.
"""

import ast
import importlib
import importlib.abc
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import zoo

NAME = "zoo_without_probes"


def load(folder: Path) -> ModuleType:
    """The package in that folder, stripped."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(folder))
    return importlib.import_module(NAME)


def strip(source: str) -> ast.Module:
    """A module without probing."""
    return ast.fix_missing_locations(_Strip().visit(ast.parse(source)))


class _Strip(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if _records(node.value) else self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr == "at" else node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        before, length = _read(node), None
        self.generic_visit(node)
        while length != len(node.body):
            length, unread = len(node.body), before - _read(node)
            node.body = [line for line in node.body if not _only_assigns(line, unread)] or [ast.Pass()]
        return node


def _records(value: ast.expr) -> bool:
    called = value.func if isinstance(value, ast.Call) else None
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return re.match(r"_?record(_|$)", name) is not None


def _read(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _only_assigns(line: ast.stmt, names: set[str]) -> bool:
    if not isinstance(line, ast.Assign):
        return False
    parts = [n for target in line.targets for n in ast.walk(target) if isinstance(n, ast.expr)]
    return all(isinstance(n, ast.Tuple) or (isinstance(n, ast.Name) and n.id in names) for n in parts)


class _Rename(ast.NodeTransformer):
    """The package's own name in imports, and in strings that name its modules."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        node.module = _renamed(node.module)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str):
            node.value = _renamed(node.value)
        return node


def _renamed(name: str) -> str:
    return re.sub(rf"^{zoo.__name__}(?=(\.\w+)*$)", NAME, name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, fullname, path=None, target=None):
        first, *rest = fullname.split(".")
        if first != NAME:
            return None
        place = self.folder.joinpath(*rest)
        folders = [str(place)] if place.is_dir() else None
        file = place / "__init__.py" if folders else place.with_suffix(".py")
        return importlib.util.spec_from_file_location(
            fullname, file, loader=self, submodule_search_locations=folders
        )

    def create_module(self, spec):
        return None

    def exec_module(self, module: ModuleType) -> None:
        tree = ast.fix_missing_locations(_Rename().visit(strip(Path(module.__file__).read_text())))
        exec(compile(tree, module.__file__, "exec"), module.__dict__)
