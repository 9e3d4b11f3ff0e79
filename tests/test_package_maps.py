"""What a package's docstring says of its files is of files that are there."""

import ast
import re

import pytest
from support.program import ROOT

PACKAGES = sorted(
    path
    for room in ("analysis", "experiments", "kernels", "zoo")
    for path in (ROOT / room).rglob("__init__.py")
)


def named_files(source: str) -> list[str]:
    """The files of its own folder that a module's docstring names: NAME.py, but no path and no placeholder."""
    return re.findall(r"(?<![\w/.])([a-z]\w*\.py)\b", ast.get_docstring(ast.parse(source)) or "")


def test_files_are_read_from_a_docstring():
    assert named_files('"""Two.\n\na.py  one; b_c.py: two, not docs/d.py or NAME.py\n"""') == [
        "a.py",
        "b_c.py",
    ]
    assert sum(len(named_files(path.read_text())) for path in PACKAGES) > 50


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_a_package_names_files_that_are_there(package):
    places = (package.parent, ROOT)  # run.py stands at the root
    named = named_files(package.read_text())
    assert [name for name in named if not any((place / name).is_file() for place in places)] == []
