"""Contracts of probing, for every registered block: it changes nothing, and switched off it is not there at all."""

import ast
import dataclasses
import sys
import types
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from support import bare_zoo
from support.contract_cases import (
    HEADS,
    SEQ_LEN,
    VOCAB,
    WIDTH,
    boundaries,
    build,
    every_case,
    fast_for_mixers,
    gradients,
    keys,
    tokens,
)
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import zoo
from zoo import Context, LanguageModel, ModelConfig
from zoo.probes import Probe, ProbeEvent, probe_model

FOLDER = Path(zoo.__file__).parent
CU_SEQLENS = boundaries(7, 1, 9, 2)
MIXED = ModelConfig(pattern="K", depth=1, d_model=WIDTH, n_heads=HEADS)
MIXED.channel.name, MIXED.residual.name = "moe", "mhc"


def training_step(model: LanguageModel, cu_seqlens: Tensor | None, probe: Probe | None) -> dict[str, Tensor]:
    """All that a step leaves behind, with noise and in training mode: results, gradients, buffers, random numbers."""
    model.train().norm.eval()  # a mode of its own, to be left alone
    batch = tokens(2 if cu_seqlens is None else 1, 19)
    n = 2 if cu_seqlens is None else len(cu_seqlens) - 1
    torch.manual_seed(0)
    logits, aux = model(batch, Context.of(batch, cu_seqlens, keys(n), probe))
    loss = F.cross_entropy(logits.flatten(0, 1), tokens(*batch.shape, seed=1).flatten())
    modes = torch.tensor([module.training for module in model.modules()])
    left = {"logits": logits, **aux, **gradients(model, loss + model.aux_loss(aux)), **model.state_dict()}
    return {**left, "modes": modes, "generator": torch.get_rng_state()}


def assert_probing_changes_nothing(config: ModelConfig, cu_seqlens: Tensor | None) -> None:
    events: list[ProbeEvent] = []
    alone = training_step(build(config), cu_seqlens, None)
    probed = training_step(build(config), cu_seqlens, Probe(events.append))
    parts = [event.part for event in events if event.kind == "streams"]
    assert parts == ["mixer", "channel", "head"]  # it did look
    assert alone.keys() == probed.keys()
    for name, value in alone.items():
        assert torch.equal(value, probed[name]), name


@every_case
@pytest.mark.parametrize("cu_seqlens", [None, CU_SEQLENS], ids=["plain", "packed"])
def test_probing_changes_no_bit(case, cu_seqlens):
    assert_probing_changes_nothing(case.config(depth=1), cu_seqlens)


def test_a_probe_that_draws_random_numbers_would_be_noticed(monkeypatch):
    forward = zoo.model.Layer.forward

    def noisy(self, x, ctx):
        ctx.at(part="mixer").record("gates", lambda: {"output": torch.rand(3)})
        return forward(self, x, ctx)

    monkeypatch.setattr(zoo.model.Layer, "forward", noisy)
    with pytest.raises(AssertionError, match="generator"):
        assert_probing_changes_nothing(MIXED, None)


@torch.no_grad()
def test_measuring_leaves_the_model_as_it_was():
    model = build(ModelConfig(pattern="KMOF", depth=4, d_model=12, n_heads=2)).train()
    model.layers[1].eval()
    before = [module.training for module in model.modules()]
    torch.manual_seed(0)
    generator, state = torch.get_rng_state(), {k: v.clone() for k, v in model.state_dict().items()}
    probe_model(model, tokens(2, 9))
    assert [module.training for module in model.modules()] == before
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


class Operations(TorchDispatchMode):
    """Every operation that PyTorch runs, with the shapes of its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        shapes = [tuple(x.shape) for x in args if isinstance(x, Tensor)]
        self.seen.append(f"{func} {shapes}")
        return func(*args, **(kwargs or {}))


def without_probes(config: ModelConfig) -> tuple[torch.nn.Module, type]:
    """The same model, and the class of its context, from the sources without probing."""
    package = bare_zoo.load(FOLDER)
    config = package.config.from_dict(package.ModelConfig, dataclasses.asdict(config))
    return package.LanguageModel(config, vocab_size=VOCAB, seq_len=SEQ_LEN), package.Context


def with_probes(config: ModelConfig) -> tuple[torch.nn.Module, type]:
    return LanguageModel(config, vocab_size=VOCAB, seq_len=SEQ_LEN), Context


def operations(model: torch.nn.Module, context: type) -> list[str]:
    """What a training step's forward pass runs, the second time: tables that are kept are made in the first."""
    batch = tokens(2, 9)
    model.train()(batch, context.of(batch, None, keys(2)))
    with Operations() as mode:
        model(batch, context.of(batch, None, keys(2)))
    return mode.seen


def graphs(model: torch.nn.Module, context: type) -> list[list[str]]:
    """The nodes of the graphs that torch.compile captures of it."""
    captured, batch = [], tokens(2, 9)

    def keep(whole: torch.fx.GraphModule, inputs: list[Tensor]):
        parts = [part for part in whole.modules() if isinstance(part, torch.fx.GraphModule)]
        captured.extend(nodes(part.graph) for part in parts)
        return whole.forward

    torch._dynamo.reset()
    torch.compile(model.train(), backend=keep)(batch, context.of(batch, None, keys(2)))
    return captured


def nodes(graph: torch.fx.Graph) -> list[str]:
    """Every node with its arguments, nodes called by their places.

    Their own names come from local variables, but not from those that a lambda reads, so that they say nothing.
    """
    place = {node: f"%{i}" for i, node in enumerate(graph.nodes)}
    lines = []
    for node in graph.nodes:
        what = "" if node.op == "placeholder" else node.target
        lines.append(f"{node.op} {what} {torch.fx.map_arg((node.args, node.kwargs), place.get)}")
    return lines


@every_case
def test_without_a_probe_the_same_operations_run_as_without_the_code(case):
    wanted = operations(*without_probes(case.config(depth=1)))
    assert len(wanted) > 20
    assert operations(*with_probes(case.config(depth=1))) == wanted


@pytest.mark.long
def test_without_a_probe_the_graph_is_that_without_the_code():
    wanted = graphs(*without_probes(MIXED))
    assert sum(map(len, wanted)) > 300
    assert graphs(*with_probes(MIXED)) == wanted


@pytest.mark.long
@fast_for_mixers
def test_without_a_probe_every_graph_is_that_without_the_code(case):
    config = case.config(depth=1)
    assert graphs(*with_probes(config)) == graphs(*without_probes(config))


@pytest.mark.slow
def test_what_is_computed_for_a_probe_alone_would_be_noticed(monkeypatch):
    source = (FOLDER / "model.py").read_text()
    lazy, eager = "lambda: {", 'lambda: {"squares": squares, '
    place = 'inside.record("streams", ' + lazy
    wasteful = source.replace(place, "squares = u.square()\n        " + place.replace(lazy, eager))
    assert wasteful != source
    assert ast.dump(bare_zoo.strip(wasteful)) == ast.dump(bare_zoo.strip(source))
    made = types.ModuleType("wasteful_model")
    # Dataclasses look up their module, and the compiler what its functions name.
    monkeypatch.setitem(sys.modules, made.__name__, made)
    exec(wasteful, made.__dict__)
    monkeypatch.setattr(zoo.model.Layer, "forward", made.Layer.forward)
    config = ModelConfig(pattern="C", depth=1, d_model=8, n_heads=1)
    for look in (operations, graphs):
        assert look(*with_probes(config)) != look(*without_probes(config))


@pytest.mark.slow
def test_stripping_takes_out_all_that_looks_at_a_probe():
    for path in FOLDER.rglob("*.py"):
        if "probes" not in path.parts and path.name != "context.py":
            text = ast.unparse(bare_zoo.strip(path.read_text()))
            calls = [line for line in text.splitlines() if ".record(" in line and "def _record" not in line]
            assert not calls, f"{path}: {calls}"
