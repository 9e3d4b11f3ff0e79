"""The wheel (make wheel): one package with everything in it, which computes what the checkout does."""

import ast
import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from support.program import ROOT, RUN
from support.tree_copy import copy_tree

from zoo import registry

sys.path.append(str(ROOT / "distribution"))
from one_package import PACKAGE, ROOMS, rewritten

MODULES = {"zoo", "zoo.io", "kernels.ops", "kernels.ops.mesa", "experiments.jobs"}


def built(source: Path, folder: Path) -> Path:
    """The wheel of a source tree or of a source distribution, in a folder."""
    options = ["-q", "--no-deps", "--no-build-isolation", "-w", folder]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, source], check=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return built(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def files(wheel) -> dict[str, str]:
    """The text of every file in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


@pytest.mark.parametrize(
    ("line", "inside"),
    [
        ("from zoo import load", "from archzoo.zoo import load"),
        ("from zoo.io import load  # why", "from archzoo.zoo.io import load  # why"),
        ("import zoo", "from archzoo import zoo"),
        ("import zoo.io", "import archzoo.zoo.io; from archzoo import zoo"),
        ("import os, kernels.ops as o", "import os; import archzoo.kernels.ops as o"),
        ("from zoology import kernels", "from zoology import kernels"),
        ("if é := 'é': import kernels", "if é := 'é': from archzoo import kernels"),
        ("x = lazily('kernels.ops.mesa.form', 'zoo')", "x = lazily('archzoo.kernels.ops.mesa.form', 'zoo')"),
        ("zoo.io.load('zoo.load')", "zoo.io.load('zoo.load')"),
        ("f'{zoo.io}, see zoo.io'", "f'{zoo.io}, see zoo.io'"),
        ("'docs/zoo.io, my.zoo.io'", "'docs/zoo.io, my.zoo.io'"),
    ],
)
def test_imports_and_names_of_modules_are_rewritten_and_nothing_else(line, inside):
    assert rewritten(line, MODULES) == inside


def test_a_name_of_a_module_in_an_f_string_is_refused():
    with pytest.raises(ValueError, match=r"'kernels.ops.'"):
        rewritten("import_module(f'kernels.ops.{name}')", MODULES)


@pytest.mark.slow
def test_the_wheel_holds_one_package_with_all_rooms_conf_and_the_command(files):
    assert {name.partition("/")[0].partition("-")[0] for name in files} == {PACKAGE}
    (told,) = (text for name, text in files.items() if name.endswith("top_level.txt"))
    assert told.split() == [PACKAGE]
    (commands,) = (text for name, text in files.items() if name.endswith("entry_points.txt"))
    assert "archzoo = archzoo.experiments.front_desk:main" in commands
    listed = subprocess.run(
        ["git", "ls-files", *ROOMS, "conf"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    wanted = [name for name in listed.stdout.split() if not name.endswith((".md", ".ipynb"))]
    assert [name for name in wanted if (ROOT / name).is_file() and f"{PACKAGE}/{name}" not in files] == []
    assert {f"{PACKAGE}/py.typed", f"{PACKAGE}/__main__.py"} <= files.keys()


@pytest.mark.slow
def test_no_file_of_the_wheel_imports_a_room_by_its_own_name_and_lines_stay(files):
    for name, text in files.items():
        if not name.endswith(".py"):
            continue
        for node in ast.walk(ast.parse(text)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
            assert not {one.partition(".")[0] for one in names} & {*ROOMS}, name
        source = ROOT / name.removeprefix(f"{PACKAGE}/")
        if source.is_file():
            assert len(text.splitlines()) == len(source.read_text(encoding="utf-8").splitlines()), name


@pytest.mark.slow
def test_a_model_that_the_wheel_exports_is_loaded_by_the_wheel_or_a_checkout(files):
    text, made = files[f"{PACKAGE}/zoo/pretrained/writing.py"], {}
    exec(text[text.index("CHECKOUT =") : text.index("def write_folder")], made)
    assert re.findall("from (.*) import", made["LOADER_TEXT"]) == ["archzoo.zoo.hf", "zoo.hf"]


@pytest.mark.slow
def test_messages_name_the_command_of_the_wheel(files):
    ours = (name for name in files if name.startswith(f"{PACKAGE}/"))
    assert [name for name in ours if "python run.py" in files[name]] == []


@pytest.mark.long
def test_a_wheel_of_the_source_distribution_has_the_same_files(files, tmp_path):
    copy_tree(tmp_path / "checkout")
    build = (
        "import sys; sys.path.insert(0, 'distribution'); import one_package as p; p.build_sdist(sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", build, tmp_path], cwd=tmp_path / "checkout", check=True)
    (packed,) = tmp_path.glob("*.tar.gz")
    with zipfile.ZipFile(built(packed, tmp_path)) as archive:
        assert {*archive.namelist()} == files.keys()


ASK = """
import json
from archzoo.zoo import registry
blocks = [block for kind in registry.KINDS for block in registry.blocks(kind).values()]
print(json.dumps({block.name: registry.source_hash(block.cls) for block in blocks}))
"""


@pytest.mark.long
def test_without_a_checkout_it_trains_reports_and_gives_runs_the_checkouts_names(wheel, tmp_path):
    def run(*words: str | Path, **more: str) -> str:
        plain = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        environment = {**plain, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), **more}
        environment.pop("ARCHZOO_CACHE", None)
        done = subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    place = tmp_path / "empty"
    place.mkdir()
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python, archzoo = tmp_path / "venv/bin/python", tmp_path / "venv/bin/archzoo"
    (packages,) = (tmp_path / "venv/lib").glob("*/site-packages")
    before = {path.name for path in packages.iterdir()}
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel)
    assert {path.name.partition("-")[0] for path in packages.iterdir() if path.name not in before} == {
        PACKAGE
    }
    # Dependencies as they are installed here; a path in a .pth file leaves out this environment's own editable install.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    (packages / "kernels").mkdir()  # another package of that name, as Hugging Face has one
    (packages / "kernels/__init__.py").write_text("theirs = True")
    order = "import kernels, archzoo.kernels, archzoo.zoo", "import archzoo.zoo, archzoo.kernels, kernels"
    for imports in order:
        said = run(python, "-c", f"{imports}; print(kernels.theirs, archzoo.kernels.mesa.__module__)")
        assert said.split() == ["True", "archzoo.kernels.ops.mesa"]
    checkout = {
        block.name: registry.source_hash(block.cls)
        for kind in registry.KINDS
        for block in registry.blocks(kind).values()
    }
    assert json.loads(run(python, "-c", ASK)) == checkout
    (tmp_path / "own").mkdir()
    (tmp_path / "own/mine.py").write_text("from zoo.registry import register_mixer")  # as a checkout has it
    said = "from archzoo.zoo import registry; print(registry.left_out())"
    assert "here it is archzoo.zoo" in run(python, "-c", said, ARCHZOO_BLOCKS=str(tmp_path / "own"))
    told = re.findall(r"^ +(/\S+)", run(archzoo, "--help"), re.MULTILINE)  # files that --help names are there
    assert [Path(name).is_relative_to(packages / PACKAGE) for name in told] == [True, True]
    assert all(Path(name).exists() for name in told)
    few = ("trainer.max_steps=4", "trainer.val_every=2", "trainer.progress=false", "device=cpu")
    run(archzoo, *few)
    run(archzoo, "job=report", "runs=results/default")
    assert (place / "results/default/report/index.html").is_file()
    assert (tmp_path / "cache/archzoo").is_dir()
    assert [path.name for path in place.iterdir()] == ["results"]
    run(sys.executable, RUN, *few, "results=checked", ARCHZOO_CACHE=str(tmp_path / "cache/archzoo"))
    (ours,), (theirs,) = (
        (place / name / "default").glob("*/model.safetensors") for name in ("checked", "results")
    )
    assert ours.parent.name == theirs.parent.name
    assert ours.read_bytes() == theirs.read_bytes()
