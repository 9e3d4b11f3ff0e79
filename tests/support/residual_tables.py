"""Synthetic tables of residual schemes, routers and recurrences, with numbers as of trained models."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from support import probe_tables
from support.probe_tables import measure

ROUTERS = [
    {"letter": letter, "name": name, "title": name, "family": "", "color": "#D55E00", "mask": mask}
    for letter, name, mask in (("S", "hypergraph", "timeline"), ("O", "mom", "memories"))
]
"""Blocks that route, as a summary describes them."""

SCHEMES = {"add": "#4D4D4D", "hc": "#CC6677", "mhc": "#88CCEE", "ohc": "#44AA99", "shc": "#117733"}
STREAMS = 4
SENTENCE = (
    "The river , which rises in the hills , flows south for 40 km \n before it meets the sea = at $ 5 a mile"
)
WORDS = (
    *("the", "of", ".", "and", "in", "to", "was", "@-@", "The", "=", "for", "on", "with"),
    *("river", "born", "hills", "1995", "played", "game", "song"),
)


def mixing(scheme: str, rng: np.random.Generator) -> np.ndarray:
    """A matrix [n, n] as the scheme allows it."""
    noise = rng.normal(size=(STREAMS, STREAMS))
    turns = [np.linalg.qr(np.eye(STREAMS) + 0.3 * rng.normal(size=noise.shape))[0] for _ in range(2)]
    doubly = np.exp(noise) + 2 * np.eye(STREAMS)
    for _ in range(20):
        doubly = doubly / doubly.sum(0)
        doubly = doubly / doubly.sum(1, keepdims=True)
    unbounded = np.eye(STREAMS) + 0.12 * np.abs(noise)
    return {
        "add": np.eye(1),
        "hc": unbounded,
        "mhc": doubly,
        "ohc": turns[0],
        "shc": 0.8 * turns[0] + 0.2 * turns[1],
    }[scheme]


def gains(prefix: str, matrix: np.ndarray, **place) -> Iterator[dict]:
    singular = np.linalg.svd(matrix, compute_uv=False)
    for rank, value in enumerate(singular):
        yield measure(f"{prefix}_sigma", value, axis="rank", start=rank, end=rank + 1, **place)
    amax = max(abs(matrix.sum(0)).max(), abs(matrix.sum(1)).max())
    for name, value in (("sigma_max", singular[0]), ("sigma_min", singular[-1]), ("amax", amax)):
        yield measure(f"{prefix}_{name}", value, **place)


def residual(scheme: str, depth: int, rng: np.random.Generator) -> Iterator[dict]:
    """Measures of a model's streams; the head comes after the last layer."""
    n, product = (1 if scheme == "add" else STREAMS), None
    for layer in range(depth + 1):
        for part in ("head",) if layer == depth else ("mixer", "channel"):
            place = {"layer": layer, "part": part}
            yield measure(
                "stream_gradient", 0.02 * np.exp(-2 * layer / depth) * rng.uniform(0.8, 1.2), **place
            )
            energies = np.cumsum(np.exp(-np.arange(n) * rng.uniform(1, 1.5) * (1 + 4 / (1 + layer))))
            for rank, energy in enumerate(energies / energies[-1], 1):
                yield measure("stream_energy", energy, axis="rank", start=0, end=rank, **place)
                error = max(0.0, 1 - energy) ** 0.5
                yield measure("stream_error", error, axis="rank", start=0, end=rank, **place)
            if part == "head":
                return
            yield measure("parameter_gradient", 0.1 * np.exp(-layer / depth) * rng.uniform(0.5, 2), **place)
            matrix = mixing(scheme, rng)
            product = matrix if product is None else matrix @ product
            yield from gains("h_res", matrix, **place)
            yield from gains("composite", product, **place)


def routing(
    layer: int, heads: int, choices: int, block: str, rng: np.random.Generator, **place
) -> list[dict]:
    rows = []
    for head in range(heads):
        load = rng.dirichlet(np.full(choices, 4.0))
        at = {"layer": layer, "head": head, "block": block, **place}
        rows.append(measure("imbalance", load.max() * choices, **at))
        rows += [
            measure("load", share, axis="expert", start=e, end=e + 1, **at) for e, share in enumerate(load)
        ]
    return rows


def counts(choices: int, tightness: float, rng: np.random.Generator, tokens: int = 6000) -> np.ndarray:
    """How often each of WORDS (frequent first) got each choice [choices, words]; tightness 0: whatever the word."""
    often = 1 / np.arange(1, len(WORDS) + 1)
    n = rng.multinomial(tokens, often / often.sum())
    logits = tightness * rng.normal(size=(len(WORDS), choices))
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return np.stack([rng.multinomial(total, chance) for total, chance in zip(n, chances, strict=True)], 1)


def assigned(table: np.ndarray, **place) -> list[dict]:
    """Rows of `assignments` for one head: table [choices, words]."""
    return [
        {"part": "mixer", "choice": c, "token": t, "text": " " + WORDS[t], "count": int(n), **place}
        for (c, t), n in np.ndenumerate(table)
        if n
    ]


def routes(choices: int, rng: np.random.Generator, **place) -> Iterator[dict]:
    """First and second choice for every token of SENTENCE."""
    for position in range(len(SENTENCE.split(" "))):
        chances = rng.dirichlet(np.full(choices, 0.4))
        for rank, choice in enumerate(np.argsort(-chances)[:2]):
            yield {"part": "mixer", "position": position, "rank": rank, "choice": int(choice)} | {
                "probability": chances[choice],
                **place,
            }


def recurrence(layer: int, heads: int, rng: np.random.Generator, length: int = 1024) -> Iterator[dict]:
    for head in range(heads):
        at = {"layer": layer, "head": head}
        for power in range(4, int(np.log2(length)) + 1):
            bucket = {"axis": "position", "start": 0, "end": 2**power, **at}
            yield measure("state_norm", 2 * power**0.5 * rng.uniform(0.9, 1.1), **bucket)
            yield measure("state_rank", min(14, 1.5 * power) * rng.uniform(0.9, 1.1), **bucket)
        scale = 10 ** rng.uniform(0.5, 2)
        for quantile in (0.1, 0.25, 0.5, 0.75, 0.9):
            life = scale * 10 ** (1.5 * (quantile - 0.5))
            at_quantile = {"axis": "quantile", "end": quantile, **at}
            yield measure("decay", 0.5 ** (1 / life), **at_quantile)
            yield measure("decay_half_life", life, **at_quantile)


def solver(layer: int, heads: int, steps: int, rng: np.random.Generator) -> Iterator[dict]:
    for head in range(heads):
        rate = rng.uniform(0.3, 0.6) + 0.08 * layer
        for step in range(steps + 1):
            bucket = {"axis": "step", "start": step, "end": step + 1}
            yield measure("cg_residual", rate**step + 1e-7, layer=layer, head=head, **bucket)


def write_routed(experiment: Path, write_run, seeds: Iterable[int] = (0, 1)) -> Path:
    """hypergraph with six timelines in every second of eight layers, and mom with four memories in all."""
    for seed in seeds:
        for name, block, layers, heads, choices, color in (
            ("hypergraph interlaced_sf", "hypergraph", range(0, 8, 2), 4, 6, "#E69F00"),
            ("mom", "mom", range(8), 1, 4, "#D55E00"),
        ):
            run = write_run(
                experiment, name, seed, model={"preset": block, "depth": 8, "color": color}, blocks=ROUTERS
            )
            rng = np.random.default_rng([seed, *block.encode()])
            measures, firsts, table = [], [], []
            for layer in layers:
                measures += routing(layer, heads, choices, block, rng)
                for head in range(heads):
                    at = {"layer": layer, "head": head, "block": block}
                    firsts += routes(choices, rng, **at)
                    table += assigned(counts(choices, 0.3 + 0.1 * layer, rng), **at)
            probe_tables.write_table(run, "measures", measures)
            probe_tables.write_table(run, "routes", firsts)
            probe_tables.write_table(run, "assignments", table)
            words = enumerate(SENTENCE.split(" "))
            rows = [{"position": place, "token": place, "text": text} for place, text in words]
            probe_tables.write_table(run, "sentence", rows)
    return experiment
