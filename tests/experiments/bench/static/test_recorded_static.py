"""From kept code of three kernels to rows and modelled milliseconds: every count on the way, at several sizes.

code/NAME.ttir and NAME.sass are what Triton 3.7 made of kernels here for an H200; of the machine code only names stand.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.recorded import check, flat, short
from support.steady import cells, changed, masked, pretended_machine, refusal, said, tiny_config

from experiments.bench.static import (
    capture,
    compared_operations,
    compiler,
    control_flow,
    counts,
    fake_gpu,
    host_calls,
    kernel_rows,
    launch_traffic,
    operation_counts,
    program_slices,
    sass,
    scalars,
    time_model,
    tools,
    ttir,
)
from experiments.bench.static.capture import Attempt, Launch
from experiments.bench.static.compiler import Compiled
from experiments.bench.static.control_flow import Executions
from experiments.bench.static.gpus import GPUS, programs_resident
from experiments.bench.suites import compile as compile_suite
from experiments.bench.suites import static as static_suite

HERE = Path(__file__).parent
RECORDED = HERE / "recorded"
bf16, f32, i32, i64 = torch.bfloat16, torch.float32, torch.int32, torch.int64


@dataclasses.dataclass
class Kept:
    """A kernel's code, what a launch of it takes, and its arguments for so many tokens."""

    registers: int
    shared: int
    tile: dict[str, Any]
    grid: Any
    values: Any


def _sparse(time: int) -> dict[str, Any]:
    q, k = torch.empty(1, time, 12, 64, dtype=bf16), torch.empty(1, time, 4, 64, dtype=bf16)
    few = min(time, 2048)
    return {
        "q": q,
        "k": k,
        "v": k.clone(),
        "indices": torch.empty(1, time, few, dtype=i32),
        "gate": None,
        "y": q.clone(),
        "lse": torch.empty(1, time, 12),
        "scale": 0.125,
        "Tk": time,
        "G": 3,
        "HKV": 4,
        "K": 64,
        "V": 64,
        "BK": 64,
        "BV": 64,
        "Tq": time,
        "N": few,
        "BG": 16,
        "BN": 64,
    }


def _count(time: int) -> dict[str, Any]:
    return {
        "assignment": torch.empty(1, time, 12, dtype=i64),
        "cu": None,
        "counts": torch.empty(12, 6, 1, dtype=i32),
        "BATCH_STRIDE": 12 * time,
        "TIME_STRIDE": 12,
        "HEAD_STRIDE": 1,
        "HALVINGS": 1,
        "ROWS": 1,
        "HEADS": 12,
        "TIMELINES": 6,
        "SIZE": 128,
        "time": time,
        "SEQUENCES": 1,
        "BH": 16,
    }


def _put_back(time: int) -> dict[str, Any]:
    rows = 12 * time
    return {
        "there": torch.empty(rows, 1, 64, dtype=bf16),
        "weight": torch.empty(1, time, 12),
        "ROWS": rows,
        "V": 64,
        "BV": 64,
        "BM": 32,
        "o": torch.empty(1, time, 12, 64, dtype=bf16),
        "places": torch.empty(rows, dtype=i64),
    }


KEPT = {
    "sparse_forward": Kept(
        80, 20736, {"BN": 64, "num_warps": 4, "num_stages": 2}, lambda t: (t, 4, 1), _sparse
    ),
    "timeline_count": Kept(
        53, 256, {"BH": 16, "num_warps": 4, "num_stages": 3}, lambda t: (-(-t // 128), 1), _count
    ),
    "timeline_put_back": Kept(
        28, 0, {"BM": 32, "num_warps": 4, "num_stages": 3}, lambda t: (12 * t // 32,), _put_back
    ),
}


def _function(name: str) -> ttir.Function:
    return ttir.parse((HERE / "code" / f"{name}.ttir").read_text())


def _code(name: str) -> sass.Code:
    return sass.parse((HERE / "code" / f"{name}.sass").read_text())


@pytest.mark.parametrize("name", list(KEPT))
def test_counts_of_kept_code(name: str):
    def lines() -> Iterator[str]:
        function, code, kept = _function(name), _code(name), KEPT[name]
        ops = [op for op, _ in function.ops()]
        yield f"arguments {function.arguments}"
        yield from flat(dict(sorted(Counter(op.name for op in ops).items())), "operations")
        yield f"control {sorted(program_slices.control_values(function))}"
        pointed = [
            (op.name, sorted(places), ttir.accessed_bytes(op))
            for op, _, places in ttir.pointing(function)
            if places
        ]
        yield from (f"  {op} {' '.join(places)} {size}" for op, places, size in pointed)
        yield (
            f"elements {sum(ttir.result_elements(op) for op in ops if op.results)}, weights "
            f"{sum(map(counts._weight, ops))}"
        )
        yield from flat(dict(sorted(Counter(map(sass.kind, code.instructions)).items())), "instructions")
        yield f"loops {[(loop.first, loop.last, loop.size) for loop in code.loops]}"
        for time in (64, 1000, 8192):
            values, grid = kept.values(time), kept.grid(time)
            done = Executions(function, values, grid, set())
            yield f"{time}: steps {done.steps:.6g}, longest {done.longest:.6g}, unknown {len(done.unknown)}"
            yield (
                f"  blocks "
                f"{[round(done.of(block), 6) for block in {id(b): b for _, b in function.ops()}.values()]}"
            )
            yield from flat(counts.instruction_counts(code, done), "  executed")
            programs = int(torch.tensor(grid).prod())
            yield from flat(launch_traffic.moved_bytes(done, values, programs), "  moved")
            yield from flat(launch_traffic.products(done), "  products")
            yield (
                f"  writes {sorted(launch_traffic.written_arguments(done))}, samples "
                f"{len(list(control_flow._sample(grid, function, done._needed)))}"
            )

    check(RECORDED / f"counts_{name}.txt", lines())


class _Constants(SimpleNamespace):
    @property
    def constants(self) -> dict[str, Any]:
        return {"HEADS": 12, **self.tile, "V": 64}


def _attempt(name: str, time: int, **made: Any) -> Attempt:
    kept = KEPT[name]
    values, grid = kept.values(time), kept.grid(time)
    text = (HERE / "code" / f"{name}.sass").read_text()
    facts = {
        "registers": kept.registers,
        "shared": kept.shared,
        "warps": 4,
        "stages": 2,
        "machine": text,
        **made,
    }
    done = Executions(_function(name), values, grid, set())
    return Attempt(
        {**kept.tile}, Compiled(**facts), name, _Constants(values=values, tile=kept.tile), grid, done
    )


def test_rows_of_kernels_and_sums():
    """Rows of launches in several configurations, of which one fails and one is slow; the sums of an operation."""

    def lines() -> Iterator[str]:
        sparse = _attempt("sparse_forward", 512)
        other = dataclasses.replace(
            sparse,
            configuration={**sparse.configuration, "BN": 32},
            compiled=dataclasses.replace(sparse.compiled, registers=200, stack=64),
        )
        large = dataclasses.replace(
            sparse,
            configuration={**sparse.configuration, "BN": 128},
            compiled=dataclasses.replace(sparse.compiled, error="too much"),
        )
        broken = dataclasses.replace(
            sparse, configuration={"BN": 256}, compiled=Compiled(error="no code"), executions=None
        )
        first = Launch("sparse._forward", [sparse, other, large, broken])
        sizes = ((512, {}), (2048, {"registers": 200, "shared": 50_000}))
        twice = [
            Launch("timeline._count", [_attempt("timeline_count", time, **made)]) for time, made in sizes
        ]
        failing = Launch("other._all", [dataclasses.replace(large, configuration={})])
        for gpu in GPUS:
            found = kernel_rows.rows(
                [first, *twice, Launch("timeline._put_back", [_attempt("timeline_put_back", 512, stack=32)])],
                GPUS[gpu],
            )
            yield from cells(found)
            operators = SimpleNamespace(total=10**9, operators=3)
            yield from flat(operation_counts._sums(found, operators, GPUS[gpu]), gpu)
        found = kernel_rows.rows([failing], GPUS["H200"])
        yield from cells(found)
        yield from flat(
            operation_counts._sums(found, SimpleNamespace(total=0, operators=0), GPUS["H200"]), "failed"
        )
        yield f"columns {kernel_rows.COLUMNS}"

    check(RECORDED / "kernel_rows.txt", lines())


def test_modelled_milliseconds():
    """Every part of the model for a table of counts, on every GPU; its constants; programs held at a time."""
    product = launch_traffic.Product(64, False, "bf16", "", 2.0 * 64 * 64 * 64)

    def lines() -> Iterator[str]:
        usual = time_model.Counts(1024, 4, 3, 2000.0, 10.0, 20.0, 30.0, 8.0, 1.5, 1e8, True, [product])
        table = {"usual": usual}
        for field, value in (
            ("programs", 7),
            ("warps", 8),
            ("resident", 1),
            ("instructions", 9e4),
            ("special", 500.0),
            ("shuffles", 900.0),
            ("accesses", 900.0),
            ("steps", 300.0),
            ("longest", 40.0),
            ("bytes", 1e11),
            ("asynchronous", False),
            ("products", []),
        ):
            table[field] = dataclasses.replace(usual, **{field: value})
        for change in (
            {"rows": 63},
            {"batched": True},
            {"dtype": "f32"},
            {"dtype": "f32", "precision": "tf32"},
            {"dtype": "f32", "precision": "bf16x3"},
            {"dtype": "f32", "precision": "tf32x3"},
            {"dtype": "f32", "precision": "new"},
            {"dtype": "f16", "precision": "tf32"},
        ):
            table[str(change)] = dataclasses.replace(
                usual, products=[dataclasses.replace(product, flops=1e9, **change)]
            )
        for name, one in table.items():
            for gpu in GPUS:
                found = {
                    **time_model.parts(one, GPUS[gpu]),
                    "all": time_model.seconds(one, GPUS[gpu]),
                    "waves": time_model.waves(one, GPUS[gpu]),
                }
                yield (
                    f"{name} {gpu} {short(one.flops)}: "
                    f"{'; '.join(f'{k} {short(v)}' for k, v in found.items())}"
                )
        yield refusal(time_model.parts, dataclasses.replace(usual, resident=0), GPUS["H200"])
        yield from flat(time_model.CONSTANTS)
        yield (
            f"{time_model.ERROR} {time_model.RATIO_ERROR} operators "
            f"{short(time_model.operator_seconds(1e9, 5, GPUS['A100']))}"
        )
        yield from flat(GPUS)
        yield f"architectures {[gpu.sm for gpu in GPUS.values()]}"
        for registers, shared, warps in itertools.product(
            (1, 64, 72, 255), (0, 1024, 50_000, 166_912, 232_448, 232_449), (1, 4, 8)
        ):
            yield (
                f"{registers} {shared} {warps}: "
                f"{[programs_resident(gpu, registers, shared, warps) for gpu in GPUS.values()]}"
            )

    check(RECORDED / "time_model.txt", lines())


def test_arithmetic_of_scalars():
    def lines() -> Iterator[str]:
        for name, function in scalars._FUNCTIONS.items():
            pairs = (
                ((7, 2), (-7, 2), (7, -2), (6, 0))
                if function.__name__ not in ("_same", "floor", "ceil", "float", "int")
                else ((7.5,), (-7.5,))
            )
            yield (
                f"{name}: "
                f"{[refusal(function, *p).removeprefix('taken: ') for p in pairs if 'sh' not in name or min(p) >= 0]}"
            )
        for name, function in scalars._COMPARE.items():
            yield f"{name}: {[int(function(a, b)) for a, b in ((1, 2), (2, 2), (3, 2))]}"
        for text in (
            "true",
            "false",
            "-3 : i32",
            "5 : index",
            "1.500000e+00 : f32",
            "-2.0e-01 : f64",
            "dense<0> : tensor<4xi32>",
            "7",
        ):
            yield f"{text}: {scalars._constant(f'arith.constant {text}')}"
        numbers = torch.arange(10, dtype=i32)
        written, halves = torch.arange(4, dtype=i64), torch.ones(3, dtype=bf16)
        unread = {scalars.storage_id(written)}
        for text, values in (
            ("tt.load %p", {"%p": scalars.Place(numbers[2:], 3)}),
            ("tt.load %p", {"%p": scalars.Place(numbers, 10)}),
            ("tt.load %p", {"%p": scalars.Place(numbers, -1)}),
            ("tt.load %p", {"%p": scalars.Place(written, 1)}),
            ("tt.load %p", {"%p": scalars.Place(halves, 1)}),
            ("tt.load %p, %m, %o", {"%p": scalars.Place(numbers, 4), "%m": 0, "%o": 9}),
            ("tt.load %p, %m", {"%p": scalars.Place(numbers, 4), "%m": 1}),
            ("tt.load %p, %m", {"%p": scalars.Place(numbers, 4), "%m": 0}),
            ("arith.select %c, %a, %b : i32", {"%c": 1, "%a": 3, "%b": 4}),
            ("arith.select %c, %a, %b : i32", {"%c": 0, "%a": 3, "%b": 4}),
            ("arith.select %c, %a, %b : i32", {"%a": 3, "%b": 4}),
            ("arith.andi %a, %b : i1", {"%a": 1}),
            ("arith.andi %a, %b : i32", {"%a": 1}),
            ("arith.cmpi slt, %a, %b : i32", {"%a": 1, "%b": 2}),
            ("arith.extsi %a : i1 to i32", {"%a": 1}),
            ("arith.extsi %a : i32 to i64", {"%a": 1}),
            ("arith.extui %a : i1 to i32", {"%a": 1}),
            ("arith.addi %a, %b : tensor<4xi32>", {"%a": 1, "%b": 2}),
            ("arith.addi %a, %b : i32", {"%a": 1, "%b": 2}),
            ("tt.get_program_id y : i32", {}),
            ("tt.get_num_programs z : i32", {}),
            ("math.exp %a : f32", {"%a": 1.0}),
        ):
            op = ttir._operation(f"%r = {text}")
            yield f"{text} {sorted(values)}: {scalars.evaluate(op, values, (5, 6, 7), (8, 9, 10), unread)}"
        moved = scalars.evaluate(
            ttir._operation("%r = tt.addptr %p, %n : !tt.ptr<i32>, i32"),
            {"%p": scalars.Place(numbers, 2), "%n": 3},
            (),
            (),
            (),
        )
        yield f"pointer {moved.offset}"
        for shape, kind in (("", "i1"), ("4x", "bf16"), ("4x8x", "f32"), ("", "index"), ("3x", "i64")):
            yield f"{shape}{kind}: {ttir.elements(shape)} {ttir.bits(kind)}"
        for size in (1, 5, 12, 13, 1000):
            yield f"spread {size}: {control_flow._spread(size)}"

    check(RECORDED / "scalars.txt", lines())


def test_operations_that_are_compared(monkeypatch):
    """Sizes, kinds, ways and peers of every operation; selections that are put in; a GPU that stands in."""
    monkeypatch.setattr(compared_operations, "installed", lambda peer: peer != "fla")

    def lines() -> Iterator[str]:
        for name, one in compared_operations.OPERATIONS.items():
            yield (
                f"{name}: {one.peers}, {one.batch}, {one.length}, {one.ways}, {one.libraries}, "
                f"without {one.missing}"
            )
            made = one.make(compared_operations.EmptyInputs(one.length or 64, one.batch))
            for x in made.tensors():
                yield f"  {tuple(x.shape)} {x.dtype} {x.requires_grad}"
            yield (
                f"  {made.operation} "
                f"{ ({k: v for k, v in made.options.items() if not isinstance(v, torch.Tensor)}) }"
            )
        yield (
            f"{compared_operations.LENGTH} {compared_operations.SEQUENCES} {compared_operations.OURS} "
            f"{compared_operations.PACKAGES} {compared_operations.version('triton')!r}"
        )
        for queries, size, number in ((10, 2, 3), (8, 1, 4), (6, 4, 1)):
            yield f"{queries} {size} {number}: {host_calls.spread_blocks(queries, size, number).tolist()}"
        for gpu in GPUS.values():
            yield f"{fake_gpu._properties(gpu)}"
            with fake_gpu.use_fake_gpu(gpu):
                there = torch.cuda.get_device_properties(0)
                yield (
                    f"{torch.cuda.get_device_name()} {torch.cuda.get_device_capability()} "
                    f"{torch.cuda.device_count()} {vars(there)}"
                )

    check(RECORDED / "operations.txt", lines())


def _static_row(model_name: str, backend: str, mode: str, ms: float | None, **more: Any) -> dict[str, Any]:
    row = {"model": model_name, "backend": backend, "mode": mode, "tokens": 8192}
    if ms is None:
        return {**row, **more}
    found = {
        "launches": 3,
        "bytes": 2.5e9,
        "flops": 3.2e12,
        "modelled_milliseconds": ms,
        "unknown_loops": 0,
        "error": "",
    }
    return {**row, **found, **more}


def _kernel_row(row: dict[str, Any], kernel: str) -> dict[str, Any]:
    return {key: row[key] for key in ("model", "backend", "mode", "tokens")} | {
        "kernel": kernel,
        "grid": "4x1",
    }


def test_tables_of_the_static_suite(tmp_path: Path, monkeypatch):
    """Ratios over the fastest peer, lines, order of rows and tasks, both files, what is refused."""
    monkeypatch.setattr(compared_operations, "installed", lambda peer: True)
    monkeypatch.setattr(static_suite, "version", lambda library: {"fla": "fla-core 9"}.get(library, ""))
    monkeypatch.setattr(static_suite.triton, "__version__", "9.triton")
    config = tiny_config(suite="static", bench__out=str(tmp_path))

    def lines() -> Iterator[str]:
        rows = [
            _static_row("KDA", "fla", "forward", 3.0),
            _static_row("KDA", "other", "forward", 2.5),
            _static_row("KDA", "triton", "forward", 2.0),
            _static_row("KDA", "triton", "backward", 4.0),
            _static_row("KDA", "fla", "backward", 9.0, unknown_loops=2),
            _static_row("GDN", "triton", "forward", 1.0, error="no configuration can run of x"),
            _static_row("GDN", "fla", "forward", 1.0),
            _static_row("PaTH", "fla", "forward", None, note="RuntimeError: no"),
            _static_row("PaTH", "triton", "forward", None, error="E: x"),
        ]
        static_suite._compare(rows)
        yield from cells(rows)
        yield from (static_suite._line(row) for row in rows)
        names = ["GDN", "PaTH", "KDA"]
        static_suite._save(config, names, rows, [_kernel_row(rows[0], "k"), _kernel_row(rows[2], "j")])
        for name in ("static.csv", "static_kernels.csv"):
            yield from (tmp_path / name).read_text().splitlines()
        yield f"{static_suite._tasks([64, 128], ['KDA', 'decoding, KDA', 'GDN'])}"
        with pretended_machine():
            yield from flat(static_suite._facts(config, "decoding, KDA", "fla", 64))
        monkeypatch.setattr(static_suite, "account", lambda *_: 1 / 0)
        for library in ("triton", "fla"):
            yield f"{static_suite._account('KDA', library, 64, 'H200', tmp_path)}"
        given = [{"mode": "forward"}, {"mode": "backward"}]
        monkeypatch.setattr(
            static_suite,
            "account",
            lambda call, form, gpu, cache, ways: (
                [dict(row) for row in given],
                [{"gpu": gpu.name, "ways": ways}],
            ),
        )
        for library in ("triton", "fla"):
            yield from flat(static_suite._account("KDA", library, 64, "A100", tmp_path), library)
        monkeypatch.setattr(static_suite, "interpreted", lambda: False)
        yield refusal(static_suite.run, changed(config, bench__target="H20"))
        monkeypatch.setattr(static_suite, "interpreted", lambda: True)
        yield refusal(static_suite.run, config)
        yield refusal(compile_suite.run, config)
        with said() as printed:
            static_suite._measure(config, rows)
        yield f"measured {[row.get('measured_milliseconds') for row in rows]} {printed}"

    check(RECORDED / "static_suite.txt", masked(lines(), {str(tmp_path): "<place>"}))


def test_the_whole_static_suite(tmp_path: Path, monkeypatch):
    """The run itself, with outcomes that are given: what is printed, what the job's end is."""
    config = tiny_config(suite="static", bench__out=str(tmp_path), bench__cases=["KDA", "Mesa"])
    monkeypatch.setattr(compared_operations, "installed", lambda peer: False)
    monkeypatch.setattr(static_suite, "interpreted", lambda: False)
    monkeypatch.setattr(static_suite, "check_tools", lambda: None)
    monkeypatch.setattr(static_suite.triton, "__version__", "9.triton")
    given = [
        (
            ("KDA", "triton", 8192),
            (
                [
                    {
                        k: v
                        for k, v in _static_row("", "", "forward", 2.0).items()
                        if k not in ("model", "backend", "tokens")
                    }
                ],
                [{"mode": "forward", "kernel": "k"}],
            ),
        ),
        (("Mesa", "triton", 8192), ([{"mode": "forward", "error": "E: x"}], [])),
    ]
    monkeypatch.setattr(static_suite, "_outcomes", lambda config, names: iter(given))
    with pretended_machine(), said() as printed:
        rows = static_suite.run(config)
    check(RECORDED / "static_run.txt", [*printed, *cells(rows)])


class _Source:
    def __init__(self, name: str) -> None:
        self.name = name

    def hash(self) -> str:
        return self.name


def test_launches_that_are_captured_and_compiled(tmp_path: Path, monkeypatch):
    """Configurations that come to the same are one attempt; what was compiled is read again."""
    names = iter(["same", "same", "other", "alone", "broken", "broken"])
    asked: list[str] = []

    def compile_for(launch, gpu, translate):
        asked.append(launch.source.name)
        if launch.source.name == "broken":
            return Compiled(error="E: x"), b""
        return Compiled(registers=len(asked)), launch.source.name.encode()

    monkeypatch.setattr(compiler, "compile_for", compile_for)
    monkeypatch.setattr(
        compiler, "machine_codes", lambda codes, sm: [f"{code.decode()} for {sm}" for code in codes]
    )
    kernel = SimpleNamespace(fn=SimpleNamespace(__module__="kernels.ops.mesa.triton_ops", __name__="_go"))
    monkeypatch.setattr(
        capture,
        "specialise",
        lambda kernel, args, options: SimpleNamespace(
            source=_Source(next(names)), options=options, values={"n": args[0]}
        ),
    )

    def lines() -> Iterator[str]:
        made = compiler.Compiler(GPUS["H200"], tmp_path)
        done: list[Launch] = []
        seen = capture.Capture(made, done.append)
        configurations = [SimpleNamespace(all_kwargs=lambda n=n: {"BM": n}) for n in (16, 32, 64)]
        seen.each(
            configurations,
            lambda one: seen.launch(kernel, (7,), lambda values: (values["n"], 2), {"num_warps": 4}),
        )
        for _ in range(3):
            seen.launch(kernel, (5,), (3, 1.0), {})
        made.finish()
        for launch in done:
            yield f"{launch.kernel}: {len(launch.attempts)}"
            for one in launch.attempts:
                compiled = one.compiled
                yield f"  {one.configuration} {one.grid} {one.programs} {compiled.machine!r} {compiled.error!r}"
        yield f"{asked} {made.compiled} {len(list(tmp_path.iterdir()))}"
        again = compiler.Compiler(GPUS["H200"], tmp_path)
        for name, options in (("same", {"num_warps": 4}), ("same", {"num_warps": 8}), ("alone", {})):
            key, found = again(SimpleNamespace(source=_Source(name), options=options))
            stored = key in {file.name[:-8] for file in tmp_path.iterdir()}
            yield f"again {name} {options}: {found.machine!r} {again.compiled} {stored}"
        other = compiler.Compiler(GPUS["A100"], tmp_path)
        yield f"another GPU: {other(SimpleNamespace(source=_Source('alone'), options={}))[1].machine!r}"
        for file in tmp_path.iterdir():
            file.write_bytes(b"damaged")
        fresh = compiler.Compiler(GPUS["H200"], tmp_path)
        fresh(SimpleNamespace(source=_Source("alone"), options={}))
        yield f"damaged: {fresh.compiled}"

    check(RECORDED / "captured.txt", lines())


def test_what_compiling_gives(monkeypatch):
    """Registers and stack of the binary, a program with too much shared memory, whatever a compiler raises."""

    def lines() -> Iterator[str]:
        monkeypatch.setattr(compiler, "resource_usage", lambda cubin: (len(cubin), 8))
        for shared in (100, 232_448, 232_449):
            binary = SimpleNamespace(cubin=b"code", shared=shared)
            launch = SimpleNamespace(options={"num_warps": 2, "num_stages": 5})
            yield f"{compiler.compile_for(launch, GPUS['H200'], lambda _, binary=binary: ('ttir', binary))}"
        yield f"{compiler.compile_for(SimpleNamespace(options={}), GPUS['H200'], lambda _: 1 / 0)}"

    check(RECORDED / "compiling.txt", lines())


def test_lines_of_the_compile_suite_and_machine_code(monkeypatch):
    def lines() -> Iterator[str]:
        row = {
            "kernel": "mesa._forward",
            "constants": "K=64 V=64",
            "warps": 4,
            "registers": 99,
            "stack_bytes": 8,
            "shared_bytes": 4096,
            "error": "",
        }
        yield compile_suite._line(row)
        yield compile_suite._line({**row, "error": "no room"})
        kernel = SimpleNamespace(
            fn=SimpleNamespace(__module__="kernels.ops.mesa.triton_ops", __name__="_forward")
        )
        launch = SimpleNamespace(constants={"K": 64, "V": 8})
        made = Compiled(registers=7, stack=16, shared=32, warps=2, stages=5)
        for found in ((made, b"code"), (dataclasses.replace(made, error="E: x"), b"")):
            monkeypatch.setattr(compile_suite, "compile_for", lambda *_, found=found: found)
            told = compile_suite._row(kernel, launch, None)
            yield from flat({k: v for k, v in told.items() if k != "seconds"})
        yield f"columns {compile_suite.COLUMNS}, {compile_suite.GPU.name}"
        text = "\n".join(
            f"        /*{16 * n:04x}*/  {op} ;"
            for n, op in enumerate(("MOV R1", "@P0 BRA 0x10", "EXIT", "LDS R2", "BRA 0x30"))
        )
        asked = []
        monkeypatch.setattr(tools, "_output", lambda *given: (asked.append(given[:2]), text)[1])
        monkeypatch.setattr(tools, "code_sections", lambda cubin: cubin)
        for sm in (80, 90):
            yield from tools.machine_codes([b"x" * 48, b"x" * 32], sm)
        yield f"{asked}"
        monkeypatch.setattr(tools, "_output", lambda *_: "Function x: REG:44 STACK:8 SHARED:0")
        yield f"{tools.resource_usage(b'')}"

    check(RECORDED / "compile_suite.txt", lines())
