"""Compiled parts of CPU kernels: when they serve, the memory they share with tensors, rows, extrema and threads."""

import importlib
import math
import threading

import numba
import numpy as np
import pytest
import torch
from numba.core.errors import TypingError
from support.kernel_cases import normal
from support.margins import below

from kernels import AdaptiveK, indexed_attention, nsa_attention, numba_common
from kernels.numba_common import WIDTH, array, arrays, in_parts, parts_of
from kernels.numba_common.attention import place_after
from kernels.numba_common.compiled import EXACT, compiled, exp32, log32
from kernels.numba_common.vectors import (
    add_rows,
    highest_of,
    load,
    lowest_of,
    scatter_rows,
    score_rows,
    softmax_row,
    store,
)

UNIT = 2.0**-24
"""Half the distance of neighbouring fp32 numbers at 1, which one rounding is off by at most."""

SHAPES = [(g, width) for g in (1, 4, 5, 8) for width in (32, 96)]


@compiled(EXACT)
def exp_of(x, out):
    for i in range(x.size):
        out[i] = exp32(x[i])


@compiled(EXACT)
def log_of(x, out):
    for i in range(x.size):
        out[i] = log32(x[i])


def test_exp_is_within_three_roundings_and_stays_at_its_ends():
    x = np.linspace(-87, 88, 100_003, dtype=np.float32)
    out = np.empty_like(x)
    exp_of(x, out)
    # Rounding x·log2(e) leaves r, whose last bits weigh up to 2^-25 beside the polynomial's own error and rounding.
    below(np.abs(out / np.exp(x.astype(np.float64)) - 1).max(), 4 * UNIT)
    edges = np.array([-1e30, -np.inf, 1e30, np.nan], np.float32)
    exp_of(edges, out[:4])
    assert 0 < out[0] == out[1] < 2e-38
    assert 1e38 < out[2] < math.inf
    assert math.isnan(out[3])


def test_log_is_near_from_the_least_normal_number_to_the_largest():
    x = np.exp(np.linspace(-87.3, 88.7, 100_003)).astype(np.float32)
    out = np.empty_like(x)
    log_of(x, out)
    wanted = np.log(x.astype(np.float64))
    below((np.abs(out - wanted) / np.maximum(np.abs(wanted), 0.1)).max(), 8 * UNIT)


def made(group: int, width: int, n: int):
    """x [G, D], rows [T, D], weights [G, n] and rising places [n]."""
    rng = np.random.default_rng(group * width + n)
    x, weights = (rng.standard_normal((group, size)).astype(np.float32) for size in (width, n))
    rows = rng.standard_normal((2 * n, width)).astype(np.float32)
    return x, rows, weights, np.sort(rng.permutation(2 * n)[:n]).astype(np.int32)


@pytest.mark.parametrize(("group", "width"), SHAPES)
@pytest.mark.parametrize("span", [(0, 27), (3, 26), (9, 9)], ids=["all", "some", "none"])
def test_products_with_chosen_rows_are_those_of_matrices(group, width, span):
    x, rows, weights, places = made(group, width, 27)
    here, (first, last) = places[slice(*span)].astype(int), span
    scores, sums, whole = np.zeros((group, 27), np.float32), x.copy(), rows.copy()
    score_rows(x, rows, places, first, last, scores)
    add_rows(weights, rows, places, first, last, sums)
    scatter_rows(weights, x, places, first, last, whole)
    wide, chosen, part = x.astype(np.float64), rows[here].astype(np.float64), weights[:, first:last]
    wanted = np.zeros_like(scores, np.float64)
    wanted[:, first:last] = wide @ chosen.T
    # A sum of n products of normal numbers is off by at most n roundings of it; far fewer in practice.
    limit = 16 * (width + 27) * UNIT
    below(np.abs(scores - wanted).max(), limit)
    below(np.abs(sums - (wide + part @ chosen)).max(), limit)
    scattered = rows.astype(np.float64)
    scattered[here] += part.T @ wide
    below(np.abs(whole - scattered).max(), limit)


def test_equal_rows_have_equal_scores_wherever_four_of_them_stand():
    x, rows, *_ = made(4, 64, 16)
    rows[:] = rows[5]
    scores = np.zeros((4, 16), np.float32)
    score_rows(x, rows, np.arange(16, dtype=np.int32), 0, 16, scores)
    assert (scores == scores[:, :1]).all()


@pytest.mark.parametrize("n", [1, 3, 4, 9, 64])
def test_extrema_and_softmax_of_the_first_numbers(n):
    x = np.random.default_rng(n).standard_normal(70).astype(np.float32)
    assert highest_of(x, n) == x[:n].max()
    assert lowest_of(x, n) == x[:n].min()
    weights = x.copy()
    highest, total = softmax_row(weights, n)
    wanted = np.exp(x[:n].astype(np.float64) - x[:n].max())
    assert highest == x[:n].max()
    below(abs(total / wanted.sum() - 1), 16 * UNIT)
    below(np.abs(weights[:n] / (wanted / wanted.sum()) - 1).max(), 32 * UNIT)
    assert (weights[n:] == x[n:]).all()


def test_numbers_that_are_none_are_passed_over_and_stay():
    x = np.array([np.nan, 1, 3, 2, np.nan, 0], np.float32)
    assert (highest_of(x, 6), lowest_of(x, 6)) == (3, 0)
    assert (highest_of(x, 1), lowest_of(x, 1)) == (-np.inf, np.inf)
    softmax_row(x, 6)
    assert np.isnan(x).all()


@pytest.mark.parametrize("array", [np.zeros(32), np.zeros(64, np.float32)[::2]], ids=["fp64", "strided"])
def test_vectors_refuse_arrays_whose_bytes_they_would_misread(array):
    @compiled(EXACT)
    def copy(x):
        store(x, 0, load(x, 16))

    with pytest.raises(TypingError, match="contiguous fp32"):
        copy(array)


def test_places_are_cut_where_a_tile_ends():
    places = np.array([0, 3, 4, 9, 12], np.int32)
    for first, last, end in ((0, 5, 4), (2, 5, 4), (0, 5, 99), (1, 3, 9), (5, 5, 0)):
        wanted = first + sum(place < end for place in places[first:last])
        assert place_after(places, first, last, end) == wanted


def test_parts_run_on_threads_and_tell_what_they_raise(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    seen, names = [], set()
    barrier = threading.Barrier(3, timeout=300)

    def work(sequence: int, part: int) -> None:
        barrier.wait()
        seen.append((sequence, part))
        names.add(threading.current_thread().name)

    in_parts(work, 1)
    assert sorted(seen) == [(0, 0), (0, 1), (0, 2)]
    assert len(names) == 3

    def fails(sequence: int, part: int) -> None:
        if (sequence, part) == (1, 1):
            raise ValueError("part 1 of 1")

    with pytest.raises(ValueError, match="part 1 of 1"):
        in_parts(fails, 2)
    in_parts(fails, 0)


def test_fewer_sequences_than_threads_have_parts(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert [parts_of(sequences) for sequences in (0, 1, 3, 4, 9)] == [4, 4, 2, 1, 1]


Q, K, V = ((1, 40, heads, WIDTH) for heads in (2, 1, 1))


def attend_indexed(q, k, v, q_idx, k_idx, w_idx, bias, tau):
    rule = AdaptiveK("none", 5, 1, 5)
    o, loss = indexed_attention(q, k, v, q_idx, k_idx, w_idx, bias, tau, rule=rule, backend="numba")
    return o.sum() + loss


def attend_natively(q, k_cmp, v_cmp, k_slc, v_slc, k_win, v_win, gates):
    branches = (k_cmp, v_cmp), (k_slc, v_slc), (k_win, v_win)
    sizes = {"block_size": 4, "stride": 2, "select_size": 4, "n_select": 4, "window": 5}
    return nsa_attention(q, *branches, gates, **sizes, backend="numba").sum()


OPERATIONS = {
    "indexed_attention": (attend_indexed, [Q, K, V, Q, (1, 40, WIDTH), (1, 40, 2), (2,), ()]),
    "nsa_attention": (attend_natively, [Q, *[(1, 20, 1, WIDTH)] * 2, *[K, V] * 2, (1, 40, 2, 3)]),
}


def test_an_array_is_the_tensors_memory_and_may_be_written():
    x = torch.zeros(3, 4)
    array(x)[0, 0] = 1.0
    arrays((x,), 1)[0][2] = 2.0
    assert x.tolist() == [[1.0, 0, 0, 0], [0, 0, 2.0, 0], [0.0] * 4]


@pytest.mark.parametrize("name", OPERATIONS)
def test_memory_of_inputs_can_be_given_back_as_fsdp_does_with_gathered_parameters(name):
    operation, shapes = OPERATIONS[name]
    inputs = [normal(1, *shape, seed=i)[0].float().requires_grad_() for i, shape in enumerate(shapes)]
    operation(*inputs).backward()
    storages = [x.untyped_storage() for x in inputs]
    for storage in storages:
        storage.resize_(0)
    assert [storage.nbytes() for storage in storages] == [0] * len(inputs)


@pytest.fixture
def importing(monkeypatch):
    """Calling it sets what importing Numba raises."""

    def fail_with(error: Exception) -> None:
        def fail(_name: str):
            raise error

        monkeypatch.setattr(importlib, "import_module", fail)

    numba_common._fault.cache_clear()
    yield fail_with
    numba_common._fault.cache_clear()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ModuleNotFoundError("No module named 'numba'"), "numba cannot be imported: No module named 'numba'"),
        (ImportError("needs NumPy 2.2 or less"), "numba cannot be imported: needs NumPy 2.2 or less"),
        (SystemError("initialization failed"), "numba cannot be imported: initialization failed"),
    ],
)
def test_what_importing_it_raises_is_the_reason(importing, error, reason):
    importing(error)
    assert numba_common.refusal(torch.ones(2)) == reason


def test_compiling_can_be_switched_off(importing, monkeypatch):
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    assert numba_common.refusal(torch.ones(2)) == "NUMBA_DISABLE_JIT is set"


def test_an_installed_numba_takes_fp32_on_a_cpu(importing):
    assert numba_common.refusal(torch.ones(2), torch.ones(3, 1)) is None
    assert numba_common.refusal(torch.ones(2), torch.ones(3).half()) == "needs float32, got float16"
    assert numba_common.refusal(torch.ones(2, device="meta")) == "needs tensors on a CPU, got meta"
