"""suite=cpu: its four parts, and what they say about memory at 16,384 tokens."""

import csv
import dataclasses
from types import SimpleNamespace

import pytest
import torch
from support.program import Lab

from experiments.bench.model_steps import LATE_STEP
from experiments.bench.suites import cpu
from experiments.bench.suites.cpu import OPERATIONS, peak_memory_of
from experiments.configuration.schema import Config
from experiments.system.paths import CONF
from zoo import LanguageModel, ModelConfig, registry
from zoo.errors import UserError

PARTS = ("recurrences", "lengths", "training_steps", "memory")
LONG, MADE_FOR = 16_384, 1024
SIZE = ["model.d_model=64", "model.n_heads=4"]


def test_the_suite_has_the_rows_of_all_its_parts_at_the_lengths_asked_for(monkeypatch):
    def part(name: str):
        return lambda *given: [{"part": name, "given": given}]

    for name in PARTS:
        monkeypatch.setattr(cpu, f"run_{name}", part(name))
    config = Config(device="cpu")
    config.bench.lengths, config.bench.repeats = [4096, 64], 3
    rows = cpu.run(config)
    assert [row["part"] for row in rows] == list(PARTS)
    threads = torch.get_num_threads()
    assert [row["given"] for row in rows] == [(2048, 3), ([64, 4096], 3), (config,), (4096, threads)]
    config.bench.lengths = [32]
    assert cpu.run(config)[0]["given"] == (32, 3), "a recurrence is no longer than the longest length"
    with pytest.raises(UserError, match="suite=cpu measures the CPU"):
        cpu.run(dataclasses.replace(config, device="cuda"))


def test_mixers_are_measured_past_their_warm_up(monkeypatch):
    steps: list[int] = []
    monkeypatch.setattr(cpu, "set_step", lambda layer, step: steps.append(step))
    assert cpu.make_mixer("G", 16).training
    assert steps == [LATE_STEP]


def test_a_peak_is_what_a_pass_takes_beside_what_the_process_has_taken_before(monkeypatch):
    """After a short pass that loads code, of a mixer that may be made for fewer tokens than it reads."""
    seen: list[tuple] = []
    monkeypatch.setattr(
        cpu, "make_mixer", lambda letter, length, **size: seen.append((letter, length, size)) or letter
    )
    monkeypatch.setattr(cpu, "inputs", lambda length, **width: (f"{length} tokens", width))
    monkeypatch.setattr(cpu, "forward_backward", lambda *given: seen.append(given))
    peaks = iter([700, 1000])
    monkeypatch.setattr(cpu.machine, "peak_memory", lambda device: seen.append(("peak",)) or next(peaks))
    size = {"d_model": 64, "heads": 2}
    threads = torch.get_num_threads()
    cpu._measure(SimpleNamespace(send=seen.append), "K", 4096, 1024, threads, size)
    width = {"d_model": 64}
    assert seen == [
        ("K", 1024, size),
        ("K", "256 tokens", width),
        ("peak",),
        ("K", "4096 tokens", width),
        ("peak",),
        300,
    ]


def test_a_process_that_ends_without_a_result_is_not_waited_for(monkeypatch):
    """Its end of the pipe is closed here too: with it open `recv` would wait without end."""
    open_ends = {"here"}

    def recv() -> int:
        if "there" in open_ends:
            raise AssertionError("waits without end")
        raise EOFError

    def start() -> None:
        open_ends.add("there")

    process = SimpleNamespace(start=start, join=lambda: None, exitcode=9)
    pipe = SimpleNamespace(recv=recv), SimpleNamespace(close=lambda: open_ends.remove("there"))
    context = SimpleNamespace(Pipe=lambda duplex: pipe, Process=lambda target, args: process)
    monkeypatch.setattr(cpu.mp, "get_context", lambda way: context)
    with pytest.raises(RuntimeError, match="measuring the memory of mixer K ended with status 9"):
        peak_memory_of("K", 64)


@pytest.mark.parametrize(("configured", "made_for"), [(None, 4096), (1024, 1024)])
def test_a_mixer_is_made_for_the_length_that_it_reads_unless_another_is_given(
    monkeypatch, configured: int | None, made_for: int
):
    given: list[tuple] = []
    process = SimpleNamespace(start=lambda: None, join=lambda: None)
    context = SimpleNamespace(
        Pipe=lambda duplex: (SimpleNamespace(recv=lambda: 7), SimpleNamespace(close=lambda: None)),
        Process=lambda target, args: given.append(args[1:]) or process,
    )
    monkeypatch.setattr(cpu.mp, "get_context", lambda way: context)
    assert peak_memory_of("K", 4096, threads=2, configured=configured, heads=2) == 7
    assert given == [("K", 4096, made_for, 2, {"heads": 2})]


@pytest.mark.long
def test_the_suite_measures_every_block_and_preset(lab: Lab):
    outcome = lab.here("job=bench", "suite=cpu", "bench.lengths=[32,64]", "bench.repeats=1", *SIZE)
    assert outcome.status == 0, outcome.err
    with open(lab.results / "bench" / "cpu.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    found = {
        suite: {row["model"] for row in rows if row["suite"] == suite} for suite in {r["suite"] for r in rows}
    }
    mixers = set(registry.blocks("mixer"))
    presets = {path.stem for path in (CONF / "model").glob("*.yaml")}
    assert found == {"recurrence": set(OPERATIONS), "length": mixers, "step": presets, "memory": mixers}
    for row in rows:
        if row["suite"] != "memory":
            assert float(row["milliseconds_median"]) > 0
            assert float(row["ratio"]) > 0
    same = [row for row in rows if row["model"] == "transformer" or row["backend"] == "reference"]
    assert {float(row["ratio"]) for row in same} == {1.0}


@pytest.mark.long
@pytest.mark.parametrize("letter", sorted(registry.mixer_by_letter()))
def test_no_mixer_holds_even_half_a_matrix_of_pairs(letter: str):
    """Forward and backward, two heads, as many tokens kept as for 1,024: one T×T matrix in fp32 has a gigabyte."""
    assert peak_memory_of(letter, LONG, configured=MADE_FOR, d_model=64, heads=2) < LONG * LONG * 4 // 2


def test_a_mixer_is_measured_at_the_size_asked_for_and_past_its_warm_up():
    made = cpu.make_mixer("K", 32, d_model=48, heads=3)
    config = LanguageModel(ModelConfig(pattern="K", depth=1, d_model=48, n_heads=3), vocab_size=8, seq_len=32)
    assert {n: x.shape for n, x in made.named_parameters()} == {
        n: x.shape for n, x in config.layers[0].mixer.named_parameters()
    }
    assert made.training
    x, context = cpu.inputs(32, 48)
    assert (x.shape, x.requires_grad, context.positions.shape) == ((1, 32, 48), True, (1, 32))
