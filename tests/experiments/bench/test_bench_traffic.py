"""suite=traffic: bytes of operators counted by hand, and the table of the document's operations."""

import csv

import pytest
import torch

from experiments.bench.memory_traffic import OperatorBytes
from experiments.bench.suites.traffic import CLAIMED, FUSED_PARTS, GRADIENTS, PROJECTIONS


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
    outcome = lab.here("job=bench", "suite=traffic", "device=cpu", "bench.lengths=[32]")
    assert outcome.status == 0, outcome.err
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
