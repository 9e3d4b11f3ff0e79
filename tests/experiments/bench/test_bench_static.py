"""suite=static: tables of operations and kernels from host calls that are compiled only."""

from __future__ import annotations

import csv
import os
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from importlib import metadata
from pathlib import Path
from unittest import mock

import pytest
import torch
import triton.language as tl
from support.program import Lab
from triton.runtime.jit import JITFunction

from experiments.bench import timing
from experiments.bench.static import compared_operations, gpu_times, time_model, tools
from experiments.bench.static.compared_operations import LENGTH, OPERATIONS, OURS, EmptyInputs
from experiments.bench.static.gpus import GPUS
from experiments.bench.static.operation_counts import account
from experiments.bench.static.specialization import specialise
from experiments.bench.suites import static as suite
from experiments.configuration.schema import BenchConfig, Config
from experiments.runs import RunFailed
from zoo.errors import UserError


def row(backend: str, milliseconds: float | None, unknown: int = 0, mode: str = "forward") -> dict:
    return {
        "model": "KDA",
        "backend": backend,
        "mode": mode,
        "tokens": LENGTH,
        "error": "",
        **({"modelled_milliseconds": milliseconds, "unknown_loops": unknown} if milliseconds else {}),
    }


def test_a_ratio_is_the_fastest_peers_time_over_ours_with_the_models_error():
    rows = [row(OURS, 4.0), row("fla", 2.0), row("other", 3.0), row("fla", 1.0, mode="backward")]
    suite._compare(rows)
    assert (rows[0]["peer"], rows[0]["ratio"]) == ("fla", 0.5)
    assert rows[0]["ratio_low"] == pytest.approx(0.5 / 1.3)
    assert rows[0]["ratio_high"] == pytest.approx(0.5 * 1.3)
    assert not any("ratio" in other for other in rows[1:])


@pytest.mark.parametrize(
    "other", [row("fla", 2.0, unknown=1), row("fla", None), {**row("fla", 2.0), "error": "no configuration"}]
)
def test_times_that_are_not_known_whole_give_no_ratio(other):
    rows = [row(OURS, 4.0), other]
    suite._compare(rows)
    assert "ratio" not in rows[0]


def test_operations_have_the_sizes_of_published_comparisons_and_nothing_is_drawn():
    call = OPERATIONS["KDA"].make(EmptyInputs(LENGTH))
    q, _, _, g, beta = call.arguments
    assert q.shape == g.shape == (1, 8192, 96, 128)
    assert beta.shape == (1, 8192, 96)
    assert {x.dtype for x in call.arguments} == {torch.bfloat16}
    for operation in OPERATIONS.values():
        assert all(x.requires_grad for x in operation.make(EmptyInputs(64)).tensors())


def test_a_step_of_decoding_has_its_own_length_and_batch_and_runs_without_gradients(tmp_path):
    step = OPERATIONS["decoding, KDA"]
    call = step.make(EmptyInputs(step.length, step.batch))
    assert call.arguments[0].shape == (32, 1, 96, 128)
    assert call.options["initial_state"].shape == (32, 96, 128, 128)
    seen = []
    rows, _ = account(
        call,
        lambda: seen.append(torch.is_grad_enabled()) or call.arguments[2] + 0,
        GPUS["H200"],
        tmp_path,
        step.ways,
    )
    assert (seen, [row["mode"] for row in rows]) == ([False], ["forward"])
    assert rows[0]["operators"] == 1
    tasks = suite._tasks([256, 512], ["KDA", "decoding, KDA"])
    assert [length for name, library, length in tasks if library == OURS] == [256, 1, 512]


def test_an_option_whose_name_an_argument_has_is_both():
    """As Triton itself takes a loop's stages, for one."""

    def kernel(x, num_stages, num_warps):
        pass

    kernel.__annotations__ = {"num_stages": tl.constexpr}
    options = {"num_stages": 2, "num_warps": 4}
    made = specialise(JITFunction(kernel), (torch.empty(2),), {**options, "num_ctas": 1})
    assert made.options == {**options, "num_ctas": 1}
    assert made.constants == {"num_stages": 2}
    assert made.source.signature == {"x": "*fp32", "num_stages": "constexpr", "num_warps": "i32"}


def test_a_peer_that_is_not_installed_is_named_and_left_out():
    with mock.patch.object(metadata, "version", side_effect=metadata.PackageNotFoundError):
        assert OPERATIONS["KDA"].libraries == (OURS,)
        assert OPERATIONS["KDA"].missing == ("fla",)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Mesa", {(OURS, "forward"): 2.0, (OURS, "backward"): 3.0}),
        ("decoding, KDA", {(OURS, "forward"): 2.0}),
    ],
)
def test_measured_times_are_forward_and_what_both_take_more(name, expected):
    times = {"forward": [2.0, 1.0, 9.0], "forward+backward": [5.0, 4.0, 6.0]}

    def timed(forms, repeats, device):
        assert (repeats, device.type) == (3, "cuda")
        return {name: times[name[1]] for name in forms}

    class Here(EmptyInputs):
        def __init__(self, batch, length, device, dtype):
            super().__init__(length, 1)
            assert batch == OPERATIONS[name].batch

    with (
        mock.patch.object(timing, "interleaved", timed),
        mock.patch.object(gpu_times, "InputFactory", Here),
        mock.patch.object(compared_operations, "installed", return_value=False),
    ):
        assert gpu_times.measure_times(OPERATIONS[name], 64, 3) == expected


def test_without_a_compiler_or_its_tools_it_says_what_to_do():
    with pytest.raises(UserError, match="unset TRITON_INTERPRET"):
        suite.run(Config())
    with mock.patch.object(suite, "interpreted", return_value=False):
        with pytest.raises(UserError, match=r"unknown bench.target 'H20'.*H200"):
            suite.run(Config(bench=BenchConfig(target="H20")))
        tools._tool.cache_clear()
        with (
            mock.patch.dict(os.environ, {"TRITON_NVDISASM_PATH": "/nowhere"}),
            mock.patch(
                "triton.knobs.env_nvidia_tool.transform", side_effect=RuntimeError("Cannot find nvdisasm")
            ),
            pytest.raises(UserError, match=r"needs NVIDIA's cuobjdump.*TRITON_CUOBJDUMP_PATH"),
        ):
            suite.run(Config())


@pytest.fixture
def pool(monkeypatch) -> list:
    """What is asked of a pretended pool of processes; a task's outcome is its name, or a broken pool."""
    asked: list = []

    def ended(name, library, length, *given):
        future = Future()
        if name == "killed":
            future.set_exception(BrokenProcessPool())
        else:
            future.set_result(([name, library, length, *given], []))
        return future

    class Pool:
        def __init__(self, workers, **options) -> None:
            asked.append(
                (
                    workers,
                    options.pop("mp_context").get_start_method(),
                    options,
                    os.environ["OMP_NUM_THREADS"],
                )
            )

        def submit(self, function, *task):
            assert function is suite._account
            return ended(*task)

        def shutdown(self, **options) -> None:
            asked.append(options)

    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "5")
    monkeypatch.setattr(suite, "ProcessPoolExecutor", Pool)
    return asked


@pytest.mark.parametrize(("workers", "at_once"), [(2, 2), (99, 3)])
def test_each_operation_is_accounted_in_a_process_of_its_own_with_one_thread(
    pool: list, monkeypatch, tmp_path, workers: int, at_once: int
):
    tasks = [("a", "fla", 16), ("a", OURS, 16), ("b", OURS, 32)]
    monkeypatch.setattr(suite, "_tasks", lambda lengths, names: tasks)
    config = Config(bench=BenchConfig(lengths=[16, 32], target="H200"))
    config.sweep.workers, config.trainer.progress, config.data.cache_dir = workers, False, str(tmp_path)
    found = dict(suite._outcomes(config, ["a", "b"]))
    assert found == {task: ([*task, "H200", tmp_path], []) for task in tasks}
    made = (at_once, "spawn", {"max_tasks_per_child": 1}, "1")
    assert pool == [made, {"cancel_futures": True}]


def test_a_killed_worker_ends_the_suite_which_goes_on_from_there(pool: list, monkeypatch, tmp_path):
    monkeypatch.setattr(suite, "_tasks", lambda lengths, names: [("killed", OURS, 16)])
    config = Config()
    config.trainer.progress, config.data.cache_dir = False, str(tmp_path)
    with pytest.raises(RunFailed, match="a worker was killed, for memory perhaps; the same command goes on"):
        list(suite._outcomes(config, ["killed"]))
    assert pool[-1] == {"cancel_futures": True}, "what waits is not begun"


def test_a_suite_that_is_stopped_keeps_the_rows_that_it_has(tmp_path):
    """Rows of both tables are in their files before the next operation ends, in the order of names, with ratios."""
    path = tmp_path / "static.csv"

    def outcomes(config, names):
        assert not path.exists()
        yield ("KDA", "fla", LENGTH), ([row("fla", 2.0)], [])
        assert [r["backend"] for r in csv.DictReader(path.open())] == ["fla"]
        yield ("KDA", OURS, LENGTH), ([row(OURS, 4.0)], [{"mode": "forward", "kernel": "solve"}])
        raise RunFailed("a worker was killed")

    with (
        mock.patch.object(suite, "interpreted", return_value=False),
        mock.patch.object(suite, "check_tools"),
        mock.patch.object(suite, "_outcomes", outcomes),
        mock.patch.object(suite, "version", str),  # fla need not be installed
        pytest.raises(RunFailed),
    ):
        suite.run(Config(suite="static", bench=BenchConfig(out=str(tmp_path), cases=["KDA"])))
    rows = list(csv.DictReader(path.open()))
    assert [(r["backend"], r["ratio"]) for r in rows] == [(OURS, "0.5"), ("fla", "")]
    assert [r["kernel"] for r in csv.DictReader((tmp_path / "static_kernels.csv").open())] == ["solve"]


@pytest.mark.long
def test_one_operation_of_ours_and_of_its_peer(lab: Lab):
    """A length of 256: both ways of both libraries, kernels with machine code, and again without compiling."""
    words = [
        "job=bench",
        "suite=static",
        "bench.cases=[short convolution]",
        "bench.lengths=[256]",
        f"data.cache_dir={lab.folder}/cache",
    ]
    with mock.patch.dict(os.environ):
        os.environ.pop("TRITON_INTERPRET", None)
        done = lab.run(*words, timeout=800)
        assert done.status == 0, done.err
        rows = list(csv.DictReader((lab.results / "bench" / "static.csv").open()))
        made = {path: path.stat().st_mtime_ns for path in (lab.folder / "cache" / "static").iterdir()}
        assert lab.run(*words, timeout=800).status == 0
    assert {path: path.stat().st_mtime_ns for path in Path(lab.folder / "cache" / "static").iterdir()} == made
    assert rows == list(csv.DictReader((lab.results / "bench" / "static.csv").open()))
    peers = compared_operations.OPERATIONS["short convolution"].libraries[1:]
    assert [(r["backend"], r["mode"]) for r in rows] == [
        (library, way) for library in (OURS, *peers) for way in ("forward", "backward")
    ]
    assert {r["kind"] for r in rows} == {suite.KIND}
    assert time_model.ERROR in done.out
    assert all(float(r["modelled_milliseconds"]) > 0 and r["unknown_loops"] == "0" for r in rows)
    assert all(bool(r["ratio"]) == (bool(peers) and r["backend"] == OURS) for r in rows)
    kernels = list(csv.DictReader((lab.results / "bench" / "static_kernels.csv").open()))
    assert {r["chosen"] for r in kernels} == {"0", "1"}
    assert all(
        int(r["registers"]) > 0 and float(r["instructions"]) > 1 for r in kernels if r["chosen"] == "1"
    )
    assert (lab.results / "bench" / "static.png").is_file()


@pytest.mark.parametrize("gpu", [None, "NVIDIA A100", "NVIDIA H200"])
def test_times_are_measured_where_the_gpu_is_that_was_compiled_for(monkeypatch, gpu):
    """Once an operation and length; a form without a measured time has none."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu is not None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: gpu)
    asked = []

    def measured(operation, length, repeats):
        asked.append((operation, length, repeats))
        return {(OURS, "forward"): float(length)}

    monkeypatch.setattr(suite, "measure_times", measured)
    first, second = list(OPERATIONS)[:2]
    rows = [
        {"model": name, "tokens": length, "backend": OURS, "mode": mode}
        for name, length in ((first, 16), (second, 16), (first, 32))
        for mode in ("forward", "backward")
    ]
    suite._measure(Config(bench=BenchConfig(target="H200", repeats=7)), rows)
    if gpu != "NVIDIA H200":
        assert asked == []
        assert not any("measured_milliseconds" in row for row in rows)
        return
    assert asked == [
        (OPERATIONS[name], length, 7) for name, length in ((first, 16), (second, 16), (first, 32))
    ]
    assert [row["measured_milliseconds"] for row in rows] == [16.0, None, 16.0, None, 32.0, None]
