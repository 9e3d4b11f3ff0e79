"""Machine code as text: instructions, loops, and what a warp executes of them."""

from __future__ import annotations

import pytest

from experiments.bench.static import counts, sass
from experiments.bench.static.control_flow import Executions
from experiments.bench.static.counts import instruction_counts
from experiments.bench.static.ttir import parse


def block(*names: str) -> str:
    return "".join(f"        /*0010*/                   {name} R2, R3 ;\n" for name in names)


def back(label: str, predicate: str = "@P0 ") -> str:
    return f"        /*0020*/              {predicate}BRA `(.L_x_{label}) ;\n"


NESTED = (
    block("MOV", "LDG.E.128")
    + ".L_x_1:\n"
    + block(*["FFMA"] * 7, "SHFL.IDX")
    + ".L_x_2:\n"
    + block(*["HGMMA.64x64x16.F32.BF16"] * 2, *["LDS.128"] * 3, "MUFU.EX2", "FADD", "@!P1 STL.64")
    + back("2")
    + back("1", "@!UP0 ")
    + ".L_x_3:\n"
    + block("SYNCS")
    + back("3")
    + "        /*0030*/              @P2 BRA `(.L_x_9) ;\n"
    + block("STG.E")
    + ".L_x_9:\n"
    + block("EXIT", "NOP")
)

TWO_DEEP = """
module {
  tt.func public @twice(%x: !tt.ptr<f32>) attributes {noinline = false} {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c4 = arith.constant 4 : i32
    %c10 = arith.constant 10 : i32
    scf.for %i = %c0 to %c10 step %c1  : i32 {
      %a = tt.load %x : tensor<64x64x!tt.ptr<f32>>
      scf.for %j = %c0 to %c4 step %c1  : i32 {
        %b = arith.addf %a, %a : tensor<64x64xf32>
      }
    }
    tt.return
  }
}
"""


def test_loops_are_what_branches_back_enclose():
    """A branch ahead is no loop, nor is one of two instructions, which waits."""
    code = sass.parse(NESTED)
    assert len(code.instructions) == 2 + 8 + 8 + 2 + 2 + 2 + 1  # NOP is none
    outer, inner = code.loops
    assert (outer.first, outer.size) == (2, 8 + 9 + 1)
    assert (inner.first, inner.size) == (10, 9)


def test_a_warp_executes_a_loop_as_often_as_its_source_says():
    counts, loops = instruction_counts(sass.parse(NESTED), Executions(parse(TWO_DEEP), {}, (1,), {}))
    assert loops == [(18, 10.0), (9, 40.0)]
    outside = 2 + 2 + 1 + 1 + 1  # MOV, LDG; SYNCS and its branch; the branch ahead, STG, EXIT
    assert counts["instructions"] == outside + 10 * 9 + 40 * 9
    assert counts["tensor_async"] == 40 * 2
    assert counts["shared"] == 40 * 3
    assert counts["special"] == counts["spills"] == 40
    assert counts["shuffles"] == 10
    assert counts["global"] == 2
    assert counts["tensor_sync"] == 0


def test_of_more_loops_than_the_source_has_the_largest_are_its_own():
    """The compiler's own loop before the source's is executed once a pass."""
    own = ".L_x_7:\n" + block(*["IADD3"] * 9) + back("7")
    counts, loops = instruction_counts(sass.parse(own + NESTED), Executions(parse(TWO_DEEP), {}, (1,), {}))
    assert [times for _, times in loops] == [1.0, 10.0, 40.0]
    assert counts["instructions"] == 10 + 7 + 10 * 9 + 40 * 9


def test_unrolled_loops_leave_the_outer_one():
    """The source's inner loop is not in the machine code: the loop that is there is the outer one."""
    alone = ".L_x_1:\n" + block(*["FFMA"] * 20) + back("1")
    counts, loops = instruction_counts(sass.parse(alone), Executions(parse(TWO_DEEP), {}, (1,), {}))
    assert loops == [(21, 10.0)]
    assert counts["instructions"] == 210


def test_code_without_a_public_function_is_refused():
    with pytest.raises(ValueError, match="no public function"):
        parse("module {\n}\n")


ONCE_AND_OFTEN = """
module {
  tt.func public @diagonal_first(%x: !tt.ptr<f32>) attributes {noinline = false} {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c9 = arith.constant 9 : i32
    scf.for %i = %c0 to %c1 step %c1  : i32 {
      %a = tt.load %x : tensor<64x64x!tt.ptr<f32>>
      %b = arith.addf %a, %a : tensor<64x64xf32>
    }
    scf.for %j = %c0 to %c9 step %c1  : i32 {
      %a = tt.load %x : tensor<64x64x!tt.ptr<f32>>
    }
    tt.return
  }
}
"""


def test_of_two_loops_the_one_of_a_single_step_is_dissolved_even_if_it_is_larger():
    code = sass.parse(block("MOV") + ".L_x_1:\n" + block(*["FFMA"] * 9) + back("1") + block("EXIT"))
    counts, loops = instruction_counts(code, Executions(parse(ONCE_AND_OFTEN), {}, (1,), {}))
    assert loops == [(10, 9.0)]
    assert counts["instructions"] == 1 + 9 * 10 + 1


def test_the_largest_loops_stay_in_the_order_of_the_program():
    """The first of the source is then the first of the machine code, whatever their sizes."""
    sizes = [node.size for node in counts._largest([counts._Node(size) for size in (3.0, 1.0, 5.0)], 2)]
    assert sizes == [3.0, 5.0]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("tensor_async", "HGMMA QGMMA IGMMA"),
        ("tensor_sync", "HMMA QMMA IMMA DMMA"),
        ("special", "MUFU"),
        ("shuffles", "SHFL"),
        ("shared", "LDS STS LDSM STSM"),
        ("global", "LDG STG LDGSTS RED ATOM UTMALDG UTMASTG"),
        ("spills", "LDL STL"),
    ],
)
def test_instructions_are_of_the_kinds_that_nvidias_manual_has(kind: str, names: str):
    """Asynchronous products of half, 8-bit float and integer matrices, say; each is of one kind alone."""
    assert sorted(sass.CLASSES[kind]) == sorted(names.split())
    assert [other for other, found in sass.CLASSES.items() if set(found) & set(names.split())] == [kind]
