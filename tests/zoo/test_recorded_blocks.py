"""What every registered block computes and costs, with its defaults and with every option at other values.

A recording a block, beside this file. Without one a new block is not compared; `--record` writes it.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import recorded
from support.block_options import (
    SEQ_LEN,
    VOCAB,
    alternatives,
    config,
    options,
    out_of_range,
    recorded_blocks,
    refusal,
)
from support.formula import checksum, fill, shape, uniform, whole
from support.margins import below
from torch import nn
from torch.overrides import TorchFunctionMode

from experiments.configuration.compose import architectures
from zoo import LanguageModel, ModelConfig, cost, registry
from zoo.config import architecture_of
from zoo.context import Context
from zoo.interfaces import grouped_parameters, set_step
from zoo.model import on_meta

FOLDER = Path(__file__).parent / "recorded" / "blocks"
CUTS = torch.tensor([0, 5, 6, 32], dtype=torch.int32)
PROMPT = 23


def model_of(made: ModelConfig, step: int = 2) -> LanguageModel:
    """A model from the formula in the middle of its warm-ups, past GSA's and within that of α."""
    model = fill(LanguageModel(made, vocab_size=VOCAB, seq_len=SEQ_LEN))
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point() and name.endswith("bias"):
            buffer.copy_(0.1 * uniform(name, *buffer.shape))
    set_step(model, step, 20)
    return model


def tokens(batch: int) -> torch.Tensor:
    return whole("tokens", VOCAB, batch, SEQ_LEN)


def costs(made: ModelConfig, changed: dict[str, Any]) -> Iterator[str]:
    meta = on_meta(made, vocab_size=VOCAB, seq_len=SEQ_LEN)
    yield f"parameters {cost.parameters(meta)}, beside the embedding {cost.parameters_non_embedding(meta)}"
    if not all(isinstance(value, float) for value in changed.values()) or not changed:
        yield f"FLOPs a token at 32 tokens {recorded.number(cost.flops_per_token(meta, SEQ_LEN))}"
    if not changed:
        yield f"at 64 tokens {recorded.number(cost.flops_per_token(meta, 2 * SEQ_LEN))}"
        both = cost.flops_per_token(meta, SEQ_LEN, backward=True)
        yield f"with a backward at 32 tokens {recorded.number(both)}"
    sizes = [cost.state_bytes(meta, length) for length in (0, 1, 17, 64)]
    yield f"bytes of state after 0, 1, 17 and 64 tokens: {sizes}; of streams {cost.stream_bytes(meta)}"


def groups(model: LanguageModel) -> Iterator[str]:
    """A line for each kind of treatment by the optimiser: its parameters."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    found: dict[tuple, list[str]] = {}
    for parameter, group, decays in grouped_parameters(model):
        found.setdefault((group.clip, group.lr_scale, decays), []).append(names[parameter])
    for (clip, lr_scale, decays), members in found.items():
        yield f"group {clip}, rate {lr_scale}, {'decays' if decays else 'no decay'}: {', '.join(members)}"


def evaluated(model: LanguageModel) -> Iterator[str]:
    """Logits of whole sequences and of packed ones; decoding in any chunks gives the same."""
    model.eval()
    with torch.no_grad():
        batch = tokens(2)
        logits, aux = model(batch)
        packed, _ = model(batch[:1], Context.of(batch[:1], CUTS))
    yield f"logits {recorded.number(checksum(logits))}, packed {recorded.number(checksum(packed))}"
    yield from (f"loss {name} {recorded.number(value)}" for name, value in aux.items())
    state, decoded = model.init_state(2), []
    for part in (batch[:, :PROMPT], batch[:, PROMPT:-2], batch[:, -2:-1], batch[:, -1:]):
        read, state = model.extend(part, state, every=True)
        decoded.append(read)
    below((torch.cat(decoded, 1) - logits).abs().max() / logits.abs().max(), 1e-9, "decoding")


def trained(model: LanguageModel, own: str) -> Iterator[str]:
    """Logits, losses and gradients of a training step with noise; own: part of the names that are shown one by one."""
    model.train()
    batch = tokens(2)
    logits, aux = model(batch, Context.of(batch, noise_keys=torch.tensor([7, 8])))
    yield f"in training {recorded.number(checksum(logits))}"
    for name, value in aux.items():
        yield f"loss {name} {recorded.number(value.detach())}, weight {recorded.number(model.aux_weights[name])}"
    (checksum_of(logits) + model.aux_loss(aux)).backward()
    others = 0.0
    for name, parameter in model.named_parameters():
        gradient = None if parameter.grad is None else checksum(parameter.grad)
        if own in name or gradient is None:
            shown = "none" if gradient is None else recorded.number(gradient)
            yield f"{name.removeprefix('layers.0.')} {shape(parameter)} gradient {shown}"
        else:
            others += gradient
    yield f"gradients of all others {recorded.number(others)}"


def checksum_of(logits: torch.Tensor) -> torch.Tensor:
    return (logits * uniform("gradient", *logits.shape)).mean()


def collected(kind: str, name: str) -> Iterator[str]:
    own = {"mixer": "mixer.", "channel": "channel.", "residual": "residual."}[kind]
    shown: set[str] = set()
    for changed in cases(kind, name):
        made = config(kind, name, **changed)
        title = ", ".join(f"{option}={value}" for option, value in changed.items()) or "defaults"
        yield f"== {title}"
        yield from costs(made, changed)
        if kind == "residual":
            made.depth = 2
        model = model_of(made)
        yield from fresh(groups(model), shown)
        yield from evaluated(model)
        yield from trained(model, own)
    yield "== defaults, before the first step"
    yield from trained(model_of(config(kind, name), step=0), own)
    yield "== out of range"
    for option, value in out_of_range(kind, name):
        yield f"{option}={value}: {refusal(kind, name, **{option: value}) or 'taken'}"


def cases(kind: str, name: str) -> Iterator[dict[str, Any]]:
    """Nothing changed; each of the block's own options; and all at once that `hc` shows one by one."""
    yield {}
    elsewhere = {field.name for field in options("residual", "hc")} if kind == "residual" else set()
    together: dict[str, Any] = {}
    for option, value in alternatives(kind, name):
        if option in elsewhere and name != "hc":
            together.setdefault(option, value)
        else:
            yield {option: value}
    if together:
        yield together


def fresh(lines: Iterator[str], shown: set[str]) -> Iterator[str]:
    """Lines that have not been shown before."""
    for line in lines:
        if line not in shown:
            shown.add(line)
            yield line


DAILY = ("kda", "gsa", "ohc", "moe")
BLOCKS = [
    pytest.param(kind, name, marks=[] if name in DAILY else [pytest.mark.long], id=f"{kind}-{name}")
    for kind, name in recorded_blocks(FOLDER)
]


@pytest.mark.parametrize(("kind", "name"), BLOCKS)
def test_every_option_of_a_block_does_and_costs_what_it_did(kind, name):
    recorded.check(FOLDER / f"{kind}-{name}.txt", collected(kind, name), relative=1e-5)


def test_every_block_of_the_architectures_is_recorded():
    """A stranger's block has no recording until it is written; ours may not lose theirs."""
    made = architectures(dataclasses.replace(ModelConfig(), depth=16)).values()
    used = {("mixer", mixer.block.name) for model in made for mixer in architecture_of(model).kinds}
    used |= {(kind, getattr(model, kind).name) for model in made for kind in ("residual", "channel")}
    assert used <= set(recorded_blocks(FOLDER))


class Drawn(TorchFunctionMode):
    """Notes what `torch.nn.init` was last asked for, by the tensor that it fills."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[int, str] = {}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if getattr(function, "__module__", None) == "torch.nn.init":
            tensor = kwargs["tensor"] if "tensor" in kwargs else args[0]
            given = [x for x in args[1:] if isinstance(x, float)]
            given += [x for x in kwargs.values() if isinstance(x, float)]
            name = function.__name__.strip("_")
            self.last[id(tensor)] = f"{name} {' '.join(map(recorded.number, given))}".strip()
        return result


def start(model: nn.Module, drawn: Drawn) -> Iterator[str]:
    """How each parameter and buffer starts: its numbers where few differ, else what draws it."""
    for name, x in [*model.named_parameters(), *model.named_buffers()]:
        values = x.detach().double().flatten()
        if values.numel() and len(values.unique()) <= 9 and x.dim() < 3:
            shown = str([recorded.number(value) for value in values.tolist()[:16]])
        else:
            shown = drawn.last.get(id(x), "drawn in place")
        yield f"{name} {shape(x)}: {shown}"


RESIDUAL = ("embedding", "head", "norm", "streams", "layers.0.mixer_")


@pytest.mark.parametrize("kind", registry.KINDS)
def test_every_block_starts_as_it_did(kind):
    lines: list[str] = []
    for name in registry.blocks(kind):
        if not (FOLDER / f"{kind}-{name}.txt").exists() and not recorded.recording:
            continue
        with Drawn() as drawn:
            model = LanguageModel(
                dataclasses.replace(config(kind, name), tie_embeddings=False, depth=3),
                vocab_size=VOCAB,
                seq_len=SEQ_LEN,
            )
        own = {"mixer": "layers.0.mixer.", "channel": "layers.0.channel.", "residual": RESIDUAL}[kind]
        lines += [f"== {name}", *(line for line in start(model, drawn) if line.startswith(own))]
    recorded.check(FOLDER.parent / f"starts-{kind}.txt", lines)
