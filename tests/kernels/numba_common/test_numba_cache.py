"""Where machine code is kept, and that a process computes the same whether it compiled or found it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest
from numba.core.caching import FunctionCache

from kernels.numba_common import compiled

SOURCES = {
    "numba_common/a.py": "import numba",
    "ops/b.py": "from kernels.numba_common import compiled",
    "ops/torch_b.py": "import torch",
}


@pytest.fixture
def tree(tmp_path, monkeypatch) -> Path:
    """A tree of kernels, whose caches stand in no user's folders."""
    for name, source in SOURCES.items():
        path = tmp_path / "kernels" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    monkeypatch.setattr(compiled, "KERNELS", tmp_path / "kernels")
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    yield tmp_path
    compiled.cache_folder.cache_clear()


def folder() -> str | None:
    compiled.cache_folder.cache_clear()
    return compiled.cache_folder()


@pytest.mark.parametrize("place", ["", "elsewhere"], ids=["beside the sources", "in NUMBA_CACHE_DIR"])
def test_it_belongs_to_the_sources_of_all_compiled_kernels(place, tree, monkeypatch):
    """Numba compares the file of a kernel alone; a change in a function that it calls must not go unseen."""
    base = tree / place if place else tree / "kernels" / "__pycache__"
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(base) if place else "")
    folders = [folder()]
    for name, source in SOURCES.items():
        (tree / "kernels" / name).write_text(f"{source}  # changed")
        folders.append(folder())
    assert len(set(folders[:3])) == 3
    assert folders[3] == folders[2]  # PyTorch's forms have no part in it
    assert {Path(x).parent for x in folders} == {base}


def test_it_is_the_users_where_the_tree_cannot_be_written_and_none_where_that_cannot(tree):
    """A file in the place of a folder stops every user, the superuser too."""
    (tree / "kernels" / "__pycache__").write_text("")
    assert Path(folder()).parent == tree / "user" / "archzoo"
    (tree / "user" / "archzoo").rename(tree / "moved")
    (tree / "user" / "archzoo").write_text("")
    assert folder() is None
    assert compiled.cached(numba.njit(doubled))(3) == 6


def test_a_user_without_a_home_has_no_cache_in_the_working_folder(tree, monkeypatch):
    (tree / "kernels" / "__pycache__").write_text("")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert folder() is None


def doubled(x):
    return 2 * x


@pytest.mark.parametrize("length", [0, 40])
@pytest.mark.parametrize("kind", ["nbi", "nbc"])
def test_what_is_broken_is_compiled_anew_and_then_whole(kind, length, tree):
    def kernel():
        return compiled.cached(numba.njit(doubled))

    folder()
    first = kernel()
    assert first(3) == 6
    assert not first.stats.cache_hits
    second = kernel()
    assert second(3) == 6
    assert second.stats.cache_hits
    (broken,) = Path(folder()).rglob(f"*.{kind}")
    broken.write_bytes(broken.read_bytes()[:length])
    third, fourth = kernel(), kernel()
    assert third(3) == 6
    assert not third.stats.cache_hits
    assert fourth(3) == 6
    assert fourth.stats.cache_hits


def test_no_room_on_the_disk_is_no_error(tree, monkeypatch):
    def no_room(*_):
        raise OSError(28, "No space left on device")

    folder()
    kernel = compiled.cached(numba.njit(doubled))
    monkeypatch.setattr(FunctionCache, "save_overload", no_room)
    assert kernel(3) == 6


def test_a_folder_that_numba_does_not_take_means_no_cache(tree, monkeypatch):
    """It would look for another, which did not know of all sources."""
    folder()
    kept = compiled.cached(numba.njit(doubled))
    own = Path(kept._cache.cache_path)
    own.rmdir()
    own.write_text("")
    other = compiled.cached(numba.njit(doubled))
    assert other(3) == 6
    assert not isinstance(other._cache, compiled.SafeCache)


def test_no_way_to_find_a_folder_means_no_cache(tree, monkeypatch):
    def fail(_function):
        raise RuntimeError("cannot cache function: no locator available")

    folder()
    monkeypatch.setattr(compiled, "SafeCache", fail)
    assert compiled.cached(numba.njit(doubled))(3) == 6


TESTS = Path(__file__).resolve().parents[2]

SCRIPT = """
import dataclasses, hashlib, json, sys, torch
from support import operation_cases

found = {}
for family in sys.argv[1:]:
    for call in filter(operation_cases.has_numba_form, getattr(operation_cases, family)()):
        single = dataclasses.replace(operation_cases.as_dtype(call, torch.float32), learned=call.learned)
        for name, x in operation_cases.run(single, "numba").items():
            found[f"{call.title}, {name}"] = hashlib.sha256(x.contiguous().numpy()).hexdigest()
print(json.dumps(found))
"""


def digests(cache: Path, *families: str) -> dict[str, str]:
    """What a new process computes of these families' calls, results and gradients, by their names."""
    path = os.pathsep.join((str(TESTS), str(TESTS.parent)))
    environment = {**os.environ, "PYTHONPATH": path, "NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", SCRIPT, *families]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "families",
    [
        ["indexed_attention"],
        pytest.param(["nsa_attention", "indexed_attention"], marks=pytest.mark.long),
        pytest.param(["indexed_attention", "nsa_attention"], marks=pytest.mark.long),
    ],
    ids=lambda families: " before ".join(families),
)
@pytest.mark.slow
def test_compiled_partly_compiled_and_loaded_kernels_compute_the_same_bits(families, tmp_path):
    """The second process finds the first family's kernels in the cache, and what both families' kernels call."""
    empty = digests(tmp_path, families[0])
    partly = digests(tmp_path, *families)
    full = digests(tmp_path, *reversed(families)) if families[1:] else partly
    assert empty.keys() <= full.keys() == partly.keys()
    assert [name for name in empty if empty[name] != full[name]] == []
    assert [name for name in full if partly[name] != full[name]] == []
