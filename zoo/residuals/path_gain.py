"""A cap on what coefficients that depend on the streams do to the gradient: `gain` of `ohc` and `shc`.

An H_res(x) that is orthogonal for every x does not make x → H_res(x)·x an isometry: its differential is
H_res·dx + dH_res·x. With x̂ = vec x/rms(x) and N = nD numbers a token, ‖x‖ = √N·rms(x) and ‖dx̂‖ ≤ ‖dx‖/rms(x), so that

    ‖dH_res·x‖ ≤ |mα₂|·s·√N·‖dx‖,      s: ‖dH_res‖₂ ≤ |mα₂|·s·‖dx̂‖ (`sensitivity`, each scheme's own)

whatever the size of x. Layers multiply these gains, and Adam drives α·φ up within fifty steps of a high rate. With
`gain` = g the scale mα₂ becomes mα₂·g/max(g, |mα₂|·s·√N), and ‖∂(H_res(x)x)/∂x − H_res‖₂ ≤ g for all x and all weights.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.interfaces import Dims
from zoo.options import added, positive
from zoo.residuals.hyper_connections import Coefficients, HyperConfig, HyperResidual


@dataclass
class CappedConfig(HyperConfig):
    """gain: the most that the way through H_res(x) may add to the norm of a gradient, in each sub-block, as a share of
    it (null: no limit).

    The rest as in HyperConfig.
    """

    gain: float | None = added(0.1, before=None)


class CappedResidual(HyperResidual):
    """A scheme with several streams whose mixing may not depend too strongly on them."""

    config: CappedConfig

    def __init__(self, config: CappedConfig, dims: Dims, n_res: int) -> None:
        if config.gain is not None:
            positive(config.gain, "gain of a residual scheme")
        super().__init__(config, dims, n_res)

    @abstractmethod
    def sensitivity(self) -> Tensor:
        """s of ‖dH_res‖₂ ≤ |mα₂|·s·‖dx̂‖, for all x; [] in at least fp32."""

    def path_gain(self) -> Tensor:
        """The bound |mα₂|·s·√(nD) of ‖∂(H_res(x)x)/∂x − H_res‖₂ before the cap, []."""
        return self._bound(super().scale())

    def probe_values(self, coefficients: Coefficients) -> dict[str, Tensor]:
        """pre, post, res, and the bound of the path gain after the cap."""
        return {**super().probe_values(coefficients), "path_gain": self._bound(self.scale())}

    def scale(self) -> Tensor:
        """mα [3]; that of H_res capped."""
        scale = super().scale()
        gain = self.config.gain
        if gain is None:
            return scale
        return torch.cat([scale[:2], scale[2:] * (gain / self._bound(scale).clamp(min=gain))])

    def _bound(self, scale: Tensor) -> Tensor:
        return scale[2].abs() * self.sensitivity() * self.phi_res.shape[1] ** 0.5
