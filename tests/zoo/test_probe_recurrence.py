"""States, ranks, decays and residuals against recurrences token by token, NumPy and explicit matrices."""

import math

import numpy as np
import pytest
import torch
from support.contract_cases import boundaries, build, tokens
from torch import Tensor

import kernels
from zoo import Context, ModelConfig
from zoo.mixers.mesanet import Solver
from zoo.probes import Probe, ProbeEvent, Row, probe_model
from zoo.probes.measures.recurrence import Decay, States

OPERATIONS = {"K": "delta_rule", "M": "mesa", "O": "memory_mixture"}
STEPS = 3


def look_at(monkeypatch, letter: str, time: int, cu_seqlens: Tensor | None = None):
    """The events of a layer by kind, and the tensors that its operation was first called with."""
    config = ModelConfig(pattern=letter, depth=1, d_model=12, n_heads=2)
    config.mixers.kda.n_heads = config.mixers.mom.n_heads = config.mixers.mesanet.n_heads = 2
    config.mixers.mom.head_width, config.mixers.mesanet.cg_steps = 4, STEPS
    model = build(config).eval()
    batch = tokens(2 if cu_seqlens is None else 1, time)
    events, calls = {}, []
    operation = getattr(kernels, OPERATIONS[letter])
    monkeypatch.setattr(
        kernels,
        OPERATIONS[letter],
        lambda *args, **options: calls.append(args) or operation(*args, **options),
    )
    probe = Probe(lambda event: events.update({event.kind: event}), {"recurrence", "solver"})
    model(batch, Context.of(batch, cu_seqlens, probe=probe))
    return events, [x.detach() for x in calls[0]]


def delta(state: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """One head's state [K, V] after one token."""
    kept = g.exp().reshape(-1, 1) * state
    return kept - beta * torch.outer(k, k) @ kept + beta * torch.outer(k, v)


def states_by_loops(letter: str, inputs: list[Tensor], b: int, first: int, end: int) -> Tensor:
    """[M, H, K, V] of row b after tokens first … end − 1, from zeros."""
    q, k, v, g, beta = inputs[:5]
    memories, heads = (k.shape[2] if letter == "O" else 1), q.shape[2]
    out = torch.zeros(memories, heads, k.shape[-1], v.shape[-1], dtype=torch.float64)
    for t in range(first, end):
        for m in inputs[5][b, t].tolist() if letter == "O" else [0]:
            for h in range(heads):
                at = (b, t, m, h) if letter == "O" else (b, t, h)
                if letter == "M":
                    out[m, h] = g[at].exp() * out[m, h] + beta[at] * torch.outer(k[at], v[at])
                else:
                    out[m, h] = delta(out[m, h], k[at], v[at], g[at], beta[at])
    return out


@pytest.mark.parametrize("letter", "KMO")
def test_states_are_those_of_the_recurrence(letter, monkeypatch):
    events, inputs = look_at(monkeypatch, letter, 19)
    shown = events["recurrence"].values
    assert shown["ends"].tolist() == [2, 4, 9, 19]
    for place, end in enumerate(shown["ends"].tolist()):
        for b in range(2):
            wanted = states_by_loops(letter, inputs, b, 0, end)
            torch.testing.assert_close(shown["states"][b, place], wanted, rtol=0, atol=1e-10)
    g = shown["log_decay"]
    assert g.shape[:4] == (2, 19, shown["states"].shape[2], 2)
    if letter == "O":  # only where a memory is written to; the last one is shared
        routed = torch.tensor([[[m in row for m in range(5)] for row in rows] for rows in inputs[5].tolist()])
        assert torch.equal(~g.isnan(), routed[..., None, None].expand_as(g))
        assert torch.equal(g[..., 0][routed], inputs[3][routed])
    else:
        assert torch.equal(g.squeeze(2).reshape(inputs[3].shape), inputs[3])


@pytest.mark.parametrize("letter", "KMO")
def test_packed_states_are_those_of_their_own_sequence(letter, monkeypatch):
    events, inputs = look_at(monkeypatch, letter, 16, boundaries(3, 4, 9))
    shown = events["recurrence"].values
    # Places 2, 4, 8, 16 are in sequences that begin at 0, 3, 7, 7.
    assert shown["ends"].tolist() == [2, 1, 1, 9]
    for place, (first, end) in enumerate([(0, 2), (3, 4), (7, 8), (7, 16)]):
        wanted = states_by_loops(letter, inputs, 0, first, end)
        torch.testing.assert_close(shown["states"][0, place], wanted, rtol=0, atol=1e-10)


def krylov_residual(a: np.ndarray, lamb: np.ndarray, b: np.ndarray, steps: int) -> float:
    """Of the best x in the span of (Λ⁻¹A)^i·Λ⁻¹b, i < steps, in the norm of A: what conjugate gradients find."""
    if steps == 0:
        return 1.0
    scaled = a / lamb[:, None]
    basis = np.stack([np.linalg.matrix_power(scaled, i) @ (b / lamb) for i in range(steps)], 1)
    basis, _ = np.linalg.qr(basis)
    x = basis @ np.linalg.solve(basis.T @ a @ basis, basis.T @ b)
    return np.linalg.norm(b - a @ x) / np.linalg.norm(b)


@pytest.mark.parametrize("lengths", [None, (2, 67)], ids=["plain", "packed"])
def test_residuals_are_those_of_explicit_matrices(lengths, monkeypatch):
    """More tokens than are solved at a time."""
    time = 69
    events, inputs = look_at(monkeypatch, "M", time, None if lengths is None else boundaries(*lengths))
    q, k, _, g, beta, lamb = (x.numpy() for x in inputs)
    shown = events["solver"].values["residuals"]
    assert shown.shape == (STEPS + 1, len(q), time, 2)
    for b, h in np.ndindex(len(q), 2):
        for t in (0, 1, 2, 63, 64, 68):
            first = 0 if lengths is None or t < lengths[0] else lengths[0]
            a = np.diag(lamb[h])
            for s in range(first, t + 1):
                weight = beta[b, s, h] * np.exp(g[b, s + 1 : t + 1, h].sum())
                a = a + weight * np.outer(k[b, s, h], k[b, s, h])
            wanted = [krylov_residual(a, lamb[h], q[b, t, h], steps) for steps in range(STEPS + 1)]
            assert shown[:, b, t, h].numpy() == pytest.approx(wanted, abs=1e-9)
            assert wanted[0] > wanted[STEPS]


def effective_rank(x: np.ndarray) -> float:
    s = np.linalg.svd(x, compute_uv=False)
    shares = [value / s.sum() for value in s if value > 0]
    return math.exp(-sum(p * math.log(p) for p in shares))


def value_of(rows: list[Row], measure: str, head: int, **bucket) -> Row:
    """The one row of that measure, head and bucket."""
    where = {"measure": measure, "head": head, **bucket}
    (found,) = [row for row in rows if all(getattr(row, key) == value for key, value in where.items())]
    return found


def test_norms_and_ranks_of_states():
    states = torch.randn(2, 3, 4, 2, 5, 3, generator=torch.Generator().manual_seed(0)).double()
    states[:, :, 3] = torch.outer(torch.ones(5), torch.arange(3.0))  # rank 1
    values = {"states": states, "ends": torch.tensor([2, 4, 9]), "log_decay": torch.zeros(1, 1, 1, 2, 1)}
    rows = list(States().update(ProbeEvent("recurrence", values, 0, "mixer", "mom")))
    assert len(rows) == 2 * 2 * (3 + 4)
    x = states.numpy()
    for name, function in (("norm", lambda s: math.sqrt((s**2).sum())), ("rank", effective_rank)):
        for h in range(2):
            for place, end in enumerate((2, 4, 9)):
                wanted = [function(x[b, place, m, h]) for b in range(2) for m in range(4)]
                row = value_of(rows, f"state_{name}", h, axis="position", start=0, end=end)
                assert (row.value, row.count) == (pytest.approx(sum(wanted) / 8), 8)
            for m in range(4):
                wanted = [function(x[b, 2, m, h]) for b in range(2)]
                row = value_of(rows, f"memory_{name}", h, axis="expert", start=m, end=m + 1)
                assert (row.value, row.count) == (pytest.approx(sum(wanted) / 2), 2)
    assert value_of(rows, "memory_rank", 0, start=3, end=4).value == pytest.approx(1, abs=1e-6)


def test_an_empty_state_has_rank_0():
    values = {"states": torch.zeros(1, 1, 1, 1, 3, 3), "ends": torch.tensor([1])}
    rows = list(States().update(ProbeEvent("recurrence", values, 0, "mixer", "kda")))
    assert [(row.measure, row.value) for row in rows] == [("state_norm", 0), ("state_rank", 0)]


@torch.no_grad()
def test_quantiles_of_the_decay():
    g = -(torch.rand(2, 6, 3, 2, 4, generator=torch.Generator().manual_seed(1)).double() ** 3)
    g[0, :4, 1] = torch.nan  # tokens that leave memory 1 alone
    g[..., 1, :] *= 5
    rows = list(Decay().update(ProbeEvent("recurrence", {"log_decay": g}, 0, "mixer", "mom")))
    assert len(rows) == 2 * 2 * 5
    for h in range(2):
        values = np.array([x for x in g[:, :, :, h].flatten().tolist() if not math.isnan(x)])
        assert len(values) == (2 * 6 * 3 - 4) * 4
        for q in (0.1, 0.25, 0.5, 0.75, 0.9):
            left = value_of(rows, "decay", h, axis="quantile", end=q)
            assert (left.value, left.count) == (pytest.approx(np.quantile(np.exp(values), q)), len(values))
            half = value_of(rows, "decay_half_life", h, axis="quantile", end=q)
            assert half.value == pytest.approx(math.log(2) / -np.quantile(values, q))


def test_residuals_are_averaged_over_tokens():
    residuals = torch.rand(4, 2, 5, 3, generator=torch.Generator().manual_seed(2)).double()
    rows = solver_rows(residuals)
    assert len([row for row in rows if row.measure == "cg_residual"]) == 4 * 3
    for step, h in np.ndindex(4, 3):
        wanted = sum(residuals[step, b, t, h].item() for b in range(2) for t in range(5)) / 10
        row = value_of(rows, "cg_residual", h, axis="step", start=step, end=step + 1)
        assert (row.value, row.count, row.layer) == (pytest.approx(wanted), 10, 1)


def solver_rows(residuals: Tensor) -> list[Row]:
    return list(Solver().update(ProbeEvent("solver", {"residuals": residuals}, 1, "mixer", "mesanet")))


def test_tokens_that_are_not_solved_are_counted_and_told_of():
    """A mean hides few of them; a residual of NaN is not solved either."""
    residuals = torch.full((3, 2, 5, 3), 1e-7).double()
    residuals[0] = 1.0
    assert not list(Solver.notices(solver_rows(residuals)))
    residuals[-1, 0, 1, 2], residuals[-1, 1, :2, 0] = torch.nan, 2e-3
    rows = solver_rows(residuals)
    assert [value_of(rows, "cg_unsolved", h).value for h in range(3)] == pytest.approx([0.2, 0, 0.1])
    (line,) = Solver.notices(rows)
    assert all(word in line for word in ("2 steps", "layers 1 ", "0.2", "cg_steps")), line


def test_every_recurrent_layer_of_a_model_is_measured():
    model = build(ModelConfig(pattern="KMOF", depth=4, d_model=12, n_heads=2), dtype=torch.float32)
    rows = probe_model(model, tokens(2, 8), names={"states", "decay", "solver"})
    assert all(math.isfinite(row.value) for row in rows)
    found = {(row.layer, row.block, row.measure) for row in rows}
    common = ("state_norm", "state_rank", "decay", "decay_half_life")
    wanted = {(i, block, name) for i, block in enumerate(("kda", "mesanet", "mom")) for name in common}
    wanted |= {
        (1, "mesanet", "cg_residual"),
        (1, "mesanet", "cg_unsolved"),
        (2, "mom", "memory_norm"),
        (2, "mom", "memory_rank"),
    }
    assert found == wanted
