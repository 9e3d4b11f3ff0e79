"""suite=models: a training step, prefill and decode of every preset, against sequence length.

    training step  forward, backward, clipping and AdamW; as many sequences as the tokens of a step (8,192) allow
    prefill        a forward pass over one sequence, with the logits of all its tokens
    decode         one token after a context of that length

Presets have the configured width, heads and depth (size=reference is the reference model's), and are configured for
each length. ratio: the transformer's time over this one's. A case that runs out of memory, or would take minutes by
its growth so far, is a row that says so. Rows that are in the table already are not measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from tqdm import tqdm

from experiments.bench import result_table, timing
from experiments.bench.cases import matching_names
from experiments.bench.model_steps import TrainingStep, autocast, make_model, random_tokens, state_after
from experiments.bench.timing import GPU_LENGTHS
from experiments.configuration.compose import architectures
from experiments.configuration.schema import Config
from experiments.parallel.group import pick_device, pick_precision
from zoo.model import LanguageModel

LENGTHS = {"cuda": GPU_LENGTHS, "cpu": [512, 1024]}
STEP_TOKENS = 8192
MODES = ("training step", "prefill", "decode")
PLAIN = "transformer"
LIMIT_S = 60.0
"""The longest a repetition may take, as predicted from shorter sequences."""
SLOW_MS = 2e3
"""A call that takes longer is timed once."""
NO_ROOM = "out of memory"


def run(config: Config) -> list[dict[str, Any]]:
    """All rows of the table, those of earlier runs included."""
    device = pick_device(config.device)
    table = result_table.ResumableTable(config, device)
    table.fill(_cells(_Bench(config, device, table)), config.bench.budget_s, "models")
    return table.rows


def finished(config: Config) -> bool:
    """Return whether every cell has its row."""
    device = pick_device(config.device)
    table = result_table.ResumableTable(config, device)
    return not table.unmeasured(_cells(_Bench(config, device, table)))


def _cells(bench: _Bench) -> Iterator[result_table.Cell]:
    names = matching_names(bench.config.bench.cases, list(architectures(bench.config.model)))
    for length in sorted(bench.config.bench.lengths or LENGTHS[bench.device.type]):
        for name in names:
            for mode in MODES:
                yield _Cell(bench, name, mode, length).cell


class _Cell:
    """One preset in one mode at one length."""

    def __init__(self, bench: _Bench, name: str, mode: str, length: int) -> None:
        self.bench, self.config, self.device, self.table = bench, bench.config, bench.device, bench.table
        self.name, self.mode, self.length = name, mode, length
        config, training = bench.config, mode == "training step"
        self.batch = max(1, (config.bench.tokens or STEP_TOKENS) // length) if training else 1
        self.recompute = config.trainer.recompute if training else "none"

    @property
    def cell(self) -> result_table.Cell:
        names = {"model": self.name, "mode": self.mode, "tokens": self.length, "batch": self.batch}
        return result_table.Cell({**names, "recompute": self.recompute}, self.measure)

    def measure(self) -> list[dict[str, Any]]:
        note = self._reason_to_skip()
        if note is None:
            try:
                return self._print(self._time())
            except torch.OutOfMemoryError:
                note = NO_ROOM
            except Exception as error:  # of a model at a length; the others go on
                note = result_table.failure_reason(error)
                if result_table.is_fatal(error):
                    raise result_table.Crashed(f"{self.name}: {error}", self._note_row(note)) from error
        self.bench.forget()
        return self._note_row(note)

    def _reason_to_skip(self) -> str | None:
        """The reason to skip a cell, from the time and memory of shorter sequences; None to measure it."""
        rows = self.table.find(model=self.name, mode=self.mode, recompute=self.recompute)
        shorter = [row for row in rows if int(row["tokens"]) < self.length]
        if any(str(row.get("note", "")).startswith(NO_ROOM) for row in shorter):
            return f"{NO_ROOM} at fewer tokens"
        timed = [row for row in shorter if row.get("milliseconds_median")]
        if not timed:
            return None
        last = max(timed, key=lambda row: int(row["tokens"]))
        longer = self.length / int(last["tokens"])
        tokens = longer * self.batch / int(last["batch"])
        # At worst each of the tokens meets all others of its sequence.
        seconds = float(last["milliseconds_median"]) / 1e3 * tokens * longer
        return f"left out: it would take about {seconds:.0f} s" if seconds > LIMIT_S else None

    def _time(self) -> dict[str, Any]:
        call = _CALLS[self.mode](self)
        times = timing.interleaved({self.name: call}, 1, self.device)
        if times[self.name][0] < SLOW_MS:
            times = timing.interleaved({self.name: call}, self.config.bench.repeats, self.device)
        peak = timing.peak_memory(call, self.device)
        plain = self._transformer_time(timing.summary(times[self.name])["milliseconds_median"])
        row = result_table.row("models", self.name, times[self.name], plain or 0.0, self.device)
        row |= {**self._columns, "backend": self.config.model.backend, "peak_memory_bytes": peak}
        return {**row, "ratio": ""} if plain is None else row

    def _transformer_time(self, milliseconds: float) -> float | None:
        """The transformer's time; None where it has none."""
        if self.name == PLAIN:
            return milliseconds
        names = {**self.cell.names, "model": PLAIN}
        measured = [row["milliseconds_median"] for row in self.table.find(**names) if not row.get("note")]
        return float(measured[0]) if measured else None

    def _note_row(self, note: str) -> list[dict[str, Any]]:
        return self._print(result_table.note_row("models", self.name, note, self.device) | self._columns)

    @property
    def _columns(self) -> dict[str, Any]:
        precision = "bfloat16" if self.bench.half else "float32"
        return {**self.cell.names, "precision": precision}

    def _print(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        tqdm.write(result_table.format_row(row))
        return [row]

    @property
    def model(self) -> LanguageModel:
        return self.bench.model(self.name, self.length)

    def tokens(self) -> torch.Tensor:
        return random_tokens(self.config, self.batch, self.length, self.device)


def _training_step(cell: _Cell) -> Callable[[], None]:
    return TrainingStep(cell.config, cell.model, cell.tokens())


def _prefill(cell: _Cell) -> Callable[[], None]:
    model, tokens = cell.model.eval(), cell.tokens()

    @torch.no_grad()
    def forward() -> None:
        with autocast(cell.config, cell.device):
            model(tokens)

    return forward


def _decode(cell: _Cell) -> Callable[[], None]:
    model, token = cell.model.eval(), cell.tokens()[:, -1]
    state = state_after(model, cell.length, torch.bfloat16 if cell.bench.half else torch.float32)

    def step() -> None:
        with autocast(cell.config, cell.device):
            model.step(token, state)

    return step


_CALLS = {"training step": _training_step, "prefill": _prefill, "decode": _decode}


class _Bench:
    """State that all cells share: the table, and the model of the last cell, for its other modes."""

    def __init__(self, config: Config, device: torch.device, table: result_table.ResumableTable) -> None:
        self.config, self.device, self.table = config, device, table
        self.half = pick_precision(config.trainer.precision, device) == "bf16"
        self._made: tuple[str, int, LanguageModel] | None = None

    def model(self, name: str, length: int) -> LanguageModel:
        """The preset, configured for a length, past its warm-ups."""
        if self._made is None or self._made[:2] != (name, length):
            self.forget()
            config = architectures(self.config.model)[name]
            self._made = name, length, make_model(self.config, config, length, self.device)
        return self._made[2]

    def forget(self) -> None:
        """Free the memory of the last model."""
        self._made = None
        timing.free_memory(self.device)
