"""Claims 11, 12, 14, 15, 17, 18, 24, 25 and 26: FLOPs, bytes and parameters, counted from built models.

Models of the documents' sizes are built without storage. FLOPs are linear in the number of layers, so that one and two
layers give those of any depth. Dense attention counts all T×T scores, which favours what is sparse.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

from experiments.configuration.compose import overlay
from experiments.costs.model_costs import count_flops
from experiments.evidence import measure
from experiments.evidence.numbers import Number, exact
from zoo import LanguageModel, ModelConfig, cost
from zoo.config import from_dict
from zoo.model import on_meta
from zoo.recompute import block_length

HALF, TRAINED = 2, 16
"""Bytes a parameter in bf16, and with its gradient (bf16) and Adam's states and master copy (fp32) in training."""
KEY_VALUE_HEADS = 8


class Size(NamedTuple):
    """A size and length of the documents' tables of expected performance; widths are those usual for the size."""

    name: str
    d_model: int
    depth: int
    heads: int
    tokens: int

    def title(self) -> str:
        """The size and the length, as the documents write them."""
        return f"{self.name} @ {self.tokens // 1024}K"


EXPECTED = (
    Size("1B", 2048, 16, 16, 4096),
    Size("1.7B", 2048, 28, 16, 8192),
    Size("7B", 4096, 32, 32, 32_768),
    Size("8B", 4096, 36, 32, 65_536),
    Size("7B", 4096, 32, 32, 131_072),
    Size("27B", 5376, 62, 32, 131_072),
)
"""1.7B and 8B are Qwen3's, 27B Gemma 3's, 1B and 7B Llama's; grouped-query attention with eight KV heads for all."""


FEWEST = 256
"""The smallest k_min of the documents: no query reads fewer keys."""


def of_size(size: Size, orthgsa: bool, depth: int | None = None, keys: int | None = None) -> LanguageModel:
    """The plain transformer or OrthGSA of a size, without storage; keys: that every query reads (None: adaptive)."""
    chosen = {} if keys is None else {"adaptive": "none", "k_base": keys}
    values = {
        "pattern": "G" if orthgsa else "F",
        "residual": {"name": "ohc" if orthgsa else "add"},
        "depth": depth or size.depth,
        "d_model": size.d_model,
        "n_heads": size.heads,
        "tie_embeddings": False,
        "mixers": {
            "attention": {"n_kv_heads": KEY_VALUE_HEADS},
            "gsa": {"n_kv_heads": KEY_VALUE_HEADS, "index_width": 64, **chosen},
        },
    }
    return on_meta(from_dict(ModelConfig, values), vocab_size=151_936, seq_len=size.tokens)


def forward_flops(size: Size, orthgsa: bool, keys: int | None = None) -> float:
    """FLOPs a token of the forward pass, from one layer and two."""
    one, two = (count_flops(of_size(size, orthgsa, n, keys), size.tokens).per_token for n in (1, 2))
    return one + (size.depth - 1) * (two - one)


@measure(11)
def ceilings_of_sparse_attention() -> Iterator[Number]:
    """The plain transformer's FLOPs over OrthGSA's, indexer included: a ceiling of any speed-up at equal FLOP/s.

    With k_max keys a query, and with the fewest that the documents allow.
    """
    for size in EXPECTED:
        plain = forward_flops(size, False)
        yield exact(f"FLOP ceiling at {size.title()}", plain / forward_flops(size, True), "times")
        fewest = plain / forward_flops(size, True, FEWEST)
        yield exact(f"FLOP ceiling with {FEWEST} keys a query, {size.title()}", fewest, "times")


@measure(12)
def bytes_of_orthgsa() -> Iterator[Number]:
    """OrthGSA's bytes over the plain transformer's: serving, and training with every layer recomputed.

    Serving: weights and one sequence's cache in bf16. Training: weights, gradients and optimiser states, and what a
    token carries from layer to layer in bf16; attention's T×T scores are held by neither (fused).
    """
    for size in EXPECTED:
        serving, training = [], []
        for orthgsa in (True, False):
            made = of_size(size, orthgsa)
            parameters, fp32 = cost.parameters(made), made.embedding.weight.element_size()
            cache = cost.state_bytes(made, size.tokens) * HALF // fp32
            streams = cost.stream_bytes(made) * HALF // fp32 * size.depth * size.tokens
            serving.append(HALF * parameters + cache)
            training.append(TRAINED * parameters + streams)
        yield exact(f"serving at {size.title()}", serving[0] / serving[1], "times")
        yield exact(f"training at {size.title()}", training[0] / training[1], "times")


@measure(14)
def best_recomputed_block() -> Iterator[Number]:
    """Layers in a recomputed block: the one with the fewest stored vectors, against √(nL/(n+2))."""
    excess = 0.0
    for n in (2, 4, 8):
        for layers in range(1, 129):
            stored = {b: n * layers / b + (n + 2) * b for b in range(1, layers + 1)}
            excess = max(excess, stored[block_length(n, n, layers)] / min(stored.values()) - 1)
    yield exact("vectors stored with the formula's block, above the fewest possible", excess, "times")


@measure(15)
def bytes_of_sharded_training() -> Iterator[Number]:
    """Bytes a GPU of eight for an 8B model in mixed precision: a parameter takes 2, its gradient 2, Adam 12."""
    size, gpus = next(size for size in EXPECTED if size.name == "8B"), 8
    made = of_size(size, orthgsa=True)
    parameters = cost.parameters(made)
    shared = {"DDP": TRAINED, "ZeRO-2": HALF + (TRAINED - HALF) / gpus, "ZeRO-3": TRAINED / gpus}
    for name, each in shared.items():
        yield exact(f"{name}: weights, gradients and optimiser states", each * parameters / 1e9, "GB")
    streams = cost.stream_bytes(made) * HALF // made.embedding.weight.element_size() * size.depth
    for tokens in (2048, 8192):
        total = (TRAINED / gpus * parameters + streams * tokens) / 1e9
        yield exact(f"ZeRO-3 with the streams between layers of {tokens:,} tokens", total, "GB")


@functools.cache
def preset(name: str, tokens: int, **sizes) -> LanguageModel:
    """A preset at reference size (d = 768, 12 heads, 14 layers, GPT-2's vocabulary), without storage."""
    values = {**overlay(name), "d_model": 768, "n_heads": 12, "depth": 14, **sizes}
    return on_meta(from_dict(ModelConfig, values), vocab_size=50_257, seq_len=tokens)


@measure(17)
def caches_of_latents() -> Iterator[Number]:
    """Bytes that MLA's cache saves against multi-head attention's: at reference size, and at DeepSeek-V2's sizes."""
    mla, full = (cost.state_bytes(preset(name, 1024), 1024) for name in ("mla", "transformer"))
    yield exact("cache saved at reference size", 1 - mla / full, "share")
    sizes = {"d_model": 5120, "n_heads": 128, "depth": 1}
    latent = {"mixers": {"mla": {"kv_rank": 512, "q_rank": 1536, "rope_dim": 64}}}
    # Heads of 128 channels there are wider than d_model/n_heads; the cache holds no heads, so MHA's is by formula.
    made = on_meta(from_dict(ModelConfig, {"pattern": "L", **sizes, **latent}), vocab_size=8, seq_len=1024)
    numbers = cost.state_bytes(made, 1024) // (1024 * made.embedding.weight.element_size())
    yield exact(
        "cache saved at DeepSeek-V2's sizes, 128 heads of 128", 1 - numbers / (2 * 128 * 128), "share"
    )


@measure(18)
def state_of_kda() -> Iterator[Number]:
    """Decode-state bytes of KDA after 128K tokens over those after 1K, beside full attention's."""
    for name in ("kda_pure", "transformer"):
        few, many = (cost.state_bytes(preset(name, 1024), length) for length in (1024, 131_072))
        yield exact(f"state after 128K tokens over 1K, {name}", many / few, "times")


@measure(19)
def convolutions_of_lfm2() -> Iterator[Number]:
    """The share of LFM2's layers that are convolutions."""
    layers = overlay("lfm2")["pattern"]
    yield exact("share of layers that are convolutions", layers.count("C") / len(layers), "share")


@measure(24)
def parameters_of_the_report() -> Iterator[Number]:
    """Parameters of the HyperGraph report's two models."""
    for name in ("transformer", "hypergraph"):
        yield exact(f"parameters, {name}", cost.parameters(preset(name, 512)), "parameters")


TIMELINES, SPARSE, LAYERS = 6, 8, 14


@measure(25)
def pairs_of_timelines() -> Iterator[Number]:
    """Pairs of a layer in six balanced timelines, and the most that eight such layers of fourteen can save."""
    tokens = 6 * 1024
    pairs = TIMELINES * (tokens // TIMELINES) ** 2
    yield exact("pairs of full attention over a balanced layer's", tokens**2 / pairs, "times")
    left = LAYERS - SPARSE + SPARSE * pairs / tokens**2
    yield exact("most that 8 sparse layers of 14 save of all attention", LAYERS / left, "times")


@measure(26)
def ceilings_of_timelines() -> Iterator[Number]:
    """The plain transformer's FLOPs over HyperGraph's, whole model: a ceiling of any speed-up at equal FLOP/s.

    Both attend causally, to half of all pairs: at T tokens that is what the count of all pairs gives at T/2.
    """
    for tokens in (4096, 16_384, 32_768):
        plain, sparse = (
            count_flops(preset(name, tokens // 2), tokens // 2).per_token
            for name in ("transformer", "hypergraph")
        )
        yield exact(f"FLOP ceiling at {tokens // 1024}K", plain / sparse, "times")
