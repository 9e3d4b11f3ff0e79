"""Bytes a device, counted without memory; the peak that MFU is a share of, measured once a machine."""

import dataclasses
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.measured_memory import CASES, ROWS, case
from support.parallel_runs import LENGTH, VOCAB, models, torchrun
from support.program import ROOT, Lab
from support.shared import once
from support.steady import refusal, tiny_config

from analysis import load_results
from analysis.caveats import caveats
from experiments.configuration.schema import Config
from experiments.costs import device_memory, model_costs, peak_flops
from experiments.costs import model_costs as costs
from experiments.costs.model_costs import LiveBytes
from experiments.runs import read_metrics
from experiments.system import machine


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> dict[str, int]:
    def measure() -> dict[str, int]:
        file = tmp_path_factory.mktemp("memory") / "found.pt"
        torchrun("support.measured_memory", str(file))
        return torch.load(file, weights_only=True)

    return once(tmp_path_factory, "measured_memory", measure)


def counted(config: Config, monkeypatch: pytest.MonkeyPatch, rows: int) -> device_memory.DeviceMemory:
    monkeypatch.setattr(Config, "nominal_vocabulary", VOCAB)
    config.data.batch_size, config.device = rows, "cpu"
    return device_memory.device_memory(config, CPU)


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_the_count_is_within_15_percent_of_what_was_measured(name, measured, monkeypatch):
    found = counted(case(name), monkeypatch, rows=ROWS)
    print(name, measured[name], found)
    assert found.activations > 0.1 * found.total  # neither part is a trifle
    assert found.total == pytest.approx(measured[name], rel=0.15)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name != "orthgsa")) for name in models()]
)
def test_every_model_can_be_counted(name: str, monkeypatch: pytest.MonkeyPatch):
    config = Config(model=models()[name])
    config.data.seq_len, config.trainer.devices, config.trainer.strategy = LENGTH, 2, "fsdp"
    whole = 4 * costs.cost.parameters(costs.on_meta(config.model, vocab_size=VOCAB, seq_len=LENGTH))
    sizes = {}
    for mode in ("none", "selective", "full"):
        config.trainer.recompute = mode
        found = sizes[mode] = counted(config, monkeypatch, rows=2)
        assert whole / 2 <= found.parameters < 0.6 * whole
        assert (found.gradients, found.optimizer) == (found.parameters, 2 * found.parameters)
    assert sizes["none"].activations >= sizes["full"].activations


@pytest.mark.slow
def test_the_strategies_of_a_model(monkeypatch: pytest.MonkeyPatch):
    """Without sharding 16 bytes a parameter, DDP's buckets with two copies; with it an n-th, and what is gathered."""
    config = Config()
    config.model.d_model, config.model.depth, config.model.n_heads = 32, 4, 2
    config.data.seq_len = LENGTH
    one = counted(config, monkeypatch, rows=2)
    assert (one.gradients, one.optimizer, one.gathered) == (one.parameters, 2 * one.parameters, 0)
    config.trainer.devices = 4
    ddp = counted(config, monkeypatch, rows=2)
    assert ddp.total - one.total == 3 * one.parameters
    config.trainer.strategy = "fsdp"
    three = counted(config, monkeypatch, rows=2)
    config.trainer.reshard = False
    two = counted(config, monkeypatch, rows=2)
    assert three.parameters == two.parameters < 0.3 * one.parameters
    assert one.parameters < two.gathered < 2 * one.parameters
    assert (
        two.gathered - three.gathered == (one.parameters - 4 * VOCAB * 32 - 4 * 32) / 2
    )  # two of four layers
    assert one.activations == ddp.activations == two.activations == three.activations


@pytest.mark.slow
def test_two_layers_that_are_gathered_are_the_largest_wherever_they_stand(monkeypatch: pytest.MonkeyPatch):
    config = Config()
    config.model.d_model, config.model.depth, config.model.n_heads = 32, 4, 2
    config.data.seq_len, config.trainer.devices, config.trainer.strategy = LENGTH, 4, "fsdp"
    gathered = []
    for config.model.pattern in ("KKFF", "FFKK", "FFFF"):
        gathered.append(counted(config, monkeypatch, rows=2).gathered)
    assert gathered[0] == gathered[1] > gathered[2]


@pytest.mark.parametrize("letter", ["F", "K", "S"])
@pytest.mark.slow
def test_a_shard_of_a_sequence_needs_its_share_of_the_activations(letter, monkeypatch):
    """At least a fourth on four devices, and what is gathered, folded or swapped beside it."""
    config = Config()
    config.model.pattern, config.model.depth, config.data.seq_len = letter, 2, 256
    config.trainer.devices, config.trainer.strategy = 4, "fsdp"
    whole = counted(config, monkeypatch, rows=2)
    config.trainer.context = 4
    cut = counted(config, monkeypatch, rows=2)
    assert (cut.parameters, cut.gathered) == (whole.parameters, whole.gathered)
    assert 0.25 * whole.activations <= cut.activations < 0.5 * whole.activations
    assert not torch.distributed.is_initialized()


@pytest.mark.slow
def test_the_job_prints_them(lab: Lab):
    words = [
        *("job=cost", "cost.lengths=[64]", "cost.memory=true", "trainer.devices=8", "trainer.strategy=fsdp"),
    ]
    outcome = lab.done(*words)
    assert "memory of training on each of 8 devices, fsdp (ZeRO-3), fp32:" in outcome.out
    for part in ("parameters", "gradients", "optimizer", "gathered", "activations", "total"):
        assert f"\n  {part} " in outcome.out


EIGHT_BILLION = {
    "model.d_model": 4096,
    "model.n_heads": 32,
    "model.depth": 36,
    "model.tie_embeddings": "false",
}
EIGHT_BILLION |= {"model.channel.swiglu.hidden": 12288, "model.mixers.attention.n_kv_heads": 8}
EIGHT_BILLION |= {
    "data.tokenizer": "bpe",
    "data.vocab_size": 151936,
    "data.seq_len": 8192,
    "data.batch_size": 1,
}
EIGHT_BILLION |= {"trainer.precision": "bf16", "trainer.recompute": "full", "trainer.devices": 8}


@pytest.mark.long
@pytest.mark.parametrize("row", range(3))
def test_the_table_of_the_8b_model_is_what_is_counted(row: int, lab: Lab):
    page = (ROOT / "docs" / "devices.md").read_text(encoding="utf-8")
    rows = page.split("<!-- 8B -->")[1].split("<!-- /8B -->")[0].strip().splitlines()[2:]
    strategy, *numbers = (cell.strip() for cell in rows[row].strip("|").split("|"))
    words = ["trainer.strategy=fsdp"] * ("fsdp" in strategy) + ["trainer.reshard=false"] * (
        "reshard" in strategy
    )
    words += [f"{key}={value}" for key, value in EIGHT_BILLION.items()]
    (config,) = lab.compose("model=transformer", *words)
    found = device_memory.device_memory(config, CPU)
    sizes = [*found.parts().values(), found.total]
    assert numbers[:-1] == [f"{size / 1e9:.1f}" for size in sizes]


def test_memory_that_is_given_back_and_taken_again_counts_again():
    """New tensors take the places of old ones, whose addresses say nothing of them."""
    with LiveBytes() as counted:
        for numbers in range(1, 50):
            made = torch.zeros(numbers, dtype=torch.float32)
            assert counted.live == 4 * numbers
            del made
            assert counted.live == 0
    assert counted.peak == 4 * 49


def test_activations_are_those_of_the_forward_and_the_backward(monkeypatch: pytest.MonkeyPatch):
    """Where layers are computed again, the backward holds one's activations beside the inputs of all before it."""
    peaks = {}
    for name, backward in (("both", torch.Tensor.backward), ("forward", lambda total: None)):
        config = Config()
        config.data.batch_size, config.data.seq_len, config.data.vocab_size = 2, 64, 300
        config.model = dataclasses.replace(config.model, d_model=64, n_heads=2, depth=2, pattern="F")
        config.trainer.recompute = "full"
        monkeypatch.setattr(torch.Tensor, "backward", backward)
        peaks[name] = device_memory._activations(device_memory._model(config), config, half=False)
    assert peaks["both"] > 1.2 * peaks["forward"]


def test_sequences_that_do_not_fit_together_are_told_by_the_longest(monkeypatch):
    model = SimpleNamespace(
        config=tiny_config().model,
        vocab_size=50,
        seq_len=32,
        embedding=SimpleNamespace(weight=torch.zeros(1)),
    )
    monkeypatch.setattr(model_costs, "_free_memory", lambda device: 100)
    told = refusal(model_costs.check_decode_memory, model, [[300, 512, 64]], "give less")
    assert "the decode state of 512 tokens (3 at once) takes" in told


CPU = torch.device("cpu")


def a_clock(monkeypatch, *seconds: float) -> list[float]:
    """Products seem to take so long, one after the other and again from the first; returns what was asked so far."""
    asked: list[float] = []
    durations = itertools.cycle(seconds)

    def perf_counter() -> float:
        # Every second reading ends a product.
        asked.append((asked[-1] if asked else 0.0) + (next(durations) if len(asked) % 2 else 0.0))
        return asked[-1]

    quick = SimpleNamespace(perf_counter=perf_counter, sleep=lambda _: None, strftime=lambda _: "now")
    monkeypatch.setattr(peak_flops, "time", quick)
    return asked


def kept(cache: Path) -> Path:
    (file,) = (cache / "peaks").iterdir()
    return file


@pytest.mark.slow
def test_on_a_machine_that_is_mostly_busy_the_products_that_were_not_disturbed_count(tmp_path, monkeypatch):
    slow, true = 30.0, 0.5
    rounds = [[slow] * len(peak_flops.SIZES) for _ in range(peak_flops.ROUNDS)]
    rounds[peak_flops.ROUNDS // 2][-1] = true
    a_clock(monkeypatch, *itertools.chain(*rounds))
    assert peak_flops.peak(CPU, tmp_path).flops == pytest.approx(2 * peak_flops.SIZES[-1] ** 3 / true)


@pytest.mark.slow
def test_it_is_measured_once_a_machine(tmp_path, monkeypatch):
    asked = a_clock(monkeypatch, 1.0)
    first = peak_flops.peak(CPU, tmp_path)
    readings = len(asked)
    assert readings == 2 * len(peak_flops.SIZES) * peak_flops.ROUNDS
    assert peak_flops.peak(CPU, tmp_path) == first
    assert len(asked) == readings, "the second run of this machine reads what the first one kept"
    facts = machine.describe(CPU)
    for fact in ("host_cpu", "cores", "threads", "capability"):
        other = {**facts, fact: "another"}
        monkeypatch.setattr(machine, "describe", lambda _, other=other: other)
        before = len(asked)
        peak_flops.peak(CPU, tmp_path)
        assert len(asked) > before, f"another {fact} is measured by itself"


@pytest.mark.slow
def test_a_rate_above_it_has_it_measured_again_and_the_higher_one_stays(tmp_path, monkeypatch):
    a_clock(monkeypatch, 4.0)
    busy = peak_flops.peak(CPU, tmp_path).flops
    a_clock(monkeypatch, 1.0)
    assert peak_flops.peak(CPU, tmp_path, above=0.9 * busy).flops == busy, "no reason to doubt it"
    assert peak_flops.peak(CPU, tmp_path, above=2 * busy).flops == pytest.approx(4 * busy)
    a_clock(monkeypatch, 100.0)
    assert peak_flops.peak(CPU, tmp_path, above=9 * busy).flops == pytest.approx(4 * busy)
    assert peak_flops.peak(CPU, tmp_path).flops == pytest.approx(4 * busy)


def test_a_higher_peak_that_another_process_found_meanwhile_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(peak_flops, "_measure", lambda _: 50.0)
    peak_flops.peak(CPU, tmp_path)

    def measured_beside_another(_: torch.device) -> float:
        found = json.loads(kept(tmp_path).read_text())
        kept(tmp_path).write_text(json.dumps({**found, "flops": 90.0}))
        return 70.0

    monkeypatch.setattr(peak_flops, "_measure", measured_beside_another)
    assert peak_flops.peak(CPU, tmp_path, above=60.0).flops == 70.0
    assert peak_flops.peak(CPU, tmp_path).flops == 90.0


def test_a_rate_above_the_peak_is_no_utilisation():
    assert peak_flops.utilisation(50.0, 200.0) == 0.25
    assert peak_flops.utilisation(200.0, 200.0) == 1.0
    assert peak_flops.utilisation(200.1, 200.0) is None


@pytest.mark.slow
def test_a_peak_that_a_busy_machine_made_too_low_is_told_and_shown_nowhere(lab: Lab, tmp_path, monkeypatch):
    """Every product seems to take an hour, so that any run is faster than the peak."""
    a_clock(monkeypatch, 3600.0)
    lab.cache = tmp_path / "cache"
    assert lab.here().status == 0
    summary = json.loads((lab.run_folder() / "summary.json").read_text())
    assert summary["mfu"] is None
    assert 0 < summary["mfu_peak_flops"] < 1e7
    rows = read_metrics(lab.run_folder() / "metrics.csv")
    assert {row["mfu"] for row in rows} == {""}
    results = load_results(lab.results)
    assert results.problems == []
    assert results.runs["mfu"].isna().all()
    (told,) = [text for text in caveats(results) if "above the peak" in text]
    assert "hypergraph" in told


def test_a_summary_says_what_ran_beside_it(finished: Lab):
    summary = json.loads((finished.run_folder() / "summary.json").read_text())
    assert summary["workers"] == 1
    assert summary["load"] >= 0
    assert summary["machine"]["capability"].startswith(torch.backends.cpu.get_cpu_capability())
    assert 0 < summary["mfu"] <= 1


def test_instructions_that_the_environment_takes_away_are_part_of_the_machine(monkeypatch):
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert machine.capability().endswith(", MKL_CBWR=COMPATIBLE")


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("NVIDIA H200", 989),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA L40S", 362),
    ],
)
def test_of_a_gpu_that_is_known_the_peak_is_that_of_its_data_sheet(monkeypatch, tmp_path, name, teraflops):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    found = peak_flops.peak(torch.device("cuda"), tmp_path, above=1e18)
    assert found.flops == pytest.approx(teraflops * 1e12, rel=2e-3)
    assert "data sheet" in found.source
