"""How exactly a mixer solves its equations."""

from __future__ import annotations

from collections.abc import Iterator

from zoo.probe import Sight
from zoo.probes.measure import Measure, register
from zoo.probes.rows import Row, by_head


@register
class Solver(Measure):
    """cg_residual: ‖q − (H + Λ)·x‖ / ‖q‖ after 0, 1 … steps of the conjugate gradient, axis step, mean over tokens."""

    name = "solver"
    kinds = ("solver",)

    def see(self, sight: Sight) -> Iterator[Row]:
        for step, residuals in enumerate(sight.values["residuals"].detach().double()):
            count = residuals[..., 0].numel()
            where = {"axis": "step", "start": step, "end": step + 1}
            yield from by_head(sight, "cg_residual", residuals.mean((0, 1)), count, **where)
