"""zoo.convert: a model of full attention goes on as gated sparse attention, in one stream or several, unchanged."""

import pytest
import torch
from support.published import VOCAB

import zoo
from zoo import UserError
from zoo.config import ModelConfig, from_dict
from zoo.interfaces import set_step
from zoo.pretrained import converted

QWEN = {"qk_norm": True, "n_kv_heads": 2, "head_width": 16, "rope_base": 5e3}


def source(pattern: str = "FF", **options) -> zoo.LanguageModel:
    """A Qwen3-shaped model, its weights moved far enough from their start that every term counts."""
    mixers, more = {"attention": {**QWEN, **options.pop("attention", {})}}, {"d_model": 32, **options}
    config = from_dict(ModelConfig, {"pattern": pattern, "depth": None, "mixers": mixers, **more})
    model = zoo.LanguageModel(config, vocab_size=VOCAB, seq_len=64)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=generator))
    return model


def like(residual: str = "ohc", init: str | None = None, **gsa) -> ModelConfig:
    scheme = {"name": residual} | ({} if init is None else {residual: {"init": init}})
    return from_dict(ModelConfig, {"pattern": "G", "residual": scheme, "mixers": {"gsa": gsa}})


def off(model: zoo.LanguageModel, wanted: zoo.LanguageModel) -> float:
    tokens = torch.randint(VOCAB, (2, 50), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        logits, those = (m.eval()(tokens)[0] for m in (model, wanted))
    return float((logits - those).norm() / those.norm())


@pytest.mark.parametrize("residual", ["add", "ohc", "hc", "mhc", "identity"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"attention": {"qkv_bias": True, "n_kv_heads": None, "rope_dim": 8}, "tie_embeddings": False},
        {
            "pattern": "{near}FK",
            "attention": {"output_gate": True},
            "variants": {"near": {"mixer": "attention", "window": 5, "sinks": "learned"}},
        },
    ],
    ids=["qwen3", "biases", "mixed"],
)
def test_the_first_forward_is_the_sources_to_the_last_digits(residual, options):
    plain = source(**options).double()
    model = zoo.convert(plain, converted(plain.config, like(residual)), seed=3)
    assert model.letters == plain.letters.replace("F", "G")
    assert off(model, plain) < 1e-12
    set_step(model, 100, 100)  # the warm-up is over, and few tokens are read
    assert off(model, plain) > 1e-3


def test_a_new_gate_is_constant_and_all_that_is_new_can_learn():
    plain = source()
    model = zoo.convert(plain, converted(plain.config, like())).train()
    tokens = torch.randint(VOCAB, (2, 40))
    (nats, *_), aux = model(tokens, targets=tokens)
    (nats / 80 + model.aux_loss(aux)).backward()
    new = [n for n, _ in model.named_parameters() if n not in dict(plain.named_parameters())]
    assert {n.split(".")[3] for n in new if ".mixer." in n} == {"indexer", "output_gate", "value_gate"}
    still = [n for n, p in model.named_parameters() if n in new and not (p.grad is not None and p.grad.any())]
    assert {n.rpartition(".")[2] for n in still} <= {"phi_res", "phi_pre", "phi_post", "alpha", "b_res"}
    gate = model.layers[0].mixer.output_gate
    assert not torch.cat([gate.weight.flatten(), gate.bias]).any()


def test_a_converted_configuration_converts_to_itself_and_its_model_to_an_equal_one():
    plain = source()
    config = converted(plain.config, like("ohc", index_heads=2))
    assert converted(plain.config, config) == config
    assert (config.mixers.gsa.index_heads, config.mixers.gsa.qk_norm, config.n_heads) == (2, True, 4)
    model = zoo.convert(plain, config)
    again = zoo.convert(model, config, seed=7)
    assert all(torch.equal(x, again.state_dict()[name]) for name, x in model.state_dict().items())


@pytest.mark.parametrize(
    ("plain", "wanted", "said"),
    [
        ({"pattern": "CK"}, {}, "CK has no full attention"),
        ({"attention": {"window": 5}}, {}, "its attention has a window"),
        ({"attention": {"positions": "none"}}, {}, "its attention has no rotary positions"),
        ({"residual": {"name": "hc"}}, {}, "it has residual.name=hc, and only one stream"),
        ({}, {"warmup": 0}, "gsa.warmup=0 would begin with sparse attention"),
        ({}, {"residual": "shc"}, "residual.name=shc as it is set would begin 0.0"),
        ({}, {"init": "seed"}, "residual.name=ohc as it is set would begin"),
    ],
)
def test_what_has_no_such_counterpart_is_refused_in_one_line(plain, wanted, said):
    model = source(**plain)
    with pytest.raises(UserError) as caught:
        zoo.convert(model, converted(model.config, like(**wanted)))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
