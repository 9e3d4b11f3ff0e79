"""Claims 4, 6, 7, 8 and 9: what residual schemes with several streams do at initialisation and over depth."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

import kernels
from experiments.bench import timing
from experiments.bench.model_steps import TrainingStep, make_model, random_tokens
from experiments.configuration.schema import Config
from experiments.evidence import measure
from experiments.evidence.numbers import Number, bounded, exact, in_turns, near, paired, sampled
from experiments.evidence.rotations import LAYERS, STREAMS, product
from zoo import LanguageModel, ModelConfig, cost
from zoo.config import from_dict
from zoo.interfaces import set_step
from zoo.probes.measure import matrix_norms

VOCABULARY, LENGTH = 64, 32
LATE = 10**6
"""An optimiser step after every warm-up."""


def model(
    scheme: str = "add", depth: int = 4, dtype: torch.dtype = torch.float64, **options
) -> LanguageModel:
    """A small plain transformer in a residual scheme, in evaluation mode; the same weights for every scheme."""
    config = from_dict(ModelConfig, {"depth": depth, "residual": {"name": scheme, scheme: options}})
    made = LanguageModel(config, vocab_size=VOCABULARY, seq_len=LENGTH).to(dtype).eval()
    set_step(made, LATE)
    return made


def tokens() -> Tensor:
    """Random tokens [2, LENGTH], int64."""
    return torch.randint(VOCABULARY, (2, LENGTH))


@measure(4)
def gains_of_products() -> Iterator[Number]:
    """Both numbers that are called a gain, Amax and σ_max, of products of random maps over 60 layers."""
    raw = torch.randn(2 * LAYERS, 500, STREAMS, STREAMS, dtype=torch.float64)
    for name, project in (("mHC", kernels.sinkhorn), ("orthogonal", kernels.cayley)):
        norms = matrix_norms(product(project(raw)))
        yield sampled(f"σ_max of {name} products over {LAYERS} layers", norms["sigma_max"])
        yield sampled(f"Amax of {name} products over {LAYERS} layers", norms["amax"])


@measure(6)
def bytes_of_streams() -> Iterator[Number]:
    """Stream bytes a token and attention caches against the plain transformer's: mHC, SHC whole and of rank 1."""
    plain = model()
    made = {
        "mHC": model("mhc"),
        "whole streams": model("shc"),
        "streams of rank 1": model("shc", factorise=1),
    }
    for name, other in made.items():
        streams = cost.stream_bytes(other) / cost.stream_bytes(plain)
        yield exact(f"{name}: bytes between layers", streams, "times")
        caches = cost.state_bytes(other, 1024) / cost.state_bytes(plain, 1024)
        yield exact(f"{name}: bytes of the KV cache", caches, "times")


def gradient_ratio(made: LanguageModel) -> float:
    """The norm of the loss's gradient by the streams before the first layer over that after the last."""
    streams: list[Tensor] = []

    def keep(_module, arguments, output) -> None:
        for x in (arguments[0], output[0]):
            if x.requires_grad:
                x.retain_grad()
            streams.append(x)

    hooks = [layer.register_forward_hook(keep) for layer in (made.layers[0], made.layers[-1])]
    ids = tokens()
    logits, _ = made(ids)
    torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    for hook in hooks:
        hook.remove()
    return (streams[0].grad.norm() / streams[-1].grad.norm()).item()


def with_coefficients(made: LanguageModel, size: float) -> LanguageModel:
    """The model with random φ_res, so that the way through the coefficients has a gain; α and all else as they are."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name.endswith("phi_res"):
                parameter.copy_(
                    size * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
                )
    return made


COEFFICIENTS = 10.0
"""Standard deviation of φ_res beside α = 0.01: coefficients of about 1, as training at a high rate makes them."""


@measure(7)
def gradients_over_depth() -> Iterator[Number]:
    """Gradients over depth where H_res is a rotation for every x but depends on x: untrained, φ_res random.

    And the document's own bound, Π(1 + ‖H_post‖·‖∇F‖·‖H_pre‖) with its √n and 2√n, at ‖∇F‖ = 1.
    """
    for depth in (6, 12, 24):
        free = gradient_ratio(with_coefficients(model("ohc", depth, gain=None), COEFFICIENTS))
        # What makes the gradient grow makes its rounding grow: some hundred roundings, as much larger.
        room = max(1e-3, 100 * torch.finfo(torch.float64).eps * free)
        yield near(f"gradient, first over last streams, {depth} layers, no cap", free, "times", room)
        capped = gradient_ratio(with_coefficients(model("ohc", depth), COEFFICIENTS))
        yield near(f"gradient, first over last streams, {depth} layers, cap of 0.1", capped, "times")
    factor = 1 + (2 * STREAMS**0.5) * STREAMS**0.5
    yield exact("log10 of the document's bound at 48 layers", 96 * torch.log10(torch.tensor(factor)).item())


@measure(8)
def output_at_initialisation() -> Iterator[Number]:
    """Logits against the plain transformer's with the same weights, for both initialisations."""
    ids, plain = tokens(), model()
    with torch.no_grad():
        expected = plain(ids)[0]
        for init in ("seed", "identity"):
            made = model("ohc", init=init)
            made.load_state_dict(plain.state_dict(), strict=False)
            error = ((made(ids)[0] - expected).norm() / expected.norm()).item()
            name = f"relative difference from the plain residual, init: {init}"
            yield bounded(name, error, 1e-5) if init == "identity" else near(name, error)


@measure(9)
def overhead_of_streams() -> Iterator[Number]:
    """A training step with orthogonal hyper-connections over one without, in turns, processor time."""
    config = Config()
    config.data = dataclasses.replace(config.data, seq_len=256)
    steps = {}
    for scheme in ("add", "ohc"):
        chosen = from_dict(ModelConfig, {"d_model": 256, "depth": 2, "residual": {"name": scheme}})
        made = make_model(config, chosen, 256, timing.CPU)
        steps[scheme] = TrainingStep(config, made, random_tokens(config, 1, 256, timing.CPU))
    times = in_turns(steps, 11)
    yield paired("time of a training step with streams over one without", times["ohc"], times["add"])
