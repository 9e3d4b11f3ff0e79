"""What the zoo says and computes beside its blocks' maths: patterns, names, errors, contexts, shards, caches, sampling.

Each test collects one part on fixed input and compares it with its recording (support/recorded.py).
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support import recorded
from support.block_options import HEADS, SEQ_LEN, VOCAB, WIDTH, config
from support.formula import checksum, fill, shape, uniform, whole
from torch import Tensor

from kernels import AdaptiveK, gumbel_noise
from zoo import LanguageModel, ModelConfig, registry
from zoo.config import LAYOUTS, from_dict, layout_name, read_pattern, used
from zoo.context import Context
from zoo.context_parallel import Shard
from zoo.errors import unknown
from zoo.generate import Sampling, generate, prefill
from zoo.interfaces import Dims, StepBuffer
from zoo.io import build, card, export, load, read_card
from zoo.matching import match
from zoo.mixers.gsa import GSAConfig, Warmup
from zoo.mixers.gsa import sizes as gsa_sizes
from zoo.mixers.nsa import NSAConfig, summaries
from zoo.mixers.nsa import sizes as nsa_sizes
from zoo.model import on_meta
from zoo.modules import GroupedKVCache, KVCache, LogDecay, RMSNorm, l2norm, output_std
from zoo.modules.caches import fill_state, join_states, select_sequences, state_bytes
from zoo.options import (
    default_kv_heads,
    default_recurrent_heads,
    grouped_kv_heads,
    head_width,
    kv_heads,
)
from zoo.probes.measure import chain_product, matrix_norms
from zoo.recompute import Recompute, block_length
from zoo.residuals.hyper_connections import HyperConfig, initial_biases, patterns, warmup
from zoo.residuals.ohc import series_slope
from zoo.residuals.shc import harmonics, retained
from zoo.tokenization import ByteTokenizer, from_json, tokenizer

FOLDER = Path(__file__).parent / "recorded"
LETTERS = "CFGKLMNOPS"


def said(call: Callable[[], Any], show: Callable[[Any], str] = str) -> str:
    """What a call returns, or the error that it raises, in one line."""
    try:
        return show(call())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def numbers(x: Tensor) -> str:
    return recorded.short([float(value) for value in x.detach().double().flatten()])


def check(name: str, lines: Iterator[str], relative: float = 1e-6, absolute: float = 0.0) -> None:
    recorded.check(FOLDER / f"{name}.txt", lines, relative, absolute)


# Patterns, names and options


PATTERNS = (
    *("F", "SF", "F*3", "(SF)*2", "(KKKL)*2", "CC(FC)*3", "((SF)*2K)*2", "F*2S", "interlaced_sf", "baseline"),
    *(
        "bookend",
        "late_full",
        "sf",
        "Sf",
        "f*3",
        "(sf)*2",
        "X",
        "SFX",
        "F*",
        "F*0",
        "F*x",
        "F**2",
        "*2",
        "()",
    ),
    *("(F", "F)", "S(F", "(F))", "(F)*0", "F*4096", "F*4097", "F*12345678901", "(F*2000)*3", "", " ", "F F"),
    *(
        "interlaced_fs",
        "transformer",
        "early",
        "F*-1",
        "F*2.5",
        "(" * 65 + "F" + ")" * 65,
        "(" * 64 + "F" + ")" * 64,
    ),
    *("S-F", "F*2*3", "(F)(S)", "(F*2)(S)*2"),
)


def patterns_read() -> Iterator[str]:
    for text in PATTERNS:
        read = said(lambda text=text: read_pattern(text, None, LETTERS))
        yield f"{text[:20]}: {read if len(read) < 400 else f'{len(read)} letters'}"
    for depth in (1, 3, 7, 0, -1, 4096, 4097):
        read = said(lambda depth=depth: read_pattern("SSF", depth, LETTERS))
        yield f"SSF at depth {depth}: {read if len(read) < 99 else f'{len(read)} letters'}"
    for name in (*LAYOUTS, *LAYOUTS.values(), "SF", "F*14"):
        yield f"{name} is the layout {layout_name(name)}: {LAYOUTS.get(name)}"


def test_patterns_and_what_is_said_of_wrong_ones():
    check("patterns", patterns_read())


def known_blocks() -> dict[str, list[str]]:
    """Names of the blocks that have a recording: a new one has its own test."""
    return {
        kind: [name for name in registry.blocks(kind) if (FOLDER / "blocks" / f"{kind}-{name}.txt").exists()]
        for kind in registry.KINDS
    }


def descriptions() -> Iterator[str]:
    for kind, names in known_blocks().items():
        for name in names:
            block = registry.get(kind, name)
            yield f"== {kind} {name}"
            yield from recorded.flat({**block.describe(), "source": block.source})
            for constant in (
                "state_options",
                "work_options",
                "context_parallel",
                "decays",
                "gradient_may_vanish",
            ):
                if hasattr(block.cls, constant):
                    yield f"{constant}: {getattr(block.cls, constant)}"
            yield from recorded.flat(block.config(), "default")


def test_blocks_are_described_as_they_were():
    check("descriptions", descriptions())


def registered(register: Callable, name: str, options: type | None, **metadata: Any) -> str:
    def run() -> None:
        # Of a module without a file: of two files the one written last is the newcomer.
        register(name, config=options, **metadata)(type("Made", (), {"__module__": "made"}))

    return said(run)


def registry_errors() -> Iterator[str]:
    for kind, name in (("mixer", "atention"), ("mixer", "zzz"), ("residual", "mch"), ("channel", "swigl")):
        yield said(lambda kind=kind, name=name: registry.get(kind, name)).split("Known")[0]
    yield str(unknown("mixer", "kdaa", ["kda", "attention"]))
    yield str(unknown("mixer", "q", ["kda", "attention"]))
    wanting = dataclasses.make_dataclass("Wanting", [("x", int)])
    for letter in ("f", "FF", "", "1", "É"):
        yield registered(registry.register_mixer, "made", None, letter=letter)
    yield registered(registry.register_mixer, "made", None, letter="F")
    yield registered(registry.register_mixer, "attention", None, letter="Z")
    yield registered(registry.register_mixer, "made", None, letter="Z", mask="round")
    yield registered(registry.register_residual, "add", None)
    yield registered(registry.register_channel, "made", wanting)
    yield registered(registry.register_channel, "made", int)
    for sketch in ("x\na | b #1\n\ny", "x #2|y #0", "x |", "x #3", "#1", "a # 1"):
        yield f"{sketch!r}: {said(lambda sketch=sketch: registry.sketch_rows(sketch))}"
    yield str(registry.MASKS)


def test_what_the_registry_refuses():
    check("registry", registry_errors())


BAD_CONFIGS = (
    {"patern": "F"},
    {"d_model": "64"},
    {"d_model": 64.0},
    {"d_model": True},
    {"depth": None},
    {"depth": "4"},
    {"tie_embeddings": 1},
    {"preset": 3},
    {"mixers": {"attention": {"n_head": 2}}},
    {"mixers": {"attention": {"n_heads": 2.0}}},
    {"mixers": {"attention": {"rope_base": 5}}},
    {"mixers": {"attention": {"rope_base": "5"}}},
    {"mixers": {"attention": 3}},
    {"mixers": {"atention": {}}},
    {"residual": {"name": "hc", "hc": {"warmup_share": None}}},
    {"residual": {"name": "hc", "hc": {"warmup_share": False}}},
    {"channel": {"name": 3}},
    {"channel": {"moe": {"top_k": None}}},
)
BAD_MODELS = (
    {"d_model": 0},
    {"n_heads": 0},
    {"d_model": -8},
    {"n_heads": 5},
    {"n_heads": 7, "d_model": 30},
    {"d_model": 7, "n_heads": 7},
    {"d_model": 12, "n_heads": 4},
    {"residual": {"name": "hcc"}},
    {"channel": {"name": "glu"}},
    {"pattern": "SX"},
    {"depth": 0},
    {"pattern": "S", "mixers": {"hypergraph": {"aux_weight": -1.0}}},
    {"pattern": "S", "mixers": {"hypergraph": {"aux_weight": float("nan")}}},
    {"pattern": "G", "mixers": {"gsa": {"scores": "relu"}}},
    {"pattern": "G", "mixers": {"gsa": {"index_width": 3}}},
    {"pattern": "G", "mixers": {"gsa": {"k_base": 4, "k_min": 5}}},
    {"pattern": "N", "mixers": {"nsa": {"block_size": 5, "stride": 2}}},
    {"pattern": "N", "mixers": {"nsa": {"n_kv_heads": 4}}},
    {"pattern": "L", "mixers": {"mla": {"rope_dim": 0, "rope_keys": "per_head"}}},
    {"pattern": "L", "mixers": {"mla": {"rope_dim": 3}}},
    {"pattern": "O", "mixers": {"mom": {"neg_eigval": True, "update": "linear"}}},
    {"pattern": "O", "mixers": {"mom": {"top_k": 5}}},
    {"pattern": "P", "mixers": {"path_fox": {"n_kv_heads": 5}}},
    {"channel": {"name": "moe", "moe": {"top_k": 9}}},
    {"residual": {"name": "shc", "shc": {"factorise": 5}}},
    {"residual": {"name": "hc", "hc": {"n_streams": 1}}},
    {"residual": {"name": "hc", "hc": {"warmup_share": 1.5}}},
    {"residual": {"name": "hc", "hc": {"alpha": 0.0}}},
)


def configuration_errors() -> Iterator[str]:
    for values in BAD_CONFIGS:
        made = said(lambda values=values: from_dict(ModelConfig, values), lambda c: f"depth {c.depth}, taken")
        yield f"{values}: {made.split('Known')[0]}"
    for values in BAD_MODELS:
        given = {"d_model": WIDTH, "n_heads": HEADS, "depth": 2, **values}
        made = said(lambda given=given: on_meta(from_dict(ModelConfig, given), vocab_size=9, seq_len=32))
        yield f"{values}: {made.split('Known')[0] if 'Error' in made else 'taken'}"


def test_what_configurations_and_models_refuse():
    check("configurations", configuration_errors())


def identities() -> Iterator[str]:
    made = from_dict(ModelConfig, {"pattern": "SK", "depth": 3, "preset": "mine", "backend": "torch"})
    yield from recorded.flat(used(made, "SKS"), "SK")
    made.mixers.hypergraph.top_k = 1
    made.mixers.kda.decay = "head"
    made.residual.name, made.channel.name = "ohc", "moe"
    yield from recorded.flat(used(made, "SKS"), "changed")
    before = from_dict(ModelConfig, {"residual": {"name": "ohc", "ohc": {}}}, recorded=True)
    yield from recorded.flat(before.residual.ohc, "recorded before")


def test_the_options_that_name_a_run():
    check("identities", identities())


def default_sizes() -> Iterator[str]:
    for heads in (1, 2, 3, 4, 5, 6, 7, 8, 12, 16):
        grouped = [grouped_kv_heads(heads, most) for most in (1, 2, 3, 4, 8)]
        yield f"{heads} heads: KV {default_kv_heads(heads)}, up to 1, 2, 3, 4, 8 {grouped}"
        yield f"  {default_recurrent_heads(heads)} recurrent"
    for length in (1, 2, 7, 8, 16, 31, 32, 64, 128, 500, 512, 1024, 4096, 16384, 20000, 65536):
        nsa, gsa = nsa_sizes(NSAConfig(), length), gsa_sizes(GSAConfig(), length)
        yield f"T={length}: {nsa}, k {gsa.base} from {gsa.least} to {gsa.most}"
    yield f"summaries of 4 tokens every 2: {[summaries(n, 4, 2) for n in range(11)]}"
    for own in (None, 5):
        for width, heads in ((24, 6), (24, 5), (7, 7), (24, 0)):
            yield f"{width} of {heads}, {own}: {said(lambda w=width, h=heads, o=own: head_width(w, h, 'n_heads', o))}"
    for own, heads in ((None, 6), (2, 6), (4, 6), (0, 6)):
        yield f"{own} of {heads}: {said(lambda o=own, h=heads: kv_heads(o, h, 'block', default=3))}"
    for width, heads in ((24, 6), (96, 12), (768, 12), (80, 4), (64, 1)):
        dims = Dims(width, heads, 128, 1, 3)
        for letter, names in {
            "L": ("width", "kv_rank", "rope_dim"),
            "O": ("heads", "width"),
            "G": ("kv_heads", "k"),
            "P": ("kv_heads", "width"),
            "K": ("heads", "width"),
        }.items():
            block = registry.mixer_by_letter()[letter]
            with torch.device("meta"):
                mixer = block.cls(block.config(), dims)
            values = {name: getattr(mixer, name) for name in names}
            sizes = {
                name: shape(x)
                for name, x in mixer.named_parameters()
                if name.split(".")[0] in ("q_down", "indexer", "turn")
            }
            yield f"{letter} of {width} and {heads}: {values} {sizes}"
        for name in known_blocks()["channel"]:
            block = registry.get("channel", name)
            with torch.device("meta"):
                channel = block.cls(block.config(), dims)
            yield f"{name} of {width}: {sorted({shape(x) for x in channel.parameters()})}"
    for backend in ("auto", "torch", "varlen", "flash_attn", "triton", "reference"):
        yield f"a step with {backend}: {Dims(8, 2, 4, 0, 1, backend).step_backend}"
    yield f"output projections of 1, 2 and 12 layers: {recorded.short([output_std(n) for n in (1, 2, 12)])}"


def test_sizes_that_follow_from_the_models():
    check("sizes", default_sizes())


# Matching


MATCHED = (
    *({"pattern": letter} for letter in LETTERS),
    {"residual": {"name": "shc"}},
    *({"channel": {"name": name}} for name in ("moe", "mlp")),
    {"pattern": "CF"},
    {"pattern": "FS", "mixers": {"attention": {"head_width": 20}}},
    {"channel": {"swiglu": {"hidden": 99}}},
    {"pattern": "O", "mixers": {"mom": {"n_memories": 40}}},
)


def changes(before: Any, after: Any, name: str = "") -> Iterator[str]:
    for field in dataclasses.fields(before):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if dataclasses.is_dataclass(old):
            yield from changes(old, new, f"{name}{field.name}.")
        elif old != new:
            yield f"{name}{field.name}={new}"


def matches() -> Iterator[str]:
    for values in MATCHED:
        made = from_dict(ModelConfig, {"d_model": 48, "n_heads": 6, "depth": 2, **values})
        kinds = ("params", "flops") if values.get("pattern", "S") in "CMS" else ("params", "state")
        for by in kinds:
            found = said(
                lambda by=by, made=made: match(made, by, seq_len=64, length=48),
                lambda matched, made=made: ", ".join(changes(made, matched)) or "as it is",
            )
            yield f"{values}, {by}: {found}"
    made = from_dict(ModelConfig, {"pattern": "K", "depth": 2})
    for by in ("state+params", "stat", "params+state"):
        for length in (None, 300) if by == "state+params" else (None,):
            found = said(
                lambda by=by, length=length: match(made, by, seq_len=128, length=length),
                lambda matched: ", ".join(changes(made, matched)),
            )
            yield f"K, {by} at {length}: {found}"


@pytest.mark.slow
def test_what_matching_changes_and_what_it_says_where_it_cannot():
    check("matches", matches())


# Contexts and shards


def contexts() -> Iterator[str]:
    tokens = torch.zeros(1, 6, dtype=torch.int64)
    cuts = torch.tensor([0, 1, 4, 6], dtype=torch.int32)
    x = torch.arange(12.0, dtype=torch.float64).view(1, 6, 2) ** 2
    for title, made in {
        "rows": Context.of(tokens.expand(2, 6), noise_keys=torch.tensor([5, 9])),
        "packed": Context.of(tokens, cuts, torch.tensor([5, 9, 2])),
    }.items():
        facts = {"positions": made.positions, "sequences": made.sequences, "noise": made.noise_keys}
        yield from (f"{title} {name}: {value.tolist()}" for name, value in facts.items())
        rows = x if title == "packed" else x.expand(2, 6, 2)
        yield f"{title} {made.n_sequences} sequences, means {numbers(made.sequence_mean(rows))}"
    wrong = {
        "three axes": lambda: Context.of(tokens[None]),
        "two rows": lambda: Context.of(tokens.expand(2, 6), cuts),
        "keys": lambda: Context.of(tokens, noise_keys=torch.tensor([1, 2])),
        "keys of packed": lambda: Context.of(tokens, cuts, torch.tensor([1, 2])),
        "int64": lambda: Context.of(tokens, cuts.long()),
        "one number": lambda: Context.of(tokens, cuts[:1]),
        "a matrix": lambda: Context.of(tokens, cuts[None]),
        "from 1": lambda: Context.of(tokens, torch.tensor([1, 6], dtype=torch.int32)),
        "to 5": lambda: Context.of(tokens, torch.tensor([0, 5], dtype=torch.int32)),
        "an empty one": lambda: Context.of(tokens, torch.tensor([0, 2, 2, 6], dtype=torch.int32)),
        "falling": lambda: Context.of(tokens, torch.tensor([0, 4, 2, 6], dtype=torch.int32)),
        "not distributed": lambda: Context.of(tokens).cut(),
    }
    for title, call in wrong.items():
        yield f"{title}: {said(call)}"


def test_contexts_and_what_they_refuse():
    check("contexts", contexts())


def shard_lines(shard: Shard) -> Iterator[str]:
    cuts = None if shard.cu_seqlens is None else shard.cu_seqlens.tolist()
    yield (
        f"rank {shard.rank} of {shard.size}: [{shard.start}, {shard.stop}), begins {shard.begins}, last {shard.last}, "
        f"length {shard.length}, continues {shard.continues}, documents {cuts}"
    )
    for piece in shard.pieces:
        own = None if piece.cu_seqlens is None else piece.cu_seqlens.tolist()
        yield (
            f"  queries {piece.queries.start}:{piece.queries.stop}, keys {piece.keys.start}:{piece.keys.stop}, "
            f"documents {own}, share {recorded.number(piece.share)}"
        )
    yield f"  states {shard.for_each(torch.ones(1, 2)).tolist()}, own {shard.own(shard.whole.positions).tolist()}"


CUTS = ((24,), (5, 19), (8, 8, 8), (1, 1, 4, 6, 12), (3, 20, 1), (2, 2, 2, 2, 16), (23, 1), (6, 6, 6, 6))


def shards(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    tokens = torch.zeros(1, 24, dtype=torch.int64)
    for size in (1, 2, 3, 4, 5):
        monkeypatch.setattr(dist, "get_world_size", lambda group, size=size: size)
        for lengths in (None, *CUTS):
            cuts = None if lengths is None else torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
            whole_batch = Context.of(tokens, cuts)
            yield f"{lengths} on {size} ranks"
            for rank in range(size):
                monkeypatch.setattr(dist, "get_rank", lambda group, rank=rank: rank)
                if size == 5:
                    yield said(lambda batch=whole_batch: Shard.of(batch))
                    break
                shard = Shard.of(whole_batch)
                yield from shard_lines(shard)
                if rank == 1:
                    yield said(lambda shard=shard: shard.check(torch.zeros(1, 24)))
    yield said(lambda: Shard.of(dataclasses.replace(whole_batch, probe=object())))


def test_every_ranks_part_of_a_batch(monkeypatch):
    check("shards", shards(monkeypatch))


# States and caches


def cache_lines(cache: Any) -> str:
    rows = [y[0, 0, :, 0].tolist() for y in cache.read()]
    return (
        f"{cache.appended} tokens, rows {cache.start}:{cache.stop} of {cache.storage[0].shape[-2]}, "
        f"{cache.nbytes()} bytes, {rows}"
    )


def caches() -> Iterator[str]:
    for window in (None, 1, 3, 5):
        for capacity in (0, 4):
            cache, count = KVCache(2, 1, 2, capacity=capacity, window=window), 0
            yield f"window {window}, room {capacity}"
            for tokens in (1, 2, 1, 7, 1, 1, 20, 1):
                new = torch.arange(count, count + tokens).float().view(1, 1, -1, 1).expand(2, 1, -1, 2)
                seen = cache.append(new, -new)
                count += tokens
                yield f"  +{tokens}: sees {[y[0, 0, :, 0].tolist() for y in seen]}; {cache_lines(cache)}"
            yield f"  the second alone: {cache_lines(cache.select(torch.tensor([1])))}"
            yield f"  joined: {cache_lines(cache.join([cache, cache]))}, {cache.join([cache, cache]).batch} sequences"
            for tokens in (0, 1, 4, 17, 40):
                empty = KVCache(1, 1, 2, capacity=capacity, window=window)
                empty.fill(tokens)
                yield f"  filled with {tokens}: {empty.appended}, {empty.start}:{empty.stop}, {empty.nbytes()} bytes"
    lists = GroupedKVCache(2, 3, 2, 4)
    yield f"lists: {lists.nbytes()} bytes"
    for tokens in (1, 5, 1):
        group = whole(f"group {tokens}", 2, 2, tokens, 3)
        yield f"  places {lists.places(group).tolist()}"
        lists.append(group, uniform("keys", 2, tokens, 3, 4), uniform("values", 2, tokens, 3, 4))
        keys, values, filled = lists.read(group[:, -1])
        yield f"  +{tokens}: {lists.lengths.tolist()}, {lists.nbytes()} bytes, {shape(keys)}"
        yield f"  {recorded.short([checksum(keys[filled]), checksum(values[filled])])}, {filled.long().tolist()}"
    for tokens in (0, 1, 5, 40):
        lists = GroupedKVCache(1, 3, 2, 4)
        lists.fill(tokens)
        yield f"  filled with {tokens}: {lists.appended}, {lists.lengths.tolist()}, {lists.nbytes()} bytes"


def test_caches_keep_and_weigh_what_they_did():
    check("caches", caches())


def states() -> Iterator[str]:
    for letter in LETTERS:
        model = fill(
            LanguageModel(
                config("mixer", registry.mixer_by_letter()[letter].name), vocab_size=VOCAB, seq_len=SEQ_LEN
            )
        )
        model.eval()
        for tokens in (0, 1, 33):
            filled = model.init_state(3).layers[0]
            fill_state(filled, tokens)
            yield f"{letter} filled with {tokens}: {state_bytes(filled)} bytes"
        read = whole("tokens", VOCAB, 2, 9)
        parts = [model.extend(read[:1, :n], model.init_state(1))[1] for n in (9, 9, 4)]
        joined = select_sequences(join_states(parts[:2]), torch.tensor([1, 0]))
        mixed = join_states([parts[0], parts[2]])
        next_token = whole("next", VOCAB, 2)
        for name, state in (("alike", joined), ("of two lengths", mixed)):
            logits, _ = model.step(next_token, state)
            yield f"{letter} after joining {name}: {recorded.number(checksum(logits))}"
    yield said(lambda: state_bytes({"x": object()}))
    yield f"{state_bytes([torch.zeros(3), (torch.zeros(2, dtype=torch.float64), None, 5)])} bytes"


def test_states_of_every_mixer_filled_and_joined():
    check("states", states())


# Sampling and generating


def drawn_from(monkeypatch: pytest.MonkeyPatch, rule: Sampling, logits: Tensor) -> Tensor:
    """The probabilities [B, V] from which a rule draws."""
    seen: list[Tensor] = []

    def multinomial(p: Tensor, count: int, generator: object) -> Tensor:
        seen.append(p)
        return p.argmax()[None].expand(count)

    monkeypatch.setattr(torch, "multinomial", multinomial)
    rule.draw(logits, [None] * len(logits))
    return torch.stack(seen)


LOGITS = torch.tensor([[1.0, 3.0, 3.0, 2.0, -1.0], [0.0, 0.0, 0.0, 0.0, 0.0], [5.0, -2.0, 4.5, 0.5, 4.5]])
HALVES = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log()
RULES = (
    *({"temperature": t} for t in (1.0, 0.5, 2.0, 1e-30)),
    *({"top_k": k} for k in (1, 2, 3, 5, 9)),
    *({"top_p": p} for p in (1.0, 0.5, 0.75, 0.76, 0.7, 0.875, 1e-9)),
    {"temperature": 0.5, "top_k": 3, "top_p": 0.6},
)
BAD_RULES = (
    *({"temperature": t} for t in (-1.0, float("nan"), float("inf"))),
    *({"top_k": k} for k in (0, -1)),
    *({"top_p": p} for p in (0.0, 1.1, -0.1)),
)


def draws(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for options in RULES:
        for name, logits in (("three rows", LOGITS), ("halves", HALVES.double())):
            found = drawn_from(monkeypatch, Sampling(**options), logits)
            yield f"{options} {name}: {numbers(found)}"
    yield f"most likely: {Sampling(0.0).draw(LOGITS, []).tolist()}"
    for options in BAD_RULES:
        yield f"{options}: {said(lambda options=options: Sampling(**options))}"
    yield said(lambda: Sampling().draw(torch.tensor([[1.0, math.nan]]), [torch.Generator()]))


def test_the_probabilities_that_tokens_are_drawn_from(monkeypatch):
    check("draws", draws(monkeypatch), absolute=1e-12)


def small_model(letter: str = "F") -> LanguageModel:
    made = config("mixer", registry.mixer_by_letter()[letter].name)
    return fill(LanguageModel(made, vocab_size=VOCAB, seq_len=SEQ_LEN))


def continued(model: LanguageModel, *args: Any, **options: Any) -> list[list[int]]:
    return [step.tolist() for step in generate(model, *args, **options)]


def generated() -> Iterator[str]:
    model = small_model()
    prompts = [[1, 2, 3], [4], [5, 6, 7], [8, 9]]
    likely = continued(model, prompts, 7, temperature=0.0)
    yield f"most likely: {likely}"
    assert model.training
    for chunk in (1, 2, 9):
        assert continued(model, prompts, 7, temperature=0.0, chunk=chunk) == likely
    ends = likely[1][0]
    yield f"ending with {ends}: {continued(model, prompts, 7, temperature=0.0, stop=[ends])}"
    yield f"as a tensor: {continued(model, prompts, 7, temperature=0.0, stop=torch.tensor([ends]))}"
    stop = lambda b, token: b == 2 or token == ends  # noqa: E731
    yield f"by a function: {continued(model, prompts, 7, temperature=0.0, stop=stop)}"
    yield f"all at once: {continued(model, prompts, 7, temperature=0.0, stop=lambda b, token: True)}"
    yield f"nothing: {continued(model, prompts, 0)}"
    logits, state = prefill(model, prompts, room=5)
    yield f"prefill {shape(logits)} {recorded.number(checksum(logits))}, {state_bytes(state.layers)} bytes"
    wrong = {
        "no prompts": lambda: generate(model, [], 1),
        "an empty one": lambda: generate(model, [[1], []], 1),
        "one axis": lambda: generate(model, torch.zeros(3, dtype=torch.int64), 1),
        "floats": lambda: generate(model, torch.zeros(1, 3), 1),
        "a bool": lambda: generate(model, [torch.tensor([True])], 1),
        "a word": lambda: generate(model, ["word"], 1),
        "too high": lambda: generate(model, [[0, VOCAB]], 1),
        "below 0": lambda: generate(model, [[-1]], 1),
        "minus one token": lambda: generate(model, prompts, -1),
        "chunk": lambda: generate(model, prompts, 1, chunk=0),
        "chunk of a prefill": lambda: prefill(model, prompts, chunk=0),
        "stop": lambda: generate(model, prompts, 1, stop=3),
        "temperature": lambda: generate(model, prompts, 1, temperature=-0.5),
    }
    for title, call in wrong.items():
        # The library's own words about a wrong type change with its releases.
        yield f"{title}: {said(call)}"


def test_what_is_generated_and_what_is_refused():
    check("generated", generated())


def test_a_sequence_draws_by_its_own_seed():
    model = small_model()
    alike = continued(model, [[1, 2]] * 3, 6, seed=5)
    for b in range(3):
        assert [step[b] for step in alike] == [step[0] for step in continued(model, [[1, 2]], 6, seed=5 + b)]
    assert len({tuple(step[b] for step in alike) for b in range(3)}) == 3


# Files and tokenizers


def cards(tmp_path: Path) -> Iterator[str]:
    model = small_model()
    described = card(model, tokenizer=ByteTokenizer().to_json())
    yield from recorded.flat({key: value for key, value in described.items() if key != "model"})
    yield from recorded.flat(
        {key: value for key, value in described["model"].items() if not isinstance(value, dict)}
    )
    yield f"model: {sorted(described['model'])}"
    folder = export(model, tmp_path / "out", tokenizer=ByteTokenizer().to_json())
    yield f"files {sorted(path.name for path in folder.iterdir())}"
    again = load(folder).double()  # rounding of fp32 differs between processors
    yield f"evaluating {not again.training}, {recorded.number(checksum(again(torch.tensor([[1, 2, 3]]))[0]))}"
    yield f"text {tokenizer(folder).encode('é')}"
    wrong: list[Any] = [None, 3, [], {}, {**described, "format": 2}, {**described, "format": "1"}]
    wrong += [{**described, key: None} for key in ("vocab_size", "seq_len", "model")]
    wrong += [
        {key: x for key, x in described.items() if key != left} for left in ("vocab_size", "seq_len", "model")
    ]
    wrong += [
        {**described, "model": {"pattern": "X"}},
        {**described, "model": {"no": 1}},
        {**described, "vocab_size": -1},
    ]
    for value in wrong:
        text = said(lambda value=value: build(value), lambda _: "built").split("Known")[0]
        yield text if "cannot be made here" not in text else text.split("(")[0]
    files = {
        "nothing": None,
        "no JSON": "{",
        "a list": "[]",
        "no tokenizer": json.dumps(card(model)),
        "a damaged tokenizer": json.dumps(card(model, tokenizer='{"kind": "words"}')),
        "other weights": json.dumps({**card(model), "vocab_size": 5}),
    }
    for title, text in files.items():
        place = tmp_path / title.replace(" ", "_")
        place.mkdir()
        if text is not None:
            (place / "model.json").write_text(text)
            (place / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
        for name, call in (("card", read_card), ("tokenizer", tokenizer), ("model", load)):
            words = said(lambda call=call, place=place: call(place), lambda _: "read").replace(
                str(tmp_path), ""
            )
            yield f"{title}, {name}: {words.split(' (')[0].split(': Error')[0]}"


def test_cards_of_models_and_what_is_said_of_damaged_ones(tmp_path):
    check("cards", cards(tmp_path))


def spoken() -> Iterator[str]:
    made = ByteTokenizer()
    yield from recorded.flat(
        {"name": made.name, "vocab": made.vocab_size, "bos": made.bos_id, **made.identity()}
    )
    yield f"{made.encode('aé€')} {made.decode([97, 256, 195, 169, 255])!r}"
    yield f"{[x.tolist() for x in made.encode_batch(['ab', ''])]}"
    yield f"{made.encode_batch(['a'])[0].dtype} {made.to_json()}"
    for text in ("3", "[]", "{}", '{"kind": "words"}', '{"kind": "bytes"}'):
        yield f"{text}: {said(lambda text=text: from_json(text), lambda x: x.name)}"


def test_bytes_as_tokens():
    check("tokens", spoken())


# Formulas


def clocks() -> Iterator[str]:
    clock = StepBuffer()
    for share, hold, ramp, factor in (
        (1 / 6, 1000, 5000, 0.1),
        (None, 10, 20, 0.25),
        (1.0, 10, 20, 0.0),
        (0.5, 0, 0, 0.1),
    ):
        made = HyperConfig(warmup_share=share, warmup_hold=hold, warmup_ramp=ramp, warmup_factor=factor)
        for total in (0, 12, 60, 10**6):
            found = []
            for step in (0, 1, 2, 5, 9, 10, 11, 20, 29, 30, 31, 1000, 1001, 3500, 6000, 6001):
                clock.set(step, total)
                found.append(float(warmup(clock, made)))
            yield f"α of {share}, {hold}, {ramp}, {factor} in {total}: {recorded.short(found)}"
    for steps in (0, 1, 5, 1000):
        for total in (0, 9, 10, 40):
            warm, dense = Warmup(steps), []
            dense.append(warm.dense)
            for step in range(7):
                warm.set(step, total)
                dense.append(warm.dense)
            yield f"dense for {steps} of {total}: {''.join('x' if on else '-' for on in dense)}"
    for r, n in ((1, 1), (4, 1), (8, 1), (1, 4), (4, 4), (8, 4)):
        yield f"{r} of {n} streams, layers in a group: {[block_length(r, n, layers) for layers in (1, 4, 24, 48)]}"
    yield f"{Recompute()} {said(lambda: Recompute('some'))}"


def test_what_changes_during_training():
    check("clocks", clocks())


def streams() -> Iterator[str]:
    for n in (2, 3, 4, 5):
        yield f"{n} streams: patterns {numbers(torch.stack(patterns(n)))}, {numbers(torch.stack(patterns(n, 2)))}"
        yield f"  harmonics {numbers(harmonics(n))}"
        for init in ("identity", "seed"):
            yield f"  {init} {numbers(torch.cat(initial_biases(n, init)))}"
    matrices = [uniform(f"matrix {i}", 2, 3, 3) for i in range(3)]
    product = chain_product(matrices)
    yield f"product {numbers(product)} {product.dtype}"
    for name, value in matrix_norms(product).items():
        yield f"{name} {numbers(value)}"
    broken = product.clone()
    broken[0, 0, 0] = math.inf
    yield f"sigma of an infinite one {numbers(matrix_norms(broken)['sigma'])}"
    yield said(lambda: chain_product([]))
    for terms in (1, 2, 3, 8):
        norms = torch.tensor([0.0, 0.3, 1.5], dtype=torch.float64)
        yield f"slope of {terms} terms {numbers(series_slope(norms, terms))}"
    basis = torch.linalg.qr(uniform("basis", 4, 2)).Q
    yield f"retained {numbers(torch.stack(retained(uniform('x', 3, 4, 5), basis)))}"


def test_streams_and_their_matrices():
    check("streams", streams())


def small_formulas() -> Iterator[str]:
    x = uniform("x", 2, 5)
    norm = fill(RMSNorm(5))
    yield f"norm {numbers(norm(x))}, of small numbers {numbers(norm(1e-4 * x))}"
    yield f"unit {numbers(l2norm(x))}, of small numbers {numbers(l2norm(1e-4 * x))}"
    decay = fill(LogDecay((2, 1), (2, 3)))
    yield f"decay {numbers(decay(3 * uniform('raw', 4, 2, 3)))}"
    with torch.random.fork_rng():
        many = LogDecay((20_000,), (20_000,))
    many.init_weights(torch.Generator().manual_seed(0))
    a, dt = many.A_log.detach().exp(), torch.nn.functional.softplus(many.dt_bias.detach())
    assert 1 <= a.min() < 1.01
    assert 15.98 < a.max() <= 16.001
    assert abs(float(a.mean()) - 8.5) < 0.2
    assert 0.999e-3 < dt.min() < 1.01e-3
    assert 0.0995 < dt.max() < 0.1001
    assert abs(float(dt.log().mean()) - 0.5 * (math.log(1e-3) + math.log(0.1))) < 0.05
    for rule in ("none", "seed", "inverse"):
        made = AdaptiveK(rule, 16, 3, 40, 0.7, 0.01)
        variances = torch.tensor([0.0, 1e-4, 0.003, 0.01, 0.05, 0.25, 9.0], dtype=torch.float64)
        counts = made(variances).tolist()
        assert counts == [made.of_number(float(v)) for v in variances]
        yield f"{made}: {counts}, at most {made.widest}"
    for values in (("no", 1, 1, 1), ("none", 1, 0, 1), ("none", 1, 2, 3), ("none", 4, 1, 3)):
        yield said(lambda values=values: AdaptiveK(*values))
    keys, positions = torch.tensor([[3, 2**40 + 1]]), torch.tensor([[0, 77]])
    yield f"noise {numbers(gumbel_noise(keys, positions, 2, 2, 3))}"
    yield said(lambda: gumbel_noise(keys, positions[0], 2, 2, 3))
    yield said(lambda: gumbel_noise(keys.int(), positions, 2, 2, 3))


def test_formulas_that_many_blocks_share():
    check("formulas", small_formulas(), relative=1e-5)
