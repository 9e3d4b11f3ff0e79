"""A model that goes on as another kind of model: full attention becomes gated sparse attention, one stream several.

The new model computes what the old one did before its first step. What both have is copied. A new gate is constant:
W = 0 and b = 0, so σ = ½ for every token, and the projection that it multiplies, W_v or W_o, is doubled. New residual
streams begin as copies of one, of which every sub-block reads the mean and which it leaves differing about the plain
residual (zoo.residuals.hyper_connections). Attention is dense while an indexer warms up.
"""

from __future__ import annotations

import dataclasses

import torch

from zoo.config import ModelConfig, architecture_of
from zoo.errors import UserError
from zoo.interfaces import WITHOUT_DATA, restore
from zoo.mixers.attention import AttentionConfig
from zoo.mixers.gsa import GSAConfig
from zoo.model import LanguageModel
from zoo.options import grouped_kv_heads
from zoo.probes import evaluation_mode
from zoo.residuals.hyper_connections import HyperResidual, initial_biases

TOKENS = 16
"""Tokens of the sequence on which a new model is compared with the old one."""
_SHARED = {f.name for f in dataclasses.fields(AttentionConfig)} & {
    f.name for f in dataclasses.fields(GSAConfig)
}
_GATES = {"value_gate": "v_proj", "output_gate": "o_proj"}


def converted(source: ModelConfig, like: ModelConfig) -> ModelConfig:
    """The configuration of a source's model with gated sparse attention in the place of full attention.

    From the source come sizes, heads, rotary positions, norms and channel mixers; from `like` the indexer, the gates,
    the residual scheme and the backend. Of a converted model's configuration as `like` it is the same again.
    Raises UserError for a source that has no such counterpart.
    """
    layers, attention = architecture_of(source), source.mixers.attention
    if "F" not in layers.words:
        raise UserError(f"{layers.letters} has no full attention (F) to make gated sparse attention (G) of")
    unlike = {
        "a window": attention.window is not None,
        "no rotary positions": attention.positions != "rope",
        "sinks": attention.sinks != "none",
    }
    if what := " and ".join(name for name, there in unlike.items() if there):
        raise UserError(
            f"its attention has {what}, which gated sparse attention (G) has not; no such model becomes one"
        )
    if source.residual.name not in ("add", like.residual.name):
        raise UserError(
            f"it has residual.name={source.residual.name}, and only one stream (add) becomes {like.residual.name}"
        )
    if like.mixers.gsa.warmup < 1:
        raise UserError(
            "gsa.warmup=0 would begin with sparse attention, which the source has not; give at least 1"
        )
    options = {key: getattr(attention, key) for key in _SHARED}
    if attention.n_kv_heads is None:  # the two blocks' defaults differ
        heads, most = attention.n_heads or source.n_heads, attention.max_kv_heads
        options["n_kv_heads"] = heads if most is None else grouped_kv_heads(heads, most)
    for gate in _GATES:
        options[gate] = getattr(attention, gate) or getattr(like.mixers.gsa, gate)
    return dataclasses.replace(
        source,
        preset=like.preset,
        pattern="".join("G" if word == "F" else word for word in layers.words),
        depth=layers.depth,
        mixers=dataclasses.replace(source.mixers, gsa=dataclasses.replace(like.mixers.gsa, **options)),
        residual=like.residual if source.residual.name == "add" else source.residual,
        backend=like.backend,
    )


@torch.no_grad()
def convert(
    source: LanguageModel, config: ModelConfig, *, seq_len: int | None = None, seed: int = 0
) -> LanguageModel:
    """A model of this configuration that begins as the source: with its weights, in its dtype, computing its logits.

        zoo.convert(zoo.from_pretrained("Qwen3-0.6B"), converted(...))

    config: the source's own, or `converted`; seq_len: the configured length (None: the source's); seed: of what is new
    and drawn, as indexers are. New gates and the biases of new streams are set in the source's dtype.
    Raises UserError where tensors differ in name or shape, and where the new model would compute something else.
    """
    sizes = {"vocab_size": source.vocab_size, "seq_len": seq_len or source.seq_len}
    model = LanguageModel(config, **sizes, seed=seed).to(source.embedding.weight.dtype)
    if config.backend not in WITHOUT_DATA:  # it may serve another device alone
        plain = dataclasses.replace(config, backend="auto")
        model.load_state_dict(convert(source, plain, seq_len=seq_len, seed=seed).state_dict())
        return model
    old, new = source.state_dict(), model.state_dict()
    for name, x in old.items():
        if name not in new or new[name].shape != x.shape:
            raise UserError(f"the model that is to go on has no {name} of shape {list(x.shape)}")
        new[name].copy_(x)
    restore(model)
    for name, module in model.named_modules():
        owner, _, kind = name.rpartition(".")
        if isinstance(module, HyperResidual) and f"{name}.b_pre" not in old:
            scheme = module.config
            b_pre, b_post = initial_biases(scheme.n_streams, scheme.init, module.b_pre.dtype)
            module.b_pre.copy_(b_pre)
            module.b_post.copy_(b_post)
        elif kind in _GATES and f"{name}.weight" not in old:
            module.weight.zero_()
            module.bias.zero_()
            for x in getattr(model.get_submodule(owner), _GATES[kind]).parameters():
                x.mul_(2)  # exact, in every dtype
    if new.keys() != old.keys():
        _check(model, source)
    return model


def _check(model: LanguageModel, source: LanguageModel) -> None:
    """Raise UserError where two models compute different logits; rounding is allowed for."""
    tokens = torch.arange(min(TOKENS, model.seq_len))[None] % model.vocab_size
    with evaluation_mode(model), evaluation_mode(source):
        logits, wanted = model(tokens)[0], source(tokens)[0]
    off = float((logits - wanted).norm() / wanted.norm())
    if not off <= torch.finfo(wanted.dtype).eps ** 0.5:
        raise UserError(
            f"a model with residual.name={model.config.residual.name} as it is set would begin {off:.1g} off what it "
            "is made of; streams must begin as the plain residual: ohc, hc, mhc or identity with init=identity, or add"
        )
