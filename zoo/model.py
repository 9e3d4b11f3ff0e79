"""The language model: embedding, layers chosen by a pattern, norm, LM head; a layer, and a model without storage."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import kernels
from zoo import context_parallel
from zoo.config import Architecture, ModelConfig, architecture_of
from zoo.context import Context
from zoo.errors import UserError
from zoo.interfaces import WITHOUT_DATA, Aux, Dims
from zoo.modules import INIT_STD, OutputProjection, RMSNorm, output_std
from zoo.options import check_limits, remembered
from zoo.recompute import Layers, Recompute


class Layer(nn.Module):
    """x ← residual(x, mixer ∘ norm), then x ← residual(x, channel ∘ norm).

    The norms live here: mixers and channel mixers receive normalised input.
    """

    def __init__(self, config: ModelConfig, architecture: Architecture, dims: Dims) -> None:
        super().__init__()
        mixer, channel = architecture.mixers[dims.layer], architecture.channels[dims.layer]
        scheme = architecture.residual
        for block in (mixer.block, channel, scheme):
            if missing := sorted(getattr(block.cls, "__abstractmethods__", ())):
                raise UserError(
                    f"{block.kind} {block.name} ({block.cls.__module__}) has no {', '.join(missing)}; add it"
                )
        scheme_options = getattr(config.residual, scheme.name)
        try:
            self.mixer = mixer.block.cls(mixer.options, dims)
        except UserError as error:
            raise UserError(f"model.{mixer.key}: {error}") if mixer.is_variant else error from None
        self.channel = channel.cls(getattr(config.channel, channel.name), dims)
        self.mixer_name, self.channel_name = mixer.name, channel.name
        self.mixer_norm, self.channel_norm = (RMSNorm(dims.d_model, dims.norm_eps) for _ in range(2))
        self.mixer_residual = scheme.cls(scheme_options, dims)
        self.channel_residual = scheme.cls(scheme_options, dims)

    def forward(self, x: Tensor, ctx: Context) -> tuple[Tensor, Aux]:
        """Streams in, streams out, and the auxiliary losses [] of both sub-blocks by name.

        x: [B, T, n, D], of one stream [B, T, D].
        """
        inside = ctx.at(part="mixer", block=self.mixer_name)
        u, same, c = self.mixer_residual.normed_pre(x, self.mixer_norm)
        inside.record("streams", lambda: {"streams": x, **self.mixer_residual.probe_values(c)})
        knows = inside.shard is None or self.mixer.context_parallel
        mixer = self.mixer if knows else functools.partial(context_parallel.whole, self.mixer)
        z, aux = _with_losses(inside.saved(mixer, u), self.mixer_name)
        x = self.mixer_residual.post(same, z, c)
        x, channel_aux = self._channel_block(x, ctx.at(part="channel", block=self.channel_name))
        return x, {**aux, **channel_aux}

    def extend(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The next tokens: streams [B, T, ...] in and out, with the mixer's state."""
        u, x, c = self.mixer_residual.normed_pre(x, self.mixer_norm)
        z, state = self.mixer.extend(u, state)
        x = self.mixer_residual.post(x, z, c)
        return self._channel_block(x, None)[0], state

    def _channel_block(self, x: Tensor, ctx: Context | None) -> tuple[Tensor, Aux]:
        u, same, c = self.channel_residual.normed_pre(x, self.channel_norm)
        if ctx is not None:
            ctx.record("streams", lambda: {"streams": x, **self.channel_residual.probe_values(c)})
        found = self.channel(u, None) if ctx is None else ctx.saved(self.channel, u)
        z, aux = _with_losses(found, self.channel_name)
        return self.channel_residual.post(same, z, c), aux


def _with_losses(returned: Any, block: str) -> tuple[Tensor, Aux]:
    """Return the output and the losses of a block's forward. Raises TypeError where it returned anything else."""
    if not (isinstance(returned, tuple) and len(returned) == 2):
        raise TypeError(
            f"{block}: forward must return (y, losses), with losses a dict of auxiliary losses ({{}} if it has none), "
            f"but it returned a {type(returned).__name__}"
        )
    return returned


@dataclasses.dataclass
class DecodeState:
    """The decode states of all layers, in order."""

    layers: list[Any]


class LanguageModel(nn.Module):
    """tokens [B, T] -> logits [B, T, V].

        x = E[tokens] (into streams);  x = layer_i(x) for all layers;  logits = RMSNorm(collapse(x))·W_headᵀ

    Weights start normal with std 0.02 (output projections 0.02/√(2N)), drawn on the CPU from `seed`, so that a seed
    gives the same model on every device. W_head is E when embeddings are tied.
    """

    def __init__(self, config: ModelConfig, *, vocab_size: int, seq_len: int, seed: int = 0) -> None:
        super().__init__()
        check_limits(config, "model.")
        self.config, self.vocab_size, self.seq_len = config, vocab_size, seq_len
        self.recompute: Recompute | None = None  # a setting of training, no part of the model
        self.architecture = architecture_of(config)
        self.letters = self.architecture.letters
        depth = self.architecture.depth
        dims = Dims(config.d_model, config.n_heads, seq_len, 0, depth, config.backend, config.norm_eps)
        self.body_backend = dims.body_backend
        # Modules draw weights when they are built, which init_weights then replaces; torch's own generator is restored.
        with torch.random.fork_rng(devices=[]):
            self._build(config, vocab_size, dims)
        self.aux_weights = self._aux_weights()
        if self.embedding.weight.device.type != "meta":
            init_weights(self, seed)

    def _build(self, config: ModelConfig, vocab_size: int, dims: Dims) -> None:
        self.embedding = nn.Embedding(vocab_size, config.d_model)
        self.layers = nn.ModuleList(
            Layer(config, self.architecture, dataclasses.replace(dims, layer=i)) for i in range(dims.depth)
        )
        scheme = self.architecture.residual
        self.streams = scheme.cls.streams(getattr(config.residual, scheme.name), dims)
        if (inside := self.streams.inside()) < (carried := self.streams.carried()):
            raise TypeError(
                f"{type(self.streams).__name__}: a token carries {carried} vectors to the next layer but has {inside} "
                "inside one; define inside() too"
            )
        self.norm = RMSNorm(config.d_model, config.norm_eps)
        self.head = None if config.tie_embeddings else nn.Linear(config.d_model, vocab_size, bias=False)

    def forward(
        self,
        tokens: Tensor,
        ctx: Context | None = None,
        targets: Tensor | None = None,
        *,
        right: bool = False,
    ) -> tuple[Any, Aux]:
        """Logits [B, T, V] and auxiliary losses by name, each the mean over the layers that have it.

        With targets, int64 [B, T], in the place of logits, which are never there all at once: the sum of the targets'
        nats [], the nats of each [B, T], 0 where it is −100, and whether it was the likeliest token, bool [B, T], or
        None if not `right` (kernels.linear_cross_entropy).

        tokens: int64 [B, T]; ctx: None for plain batches without noise (see zoo.context.Context.of). In a shard
        (Context.cut) tokens, targets, logits and nats are the rank's own, losses those of the whole batch.
        """
        ctx = ctx or Context.of(tokens)
        if ctx.shard is not None:
            ctx.shard.check(tokens)
        x = self.streams.expand(self.embedding(tokens))
        found: list[Aux] = []
        for run in self._groups(x, ctx):
            x, losses_of_each = run(x, ctx)
            found += losses_of_each
        losses: dict[str, list[Tensor]] = {}
        for aux in found:
            for name, value in aux.items():
                losses.setdefault(name, []).append(value)
        ctx.at(layer=len(self.layers), part="head").record("streams", lambda: {"streams": x})
        out = self._logits(x) if targets is None else self._nats(x, targets, right)
        return out, {name: torch.stack(values).mean() for name, values in losses.items()}

    def _groups(self, x: Tensor, ctx: Context) -> Sequence[Layers]:
        """The layers to run one after the other; in training in groups, where something is recomputed."""
        layers = [functools.partial(self._layer, i) for i in range(len(self.layers))]
        carried, inside = self.streams.carried(), self.streams.inside()
        if not self.training or (self.recompute is None and carried == inside):
            return layers
        recompute = self.recompute or Recompute()
        return recompute.groups(layers, x, ctx, carried=carried, inside=inside)

    def _layer(self, index: int, x: Tensor, ctx: Context) -> tuple[Tensor, list[Aux]]:
        x, aux = self.layers[index](self._received(index, x), ctx.at(layer=index))
        return self._pack_streams(index, x), [aux]

    def _received(self, index: int, x: Tensor) -> Tensor:
        """The streams that a layer receives: the embedding's, or those that the layer before handed on."""
        return self.streams.unpack(x) if index else x

    def _pack_streams(self, index: int, x: Tensor) -> Tensor:
        """Return what goes from a layer to the next; all streams after the last."""
        return self.streams.pack(x) if index < len(self.layers) - 1 else x

    def init_state(self, batch_size: int, *, capacity: int = 0) -> DecodeState:
        """Decode state before the first token; capacity: tokens to make room for at once."""
        like = self.embedding.weight
        options = {"capacity": capacity, "device": like.device, "dtype": like.dtype}
        return DecodeState([layer.mixer.init_state(batch_size, **options) for layer in self.layers])

    @torch.no_grad()
    def extend(
        self, tokens: Tensor, state: DecodeState, *, every: bool = False
    ) -> tuple[Tensor, DecodeState]:
        """The next T ≥ 1 tokens of every sequence: int64 [B, T] -> (logits after the last, [B, V], the state then).

        every: the logits after each of them, [B, T, V]. The state given is used up.
        """
        x = self.streams.expand(self.embedding(tokens))
        states = []
        for i, (layer, before) in enumerate(zip(self.layers, state.layers, strict=True)):
            x, after = layer.extend(self._received(i, x), before)
            x = self._pack_streams(i, x)
            states.append(after)
        logits = self._logits(x if every else x[:, -1:])
        return logits if every else logits[:, 0], DecodeState(states)

    def step(self, tokens: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        """One token a sequence: tokens int64 [B] -> (logits [B, V], the state after it)."""
        return self.extend(tokens[:, None], state)

    def aux_loss(self, aux: Aux) -> Tensor | float:
        """Σ weight · auxiliary loss, []: what training adds to the cross-entropy; 0.0 where there is none."""
        return sum((self.aux_weights[name] * value for name, value in aux.items()), 0.0)

    def _logits(self, x: Tensor) -> Tensor:
        x = self.norm(self.streams.collapse(x))
        return F.linear(x, self.embedding.weight) if self.head is None else self.head(x)

    def _nats(self, x: Tensor, targets: Tensor, right: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        x, head = self.norm(self.streams.collapse(x)), self.embedding if self.head is None else self.head
        return kernels.linear_cross_entropy(x, head.weight, targets, right=right, backend=self.body_backend)

    def _aux_weights(self) -> dict[str, float]:
        weights: dict[str, float] = {}
        for layer in self.layers:
            for name, weight in {**layer.mixer.aux_weights, **layer.channel.aux_weights}.items():
                if weights.setdefault(name, weight) != weight:
                    raise UserError(
                        f"the auxiliary loss {name} is one mean over all layers that have it, and has the weights "
                        f"{weights[name]} and {weight} in two of them; give variants of a mixer one weight"
                    )
        for name, weight in weights.items():
            if not 0 <= weight < math.inf:
                raise UserError(f"the weight of the auxiliary loss {name} is {weight}; it must be at least 0")
        return weights


@torch.no_grad()
def init_weights(model: LanguageModel, seed: int) -> None:
    """Draw all weights from one generator, in module order; modules with `init_weights` then draw their own.

    Those come last, parts before the whole, so that a mixer may set the projections that it is made of.
    """
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            std = output_std(len(model.layers)) if isinstance(module, OutputProjection) else INIT_STD
            nn.init.normal_(module.weight, std=std, generator=generator)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
    for module in reversed(list(model.modules())):
        if hasattr(module, "init_weights"):
            module.init_weights(generator)


def on_meta(
    config: ModelConfig, *, vocab_size: int, seq_len: int, keep_backend: bool = False
) -> LanguageModel:
    """The model on the meta device, without storage.

    keep_backend: whatever it is, for a rehearsal of its calls (zoo.backends).
    """
    if config.backend not in WITHOUT_DATA and not keep_backend:
        config = dataclasses.replace(config, backend="auto")
    with torch.device("meta"), _NoInit():
        return LanguageModel(config, vocab_size=vocab_size, seq_len=seq_len)


@remembered
def meta_model(config: ModelConfig, *, vocab_size: int, seq_len: int) -> LanguageModel:
    """`on_meta`, made once a process: it is shared, so do not change it."""
    return on_meta(config, vocab_size=vocab_size, seq_len=seq_len)


def on_fake_tensors(config: ModelConfig, *, vocab_size: int, seq_len: int) -> LanguageModel:
    """The model of CPU tensors without storage, inside a `FakeTensorMode`: what it computes has the sizes that it has.

    On the meta device tensors are never recomputed and autocast does nothing; here both are as on a device.
    """
    if config.backend not in WITHOUT_DATA:
        config = dataclasses.replace(config, backend="auto")
    return to_be_filled(config, vocab_size=vocab_size, seq_len=seq_len)


def to_be_filled(config: ModelConfig, *, vocab_size: int, seq_len: int) -> LanguageModel:
    """The model whose parameters hold anything, for weights that replace them all: drawing billions takes minutes."""
    with _NoInit():
        return LanguageModel(config, vocab_size=vocab_size, seq_len=seq_len)


_DRAWS = ("uniform_", "log_", "exp_", "expm1_")


class _NoInit(TorchFunctionMode):
    """Leaves out what fills parameters: drawing on the meta device imports the compiler, which takes seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        if getattr(func, "__name__", None) in _DRAWS and args[0].is_meta:
            return args[0]
        return func(*args, **kwargs)
