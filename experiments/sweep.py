"""Sweeps: every cell is composed and checked first; then the unfinished ones train, each in a process of its own.

A Hydra sweeper, so that `--multirun`, comma lists and `hydra.sweeper.params` mean what Hydra users expect. Cells that
are complete are skipped; a cell that fails or is killed is reported at once and does not stop the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from experiments.runs import RunFailed


class CellSweeper(Sweeper):
    """Expands overrides into cells; training cells go to worker processes, other jobs run one after another."""

    def __init__(self, params: dict[str, str] | None = None) -> None:
        self.params = params

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.context, self.function, self.config = hydra_context, task_function, config

    def sweep(self, arguments: list[str]) -> list[Any]:
        cells = [self._compose(overrides) for overrides in self._expand(arguments)]
        if all(cell.job == "train" for cell in cells):
            from experiments.cells import run_cells

            failed = run_cells(cells)
            if failed:
                raise RunFailed(f"{failed} of {len(cells)} cells failed; the same command tries them again")
            return []
        return [self.function(OmegaConf.structured(cell)) for cell in cells]

    def _expand(self, arguments: list[str]) -> list[Sequence[str]]:
        """Overrides of every cell; those of the command line win over hydra.sweeper.params."""
        params = {k: v for k, v in (self.params or {}).items() if v is not None}
        given = {a.lstrip("+~").partition("=")[0] for a in arguments}
        words = [f"{key}={value}" for key, value in params.items() if key not in given] + arguments
        overrides = OverridesParser.create().parse_overrides(words)
        return [cell for batch in BasicSweeper.split_arguments(overrides, None) for cell in batch]

    def _compose(self, overrides: Sequence[str]) -> Any:
        node = self.context.config_loader.load_sweep_config(self.config, list(overrides))
        fields = {f.name for f in dataclasses.fields(_schema())}
        return OmegaConf.to_object(OmegaConf.masked_copy(node, list(fields)))


def _schema() -> type:
    from experiments.schema import Config  # the schema registers this sweeper, so it cannot be imported above

    return Config
