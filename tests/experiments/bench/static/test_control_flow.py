"""Loops and branches of Triton's intermediate code, followed for single programs: how often, and bytes of arguments."""

from __future__ import annotations

import pytest
import torch

from experiments.bench.static.control_flow import Executions
from experiments.bench.static.launch_traffic import moved_bytes, products, written_arguments
from experiments.bench.static.program_slices import control_values
from experiments.bench.static.scalars import storage_id
from experiments.bench.static.ttir import parse

CAUSAL = """
#loc = loc("kernel.py":3:0)
module {
  tt.func public @attend(%q: !tt.ptr<bf16> loc("q"(#loc)), %o: !tt.ptr<f32>, %n: i32) attributes {} {
    %c0_i32 = arith.constant 0 : i32 loc(#loc)
    %c1_i32 = arith.constant 1 : i32
    %cst = arith.constant dense<0.000000e+00> : tensor<16x16xf32>
    %row = tt.get_program_id x : i32 loc(#loc1)
    %outside = arith.cmpi sge, %row, %n : i32
    cf.cond_br %outside, ^bb1, ^bb2
  ^bb1:  // pred: ^bb0
    tt.return
  ^bb2:  // pred: ^bb0
    %end = arith.addi %row, %c1_i32 : i32
    %places = tt.splat %q : !tt.ptr<bf16> -> tensor<16x16x!tt.ptr<bf16>>
    %sum = scf.for %step = %c0_i32 to %end step %c1_i32 iter_args(%carried = %cst) -> (tensor<16x16xf32>)  : i32 {
      %tile = tt.load %places : tensor<16x16x!tt.ptr<bf16>>
      %last = arith.cmpi eq, %step, %row : i32
      scf.if %last {
        %out = tt.splat %o : !tt.ptr<f32> -> tensor<16x16x!tt.ptr<f32>>
        tt.store %out, %carried : tensor<16x16x!tt.ptr<f32>>
      }
      %more = tt.dot %tile, %tile, %carried, inputPrecision = tf32 : TILE * TILE -> tensor<16x16xf32>
      scf.yield %more : tensor<16x16xf32>
    }
    tt.return
  }
}
""".replace("TILE", "tensor<16x16xbf16>")

LISTED = """
module {
  tt.func public @listed(%counts: !tt.ptr<i32>, %x: !tt.ptr<f32>) attributes {noinline = false} {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %row = tt.get_program_id x : i32
    %place = tt.addptr %counts, %row : !tt.ptr<i32>, i32
    %count = tt.load %place : !tt.ptr<i32>
    scf.for %step = %c0 to %count step %c1  : i32 {
      tt.store %x, %cst : !tt.ptr<f32>
    }
    tt.return
  }
}
"""

BESIDE = """
module {
  tt.func public @twice(%x: !tt.ptr<f32>, %y: !tt.ptr<f32>, %n: i32) attributes {noinline = false} {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    scf.for %step = %c0 to %n step %c1  : i32 {
      %0 = tt.addptr %x, %step : !tt.ptr<f32>, i32
      %3 = tt.addptr %0, %c0 : !tt.ptr<f32>, i32
      tt.store %3, %cst : !tt.ptr<f32>
    }
    %1 = scf.for %step = %c0 to %n step %c1 iter_args(%at = %x) -> (!tt.ptr<f32>)  : i32 {
      %3 = arith.addi %step, %c0 : i32
      %0 = tt.addptr %y, %3 : !tt.ptr<f32>, i32
      tt.store %0, %cst : !tt.ptr<f32>
      %2 = tt.addptr %at, %c1 : !tt.ptr<f32>, i32
      scf.yield %2 : !tt.ptr<f32>
    }
    %0 = tt.load %1 : !tt.ptr<f32>
    tt.return
  }
}
"""

HALVED = """
module {
  tt.func public @halved(%n: i32) attributes {noinline = false} {
    %c1 = arith.constant 1 : i32
    %c2 = arith.constant 2 : i32
    %left = scf.while (%now = %n) : (i32) -> i32 {
      %more = arith.cmpi sgt, %now, %c1 : i32
      scf.condition(%more) %now : i32
    } do {
    ^bb0(%now: i32):
      %half = arith.divsi %now, %c2 : i32
      scf.yield %half : i32
    }
    tt.return
  }
}
"""


def loop_body(executions: Executions):
    (op,) = [op for op, _ in executions.function.ops() if op.name in ("scf.for", "scf.while")]
    return op.regions[-1][0]


def test_a_causal_loop_takes_as_many_steps_as_the_program_has_keys():
    """Programs 0 to 3 take 1 to 4 steps, program 4 leaves at once: 10 steps of 5 programs, and 4 branches taken."""
    found = Executions(parse(CAUSAL), {"q": torch.empty(4096), "n": 4}, (5,), {})
    assert found.of(loop_body(found)) == pytest.approx(10 / 5)
    assert (found.steps, found.longest) == (pytest.approx(2.0), pytest.approx(2.0))
    (branch,) = [op for op, _ in found.function.ops() if op.name == "scf.if"]
    assert found.of(branch.regions[0][0]) == pytest.approx(4 / 5)
    assert found.unknown == set()


def test_bytes_are_what_programs_ask_for_and_at_most_the_tensor():
    tile = 16 * 16
    small = {"q": torch.empty(tile, dtype=torch.bfloat16), "o": torch.empty(100 * tile), "n": 4}
    found = Executions(parse(CAUSAL), small, (5,), {})
    read, written = moved_bytes(found, small, 5)
    assert read == {"q": 2 * tile}  # ten steps ask for the same tile
    assert written == {"o": 4 * 4 * tile}
    large = {**small, "q": torch.empty(100 * tile, dtype=torch.bfloat16)}
    assert moved_bytes(found, large, 5)[0] == {"q": 10 * 2 * tile}
    wide = torch.empty(4 * tile, dtype=torch.bfloat16)
    for part, stored in ((wide[:tile], tile), (wide[:1].expand(50 * tile), 4 * tile)):
        assert moved_bytes(found, {**small, "q": part}, 5)[0] == {"q": 2 * stored}  # of a view what it shows
    assert written_arguments(found) == {"o"}


def test_loops_beside_one_another_may_use_one_name_for_different_arguments_and_for_a_number():
    found = Executions(parse(BESIDE), {"x": torch.empty(100), "y": torch.empty(100), "n": 4}, (5,), {})
    assert moved_bytes(found, {"x": torch.empty(100), "y": torch.empty(100)}, 5) == (
        {"x": 5 * 4},
        {"x": 5 * 4 * 4, "y": 5 * 4 * 4},
    )


def test_products_are_counted_by_their_steps():
    found = Executions(parse(CAUSAL), {"n": 4}, (5,), {})
    (product,) = products(found)
    assert (product.rows, product.batched, product.dtype, product.precision) == (16, False, "bf16", "tf32")
    assert product.flops == pytest.approx(2 * 16**3 * 10 / 5)


def test_steps_of_products_are_counted_in_loops_of_either_kind():
    """And how much longer the longest program is than the mean."""
    counted = Executions(parse(CAUSAL), {"n": 4}, (5,), {})
    multiplied = HALVED.replace(
        "%half = arith",
        "%p = tt.dot %a, %a, %c : tensor<2x2xf32> * tensor<2x2xf32> -> tensor<2x2xf32>\n%half = arith",
    )
    followed, plain = (Executions(parse(text), {"n": 40}, (1,), {}) for text in (multiplied, HALVED))
    assert (followed.steps, followed.longest) == (5, 1.0)  # 40, 20, 10, 5, 2
    assert plain.steps == 0
    steps = [1, 2, 3, 4, 0]
    assert counted.steps == pytest.approx(sum(steps) / 5)
    assert counted.longest == pytest.approx(max(steps) / (sum(steps) / 5))


def test_counts_in_memory_are_read_but_not_those_that_a_kernel_would_have_written():
    counts = torch.tensor([3, 0, 9, 4], dtype=torch.int32)
    found = Executions(parse(LISTED), {"counts": counts}, (4,), {})
    assert found.of(loop_body(found)) == pytest.approx(16 / 4)
    assert found.longest == pytest.approx(9 / 4)
    unread = Executions(parse(LISTED), {"counts": counts}, (4,), {storage_id(counts)})
    assert unread.of(loop_body(unread)) == 1
    assert len(unread.unknown) == 1


def test_a_view_is_read_from_its_own_first_element():
    counts = torch.tensor([100, 100, 3, 5], dtype=torch.int32)
    found = Executions(parse(LISTED), {"counts": counts[2:]}, (2,), {})
    assert found.of(loop_body(found)) == pytest.approx(4)


def test_a_loop_without_a_count_is_followed_to_its_end():
    found = Executions(parse(HALVED), {"n": 40}, (1,), {})
    assert found.of(loop_body(found)) == 5  # 40, 20, 10, 5, 2


def test_long_axes_are_sampled_evenly():
    """Of 1,200 programs twelve are followed, in the middle of their twelfth: a linear count keeps its mean."""
    found = Executions(parse(CAUSAL), {"n": 10_000}, (1200,), {})
    assert found.of(loop_body(found)) == pytest.approx((1 + 1200) / 2, abs=1)


FAR = """%far = arith.cmpf ogt, %n, %n : f32
      scf.condition(%far)"""
SOLVED = HALVED.replace(
    "scf.condition(%more)",
    """%far = arith.cmpf ogt, %n, %n : f32
      %on = arith.andi %more, %far : i1
      scf.condition(%on)""",
)


def test_a_loop_that_its_data_may_end_early_is_taken_to_its_last_step():
    found = Executions(parse(SOLVED), {"n": 40}, (1,), {})
    assert found.of(loop_body(found)) == 5
    assert found.unknown == set()


def test_a_loop_of_which_only_data_tells_the_end_is_unknown_and_taken_once():
    blind = HALVED.replace("scf.condition(%more)", FAR)
    found = Executions(parse(blind), {"n": 40}, (1,), {})
    assert found.of(loop_body(found)) == 1
    assert len(found.unknown) == 1


GROWING = """
module {
  tt.func public @growing(%x: !tt.ptr<f32>, %n: i32) attributes {noinline = false} {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c2 = arith.constant 2 : i32
    %head = tt.get_program_id y : i32
    %start = tt.addptr %x, %head : !tt.ptr<f32>, i32
    %ends:2 = scf.for %i = %c0 to %n step %c1 iter_args(%size = %c1, %place = %start) -> (i32, !tt.ptr<f32>)  : i32 {
      scf.for %j = %c0 to %size step %c1  : i32 {
        tt.store %place, %cst : !tt.ptr<f32>
      }
      %next = arith.muli %size, %c2 : i32
      %moved = tt.addptr %place, %c1 : !tt.ptr<f32>, i32
      scf.yield %next, %moved : i32, !tt.ptr<f32>
    }
    scf.for %k = %c0 to %ends#0 step %c1  : i32 {
      tt.store %x, %cst : !tt.ptr<f32>
    }
    tt.return
  }
}
"""


def test_what_a_loop_carries_is_followed_where_another_loop_depends_on_it():
    """Sizes 1, 2, 4 inside, 8 after; where the pointer goes decides nothing, nor does the head."""
    function = parse(GROWING)
    assert {"%size", "%next", "%ends#0"} < control_values(function)
    assert not {"%place", "%moved", "%ends#1", "%head"} & control_values(function)
    found = Executions(function, {"x": torch.empty(4), "n": 3}, (1, 10**9), {})
    outer, inner, after = [op for op, _ in function.ops() if op.name == "scf.for"]
    executed = [found.of(op.regions[0][0]) for op in (outer, inner, after)]
    assert executed == [3, 1 + 2 + 4, 8]


QUOTIENTS = """
module {
  tt.func public @quotients(%n: i32, %scale: f32, %x: !tt.ptr<f32>) attributes {noinline = false} {
    %c1 = arith.constant 1 : i32
    %c4 = arith.constant 4 : i32
    %tile = arith.constant 6.400000e+01 : f32
    %row = tt.get_program_id x : i32
    %rows = arith.sitofp %n : i32 to f32
    %parts = arith.divf %rows, %tile : f32
    %above = math.ceil %parts : f32
    %end = arith.fptosi %above : f32 to i32
    %single = arith.sitofp %row : i32 to f32
    %quarter = arith.constant 2.500000e-01 : f32
    %group = arith.mulf %single, %quarter : f32
    %below = math.floor %group : f32
    %first = arith.fptosi %below : f32 to i32
    scf.for %step = %first to %end step %c1  : i32 {
      tt.store %x, %cst : !tt.ptr<f32>
    }
    %value = tt.load %x : !tt.ptr<f32>
    %last = arith.fptosi %value : f32 to i32
    scf.for %step = %first to %last step %c1  : i32 {
      tt.store %x, %cst : !tt.ptr<f32>
    }
    tt.return
  }
}
"""


def test_bounds_by_way_of_floats_are_followed_unless_memory_holds_them():
    """Programs 0 to 7 begin at 0 or 1, by row / 4 rounded down; the end is 200 / 64 rounded up."""
    function = parse(QUOTIENTS)
    counted = Executions(function, {"n": 200, "scale": 0.5, "x": torch.ones(4)}, (8,), {})
    known, unknown = (op for op, _ in function.ops() if op.name == "scf.for")
    assert counted.of(known.regions[0][0]) == (4 * 4 + 4 * 3) / 8
    assert counted.unknown == {id(unknown)}


CHOSEN = """
module {
  tt.func public @chosen(%x: !tt.ptr<f32>, %n: i32) attributes {noinline = false} {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %limit = arith.constant 5.000000e-01 : f32
    %value = tt.load %x : !tt.ptr<f32>
    %large = arith.cmpf ogt, %value, %limit : f32
    %end = scf.if %large -> (i32) {
      scf.yield %n : i32
    } else {
      scf.yield %c1 : i32
    }
    scf.for %step = %c0 to %end step %c1  : i32 {
      tt.store %x, %cst : !tt.ptr<f32>
    }
    tt.return
  }
}
"""


def test_what_an_unknown_branch_gives_is_unknown_too():
    function = parse(CHOSEN)
    found = Executions(function, {"x": torch.ones(4), "n": 100}, (1,), {})
    branch, loop = (op for op, _ in function.ops() if op.name in ("scf.if", "scf.for"))
    assert found.unknown == {id(branch), id(loop)}
    assert found.of(loop.regions[0][0]) == 1
