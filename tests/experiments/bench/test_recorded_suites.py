"""Rows and lines of every suite from pretended times: names, units, sizes, ratios, notes; tables that go on."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.recorded import check, flat
from support.steady import (
    FACTS,
    cells,
    changed,
    masked,
    pretended_machine,
    pretended_times,
    refusal,
    said,
    tiny_config,
)

from experiments.bench import (
    cases,
    fused_parts,
    memory_traffic,
    model_steps,
    peers,
    result_table,
    run_suite,
    timing,
)
from experiments.bench.hugging_face import family_of
from experiments.bench.peers import shared
from experiments.bench.suites import (
    attention,
    cpu,
    harness,
    inference,
    latency,
    models,
    recompute,
    steps,
    traffic,
)
from experiments.bench.suites import cpu as cpu_steps
from experiments.bench.suites import kernels as kernels_suite
from experiments.bench.suites.inference import compared, expected_ms, format_row
from experiments.bench.suites.kernels import run as run_kernels
from experiments.configuration.compose import architectures
from experiments.jobs import bench as bench_job
from zoo import LanguageModel

RECORDED = Path(__file__).parent / "recorded"
CPU = torch.device("cpu")
model_sources = importlib.import_module(
    "experiments.bench.suites.inference"
)  # the package has a function so called


def _suite(run, config) -> list[str]:
    """What a suite prints and its rows."""
    with pretended_times(), said() as lines:
        rows = run(config)
    return [*lines, *cells(rows), *cells([{"keys": " ".join(row)} for row in rows[:1]])]


def test_suites_of_whole_models(tmp_path: Path, monkeypatch):
    config = tiny_config(bench__repeats=3, results=str(tmp_path), data__vocab_size=50, data__tokenizer="none")
    # What is kept for the backward is of PyTorch's operators, which change between versions.
    monkeypatch.setattr(recompute, "saved_bytes", lambda loss: (loss(), 3 * 2**20)[1])
    of_presets = ["transformer", "kda_pure", "mesanet"]
    monkeypatch.setattr(cpu_steps, "architectures", lambda _model: of_presets)

    def lines() -> Iterator[str]:
        for name, run, keys in (
            ("latency", latency.run, {"bench__lengths": [8, 16]}),
            (
                "steps",
                steps.run,
                {
                    "bench__lengths": [8],
                    "bench__tokens": 32,
                    "bench__cases": ["kda_p", "tr"],
                    "model__d_model": 64,
                },
            ),
            ("recompute", recompute.run, {"data__seq_len": 8, "model__pattern": "SF"}),
            (
                "cpu steps",
                cpu_steps.run_training_steps,
                {"data__seq_len": 8, "bench__repeats": 1, "model__d_model": 64},
            ),
            (
                "models",
                models.run,
                {
                    "bench__lengths": [16, 8],
                    "bench__tokens": 32,
                    "bench__cases": ["transformer", "kda_pure"],
                    "suite": "models",
                },
            ),
        ):
            yield f"suite {name}"
            yield from masked(_suite(run, changed(config, **keys)), {str(tmp_path): "<results>"})
        with pretended_machine():
            again = changed(
                config,
                suite="models",
                bench__lengths=[8, 16],
                bench__cases=["transformer", "kda_pure"],
                bench__tokens=32,
            )
            yield (
                f"finished: {models.finished(again)}, with another length: "
                f"{models.finished(changed(again, bench__lengths=[8, 32]))}"
            )
        yield from (tmp_path / "bench" / "models.csv").read_text().splitlines()

    check(RECORDED / "suites_of_models.txt", lines())


@pytest.mark.skipif(torch.cuda.is_available(), reason="beside a GPU Triton's forms are not interpreted")
def test_suites_of_operations(tmp_path: Path, monkeypatch):
    """Attention's backends, kernels, recurrences, mixers at growing lengths, memory."""
    monkeypatch.setattr(cpu, "WIDTH", 8)
    monkeypatch.setattr(cpu, "CG_STEPS", 2)
    monkeypatch.setattr(
        cpu, "peak_memory_of", lambda letter, length, threads: 2**20 * (ord(letter) + length + threads)
    )
    config = tiny_config(bench__repeats=3, results=str(tmp_path), suite="kernels")

    def lines() -> Iterator[str]:
        yield "suite attention"
        yield from _suite(attention.run, changed(config, bench__lengths=[8]))
        yield "suite kernels"
        for names, length in ((["cayley"], [8]), (["memory_mixture, a"], None)):
            asked = changed(config, bench__lengths=length, bench__tokens=16, bench__cases=names)
            found = masked(_suite(run_kernels, asked), {str(tmp_path): "<results>"})
            yield from (line for line in found if not line.startswith("| without "))  # fla may be installed
        yield "suite cpu"
        yield from _suite(lambda _: cpu.run_recurrences(8, 2), config)
        yield from _suite(lambda _: cpu.run_lengths([8, 16], 2), config)
        yield from _suite(lambda _: cpu.run_memory(64, 2), config)
        yield refusal(attention.run, changed(config, device="cuda"))

    check(RECORDED / "suites_of_operations.txt", lines())


def test_every_backend_of_attention_is_timed_by_its_own_passes(monkeypatch):
    """And its peer is `torch`, wherever that stands among them."""
    ran: list[str] = []
    x = torch.ones(1, requires_grad=True)

    def interleaved(forms, repeats, device):
        for form in forms.values():
            form()
        return {name: [float(len(name))] for name in forms}

    call = SimpleNamespace(
        operation="attention",
        registry=SimpleNamespace(backends=["torch", "other one"]),
        tensors=lambda: [x],
        run=lambda backend: ran.append(backend) or 2 * x,
    )
    monkeypatch.setattr(attention.timing, "interleaved", interleaved)
    monkeypatch.setattr(attention.timing, "peak_memory", lambda form, device: 0)
    rows = attention._compare(call, 8, CPU, 1)
    assert ran == ["torch", "other one"] * 3, "once to see whether it serves, then in both modes"
    assert [row["ratio"] for row in rows if row["backend"] == "torch"] == [1.0, 1.0]


def test_what_is_timed():
    """Operations with their sizes and options, mixers and models of suites: what a row's number is the time of."""

    def lines() -> Iterator[str]:
        config = tiny_config()
        calls = {f"attention {n}": call for n, call in enumerate(attention._calls(config, 8, CPU))}
        made = cases.InputFactory(1, 8, CPU, torch.float32)
        calls |= {f"recurrence {name}": make(made) for name, make in cpu.OPERATIONS.items()}
        for name, call in calls.items():
            shapes = [f"{tuple(x.shape)} {x.dtype} {x.requires_grad}" for x in call.tensors()]
            told = {k: v for k, v in call.options.items() if not isinstance(v, torch.Tensor | tuple)}
            yield f"{name}: {call.operation} {told}: {'; '.join(shapes)}"
        for letter in "FKM":
            mixer = cpu.make_mixer(letter, 16)
            yield f"{letter}: {sum(p.numel() for p in mixer.parameters())} parameters, training {mixer.training}"
        yield f"{tuple(cpu.inputs(8)[0].shape)} {cpu.inputs(8)[0].requires_grad}"
        for name, pattern in latency.PATTERNS.items():
            model = latency._model(config, pattern, CPU)
            yield f"{name}: {model.letters} {model.training} {model.vocab_size} {model.seq_len}"
        for name, step in steps.matched_steps(
            changed(config, model__d_model=64), ["transformer", "kda_pure"], 3, CPU
        ).items():
            size = sum(p.numel() for p in step.model.parameters())
            yield f"{name}: {size} parameters, tokens {tuple(step.tokens.shape)}"
        yield f"{attention.REFERENCE_LIMIT} {cpu.TOKENS} {cpu.SLOW_MS} {cpu.WARM_UP}"
        yield f"{models.STEP_TOKENS} {models.LIMIT_S} {models.SLOW_MS} {steps.LENGTHS} {steps.SECONDS} {models.LENGTHS}"
        yield f"{traffic.LENGTHS}"
        yield f"{inference.MODES} {inference.MOST_GROWTH} {inference.LIMIT_S}"

    check(RECORDED / "what_is_timed.txt", lines())


def test_what_is_measured_by_default(tmp_path: Path):
    """The cells of suites that go on where they were stopped, as they are without any key of bench."""

    def lines() -> Iterator[str]:
        config = tiny_config(results=str(tmp_path))
        for keys in ({}, {"bench__tokens": 4096}, {"bench__lengths": [64]}):
            asked = changed(config, **keys)
            with pretended_machine():
                found = [
                    *kernels_suite._cells(asked, CPU),
                    *models._cells(models._Bench(asked, CPU, inference._table(asked))),
                    *inference._cells(asked, inference._table(asked)),
                ]
            chosen = found if not keys else found[::9]
            yield f"{keys}: {len(found)}"
            yield from (" ".join(map(str, cell.names.values())) for cell in chosen)

    check(RECORDED / "measured_by_default.txt", lines())


def test_the_harness_suite(monkeypatch):
    """Pairs in alternating order, batches doubled until a step is long, ratios and what is said of them."""
    taken = []

    def bare(config, corpus, device) -> float:
        taken.append(f"bare {config.bench.steps} x {config.data.batch_size}")
        return config.bench.steps * config.data.batch_size * (1 + len(taken) % 7 / 10) / 100

    def lightning(config, corpus, device) -> float:
        taken.append(f"lightning {config.bench.steps} x {config.data.batch_size}")
        return config.bench.steps * config.data.batch_size * (1 + len(taken) % 6 / 10) / 95

    monkeypatch.setattr(harness, "_bare", bare)
    monkeypatch.setattr(harness, "_harness", lightning)
    monkeypatch.setattr(harness.data, "prepare", lambda _config: None)
    config = tiny_config(bench__pairs=3, bench__steps=7, data__batch_size=3, trainer__accumulate=2)
    found = _suite(harness.run, config)
    check(RECORDED / "suite_harness.txt", [*found, *taken])


def test_counted_bytes():
    """What suite=traffic counts, and which operations it asks for; operators are those of any version, nearly."""
    config = tiny_config(bench__lengths=[32], device="cpu")

    def lines() -> Iterator[str]:
        with pretended_machine(), said():
            rows = traffic.run(config)
        yield from cells([{**row, "unfused_bytes": float(row["unfused_bytes"])} for row in rows])
        row = {**rows[0], "unfused_bytes": 4e6, "bytes": 1e6, "saved": 0.75}
        yield traffic._line(row)
        yield traffic._line({**row, "claimed": None})
        yield (
            f"names {[*traffic.CLAIMED, *fused_parts.FUSED_PARTS]}; modes "
            f"{[(n, traffic._modes(n)) for n in fused_parts.FUSED_PARTS]}"
        )

    check(RECORDED / "suite_traffic.txt", lines(), relative=0.06)


def test_work_of_every_case():
    """Bytes, FLOPs and roofline of every case at two lengths, on every GPU, in both modes; what dry=true prints."""

    def lines() -> Iterator[str]:
        for name, case in cases.CASES.items():
            yield (
                f"{name}: {case.tokens} tokens, {case.length}, {case.backward}, {case.torch_limit}, "
                f"{case.compiled}"
            )
            for length in (256, 4096) if case.length is None else (case.length,):
                calls = case.calls(length, 2 * length, memory_traffic.META, torch.bfloat16)
                for call in calls:
                    shapes = [
                        f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}" for x in call.tensors()
                    ]
                    told = {k: v for k, v in call.options.items() if not isinstance(v, torch.Tensor | tuple)}
                    yield f"  {call.operation} {told}: {'; '.join(shapes)}"
                for mode in ("forward", "forward+backward"):
                    for gpu in memory_traffic.PEAKS:
                        total = memory_traffic.totals(calls, mode, memory_traffic.PEAKS[gpu])
                        yield f"  {length} {mode} {gpu}: {'; '.join(flat(total)) if total else 'not counted'}"
        yield from flat(memory_traffic.PEAKS)
        yield f"on a CPU: {memory_traffic.peaks_of(CPU)}; without peaks: {memory_traffic.totals(calls, mode, None)}"
        (single,) = cases.CASES["short_conv"].calls(64, 64, memory_traffic.META, torch.float32)
        yield from flat(memory_traffic.totals([single], "forward", memory_traffic.PEAKS["A100"]), "fp32")
        with said() as printed:
            memory_traffic.print_work(["cayley", "mesa, a", "hyper_p"], [64, 128], 512)
            memory_traffic.print_work(["short_conv"], [128], None, "A100")
        yield from printed
        for wanted in (None, ["mesa"], ["path", "cay"], ["nothing"], []):
            yield f"{wanted}: {refusal(cases.matching_names, wanted, list(cases.CASES))}"

    check(RECORDED / "work_of_cases.txt", lines())


@pytest.mark.long
def test_reading_prompts_and_decoding(tmp_path: Path, monkeypatch):
    """suite=inference without transformers: rows at growing contexts, what is left out, what memory does not hold."""
    monkeypatch.setattr(inference, "CELL_S", 10.0)
    monkeypatch.setattr("experiments.bench.suites.inference.family_of", lambda model: None)
    config = tiny_config(
        bench__repeats=3,
        results=str(tmp_path),
        suite="inference",
        data__tokenizer="none",
        data__vocab_size=50,
    )
    config = changed(config, bench__lengths=[16, 8], model__depth=1, bench__cases=["transformer", "kda_pure"])

    def lines() -> Iterator[str]:
        yield from _suite(inference.run, config)
        with pretended_machine():
            yield (
                f"finished: {inference.finished(config)}, "
                f"{inference.finished(changed(config, bench__lengths=[64]))}"
            )
        monkeypatch.setattr(inference, "LIMIT_S", 0.05)
        yield from _suite(inference.run, changed(config, bench__lengths=[8, 64]))
        monkeypatch.setattr(inference, "LIMIT_S", 60.0)
        monkeypatch.setitem(FACTS, "memory_bytes", 2**17)
        yield from _suite(inference.run, changed(config, bench__lengths=[128]))
        yield f"lengths {inference.LENGTHS}, batches {inference.BATCHES}"

    check(RECORDED / "suite_inference.txt", masked(lines(), {str(tmp_path): "<results>"}))


def test_rows_beside_transformers():
    """A row with its peer's, without, and what is expected of longer contexts."""

    def lines() -> Iterator[str]:
        for other, own in (([4.0, 6.0], [2.0, 2.0]), ([4.0, 6.0, 9.0], [2.0, 2.0, 4.0])):
            yield from flat(compared("ratio", other, own))
        row = {
            "model": "lfm2",
            "backend": "auto",
            "mode": "decode",
            "tokens": 1024,
            "batch": 8,
            "milliseconds_median": 2.5,
            "milliseconds_low": 2.0,
            "milliseconds_high": 3.25,
            "tokens_per_second": 3200.0,
            "state_bytes": 3 * 2**20,
        }
        ratios = {
            "ratio": 1.5,
            "peer": "Lfm2",
            "ratio_transformer": 2.0,
            "ratio_forward": 0.5,
            "ratio_shortest": 0.9,
        }
        yield format_row(row)
        yield format_row({**row, **ratios})
        yield format_row({**row, **ratios, "backend": "transformers"})
        yield format_row({**row, "note": "out of memory"})
        rows = [
            {"tokens": n, "milliseconds_median": ms, "ratio": ratio}
            for n, ms, ratio in ((1024, 10.0, 2.0), (256, 2.0, 3.0), (4096, 80.0, None), (8192, 400.0, 1.5))
        ]
        for taken in range(len(rows) + 1):
            for ratio, most in ((None, 2.0), (None, 1.0), ("ratio", 2.0)):
                yield f"{taken} rows, {ratio}, {most}: {expected_ms(rows[:taken], ratio, 32768, most)}"
        shrinking = [{"tokens": 256, "milliseconds_median": 4.0}, {"tokens": 512, "milliseconds_median": 3.0}]
        yield f"falling: {expected_ms(shrinking, None, 1024, 2.0)}"

    check(RECORDED / "inference_rows.txt", lines())


def test_timing(monkeypatch):
    """Turns, warm-ups, rounds that fit, medians and intervals; peaks of memory are a GPU's."""

    def lines() -> Iterator[str]:
        order: list[str] = []
        calls = {name: (lambda name=name: order.append(name)) for name in "ab"}
        ticks = itertools.count(1.0, 2.0)
        clock = lambda call, device: (call(), next(ticks))[1]  # noqa: E731
        yield f"{timing.interleaved(calls, 2, CPU, warm_up=2, clock=clock)} {''.join(order)}"
        for repeats, seconds in ((5, 0.1), (5, 0.004), (5, 0.013), (2, 1.0), (1, 1.0), (3, 0.012)):
            order.clear()
            ticks = itertools.count(1.0, 1.0)
            monkeypatch.setattr(
                timing, "_timed", lambda call, device, ticks=ticks: (call(), 1.0 + next(ticks) % 3)[1]
            )
            yield (
                f"{repeats} in {seconds}: {timing.interleaved_within(calls, repeats, CPU, seconds)} "
                f"{''.join(order)}"
            )
        monkeypatch.undo()
        seconds = iter([1.0, 1.25])
        monkeypatch.setattr(timing.time, "perf_counter", lambda: next(seconds))
        yield f"a quarter of a second: {timing.on_device(lambda: None, CPU)} ms"
        monkeypatch.undo()
        yield from flat(timing.summary([3.0, 1.0, 2.0, 8.0]))
        yield f"{timing.ratios([2.0, 3.0, 8.0], [1.0, 1.0, 2.0])} {timing.peak_memory(lambda: None, CPU)}"
        yield (
            f"{timing.bootstrap_interval([1.0, 2.0, 3.0, 4.0, 10.0])} "
            f"{timing.bootstrap_interval([1.0, 5.0], 10)}"
        )

    check(RECORDED / "timing.txt", lines())


def test_tables_that_grow(tmp_path: Path):
    """Rows as lines, rounded in files; cells that stand are not measured again, those of another machine are."""
    config = tiny_config(results=str(tmp_path), suite="kernels")

    def lines() -> Iterator[str]:
        yield (
            f"{result_table.table_path(config)} {result_table.table_path(changed(config, bench__out='here'))}"
        )
        row = result_table.row(
            "kernels", "mesa", [2.0, 1.0, 4.0], 3.0, CPU, tokens=64, backend="triton", mode="forward"
        )
        yield from flat(row)
        yield result_table.format_row(row)
        yield result_table.format_row({**row, "peer": "fla", "roofline": 0.456})
        yield result_table.format_row({**row, "ratio": "", "backend": None, "note": ""} | {"backend": "x"})
        note = result_table.note_row("kernels", "mesa", "out of memory", CPU, tokens=64)
        yield from flat(note)
        yield result_table.format_row(note)
        config_cells = [
            result_table.Cell(
                {"model": name, "tokens": 64}, lambda name=name: [{**row, "model": name, "ratio": 1 / 3}]
            )
            for name in ("a", "b", "c")
        ]
        table = result_table.ResumableTable(config, CPU)
        table.fill(config_cells[:2], 60, "cells")
        yield from table.path.read_text().splitlines()
        table = result_table.ResumableTable(config, CPU)
        yield (
            f"left {[cell.names for cell in table.unmeasured(config_cells)]}, found "
            f"{len(table.find(model='a', tokens=64))}"
        )
        yield f"none of {len(table.find(model='a', tokens=65))}, all {len(table.find())}"
        table.fill(config_cells, -1, "cells")
        yield f"no time: {len(table.rows)}"

        def crash():
            raise result_table.Crashed("gone", [{**note, "model": "d"}])

        yield refusal(table.fill, [result_table.Cell({"model": "d"}, crash)], 60, "cells")
        yield f"after a crash: {[found['model'] for found in result_table.ResumableTable(config, CPU).rows]}"
        with_other = changed(config)
        FACTS_BEFORE = FACTS["threads"]
        FACTS["threads"] = 7
        yield f"another machine: {len(result_table.ResumableTable(with_other, CPU).rows)} rows"
        FACTS["threads"] = FACTS_BEFORE
        result_table.write(
            [{"suite": "x", "model": 1.23456789, "ratio": None}],
            tmp_path / "new" / "x.csv",
            ["suite", "model", "ratio", "peer"],
        )
        yield (tmp_path / "new" / "x.csv").read_text()
        for error in (
            ValueError("backend 'triton' cannot serve this call: heads of 512; those that can: torch"),
            KeyError("x"),
            RuntimeError("CUDA error: illegal\n  memory"),
            ValueError("long " * 100),
        ):
            yield f"{result_table.failure_reason(error)} / fatal: {result_table.is_fatal(error)}"

    with pretended_machine(), said() as printed:
        found = list(lines())
    check(RECORDED / "tables.txt", masked([*found, *printed], {str(tmp_path): "<results>"}))


def test_lengths_until_the_time_is_used_up(monkeypatch):
    config = tiny_config(bench__budget_s=5.0)
    clock = itertools.count(0.0, 2.0)
    monkeypatch.setattr(timing.time, "monotonic", lambda: next(clock))
    with said() as printed:
        found = list(timing.lengths_within_budget(config.bench, [1, 2, 3, 4], "title"))
        asked = list(timing.lengths_within_budget(changed(config, bench__lengths=[7]).bench, [1], "title"))
    check(RECORDED / "budget.txt", [f"{found} {asked} {timing.SHORT_LENGTHS} {timing.GPU_LENGTHS}", *printed])


BAD = (
    {"suite": "speed"},
    {"bench__lengths": []},
    {"bench__cases": ["a"]},
    {"suite": "latency", "bench__cases": []},
    {"suite": "models", "bench__runs": ["a"]},
    {"dry": True},
)


def test_what_benchmarks_refuse_and_who_is_there():
    def lines() -> Iterator[str]:
        config = tiny_config()
        for keys in BAD:
            yield f"{keys}: {refusal(bench_job._check, changed(config, **keys))}"
        for suite in run_suite.SUITES:
            for key, value in (("cases", []), ("runs", [])):
                yield (
                    f"{suite} {key}: "
                    f"{refusal(bench_job._check, changed(config, suite=suite, **{f'bench__{key}': value}))}"
                )
        yield f"{bench_job.JOB.help}; {bench_job.JOB.reads}"
        for name, module in peers._files().items():
            yield (
                f"{name}: {sorted(module.CALLS)}; on a CPU: "
                f"{module.refuses(CPU) if name not in ('fla', 'liger', 'flash_attn_dense') else '-'}"
            )
        yield f"bounds {sorted(peers.UPPER_BOUNDS)}"
        for name in ("short_conv", "cayley", "sparse_attention", "nsa_attention"):
            made = cases.CASES[name].calls(64, 64, CPU, torch.float32)
            for title, run in peers.peers_of(name, made, CPU):
                if title == "copy":
                    yield f"{name}: {title} of {tuple(run().shape)}"
            if name.endswith("attention"):
                yield f"{name}: dense {[tuple(x.shape) for x in shared.dense_inputs(made)]}"
        for package in ("no_such_package", "torch"):
            yield f"{package}: {shared.needs(package, CPU)}; {shared.needs(package, torch.device('cuda'))}"
        for name, model in architectures(config.model).items():
            made = LanguageModel(changed(model, residual__name=model.residual.name), vocab_size=8, seq_len=16)
            yield f"{name}: {family_of(made)}"
        for keys in (
            {"mixers__attention__qk_norm": True},
            {"mixers__attention__window": 4},
            {"mixers__attention__output_gate": True},
            {"mixers__attention__value_gate": True},
            {"mixers__attention__positions": "none"},
            {"residual__name": "ohc"},
            {"channel__name": "moe"},
            {"pattern": "CF", "mixers__attention__qk_norm": True},
            {"pattern": "CF"},
            {"pattern": "LF"},
            {"pattern": "L", "mixers__mla__rope_dim": 0},
            {"pattern": "L", "mixers__mla__rope_keys": "per_head"},
            {"pattern": "C"},
        ):
            made = LanguageModel(changed(config.model, **keys), vocab_size=8, seq_len=16)
            yield f"{keys}: {family_of(made)}"

    check(RECORDED / "who_is_there.txt", lines())


def test_states_and_inputs():
    """Bytes of decode states; shapes and kinds of random inputs; which passes give gradients."""

    def lines() -> Iterator[str]:
        config = tiny_config(data__tokenizer="none", data__vocab_size=50)
        for name, model in architectures(config.model).items():
            made = model_steps.make_model(config, model, 16, torch.device("cpu"))
            sizes = [
                model_steps.state_bytes(made, tokens, dtype, batch)
                for tokens, dtype, batch in (
                    (16, torch.float32, 1),
                    (64, torch.bfloat16, 1),
                    (64, torch.float32, 3),
                )
            ]
            yield f"{name}: {sizes}"
        for device, dtype in ((CPU, torch.float32), (torch.device("meta"), torch.bfloat16)):
            d = cases.InputFactory(2, 5, device, dtype)
            for kind, x in {
                "normal": d.normal(3, 4),
                "weight": d.weight(3, 4),
                "unit": d.unit(4),
                "log_gate": d.log_gate(3),
                "gate": d.gate(3),
                "ones": d.ones(3),
                "random_integers": d.random_integers(4, 3),
                "subset": d.subset(4, 2),
                "causal": d.causal_indices(3),
                "wide": d.normal(2, dtype=torch.float64),
            }.items():
                yield f"{kind} {device}: {tuple(x.shape)} {x.dtype} {x.requires_grad}"
                if device.type == "cpu":
                    bounds = x.detach().double()
                    inside = {
                        "unit": lambda b: b.norm(dim=-1).sub(1).abs().max() < 1e-5,
                        "log_gate": lambda b: (b < 0).all(),
                        "gate": lambda b: ((b > 0) & (b < 1)).all(),
                        "ones": lambda b: (b == 1).all(),
                        "random_integers": lambda b: ((b >= 0) & (b < 4)).all(),
                        "subset": lambda b: (b[..., 0] != b[..., 1]).all(),
                    }.get(kind)
                    yield f"  as promised: {inside is None or bool(inside(bounds))}"
        few = cases.InputFactory(1, 6, CPU, torch.float32).causal_indices(3)[0]
        for t, row in enumerate(few.tolist()):
            kept = [s for s in row if s >= 0]
            parts = all(n * (t + 1) // 3 <= s < (n + 1) * (t + 1) // 3 for n, s in enumerate(kept))
            yield f"{t}: {len(kept)} of the past, {f'a third each {parts}' if t >= 3 else kept}"
        x = torch.ones(2, requires_grad=True)
        for mode, work in timing.MODES.items():
            seen = []
            work(lambda seen=seen: (seen.append(torch.is_grad_enabled()), [x * 2, (None, x)])[1], [x])
            yield f"{mode}: gradients {seen}, left {x.grad}"
        step = model_steps.TrainingStep(
            config,
            model_steps.make_model(config, config.model, 8, CPU),
            model_steps.random_tokens(config, 3, 8, CPU),
        )
        yield (
            f"{tuple(step.tokens.shape)} below {50}: {bool((step.tokens < 50).all())}, keys "
            f"{step.keys.tolist()}, {step.model.training}"
        )

    check(RECORDED / "states_and_inputs.txt", lines())


@pytest.mark.parametrize("failed", [0, 2])
def test_a_suite_with_errors_fails(failed: int, tmp_path: Path, monkeypatch):
    rows = [{"suite": "x", "error": "e"} for _ in range(failed)] + [{"suite": "x", "error": ""}]
    monkeypatch.setattr(
        run_suite,
        "_load",
        lambda name: type(
            "Suite", (), {"run": staticmethod(lambda config: rows), "COLUMNS": ["suite", "error"]}
        ),
    )
    with said() as printed:
        end = refusal(run_suite.run_suite, tiny_config(results=str(tmp_path), suite="compile"))
    check(
        RECORDED / f"suite_with_{failed}_errors.txt",
        masked(
            [end, *printed, (tmp_path / "bench" / "compile.csv").read_text()], {str(tmp_path): "<results>"}
        ),
    )


def test_timed_models_of_the_inference_suite(tmp_path: Path, monkeypatch):
    """Presets by their beginnings, and none of them where runs are named."""
    config = tiny_config()

    def lines() -> Iterator[str]:
        for keys in (
            {},
            {"bench__cases": ["kda"]},
            {"bench__cases": []},
            {"bench__cases": ["x"]},
            {"bench__runs": [str(tmp_path / "no")]},
        ):
            found = changed(config, **keys)
            try:
                yield f"{keys}: {[subject.name for subject in model_sources.timed_models(found, CPU)]}"
            except Exception as error:
                yield f"{keys}: {type(error).__name__}: {error}"

        (tmp_path / "study" / "run").mkdir(parents=True)
        (tmp_path / "study" / "run" / "identity.json").touch()
        (tmp_path / "step-1.ckpt").touch()
        for place in ("study/run", "study", "step-1.ckpt"):
            name = model_sources._name(tmp_path / place, {"model": {"depth": 2}})
            yield f"{place}: {name if place != 'step-1.ckpt' else name.count('/')}"
        built: list[int] = []
        monkeypatch.setattr(
            inference, "ComparedModels", lambda model, precision: f"entrants of {model} {precision}"
        )
        bench = inference.Bench(config, None, shortest=8)
        one, two = (
            model_sources.TimedModel(name, config.model, lambda n: built.append(n) or n) for name in "ab"
        )
        for subject, length in ((one, 8), (one, 8), (one, 16), (two, 16), (one, 16)):
            yield f"{subject.name} {length}: {bench.compared_models(subject, length)} {built}"
        half = inference.Bench(changed(config, trainer__precision="bf16"), None, shortest=8)
        yield f"{bench.precision} {half.precision}"

    check(RECORDED / "timed_models.txt", masked(list(lines()), {str(tmp_path): "<results>"}))
