"""The model of a kernel's time, on counts made up so that one part decides."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from experiments.bench.memory_traffic import PEAKS
from experiments.bench.static import time_model
from experiments.bench.static.gpus import GPUS, programs_resident
from experiments.bench.static.launch_traffic import Product

H200 = GPUS["H200"]
LAUNCH = time_model.constant("launch")
NOTHING = time_model.Counts(programs=132, warps=4, resident=1, instructions=0)
BF16 = Product(rows=64, batched=False, dtype="bf16", precision="", flops=1e9)


def test_a_kernel_that_only_moves_bytes_takes_the_bandwidth():
    taken = time_model.seconds(replace(NOTHING, bytes=4.2e9), H200) - LAUNCH
    assert taken == pytest.approx(4.2e9 / (0.875 * PEAKS["H200"].bytes))


def test_parts_add_as_squares():
    both = replace(NOTHING, bytes=4.2e9, special=1e6)
    apart = [time_model.parts(replace(NOTHING, bytes=4.2e9), H200)["memory"]]
    apart.append(time_model.parts(replace(NOTHING, special=1e6), H200)["special"])
    assert time_model.seconds(both, H200) - LAUNCH == pytest.approx(math.hypot(*apart))
    assert apart[1] == pytest.approx(132 * 4 * 1e6 * 8 / (4 * 132 * H200.clock))


def test_shuffles_and_accesses_share_one_pipe_of_a_multiprocessor():
    """132 programs of 4 warps on as many multiprocessors: 1 cycle a shuffle, 2 an access, one warp after the other."""
    taken = time_model.parts(replace(NOTHING, shuffles=300, accesses=50), H200)["shared"]
    assert taken == pytest.approx(4 * (300 + 2 * 50) / H200.clock)


@pytest.mark.parametrize(
    ("change", "asynchronous", "factor"),
    [
        ({}, True, 1.0),
        ({}, False, 0.55),
        ({"rows": 16}, True, 0.55),
        ({"batched": True}, True, 0.55),
        ({"dtype": "f32", "precision": "tf32"}, True, 0.5),
        ({"dtype": "f32", "precision": "tf32x3"}, True, 1 / 6),
        ({"dtype": "f32"}, True, 0.06),
    ],
)
def test_products_take_the_rate_of_their_instruction_and_type(change, asynchronous, factor):
    counts = replace(NOTHING, products=[replace(BF16, **change)], asynchronous=asynchronous)
    rate = time_model.constant("tensor share") * PEAKS["H200"].half * factor
    assert time_model.parts(counts, H200)["tensor"] == pytest.approx(132e9 / rate)
    assert counts.flops == 132e9


def test_more_warps_issue_more_at_a_time_and_one_program_waits_for_itself():
    few = replace(NOTHING, programs=132 * 8, instructions=1e5)
    many = replace(few, resident=8)
    assert time_model.parts(many, H200)["issue"] < time_model.parts(few, H200)["issue"]
    full = replace(few, programs=132 * 64, resident=16)
    at_limit = full.programs * 4 * 1e5 / (132 * 4 * time_model.constant("issue limit")) / H200.clock
    assert time_model.parts(full, H200)["issue"] == pytest.approx(at_limit)
    walk = replace(NOTHING, programs=1, instructions=1000, steps=128)
    alone = (1000 / time_model.constant("lone warp") + 600 * 128) / H200.clock
    assert time_model.parts(walk, H200)["issue"] == pytest.approx(alone)
    assert time_model.parts(replace(walk, longest=2.0), H200)["issue"] == pytest.approx(2 * alone)


def test_what_one_multiprocessor_holds_is_limited_by_each_resource():
    assert programs_resident(H200, registers=255, shared=0, warps=4) == 65_536 // (256 * 32 * 4)
    assert programs_resident(H200, registers=32, shared=100_000, warps=4) == 2
    assert programs_resident(H200, registers=32, shared=0, warps=8) == 8
    assert programs_resident(H200, registers=16, shared=0, warps=1) == 32
    assert programs_resident(H200, registers=32, shared=H200.program_shared + 1, warps=4) == 0
    with pytest.raises(ValueError, match="no multiprocessor holds"):
        time_model.seconds(replace(NOTHING, resident=0), H200)


def test_every_gpu_has_its_peaks():
    for gpu in GPUS.values():
        assert time_model.memory_seconds(1e9, gpu) > 0


def test_operators_cost_their_bytes_and_their_launches():
    assert time_model.operator_seconds(0, 5, H200) == pytest.approx(5 * LAUNCH)
