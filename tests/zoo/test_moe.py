"""`moe`: its definition token by token, balancing, what is never dropped, and options."""

import pytest
import torch
import torch.nn.functional as F
from support.contract_cases import SEQ_LEN, build, keys, tokens

import zoo
from zoo import Context, ModelConfig
from zoo.channels.moe import LoadBalance, MoE, MoEConfig
from zoo.interfaces import Dims, set_step

D = 12
DIMS = Dims(D, 2, seq_len=8, layer=0, depth=2)


def made(dtype: torch.dtype = torch.float64, **options) -> MoE:
    """A mixture with random weights."""
    module = MoE(MoEConfig(**options), DIMS)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
        module.balance.bias.copy_(0.1 * torch.randn(module.balance.bias.shape, generator=generator))
    return module.to(dtype)


def inputs(batch: int = 3, time: int = 7) -> torch.Tensor:
    return torch.randn(batch, time, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def context(x: torch.Tensor) -> Context:
    return Context.of(torch.zeros(x.shape[:2], dtype=torch.int64))


def one_token(m: MoE, x: torch.Tensor) -> torch.Tensor:
    """The definition, for x [D]."""
    c = m.config
    logits = m.router.weight @ x
    s = logits.exp() / logits.exp().sum() if c.scores == "softmax" else torch.sigmoid(logits)
    size, score = c.n_experts // c.groups, s + m.balance.bias
    groups = [sorted(range(g * size, (g + 1) * size), key=lambda e: -score[e]) for g in range(c.groups)]
    counted = 1 if c.scores == "softmax" else 2
    groups.sort(key=lambda group: -sum(score[e] for e in group[:counted]))
    experts = [e for group in groups[: c.top_groups] for e in group]
    chosen = sorted(experts, key=lambda e: -score[e])[: c.top_k]
    total = sum(s[e] for e in chosen) if c.top_k > 1 and c.renormalise else 1
    routed = sum(s[e] / total * (m.down[e] @ (F.silu(m.gate[e] @ x) * (m.up[e] @ x))) for e in chosen)
    return c.scale * routed + (m.shared(x)[0] if m.shared is not None else 0)


CASES = [
    {},
    {"n_experts": 5, "top_k": 3, "n_shared": 2, "hidden": 7, "scale": 2.5},
    {"top_k": 1, "n_shared": 0},
    {"n_experts": 4, "top_k": 4},
    {"n_experts": 1, "top_k": 1, "n_shared": 0},
    {"scores": "softmax"},
    {"scores": "softmax", "renormalise": False, "scale": 2.5, "top_k": 3},
    {"n_experts": 12, "groups": 4, "top_groups": 2, "top_k": 4},
    {"n_experts": 12, "groups": 4, "top_groups": 2, "top_k": 4, "scores": "softmax"},
    {"n_experts": 6, "groups": 6, "top_groups": 2},
]


@pytest.mark.parametrize("options", CASES, ids=str)
@torch.no_grad()
def test_moe_is_its_definition(options):
    m, x = made(**options), inputs()
    y, _ = m(x, context(x))
    for b in range(3):
        for t in range(7):
            torch.testing.assert_close(y[b, t], one_token(m, x[b, t]), rtol=0, atol=1e-12)


def test_the_bias_chooses_and_does_not_weigh():
    m, x = made(n_experts=4, top_k=4), inputs()
    before = m(x)[0]
    m.balance.bias += torch.tensor([0.0, 1.0, -3.0, 0.5])
    torch.testing.assert_close(m(x)[0], before)
    m = made(n_experts=4, top_k=2)
    before = m(x)[0]
    m.balance.bias += torch.tensor([0.0, 1.0, -3.0, 0.5])
    assert not torch.allclose(m(x)[0], before)


@torch.no_grad()
def test_a_token_uses_experts_of_open_groups_alone():
    """However low their biases are: what is closed is never chosen."""
    m = made(n_experts=12, groups=4, top_groups=2, top_k=6).train()
    m.balance.bias -= 5.0
    for token in inputs().flatten(0, 1):
        m.balance.counts.zero_()
        m(token.view(1, 1, D))
        used = m.balance.counts.nonzero().flatten() // 3
        assert used.unique(return_counts=True)[1].tolist() == [3, 3]


@pytest.mark.parametrize("top_k", [1, 2])
def test_the_router_has_a_gradient(top_k):
    m, x = made(top_k=top_k), inputs()
    m(x)[0].square().sum().backward()
    assert m.router.weight.grad.abs().max() > 1e-6


# Balance


def test_biases_follow_the_counts_of_all_micro_batches():
    balance = LoadBalance(4, rate=0.01)
    balance.count(torch.tensor([5, 1, 1, 1]))
    balance.count(torch.tensor([5, 3, 0, 0]))
    balance.set(1, 10)
    torch.testing.assert_close(balance.bias, torch.tensor([-0.01, 0.0, 0.01, 0.01]))
    assert (balance.step, balance.total) == (1, 10)
    balance.set(2, 10)
    torch.testing.assert_close(balance.bias, torch.tensor([-0.01, 0.0, 0.01, 0.01]))


def test_only_training_counts_and_only_a_step_changes_the_output():
    m, x = made(), inputs()
    m.eval()(x)
    assert not m.balance.counts.any()
    m.train()
    first = m(x)[0]
    assert m.balance.counts.sum() == 3 * 7 * 2
    assert torch.equal(m(x)[0], first)
    set_step(m, 1)
    assert not m.balance.counts.any()
    assert m.balance.bias.dtype == torch.float64


@pytest.mark.slow
@torch.no_grad()
def test_balancing_evens_out_a_skewed_router():
    m, x = made(n_experts=8, top_k=2, balance_rate=0.01), inputs(8, 64)
    m.balance.bias.zero_()
    x[..., 0], m.router.weight[0, 0] = 3.0, 2.0  # everyone's favourite

    def imbalance() -> float:
        m(x)
        load = m.balance.counts.double()
        return (load.max() / load.mean()).item()

    before = imbalance()
    for step in range(200):
        set_step(m, step)
        after = imbalance()
    assert before > 3
    assert after < 1.3


def test_the_balance_is_part_of_an_exported_model(tmp_path):
    config = ModelConfig(pattern="F", depth=1, d_model=32, n_heads=4)
    config.channel.name = "moe"
    model = build(config, dtype=torch.float32).train()
    batch = tokens(2, SEQ_LEN)
    model(batch)
    set_step(model, 1)
    model(batch)
    loaded = zoo.load(zoo.export(model, tmp_path / "model"))
    for name in ("bias", "counts"):
        assert torch.equal(
            getattr(loaded.layers[0].channel.balance, name), getattr(model.layers[0].channel.balance, name)
        )
    assert model.layers[0].channel.balance.counts.any()
    assert model.layers[0].channel.balance.bias.any()


@torch.no_grad()
def test_the_balance_loss_is_per_sequence():
    """E·Σ f·p: 1 when balanced, E when one expert takes all of a confident router; a mean over sequences."""
    m, x = made(n_experts=4, top_k=1, n_shared=0), inputs()
    losses = [m(row[None], context(row[None]))[1]["expert_balance"] for row in x]
    torch.testing.assert_close(m(x, context(x))[1]["expert_balance"], torch.stack(losses).mean())
    s = torch.sigmoid(x[0] @ m.router.weight.T)
    p = (s / s.sum(-1, keepdim=True)).mean(0)
    f = F.one_hot((s + m.balance.bias).argmax(-1), 4).double().mean(0)
    torch.testing.assert_close(losses[0], 4 * (f * p).sum())
    m.router.weight.zero_()
    assert m(x, context(x))[1]["expert_balance"].item() == pytest.approx(1)


def test_the_balance_loss_is_optional_and_always_measured():
    config = ModelConfig(pattern="F", depth=1, d_model=32, n_heads=4)
    config.channel.name = "moe"
    batch = tokens(2, SEQ_LEN)
    for weight in (0.0, 0.1):
        config.channel.moe.aux_weight = weight
        model = build(config)
        _, aux = model(batch, Context.of(batch, noise_keys=keys(2)))
        assert model.aux_weights == {"expert_balance": weight}
        assert model.aux_loss(aux).item() == pytest.approx(weight * aux["expert_balance"].item())


# Parts and options


def test_autocast_runs_the_experts_in_16_bits_and_the_router_in_32():
    m, x = made(torch.float32), inputs().float()
    wanted = m(x)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, aux = m(x, context(x))
    assert y.dtype == torch.bfloat16
    assert aux["expert_balance"].dtype == torch.float32
    torch.testing.assert_close(y.float(), wanted, rtol=0, atol=0.05 * wanted.abs().max().item())


def _count_and_step(rank: int, folder: str) -> None:
    """What one of two processes does in the test below."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    balance = LoadBalance(3, rate=0.5)
    balance.count(torch.tensor([[9, 0, 0], [0, 8, 4]][rank]))
    balance.set(1, 1)
    torch.save(balance.bias, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.long
def test_counts_are_added_up_over_processes(tmp_path):
    """[9, 8, 4] together: alone, the two would have moved apart."""
    torch.multiprocessing.spawn(_count_and_step, (str(tmp_path),), nprocs=2)
    for rank in (0, 1):
        assert torch.load(tmp_path / f"{rank}.pt").tolist() == [-0.5, -0.5, 0.5]
