"""What F, L, P, G and S show a probe: maps, gates and selections that explain the mixer's own output."""

import pytest
import torch
from support.contract_cases import boundaries, randomised
from torch import Tensor

from zoo import Context, registry
from zoo.interfaces import Dims
from zoo.modules import NORM_EPS
from zoo.probes import Probe, ProbeEvent

WIDTH, HEADS, TIME = 32, 4, 7  # a head is wider than there are tokens, so values tell all weights apart


def build(name: str, **options):
    """A mixer of wholly random weights in fp64."""
    block = registry.get("mixer", name)
    return randomised(block.cls(block.config(**options), Dims(WIDTH, HEADS, 16, 0, 1)))


def inputs(batch: int = 2, time: int = TIME) -> Tensor:
    return torch.randn(batch, time, WIDTH, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def look(mixer, x: Tensor, cu_seqlens: Tensor | None = None) -> tuple[Tensor, dict[str, dict[str, Tensor]]]:
    """The output, and what was shown by kind."""
    seen: list[ProbeEvent] = []
    probe = Probe(seen.append, place={"layer": 0, "part": "mixer"})
    y, _ = mixer(x, Context.of(x[..., 0], cu_seqlens, probe=probe))
    assert len({event.kind for event in seen}) == len(seen), "a kind was shown twice"
    return y, {event.kind: event.values for event in seen}


def by_head(x: Tensor, heads: int = HEADS) -> Tensor:
    """[B, T, heads·K] -> [B, H, T, K]: query head h reads head ⌊h·heads/H⌋."""
    return x.unflatten(-1, (heads, -1)).repeat_interleave(HEADS // heads, 2).transpose(1, 2)


def sigmoid_gate(gate, x: Tensor) -> Tensor:
    return 1 / (1 + (-(x @ gate.weight.T + gate.bias)).exp())


def values(mixer, x: Tensor) -> Tensor:
    """v [B, H, T, K], by hand."""
    if hasattr(mixer, "v_up"):
        c = x @ mixer.kv_down.weight.T
        c = c / (c.square().mean(-1, keepdim=True) + NORM_EPS).sqrt() * mixer.kv_norm.weight
        return by_head(c @ mixer.v_up.weight.T)
    v = x @ mixer.v_proj.weight.T
    if getattr(mixer, "value_gate", None) is not None:
        v = v * sigmoid_gate(mixer.value_gate, x)
    return by_head(v, getattr(mixer, "kv_heads", HEADS))


def route_weight(mixer, x: Tensor) -> Tensor:
    """p_first / (p_first + p_second) of every head, [B, T, H, 1]."""
    logits = (x @ mixer.route.weight.T).unflatten(-1, (HEADS, -1)) / mixer.temperature
    first, second = logits.sort(-1, descending=True).values[..., :2].unbind(-1)
    return (first.exp() / (first.exp() + second.exp())).unsqueeze(-1)


def output(mixer, x: Tensor, weights: Tensor) -> Tensor:
    """What the mixer's output has to be if these are its weights."""
    o = (weights @ values(mixer, x)).transpose(1, 2)
    if hasattr(mixer, "route"):
        o = o * route_weight(mixer, x)
    o = o.flatten(-2)
    if getattr(mixer, "output_gate", None) is not None:
        o = o * sigmoid_gate(mixer.output_gate, x)
    return o @ mixer.o_proj.weight.T


CASES = {
    "attention": ("attention", {}),
    "window": ("attention", {"window": 3, "qk_norm": True, "n_kv_heads": 2}),
    "gates": ("attention", {"output_gate": True, "value_gate": True, "n_kv_heads": 2}),
    "mla": ("mla", {}),
    "path_fox": ("path_fox", {"n_kv_heads": 2}),
    "plain_path": ("path_fox", {"householder": False, "forget_gate": False}),
    "gsa_warmup": ("gsa", {"warmup": 10, "n_kv_heads": 2}),
    "gsa": ("gsa", {"warmup": 0, "k_base": 3}),
    "hypergraph": ("hypergraph", {"n_timelines": 3}),
    "nsa": ("nsa", {"n_kv_heads": 2, "n_select": 3}),
}


@pytest.mark.parametrize("case", [case for case in CASES if case != "nsa"])
def test_weights_explain_the_output(case):
    name, options = CASES[case]
    mixer, x = build(name, **options), inputs()
    y, shown = look(mixer, x)
    torch.testing.assert_close(output(mixer, x, shown["attention"]["weights"]), y, rtol=1e-9, atol=1e-9)
    assert torch.equal(y, mixer(x, Context.of(x[..., 0]))[0]), "looking changed the output"


@pytest.mark.parametrize("case", CASES)
def test_maps_are_causal_sum_to_one_and_stay_inside_packed_sequences(case):
    name, options = CASES[case]
    mixer, x = build(name, **options), inputs(batch=1, time=20)
    x = x[:, :17]
    _, packed = look(mixer, x, boundaries(11, 6))
    apart = [look(mixer, part)[1] for part in (x[:, :11], x[:, 11:])]
    for kind, tensors in packed.items():
        for key in tensors if kind in ("attention", "selection") else ():
            wanted = [shown[kind][key][0] for shown in apart]
            whole = torch.stack([torch.block_diag(*pair) for pair in zip(*wanted, strict=True)])
            torch.testing.assert_close(tensors[key][0], whole.to(tensors[key].dtype))
    weights = packed["attention"]["weights"]
    assert weights.shape == (1, HEADS, 17, 17)
    assert not weights.triu(1).any()
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


def test_gates_are_shown_by_head_and_only_where_they_are():
    x = inputs()
    assert "gates" not in look(build("attention"), x)[1]
    for name in ("attention", "gsa"):
        mixer = build(name, output_gate=True, value_gate=True, n_kv_heads=2)
        gates = look(mixer, x)[1]["gates"]
        assert {key: tuple(gate.shape) for key, gate in gates.items()} == {
            "output": (2, TIME, HEADS, 8),
            "value": (2, TIME, 2, 8),
        }
        for key, gate in gates.items():
            wanted = sigmoid_gate(getattr(mixer, f"{key}_gate"), x)
            torch.testing.assert_close(gate.flatten(-2), wanted)
    assert list(look(build("attention", value_gate=True), x)[1]["gates"]) == ["value"]


def test_gsa_shows_what_it_selects_from_what():
    """The sparse map is the dense one, cut to the selection and renormalised; the warm-up shows the dense one."""
    x = inputs()
    mixer = build("gsa", warmup=0, k_base=3, adaptive="none")
    shown = look(mixer, x)[1]
    selected, dense, weights = *shown["selection"].values(), shown["attention"]["weights"]
    assert selected.dtype == torch.bool
    assert selected.sum(-1).tolist() == [[[min(3, t + 1) for t in range(TIME)]] * HEADS] * 2
    cut = dense * selected
    torch.testing.assert_close(weights, cut / cut.sum(-1, keepdim=True))

    warm = build("gsa", warmup=10, k_base=3)
    assert not warm.load_state_dict(mixer.state_dict(), strict=False).missing_keys
    warm.warmup.set(0, 1000)
    _, before = look(warm, x)
    assert "selection" not in before, "nothing is selected while attention is dense"
    torch.testing.assert_close(before["attention"]["weights"], dense)


def test_hypergraph_shows_its_routes():
    x = inputs()
    mixer = build("hypergraph", n_timelines=3, temperature=0.5)
    shown = look(mixer, x)[1]
    logits = (x @ mixer.route.weight.T).unflatten(-1, (HEADS, 3)) / 0.5
    routing = shown["routing"]
    torch.testing.assert_close(routing["probabilities"], logits.exp() / logits.exp().sum(-1, keepdim=True))
    assert torch.equal(routing["choices"], logits.argmax(-1, keepdim=True))
    assert not routing["probabilities"].requires_grad
    timeline = routing["choices"][..., 0].transpose(1, 2)
    together = (timeline[..., :, None] == timeline[..., None, :]).tril()
    assert torch.equal(shown["attention"]["weights"] > 0, together)


def test_maps_are_at_least_fp32_under_autocast():
    for case in ("attention", "nsa", "gsa"):
        name, options = CASES[case]
        mixer, x = build(name, **options).float(), inputs().float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            weights = look(mixer, x)[1]["attention"]["weights"]
        assert weights.dtype == torch.float32
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]), rtol=1e-5, atol=1e-5)
