"""suite=cpu: its four parts, and memory at 16,384 tokens. suite=traffic: bytes of operators counted by hand."""

import csv
import dataclasses
from types import SimpleNamespace

import pytest
import torch
from support.program import Lab

from experiments.bench.memory_traffic import OperatorBytes
from experiments.bench.model_steps import LATE_STEP
from experiments.bench.suites import cpu
from experiments.bench.suites.cpu import OPERATIONS, peak_memory_of
from experiments.bench.suites.traffic import CLAIMED, FUSED_PARTS, GRADIENTS, PROJECTIONS
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
    lab.done("job=bench", "suite=cpu", "bench.lengths=[32,64]", "bench.repeats=1", *SIZE)
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


def counted(call) -> int:
    with OperatorBytes() as bytes_of:
        call()
    return bytes_of.total


def test_operators_read_their_inputs_and_write_their_outputs():
    x, y = torch.ones(3, 5), torch.ones(5)
    assert counted(lambda: x + y) == 4 * (15 + 5 + 15)
    assert counted(lambda: x * x) == 4 * (15 + 15)  # one input, twice
    assert counted(lambda: (x + y).sum()) == 4 * (35 + 15 + 1)
    assert counted(lambda: x.add_(y)) == 4 * (15 + 5 + 15)
    assert counted(lambda: torch.cat([x, x[:1]])) == 4 * (15 + 5 + 20)


def test_views_and_memory_that_is_only_taken_move_nothing():
    x = torch.ones(3, 5)
    assert counted(lambda: x.view(5, 3).T[1:].unsqueeze(0).expand(7, 2, 5).detach()) == 0
    assert counted(lambda: torch.empty_like(x)) == 0
    assert counted(lambda: x[:1].expand(100, 5).clone()) == 4 * (
        15 + 500
    )  # what is stored, not what is repeated


def test_a_backward_pass_counts_too():
    x = torch.ones(8, requires_grad=True)
    once = counted(lambda: x * 2)
    assert counted(lambda: torch.autograd.grad(x * 2, x, torch.ones(8))) >= 2 * once


@pytest.mark.slow
def test_the_table_of_the_documents_operations(lab):
    lab.done("job=bench", "suite=traffic", "device=cpu", "bench.lengths=[32]")
    (path,) = (lab.results / "bench").glob("traffic.csv")
    rows = list(csv.DictReader(path.open()))
    assert {row["model"] for row in rows} == {*CLAIMED, *FUSED_PARTS}
    assert {row["model"] for row in rows if row["claimed"]} == set(CLAIMED)
    for row in rows:
        fused, unfused = float(row["bytes"]), float(row["unfused_bytes"])
        assert float(row["saved"]) == pytest.approx(1 - fused / unfused, rel=1e-4)
        assert (fused < unfused) == (row["model"] != PROJECTIONS)  # of 32 tokens joining weights takes more
        assert row["tokens"] == "32"
    # Streams of 4·768 numbers read by both and written by one, the vector between them, and 24 coefficients.
    (pair,) = [row for row in rows if row["model"] == "hyper_pre and hyper_post" and row["mode"] == "forward"]
    assert float(pair["bytes"]) == 4 * 32 * (3 * 4 * 768 + 2 * 768 + 4 + 4 + 16)


LENGTH, OUTPUT, WIDTH, COLUMNS = 16, 12 * 64, 768, 4 * 64 + 64 + 4
LEFT_OUT = {
    # σ reads and writes, the product reads twice and writes; the kernel reads the logits.
    ("gate of sparse_attention", "forward"): LENGTH * OUTPUT * (5 - 1),
    # Backward by operators 6 and 3 of the same; the kernel reads logits, writes their gradient and o's, reads that.
    ("gate of sparse_attention", "forward+backward"): LENGTH * OUTPUT * (5 + 9 - 1 - 4),
    # y is written by the kernel and read by the norm, which saves two numbers a token.
    ("norm of hyper_pre", "forward"): LENGTH * (2 * WIDTH + 2),
    # Backward y is read, ȳ written and read, and the two numbers.
    ("norm of hyper_pre", "forward+backward"): LENGTH * (2 * WIDTH + 2 + 3 * WIDTH + 2),
    # x is read once for three times; the weights are joined.
    (PROJECTIONS, "forward"): 2 * LENGTH * WIDTH - 2 * WIDTH * COLUMNS,
    # Two sums read two of four streams each and write one; two kernels read one more.
    (GRADIENTS, "forward+backward"): LENGTH * 4 * WIDTH * (2 * 3 - 2),
}


@pytest.mark.parametrize(("name", "mode"), LEFT_OUT)
def test_what_kernels_take_in_counted_by_hand(name, mode):
    apart, together = FUSED_PARTS[name](LENGTH, mode, torch.device("cpu"))
    assert apart - together == 4 * LEFT_OUT[name, mode]


@pytest.mark.slow
def test_some_operations_alone(lab):
    words = ("suite=traffic", "device=cpu", "bench.lengths=[16]")
    outcome = lab.here("job=bench", *words, "bench.cases=[sparse]")
    assert {
        line.split()[0] for line in outcome.out.splitlines() + outcome.err.splitlines() if " saved " in line
    } == {"sparse_attention"}
    assert "unknown bench.cases 'mesa'" in lab.here("job=bench", *words, "bench.cases=[mesa]").err
