"""Operations against independent code: the naive references in fla-core, on the same inputs.

An optional dependency of the tests: without it they are skipped. Importing `fla` imports its Triton kernels, which
want a GPU; its references need torch and einops only, and are loaded from their files. They cast to fp32, whatever
comes in, so that fp32 is what can be compared.
"""

from functools import partial
from importlib import metadata, util
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from support.kernel_cases import normal, packed
from support.margins import below
from torch import Tensor

import kernels

try:
    FLA = metadata.distribution("fla-core")
except metadata.PackageNotFoundError:
    pytest.skip("needs fla-core, which is not installed", allow_module_level=True)
pytest.importorskip("einops", reason="fla-core's references need einops")

every_backend = pytest.mark.parametrize("backend", ["torch", "reference"])


def naive(operation: str) -> ModuleType:
    """The module fla/ops/{operation}/naive.py by itself."""
    file = FLA.locate_file(f"fla/ops/{operation}/naive.py")
    if not file.exists():
        pytest.skip(f"fla-core {FLA.version} has no {file}")
    spec = util.spec_from_file_location(f"fla_{operation}", file)
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rand(*shape: int, seed: int) -> Tensor:
    return normal(*shape, seed=seed).float()


def unit(*shape: int, seed: int) -> Tensor:
    return F.normalize(rand(*shape, seed=seed), dim=-1)


def assert_close(got: Tensor | None, wanted: Tensor, limit: float = 1e-5) -> None:
    """Equal relative to the largest value."""
    assert got.shape == wanted.shape
    below((got - wanted).abs().max(), limit * wanted.abs().max())


@every_backend
@pytest.mark.parametrize("scale", [None, 0.3])
def test_kimi_delta_attention(backend, scale):
    """No difference in convention but the heads: fla groups q and k only, here v may be grouped as well."""
    q, k = rand(2, 70, 2, 16, seed=1), unit(2, 70, 2, 16, seed=2)
    v, g = rand(2, 70, 4, 12, seed=3), F.logsigmoid(rand(2, 70, 4, 16, seed=4))
    beta, state = rand(2, 70, 4, seed=5).sigmoid(), rand(2, 4, 16, 12, seed=6)
    options = {"scale": scale, "initial_state": state, "output_final_state": True}
    o, final = kernels.delta_rule(q, k, v, g, beta, **options, backend=backend)
    wanted, wanted_final = naive("kda").naive_recurrent_kda(q, k, v, g, beta, **options)
    assert_close(o, wanted)
    assert_close(final, wanted_final)


@every_backend
def test_gated_delta_rule(backend):
    """fla takes beta before g."""
    q, k, v = rand(2, 70, 3, 16, seed=1), unit(2, 70, 3, 16, seed=2), rand(2, 70, 3, 12, seed=3)
    g, beta = F.logsigmoid(rand(2, 70, 3, seed=4)), 2 * rand(2, 70, 3, seed=5).sigmoid()
    options = {"initial_state": rand(2, 3, 16, 12, seed=6), "output_final_state": True}
    o, final = kernels.delta_rule(q, k, v, g, beta, **options, backend=backend)
    theirs = naive("gated_delta_rule").naive_recurrent_gated_delta_rule
    wanted, wanted_final = theirs(q, k, v, beta=beta, g=g, **options)
    assert_close(o, wanted)
    assert_close(final, wanted_final)


def path_inputs() -> list[Tensor]:
    """q, k, v, w, beta, g with two query heads a KV head."""
    q, k, v = rand(2, 150, 4, 16, seed=1), rand(2, 150, 2, 16, seed=2), rand(2, 150, 2, 16, seed=3)
    w, beta = unit(2, 150, 2, 16, seed=4), 2 * rand(2, 150, 2, seed=5).sigmoid()
    return [q, k, v, w, beta, F.logsigmoid(rand(2, 150, 4, seed=6))]


# fla subtracts gates summed over the sequence, up to 133 here, in fp32: 133·2^−24 a weight, and some of them add up.
SUMMED_GATES = 5 * 133 * 2.0**-24


@every_backend
def test_path_attention(backend):
    """fla multiplies the summed gates by the scale as well, so that it gets them divided by it."""
    *tensors, g = path_inputs()
    wanted = naive("path_attn").naive_path_attn(*tensors, g / 0.4, 0.4)
    assert_close(kernels.path_attention(*tensors, g, scale=0.4, backend=backend), wanted, SUMMED_GATES)


@every_backend
def test_forgetting_attention(backend):
    """PaTH without Householder matrices. Here fla, too, has the gates outside the scale."""
    q, k, v, _, _, g = path_inputs()
    wanted = naive("forgetting_attn").naive_forgetting_attn(q, k, v, g)
    assert_close(kernels.path_attention(q, k, v, None, None, g, backend=backend), wanted, SUMMED_GATES)


def mesa_inputs() -> tuple[list[Tensor], tuple[Tensor, Tensor]]:
    """q, k, v, g, beta, lamb, and states as 20 earlier tokens would have left them."""
    q, k, v = unit(2, 64, 3, 16, seed=1), unit(2, 64, 3, 16, seed=2), rand(2, 64, 3, 16, seed=3)
    g, beta = F.logsigmoid(rand(2, 64, 3, seed=4) + 2), rand(2, 64, 3, seed=5).sigmoid()
    lamb = 0.25 + F.softplus(rand(3, 16, seed=6))
    past_k, past_v = unit(2, 3, 20, 16, seed=7), rand(2, 3, 20, 16, seed=8)
    return [q, k, v, g, beta, lamb], (past_k.mT @ past_k, past_k.mT @ past_v)


@every_backend
def test_mesa(backend):
    """fla has the regularisation `lamb` before `beta`; its exact solve is compared with 30 steps here."""
    (q, k, v, g, beta, lamb), state = mesa_inputs()
    options = {"initial_state": state, "output_final_state": True}
    o, (h_kk, h_kv) = kernels.mesa(q, k, v, g, beta, lamb, **options, backend=backend)
    wanted, *states = naive("mesa_net").naive_mesa_net_exact(q, k, v, g, lamb, beta, *state)
    assert_close(o, wanted)
    assert_close(h_kk, states[0])
    assert_close(h_kv, states[1])


def test_mesa_by_conjugate_gradients():
    """fla's own conjugate gradient, unlike ours, has no preconditioner and adds 1e-5 to its denominators."""
    (q, k, v, g, beta, lamb), state = mesa_inputs()
    o, _ = kernels.mesa(q, k, v, g, beta, lamb, initial_state=state)
    wanted, *_ = naive("mesa_net").naive_mesa_net_CG(
        q, k, v, g, lamb, beta, 16, h_kk_init=state[0], h_kv_init=state[1]
    )
    assert_close(o, wanted, 1e-2)


@every_backend
@pytest.mark.parametrize("scores", ["sigmoid", "relu"])
@pytest.mark.parametrize("cu_seqlens", [None, packed(23, 1, 36)], ids=["plain", "packed"])
def test_sparse_attention_of_a_lightning_indexer(cu_seqlens, scores, backend):
    """Three differences. Ours always keeps the query's own token, so that fla ranks all keys and the first of the
    others are taken; ours has a bias a head inside and the later key at ties, fla no bias and any key; and fla counts
    positions from the start of a packed sequence, ours along the packed axis.
    """
    batch, time, k_max = 2 if cu_seqlens is None else 1, 60, 9
    q_idx, k_idx = rand(batch, time, 3, 8, seed=1), rand(batch, time, 8, seed=2)
    w_idx = rand(batch, time, 3, seed=3).sigmoid()
    options = {"cu_seqlens": cu_seqlens}
    call = partial(kernels.lightning_topk, q_idx, k_idx, w_idx, torch.zeros(3), scores=scores, k=k_max)
    chosen = call(**options, backend=backend)
    fla = naive("dsa")
    ranking = fla.naive_dsa_indexer(q_idx, k_idx, w_idx, topk=time, activation=scores, **options)
    starts = torch.zeros(time, dtype=torch.int64)
    if cu_seqlens is not None:
        starts = cu_seqlens[:-1].long().repeat_interleave(cu_seqlens.diff())
    wanted = own_token_first(ranking, starts)[..., :k_max]
    assert torch.equal(chosen.sort(-1).values, wanted.int().sort(-1).values)

    q = rand(batch, time, 4, 16, seed=4)
    k, v = rand(batch, time, 2, 16, seed=5), rand(batch, time, 2, 12, seed=6)
    o = kernels.sparse_attention(q, k, v, chosen, **options, backend=backend)
    local = (wanted - starts[:, None]).where(wanted >= 0, -1)
    assert_close(o, fla.naive_dsa(q, k, v, None, None, indices=local, **options))


def own_token_first(ranking: Tensor, starts: Tensor) -> Tensor:
    """Positions [B, T, n] inside a sequence, best first, as positions on the packed axis with t moved to the front."""
    t = torch.arange(ranking.shape[1])[:, None]
    ranking = (ranking + starts[:, None]).where(ranking >= 0, -1)
    order = (ranking != t).int().argsort(dim=-1, stable=True)
    return ranking.gather(-1, order)
