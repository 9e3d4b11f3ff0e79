"""The channel mixer `mlp`: its definition, element by element, its size, its start and its options."""

import math

import pytest
import torch
from support.contract_cases import randomised

from zoo import Dims, ModelConfig
from zoo.channels.mlp import MLP, MLPConfig
from zoo.config import from_dict
from zoo.matching import match_parameters
from zoo.model import on_meta

D = 6
ACT = {
    "gelu": lambda u: u * 0.5 * (1 + math.erf(u / math.sqrt(2))),
    "relu2": lambda u: max(u, 0.0) ** 2,
}


def mlp(**options) -> MLP:
    return randomised(MLP(MLPConfig(**options), Dims(D, 2, seq_len=8, layer=0, depth=2)))


def config(**options) -> ModelConfig:
    return from_dict(ModelConfig, {"channel": {"name": "mlp", "mlp": options}})


@pytest.mark.parametrize("activation", ACT)
@torch.no_grad()
def test_it_is_its_definition(activation):
    m = mlp(activation=activation, hidden=5)
    x = torch.randn(2, 3, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y, aux = m(x)
    assert aux == {}
    for b in range(2):
        for t in range(3):
            inner = [ACT[activation](float(u)) for u in m.up.weight @ x[b, t]]
            wanted = m.down.weight @ torch.tensor(inner, dtype=torch.float64)
            torch.testing.assert_close(y[b, t], wanted, rtol=0, atol=1e-12)


def test_gelu_is_the_default_and_the_exact_one():
    """The tanh approximation is off by 4e-4 near |u| = 2."""
    u = torch.linspace(-4, 4, 81, dtype=torch.float64)
    m = MLP(MLPConfig(hidden=1), Dims(1, 1, seq_len=8, layer=0, depth=1)).double()
    with torch.no_grad():
        m.up.weight.fill_(1.0)
        m.down.weight.fill_(1.0)
        y = m(u[:, None])[0][:, 0]
    wanted = torch.tensor([ACT["gelu"](float(value)) for value in u], dtype=torch.float64)
    torch.testing.assert_close(y, wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize("width", [48, 768])
def test_by_default_it_has_as_many_parameters_as_swiglu(width):
    def parameters(name: str) -> int:
        made = ModelConfig(d_model=width, n_heads=2, depth=1)
        made.channel.name = name
        model = on_meta(made, vocab_size=8, seq_len=8)
        return sum(p.numel() for p in model.layers[0].channel.parameters())

    assert parameters("mlp") == parameters("swiglu") == 8 * width**2


def test_matching_solves_its_width():
    assert match_parameters(config(), 64).channel.mlp.hidden == 264  # 3·176 = 2·264
