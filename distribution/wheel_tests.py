"""make test-wheel: the fast tests against the wheel, in an environment and a folder without the checkout's packages.

The wheel goes into a new environment, which takes its dependencies from the one that runs this. The tests go into a
temporary folder, rewritten as the sources in the wheel are, and so do the pages; beside them stand the wheel's conf/
and run.py, and links to what else tests read: published results, pyproject.toml. This file is pytest's plugin there.
"""

import importlib.util
import itertools
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent))
from one_package import PACKAGE, ROOMS, inside, modules

CHECKOUT = Path(__file__).resolve().parent.parent
NEEDS = "needs a checkout: "
LEFT_OUT = {
    "sources": (
        "tests/test_package_maps.py",
        "tests/test_wheel.py",
        "tests/analysis/loading/test_load_results.py::test_the_readme_documents_the_columns",
    ),
    "notebooks": ("tests/analysis/notebooks/",),
    "a copy of it": (
        "tests/experiments/test_command_line.py::test_questions_and_refused_words_are_answered_without_torch",
        "tests/experiments/test_command_line.py::test_the_answer_is_that_of_the_command_line",
        "tests/experiments/test_command_line.py::test_a_block_that_was_added_is_there",
        "tests/experiments/test_command_line.py::test_a_damaged_catalogue_is_written_anew",
    ),
    "a repository": ("tests/experiments/system/test_messages.py::test_a_new_file_of_code_is_a_change",),
    "its path for other processes": (
        "tests/experiments/engines/test_recorded_engines.py::test_what_is_submitted_finds_this_code",
        "tests/experiments/training/test_recorded_training.py::test_what_processes_are_started_with",
        "tests/experiments/test_own_blocks.py::test_another_package_called_kernels",
    ),
    "run.py by that name": (
        "tests/analysis/publishing/test_publish.py::test_in_a_command_no_path_of_this_machine_is_left[/usr/bin",
        "tests/analysis/claims/test_published_claims.py::test_the_published_page_is_made_of_these_numbers",
        "tests/analysis/headlines/test_headlines.py::test_the_published_table_and_page_are_made",
    ),
}
"""What of a checkout tests need -> the beginnings of their names. Those with a case a source file count as one."""


def main(options: list[str]) -> int:
    """Run the tests that pytest's options choose; returns pytest's exit status."""
    for place in itertools.chain(*LEFT_OUT.values()):
        path, _, test = place.partition("::")
        file, start = CHECKOUT / path, f"def {test.partition('[')[0]}"
        if not file.exists() or (test and start not in file.read_text(encoding="utf-8")):
            sys.exit(f"error: there is no test {place}: correct LEFT_OUT in distribution/wheel_tests.py")
    with tempfile.TemporaryDirectory(prefix="wheel-tests-") as name:
        folder = Path(name)
        python = install(folder / "venv")
        lay_out(folder, python)
        command = [python, "-m", "pytest", "tests", "-p", "distribution.wheel_tests", *options]
        return subprocess.run(command, cwd=folder).returncode


def install(venv: Path) -> Path:
    """Make an environment with the wheel and links to the dependencies that are installed here; its interpreter."""
    python = venv / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", venv, CHECKOUT], check=True)
    (wheel,) = venv.glob("*.whl")
    subprocess.run([*pip, "--python", python, "install", "--no-deps", "--no-index", wheel], check=True)
    # A path in a .pth file leaves out this environment's own editable install.
    (packages,) = venv.glob("lib/*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return python


def lay_out(folder: Path, python: Path) -> None:
    """Write the rewritten tests into a folder, and beside them what they read."""
    (package,) = python.parents[1].glob(f"lib/*/site-packages/{PACKAGE}")
    (folder / "conf").symlink_to(package / "conf")
    # A link to run.py would make the folders in the package importable.
    shutil.copy(package / "__main__.py", folder / "run.py")
    for path in CHECKOUT.iterdir():
        if path.name in ("tests", "docs"):
            shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.name == "README.md":
            shutil.copy(path, folder)
        elif not path.name.startswith(".") and path.name not in (*ROOMS, "conf", "run.py"):
            (folder / path.name).symlink_to(path)
    names = modules(CHECKOUT)
    for file in [folder / "README.md", *folder.glob("tests/**/*.*"), *folder.glob("docs/**/*.*")]:
        if file.suffix in (".py", ".md", ".txt"):
            text = inside(file.read_text(encoding="utf-8"), names, code=file.suffix == ".py")
            file.write_text(text, encoding="utf-8")


# The plugin.


def pytest_configure() -> None:
    for room in ROOMS:
        found = importlib.util.find_spec(room)
        if found and found.origin and Path(found.origin).is_relative_to(CHECKOUT):
            raise pytest.UsageError(f"{found.origin} can be imported: these would be no tests of the wheel")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for what, places in LEFT_OUT.items():
            if item.nodeid.startswith(places):
                item.add_marker(pytest.mark.skip(reason=NEEDS + what))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    def names(kind: str, why: str = "") -> set[str]:
        return {each.nodeid for each in terminalreporter.getreports(kind) if why in str(each.longrepr)}

    ran = names("passed") | names("failed") | names("error")
    for what, tests in {"ran against the wheel": ran, "left out": names("skipped", NEEDS)}.items():
        files = {name.partition("::")[0] for name in tests}
        terminalreporter.write_line(f"{what}: {len(tests)} tests of {len(files)} files")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
