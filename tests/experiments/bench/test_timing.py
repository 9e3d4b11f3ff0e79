"""What a measured time is of, on a GPU that is only pretended, and how many rounds there are."""

from types import SimpleNamespace

import pytest
import torch
from support.steady import tiny_config

from experiments.bench import timing
from experiments.bench.model_steps import random_tokens
from experiments.bench.suites import latency
from experiments.bench.timing import CPU
from experiments.configuration.schema import Config

GPU = torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch) -> list[str]:
    """What is asked of a pretended GPU, in order; its events are 3 ms apart."""
    asked: list[str] = []

    def event(enable_timing: bool) -> SimpleNamespace:
        assert enable_timing
        number = sum(x.startswith("event") for x in asked)
        asked.append(f"event {number}")
        return SimpleNamespace(record=lambda: asked.append(f"record {number}"), elapsed_time=lambda end: 3.0)

    scratch = SimpleNamespace(zero_=lambda: asked.append("write"))
    monkeypatch.setattr(timing, "_scratch", lambda device: scratch)
    monkeypatch.setattr(torch.cuda, "Event", event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: asked.append("wait"))
    return asked


def test_a_gpus_own_time_is_that_between_two_events_around_the_call_after_its_caches_were_emptied(gpu):
    assert timing.on_device(lambda: gpu.append("call"), GPU) == 3.0
    assert gpu[2:] == ["write", "write", "record 0", "call", "record 1", "wait"]


def test_the_wall_clock_begins_and_ends_with_an_idle_gpu(gpu, monkeypatch):
    clock = iter([10.0, 10.25])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: gpu.append("look") or next(clock))
    assert timing.interleaved({"a": lambda: gpu.append("call")}, 1, GPU, warm_up=0) == {"a": [250.0]}
    assert gpu == ["wait", "look", "call", "wait", "look"]


def test_a_cpu_is_not_waited_for_and_its_time_is_the_wall_clocks(gpu, monkeypatch):
    clock = iter([10.0, 10.25])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    assert timing.on_device(lambda: None, CPU) == 250.0
    assert gpu == []


def test_peak_memory_is_of_the_call_alone(gpu, monkeypatch):
    """Beyond what was there before; a CPU does not count it."""
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: gpu.append("reset"))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: gpu.append("before") or 100)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: gpu.append("peak") or 1700)
    assert timing.peak_memory(lambda: gpu.append("call"), GPU) == 1600
    assert gpu == ["wait", "reset", "before", "call", "wait", "peak"]
    assert timing.peak_memory(lambda: gpu.append("never"), CPU) is None
    assert gpu[-1] == "peak"


@pytest.mark.parametrize(("memory", "bytes_"), [(2**40, 2**30), (2**33, 2**29)])
def test_caches_are_emptied_by_a_gibibyte_or_a_sixteenth_of_the_memory(monkeypatch, memory: int, bytes_: int):
    made = []
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=memory)
    )
    monkeypatch.setattr(torch, "empty", lambda size, dtype, device: made.append(size * dtype.itemsize))
    timing._scratch.__wrapped__(GPU)
    assert made == [bytes_]


@pytest.mark.parametrize(
    ("milliseconds", "repeats", "rounds", "with_first"),
    [
        (100.0, 10, 5, False),  # two at 100 ms: five rounds in a second
        (100.0, 4, 4, False),
        (160.0, 10, 3, False),
        (200.0, 10, 2, True),
        (200.0, 2, 2, False),
        (600.0, 10, 0, True),
    ],
)
def test_rounds_are_as_many_as_fit_and_the_first_one_counts_where_fewer_than_three_do(
    monkeypatch, milliseconds: float, repeats: int, rounds: int, with_first: bool
):
    ran: list[str] = []
    monkeypatch.setattr(timing, "_timed", lambda call, device: call() or milliseconds)
    calls = {name: lambda name=name: ran.append(name) for name in "ab"}
    found = timing.interleaved_within(calls, repeats, CPU, seconds=1.0)
    assert ran == ["a", "b"] * (1 + rounds)
    assert found == {name: [milliseconds] * (rounds + with_first) for name in "ab"}


def test_calls_take_turns_after_their_warm_up():
    ran: list[str] = []

    def clock(call, device):
        call()
        return float(len(ran))

    calls = {name: lambda name=name: ran.append(name) for name in "ab"}
    assert timing.interleaved(calls, 2, CPU, warm_up=2, clock=clock) == {"a": [5.0, 7.0], "b": [6.0, 8.0]}
    assert "".join(ran) == "aabbabab"


def test_random_tokens_are_the_same_every_time_and_of_the_configured_vocabulary():
    config = Config()
    config.data.vocab_size = 300
    first, again = (random_tokens(config, 2, 500, CPU) for _ in range(2))
    assert torch.equal(first, again)
    assert first.shape == (2, 500)
    assert 250 < first.max() < config.nominal_vocabulary


def test_latency_is_of_one_sequence_of_each_length(monkeypatch):
    made = []
    monkeypatch.setattr(
        latency, "random_tokens", lambda *given: made.append(given[1:3]) or random_tokens(*given)
    )
    latency.run(tiny_config(bench__lengths=[4, 8], bench__repeats=1, data__tokenizer="bytes"))
    assert made == [(1, 4), (1, 8)]


@pytest.mark.parametrize(("asked", "told"), [("fp32", "float32"), ("bf16", "bfloat16")])
def test_rows_say_the_precision_in_which_models_computed(monkeypatch, asked, told):
    seen = []
    forward = latency.LanguageModel.forward

    def watched(model, tokens, *rest, **options):
        seen.append(torch.is_autocast_enabled("cpu"))
        return forward(model, tokens, *rest, **options)

    monkeypatch.setattr(latency.LanguageModel, "forward", watched)
    config = tiny_config(bench__lengths=[4], bench__repeats=1, trainer__precision=asked)
    rows = latency.run(config)
    assert {row["precision"] for row in rows} == {told}
    assert set(seen) == {asked == "bf16"}
