"""Claims about times, with pretended ones: which is over which; and measurements that see what they deny."""

from collections.abc import Callable

import pytest

from experiments import evidence
from experiments.evidence import (
    attention_mixers,
    recurrent_mixers,
    residual_streams,
    rotations,
    selective_recompute,
)
from experiments.evidence.numbers import Number

TIMES = {
    "Sinkhorn": 12.0,
    "closed form": 2.0,
    "solve": 4.0,
    "ohc": 6.0,
    "add": 4.0,
    "selective": 3.0,
    "none": 2.0,
}


@pytest.fixture(scope="module", autouse=True)
def registered():
    evidence.measure_claims([], progress=False)


def pretended(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """A time for each call, which is made once."""
    for call in calls.values():
        call()
    return {name: [TIMES[name]] * repeats for name in calls}


@pytest.fixture(autouse=True)
def times(monkeypatch):
    for room in (rotations, residual_streams):
        monkeypatch.setattr(room, "in_turns", pretended)
    of_steps = lambda calls, repeats: {name: [TIMES[name]] * repeats for name in calls}  # noqa: E731
    monkeypatch.setattr(selective_recompute, "in_turns", of_steps)  # real steps take seconds


def numbers(measurement: Callable) -> list[tuple[str, float]]:
    return [(number.name, number.value) for number in measurement()]


def test_a_maps_time_is_sinkhorns_over_cayleys(monkeypatch):
    """Sinkhorn by the 20 iterations that the document gives it, Cayley in closed form and solved."""
    asked: list[tuple] = []
    made = rotations.raw_matrices
    monkeypatch.setattr(rotations, "raw_matrices", lambda count, dtype: made(3, dtype=dtype))
    for name in ("sinkhorn", "cayley"):
        kernel = getattr(rotations.kernels, name)

        def map_(x, name=name, kernel=kernel, **options):
            asked.append((name, options))
            return kernel(x, **options)

        monkeypatch.setattr(rotations.kernels, name, map_)
    assert numbers(rotations.time_of_maps) == [
        ("Sinkhorn, 20 iterations, 100,000 matrices", 12.0),
        ("Sinkhorn's time over Cayley's, closed form", 6.0),
        ("Sinkhorn's time over Cayley's, solve", 3.0),
    ]
    assert asked == [("cayley", {}), ("cayley", {"backend": "reference"}), ("sinkhorn", {"iters": 20})]


@pytest.mark.slow
def test_a_steps_time_is_that_with_streams_over_that_without():
    assert numbers(residual_streams.overhead_of_streams) == [
        ("time of a training step with streams over one without", 1.5)
    ]


@pytest.mark.slow
def test_a_steps_costs_are_those_with_recomputation_over_those_without(monkeypatch):
    monkeypatch.setattr(
        selective_recompute, "counts", lambda step, mode: {"selective": (5, 9, 1), "none": (4, 6, 2)}[mode]
    )
    assert [value for _, value in numbers(selective_recompute.time_of_recomputation)] == [1.5, 1.25, 1.5, 0.5]


def first(measurement: Callable) -> Number:
    return next(iter(measurement()))


def test_a_mixer_that_sees_later_tokens_is_seen(monkeypatch):
    """Otherwise the number of claim 23 would be 0 whatever the mixer does."""
    monkeypatch.setattr(attention_mixers, "outputs", lambda mixer, x: x + x.mean(1, keepdim=True))
    leaked = first(attention_mixers.branches_of_nsa)
    assert leaked.value == pytest.approx(1 / attention_mixers.TOKENS)
    assert leaked.value > leaked.high


def test_a_memory_that_changes_without_being_named_is_seen(monkeypatch):
    kernel = recurrent_mixers.kernels.memory_mixture

    def leaking(*arguments, **options):
        o, state = kernel(*arguments, **options)
        return o, state + 0.5

    monkeypatch.setattr(recurrent_mixers.kernels, "memory_mixture", leaking)
    assert first(recurrent_mixers.memories_interfere).value == pytest.approx(0.5)
