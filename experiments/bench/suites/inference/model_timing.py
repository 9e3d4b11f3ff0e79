"""Measuring one model in one mode at one length and batch, in turns with what it is compared with."""

from __future__ import annotations

from typing import Any

import torch
from tqdm import tqdm

from experiments.bench import decoding, result_table, timing
from experiments.bench.hugging_face.peer import Peer
from experiments.bench.model_steps import autocast
from experiments.bench.suites.inference.calls import STEPS, Call, decode_call, forward_call, prefill_call
from experiments.bench.suites.inference.expected import expected_ms
from experiments.bench.suites.inference.inference_rows import compared, format_row
from experiments.bench.suites.inference.model_sources import TimedModel
from experiments.bench.suites.inference.reference_models import Bench, ComparedModels
from experiments.configuration.compose import model_color
from experiments.system import machine
from zoo.model import letters_of

OWN, PEER, PLAIN, FORWARD, SHORTEST = "own", "transformers", "transformer", "forward", "shortest"
RATIO = {
    OWN: None,
    PEER: "ratio",
    PLAIN: "ratio_transformer",
    FORWARD: "ratio_forward",
    SHORTEST: "ratio_shortest",
}
"""What may take part, and the column that compares it with the model itself."""
MODES = {"prefill": 1, "decode": STEPS}
"""Mode -> steps that are timed together."""
MOST_GROWTH = {"prefill": 2.0, "decode": 1.0}
"""The highest power of the length by which a time grows: at worst each token meets all others of its sequence."""
CELL_S, LIMIT_S = 10.0, 6.0
"""Seconds for the rounds of a cell after the first, and the longest that one call may be expected to take."""
MEMORY = 0.5
"""The share of a machine's memory that a cell may take; a GPU says by itself when it is full."""
NO_ROOM = "out of memory"


class ModelTiming:
    """One model in one mode at one length and batch."""

    def __init__(self, bench: Bench, timed: TimedModel, mode: str, length: int, batch: int) -> None:
        self.bench, self.timed, self.mode, self.length, self.batch = bench, timed, mode, length, batch
        self.letters = letters_of(timed.config)

    @property
    def cell(self) -> result_table.Cell:
        """The cell of the table that `measure` fills."""
        return result_table.Cell({**self._kind, "tokens": self.length}, self.measure)

    @property
    def _kind(self) -> dict[str, Any]:
        """The columns that the cells of all lengths share."""
        return {
            "model": self.timed.name,
            "mode": self.mode,
            "batch": self.batch,
            "d_model": self.timed.config.d_model,
            "depth": len(self.letters),
            "precision": str(self.bench.precision).removeprefix("torch."),
        }

    def measure(self) -> list[dict[str, Any]]:
        """The model's row, and that of its equal in transformers.

        Raises Crashed, with the rows so far, where a model's process ends in an error.
        """
        seconds = self._expected_s(OWN)
        if seconds > LIMIT_S:
            return self._print([self._note(f"left out: it would take about {seconds:.0f} s")])
        try:
            return self._print(self._what_fits())
        except torch.OutOfMemoryError:
            note = NO_ROOM
        except Exception as error:  # of a model at a length; the others go on
            note = result_table.failure_reason(error)
            if result_table.is_fatal(error):
                rows = self._print([self._note(note)])
                raise result_table.Crashed(f"{self.timed.name}: {error}", rows) from error
        self.bench.forget()
        return self._print([self._note(note)])

    def _expected_s(self, name: str) -> float:
        """Seconds that a call would take, as far as shorter lengths tell."""
        found = self.bench.table.find(**self._kind)
        shorter = [row for row in found if int(row["tokens"]) < self.length and row["backend"] != PEER]
        timed = [row for row in shorter if row.get("milliseconds_median")]
        expected = expected_ms(timed, RATIO[name], self.length, MOST_GROWTH[self.mode]) or 0.0
        return MODES[self.mode] * expected / 1e3

    def _is_quick(self, name: str) -> bool:
        return name == SHORTEST or self._expected_s(name) <= LIMIT_S  # a step after less takes no longer

    def _what_fits(self) -> list[dict[str, Any]]:
        """All that are quick enough, in turns; where memory does not hold them together, the model alone."""
        models = self.bench.compared_models(self.timed, self.length)
        reads, longer = self.mode == "prefill", self.length > self.bench.shortest
        there = {OWN: True, PEER: models.peer, PLAIN: models.plain, FORWARD: reads}
        there[SHORTEST] = longer and not reads
        names = [name for name, takes_part in there.items() if takes_part and self._is_quick(name)]
        try:
            return self._time(models, names)
        except torch.OutOfMemoryError:
            if names == [OWN]:
                raise
            return self._time(models, [OWN])

    def _time(self, models: ComparedModels, names: list[str]) -> list[dict[str, Any]]:
        self._check_memory(models, names)
        device, repeats = self.bench.device, self.bench.config.bench.repeats
        with autocast(self.bench.config, device):
            calls = {name: self._call(models, name) for name in names}
            times = timing.interleaved_within(calls, repeats, device, CELL_S)
        times = {name: [ms / MODES[self.mode] for ms in found] for name, found in times.items()}
        return self._rows(models, times)

    def _call(self, models: ComparedModels, name: str) -> Call:
        model, tokens = self._model(models, name), self._tokens(models)[:, : self._context(name)]
        if name == FORWARD:
            return forward_call(models.model, tokens)
        if self.mode == "prefill":
            return prefill_call(model, tokens)
        return decode_call(model, tokens, self.bench.precision, self.bench.config.bench.repeats + 1)

    def _model(self, models: ComparedModels, name: str) -> Any:
        return {PEER: models.peer, PLAIN: models.plain}.get(name, models.model)

    def _context(self, name: str) -> int:
        return self.bench.shortest if name == SHORTEST else self.length

    def _tokens(self, models: ComparedModels) -> torch.Tensor:
        shape, generator = (self.batch, self.length), torch.Generator().manual_seed(0)
        return torch.randint(models.model.vocab_size, shape, generator=generator).to(self.bench.device)

    def _check_memory(self, models: ComparedModels, names: list[str]) -> None:
        """Raise OutOfMemoryError before a CPU's memory is full: the system would end the program."""
        if self.bench.device.type != "cpu":
            return
        logits = 4 * self.batch * self.length * models.model.vocab_size
        needed = sum(logits if name == FORWARD else self._state_bytes(models, name) for name in names)
        if needed > MEMORY * machine.describe(self.bench.device)["memory_bytes"]:
            raise torch.OutOfMemoryError

    def _state_bytes(self, models: ComparedModels, name: str) -> int:
        model = self._model(models, name)
        if isinstance(model, Peer):
            return model.state_bytes(self.length, self.batch)
        return decoding.state_bytes(model, self._context(name), self.bench.precision, self.batch)

    def _rows(self, models: ComparedModels, times: dict[str, list[float]]) -> list[dict[str, Any]]:
        ratios: dict[str, Any] = {}
        for name, column in RATIO.items():
            if column and name in times:
                ratios |= compared(column, times[name], times[OWN])
        rows = [self._row(models, OWN, times[OWN]) | ratios]
        if PEER in times:
            rows[0]["peer"] = models.peer.family
            rows.append(self._row(models, PEER, times[PEER]) | {"peer": models.peer.family, "ratio": 1.0})
        elif models.no_peer:
            rows.append(self._note(models.no_peer, PEER))
        if models.peer is None and PLAIN in times:
            rows[0] |= {"peer": PLAIN, **compared("ratio", times[PLAIN], times[OWN])}
        return rows

    def _row(self, models: ComparedModels, name: str, milliseconds: list[float]) -> dict[str, Any]:
        times = timing.summary(milliseconds)
        tokens = self.batch * (self.length if self.mode == "prefill" else 1)
        return {
            **self._columns(PEER if name == PEER else models.model.config.backend),
            "repeats": len(milliseconds),
            **times,
            "tokens_per_second": 1e3 * tokens / times["milliseconds_median"],
            "state_bytes": self._state_bytes(models, name),
        }

    def _note(self, note: str, backend: str = "") -> dict[str, Any]:
        return {**self._columns(backend or self.timed.config.backend), "note": note}

    def _columns(self, backend: str) -> dict[str, Any]:
        return {
            "suite": "inference",
            "color": model_color(self.timed.config, self.letters),
            "backend": backend,
            **self.cell.names,
            **result_table.machine_facts(self.bench.device),
        }

    @staticmethod
    def _print(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for row in rows:
            tqdm.write(format_row(row))
        return rows
