"""What the operating system will not do (a full disk, a file where a folder belongs) is one line in every job."""

import contextlib
import errno
import io
import os
import resource
import shutil
from pathlib import Path

import pytest
from support.program import Lab, Outcome

from experiments.cli import main
from experiments.system import machine


@contextlib.contextmanager
def small_files(size: int):
    """Writing beyond so many bytes of a file fails, also for root, who may write into every folder."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def assert_one_line(outcome: Outcome, status: int, *says: str) -> None:
    assert outcome.status == status, outcome
    assert "Traceback" not in outcome.out + outcome.err, outcome
    errors = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, outcome
    for words in says:
        assert words in errors[0], outcome


@pytest.fixture
def guest(lab: Lab, finished: Lab) -> Path:
    """A copy of the finished run, which tests may change."""
    shutil.copytree(finished.results, lab.results)
    return lab.run_folder()


# A traceback fits into 16 KiB (4.5 KB on Python 3.13), a checkpoint does not.
@pytest.mark.parametrize("size", [0, 16_384])
@pytest.mark.slow
def test_training_where_files_cannot_grow(lab: Lab, finished: Lab, size: int):
    with small_files(size):
        outcome = lab.here()
    assert_one_line(outcome, 1, "File too large")
    assert ("failure.json" in outcome.err) == (size > 0), (
        "a record that could not be written is not pointed to"
    )
    assert not [path for path in lab.results.rglob("*") if "partial" in path.name]


@pytest.mark.slow
def test_probing_where_files_cannot_grow(lab: Lab, guest: Path):
    with small_files(0):
        outcome = lab.here("job=probe", f"run={guest}", "probe.prompts=[]", "probe.extrapolate=1")
    assert_one_line(outcome, 1, "could not be probed")
    assert "File too large" in outcome.out
    assert "failure.json" not in outcome.out
    assert not list((guest / "probes").iterdir())


@pytest.mark.parametrize(
    ("job", "place"),
    [
        ("train", "default"),
        ("train", "default/RUN"),
        ("train", "default/RUN/.lock"),
        ("report", "default/report/index.html"),
        pytest.param("report", "default/report/figures/loss_against_tokens.svg", marks=pytest.mark.long),
        ("probe", "default/RUN/probes"),
    ],
)
@pytest.mark.slow
def test_a_file_or_folder_of_the_wrong_kind(lab: Lab, guest: Path, job: str, place: str):
    path = lab.results / place.replace("RUN", guest.name)
    if path == guest / "probes" or path in (guest, guest.parent):
        shutil.rmtree(path, ignore_errors=True)
        path.touch()
    else:
        (guest / "summary.json").unlink() if job == "train" else None
        path.unlink(missing_ok=True)
        path.mkdir(parents=True)
    outcome = lab.here(
        f"job={job}", "sweep.workers=1", f"runs={guest.parent}" if job == "probe" else "seed=0"
    )
    assert_one_line(outcome, 1 if job == "probe" else 2)
    assert path.name in outcome.err + outcome.out


@pytest.mark.parametrize("text", ["{", "3", "[1]"])
@pytest.mark.slow
def test_a_damaged_list_of_stages(lab: Lab, text: str):
    place = lab.results / "gpu-rehearsal" / "stages.json"
    place.parent.mkdir(parents=True)
    place.write_text(text)
    assert_one_line(lab.here("job=gpu", "gpu.rehearse=true"), 2, f"{place} is damaged", "remove it")


@pytest.mark.slow
@pytest.mark.parametrize("job", ["list", "cost"], ids=["more than a buffer", "less than a buffer"])
def test_output_that_nobody_takes(lab: Lab, job: str):
    for file, status in (("/dev/full", 2), (None, 141)):
        reader, writer = os.pipe() if file is None else (None, os.open(file, os.O_WRONLY))
        if reader is not None:
            os.close(reader)  # as `| head` does when it has read enough
        with open(writer, "w") as out:
            outcome = _onto(lab, out, f"job={job}")
            out.flush()  # as the interpreter does at its end: nobody complains
        assert outcome.status == status
        assert outcome.err.count("\n") == (status == 2), outcome
        assert ("No space left on device; the disk is full" in outcome.err) == (status == 2)


def _onto(lab: Lab, out, *words: str) -> Outcome:
    """A command whose output goes to a file."""
    err = io.StringIO()
    with lab._inside(*words), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main()
    return Outcome(status, "", err.getvalue())


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.EROFS, "Read-only file system", "/a/b"), "/a/b: Read-only file system; it cannot be"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device; the disk is full"),
        (
            OSError(errno.EDQUOT, "Disk quota exceeded", "/a"),
            "/a: Disk quota exceeded; the disk is full or its",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "/a"), "/a: Permission denied; it cannot be"),
        (OSError("the network is gone"), "the network is gone; correct that, then"),
        (TimeoutError(), "TimeoutError; correct that, then"),
    ],
)
def test_errors_of_the_system_say_what_to_do(error: OSError, says: str):
    line = machine.explain(error)
    assert line.startswith(says)
    assert line.endswith("then give the same command again")
