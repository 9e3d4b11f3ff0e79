"""One layer: a sequence mixer and a channel mixer, each wrapped in the residual scheme."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor, nn

from zoo import context_parallel, registry
from zoo.config import ModelConfig
from zoo.context import Context
from zoo.interfaces import Aux, Dims
from zoo.modules import RMSNorm
from zoo.recompute import run_saved


class Layer(nn.Module):
    """x ← residual(x, mixer ∘ norm), then x ← residual(x, channel ∘ norm).

    The norms live here: mixers and channel mixers receive normalised input.
    """

    def __init__(self, config: ModelConfig, letter: str, dims: Dims) -> None:
        super().__init__()
        mixer = registry.mixer_by_letter()[letter]
        channel = registry.get("channel", config.channel.name)
        scheme = registry.get("residual", config.residual.name)
        scheme_options = getattr(config.residual, scheme.name)
        self.mixer = mixer.cls(getattr(config.mixers, mixer.name), dims)
        self.channel = channel.cls(getattr(config.channel, channel.name), dims)
        self.mixer_name, self.channel_name = mixer.name, channel.name
        self.mixer_norm, self.channel_norm = RMSNorm(dims.d_model), RMSNorm(dims.d_model)
        self.mixer_residual = scheme.cls(scheme_options, dims)
        self.channel_residual = scheme.cls(scheme_options, dims)

    def forward(self, x: Tensor, ctx: Context) -> tuple[Tensor, Aux]:
        """Streams in, streams out, and the auxiliary losses of both sub-blocks."""
        inside = ctx.at(part="mixer", block=self.mixer_name)
        u, same, c = self.mixer_residual.normed_pre(x, self.mixer_norm)
        inside.record("streams", lambda: {"streams": x, **self.mixer_residual.probe_values(c)})
        knows = inside.shard is None or self.mixer.context_parallel
        mixer = self.mixer if knows else functools.partial(context_parallel.whole, self.mixer)
        z, aux = run_saved(mixer, u, inside)
        x = self.mixer_residual.post(same, z, c)
        x, channel_aux = self._feed(x, ctx.at(part="channel", block=self.channel_name))
        return x, {**aux, **channel_aux}

    def extend(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The next tokens: streams [B, T, ...] in and out, with the mixer's state."""
        u, x, c = self.mixer_residual.normed_pre(x, self.mixer_norm)
        z, state = self.mixer.extend(u, state)
        x = self.mixer_residual.post(x, z, c)
        return self._feed(x, None)[0], state

    def _feed(self, x: Tensor, ctx: Context | None) -> tuple[Tensor, Aux]:
        u, same, c = self.channel_residual.normed_pre(x, self.channel_norm)
        if ctx is not None:
            ctx.record("streams", lambda: {"streams": x, **self.channel_residual.probe_values(c)})
        z, aux = run_saved(self.channel, u, ctx)
        return self.channel_residual.post(same, z, c), aux
