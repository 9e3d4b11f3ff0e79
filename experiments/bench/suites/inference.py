"""suite=inference: reading a prompt and decoding after it, of presets and of runs, against the length of the context.

    prefill   zoo.generate.prefill of so many tokens: the time to the first token (logits of the last one, and the
              decode state), and tokens a second
    decode    one more token for every sequence, after so many: milliseconds a step, the mean of a few in a row

Batches of 1 and 8 sequences; state_bytes is the decode state of all of them. Presets have the configured width, heads
and depth, and are configured for each length; bench.runs names trained models.

In each cell the alternatives are taken in turns, and a ratio is the other's time over this one's (above 1: faster),
the median of the pairs with its 95 % bootstrap interval, of three pairs and more:

    ratio              the same weights in transformers, where it has the architecture (column peer: Llama, Lfm2 or
                       DeepseekV3; both must give the same logits first); else the plain transformer
    ratio_transformer  the plain transformer of the same width, heads, depth and vocabulary
    ratio_forward      the model's own forward pass over the prompt as in training, with the logits of all tokens
    ratio_shortest     the model's own step after the shortest context of this run: 1 where length costs nothing

A model that runs out of memory, or would by its growth so far take too long, is a row that says so; what it is compared
with is then left out of the turns. Rows that stand in the table are not measured again.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

import zoo
from experiments.bench import model_steps, result_table, timing
from experiments.bench.cases import matching_names
from experiments.bench.hugging_face import NoPeer, Peer
from experiments.bench.model_steps import autocast, make_model
from experiments.bench.timing import GPU_LENGTHS
from experiments.configuration.compose import architectures, given_backend
from experiments.configuration.schema import Config
from experiments.parallel.group import pick_device, pick_precision
from experiments.probing.probe_run import find_runs
from experiments.runs import IDENTITY, OTHER_BACKEND
from experiments.system import machine
from zoo.backends import check_backend
from zoo.config import ModelConfig, architecture_of, from_dict, used
from zoo.errors import UserError
from zoo.generate import prefill
from zoo.io import CARD, read_card
from zoo.model import DecodeState, LanguageModel
from zoo.pretrained.families import family_of

# The calls that are timed.

Call = Callable[[], object]

STEPS = 4
"""Steps of decoding that are timed together, as they follow each other."""
LAST = 64
"""Tokens at the end of a context that are really read, so that recurrent states hold something."""


def prefill_call(model: LanguageModel | Peer, tokens: Tensor) -> Call:
    """Reading prompts int64 [B, T]."""
    if isinstance(model, Peer):
        return lambda: model.prefill(tokens)
    return lambda: prefill(model, list(tokens))


def forward_call(model: LanguageModel, tokens: Tensor) -> Call:
    """A forward pass without gradients over int64 [B, T], with the logits of all tokens."""

    @torch.no_grad()
    def call() -> None:
        model(tokens)

    return call


def decode_call(model: LanguageModel | Peer, tokens: Tensor, dtype: torch.dtype, rounds: int) -> Call:
    """STEPS steps after a context as long as tokens, int64 [B, T]; the context grows by them, at most `rounds` times.

    dtype: of our decode state; a cache of transformers has that of its keys.
    """
    batch, length = tokens.shape
    if isinstance(model, Peer):
        cache = model.cache_after(length, batch)
        return lambda: [model.step(tokens[:, -1], cache) for _ in range(STEPS)]
    state = _state_after(model, tokens, dtype, room=STEPS * rounds)

    def call() -> None:
        nonlocal state
        for _ in range(STEPS):
            _, state = model.step(tokens[:, -1], state)

    return call


def _state_after(model: LanguageModel, tokens: Tensor, dtype: torch.dtype, room: int) -> DecodeState:
    """The state after a context of zeros in caches that ends with real tokens."""
    batch, length = tokens.shape
    last = min(LAST, length // 2)
    state = model_steps.state_after(model, length - last, dtype, batch, room=last + room)
    return model.extend(tokens[:, length - last :], state)[1] if last else state


# Expected times of calls, from the rows of shorter contexts.

GUESS = 1.25
"""The power by which a time is taken to grow from a single row: short contexts are mostly projections."""


def expected_ms(rows: list[dict[str, Any]], ratio: str | None, length: int, most: float) -> float | None:
    """Milliseconds of a call at a length, by the growth of the last two rows: at most with the power `most` of it.

    rows: timed ones of one model at shorter contexts; ratio: the column of what the model is compared with, whose
    time it is then. Infinite for what was left out of the last row; None where there are no rows.
    """
    rows = sorted(rows, key=lambda row: int(row["tokens"]))[-2:]
    times = [_ms(row, ratio) for row in rows]
    if not times or times[-1] is None:
        return math.inf if times else None
    last, growth = int(rows[-1]["tokens"]), GUESS
    if len(times) == 2 and times[0] is not None:
        growth = max(0.0, math.log(times[1] / times[0]) / math.log(last / int(rows[0]["tokens"])))
    return times[-1] * (length / last) ** min(growth, most)


def _ms(row: dict[str, Any], ratio: str | None) -> float | None:
    milliseconds = float(row["milliseconds_median"])
    if ratio is None:
        return milliseconds
    return milliseconds * float(row[ratio]) if row.get(ratio) else None


# The columns of the table, and a row as text.

FEWEST_PAIRS = 3
"""Of fewer, a range says nothing of the median; `timing.bootstrap_interval` says what it covers from here on."""

RATIOS = ("ratio", "ratio_transformer", "ratio_forward", "ratio_shortest")

COLUMNS = [
    *("suite", "model", "color", "backend", "mode", "device", "precision", "d_model", "depth", "tokens"),
    *("batch", "repeats", "milliseconds_median", "milliseconds_low", "milliseconds_high"),
    *("tokens_per_second", "state_bytes", "peer"),
    *(f"{ratio}{end}" for ratio in RATIOS for end in ("", "_low", "_high")),
    *("note", "machine", "torch", "commit"),
]


def compared(ratio: str, other: list[float], ours: list[float]) -> dict[str, float]:
    """The columns of a ratio: its median, and the ends of its interval where there are pairs enough for one."""
    middle, low, high = timing.ratios(other, ours)
    return (
        {ratio: middle}
        if len(ours) < FEWEST_PAIRS
        else {ratio: middle, f"{ratio}_low": low, f"{ratio}_high": high}
    )


def format_row(row: dict[str, Any]) -> str:
    """A row as a line for the terminal."""
    theirs = row["backend"] == "transformers"
    name = f"{row['model']} in transformers" if theirs else row["model"]
    start = f"{row['tokens']:>7} tokens x {row['batch']}  {row['mode']:<8} {name:<27}"
    if row.get("note"):
        return f"{start} {row['note']}"
    others = {
        "ratio_transformer": "transformer",
        "ratio_forward": "own forward",
        "ratio_shortest": "own shortest",
        "ratio": row.get("peer"),
    }
    ratios = {name: row[ratio] for ratio, name in others.items() if row.get(ratio) and not theirs}
    return (
        f"{start}{row['milliseconds_median']:10.2f} ms ({row['milliseconds_low']:.2f} to "
        f"{row['milliseconds_high']:.2f}){row['tokens_per_second']:8.0f} tokens/s"
        f"{row['state_bytes'] / 2**20:9.2f} MiB  "
        + ", ".join(f"{ratio:.2f}x {name}" for name, ratio in ratios.items())
    )


# The models that are measured.


@dataclasses.dataclass(frozen=True)
class TimedModel:
    """A model to measure: its name in the table, its configuration, and what makes it for contexts of a length."""

    name: str
    config: ModelConfig
    build: Callable[[int], LanguageModel]


def timed_models(config: Config, device: torch.device) -> list[TimedModel]:
    """The models of bench.runs, and the presets that bench.cases names: all where there are no runs and no cases."""
    bench, known = config.bench, architectures(config.model)
    names = [] if bench.runs and bench.cases is None else matching_names(bench.cases, list(known))
    presets = [
        TimedModel(name, known[name], functools.partial(_preset, config, known[name], device))
        for name in names
    ]
    paths = [path for place in bench.runs or [] for path in _models_at(Path(place), config)]
    return presets + [_run(path, config, device) for path in dict.fromkeys(paths)]


def _preset(config: Config, model: ModelConfig, device: torch.device, length: int) -> LanguageModel:
    return make_model(config, model, length, device).eval()


def _models_at(place: Path, config: Config) -> Iterator[Path]:
    """A run, an exported model or a checkpoint itself; of another folder the complete runs in it."""
    if place.is_file() or (place / CARD).is_file():
        yield place
    else:
        runs, _ = find_runs(dataclasses.replace(config, run=None, runs=str(place)))
        yield from runs


def _run(path: Path, asked: Config, device: torch.device) -> TimedModel:
    """The model at a path. Raises UserError where there is none, or none that its backend serves."""
    card = read_card(path)
    if not isinstance(card.get("model"), dict):
        raise UserError(f"the {CARD} at {path} does not describe a model; export the model again")
    config = from_dict(ModelConfig, card["model"], recorded=True)
    config = dataclasses.replace(config, backend=given_backend(asked) or config.backend)
    half = pick_precision(asked.trainer.precision, device) == "bf16"
    seq_len = card.get("seq_len") or asked.data.seq_len
    where = {"seq_len": seq_len, "device": device, "half": half}
    check_backend(config, ("scoring", "decoding"), remedy=OTHER_BACKEND, **where)
    return TimedModel(
        _name(path, card), config, lambda length: zoo.load(path, device, backend=config.backend)
    )


def _name(path: Path, card: dict[str, Any]) -> str:
    """EXPERIMENT/RUN, with the file of a checkpoint in it; of another folder its name and a hash of its card."""
    parts = path.resolve().parts
    if path.is_file():
        return "/".join(parts[-4:])
    if (path / IDENTITY).is_file():  # the run's name is a hash already
        return "/".join(parts[-2:])
    digest = hashlib.sha256(json.dumps(card, sort_keys=True).encode()).hexdigest()
    return f"{parts[-1]} #{digest[:6]}"


# The models of one cell: the measured one, its equal in transformers, and the plain transformer.

WARM_UP = 16
"""Tokens."""


class Bench:
    """State that the cells of a run share: configuration, table, device, shortest length, models of the last cell."""

    def __init__(self, config: Config, table: result_table.ResumableTable, shortest: int) -> None:
        self.config, self.table, self.device = config, table, pick_device(config.device)
        self.shortest = shortest
        half = pick_precision(config.trainer.precision, self.device) == "bf16"
        self.precision = torch.bfloat16 if half else torch.float32
        self._made: tuple[TimedModel, int, ComparedModels] | None = None

    def compared_models(self, timed: TimedModel, length: int) -> ComparedModels:
        """Return the models for contexts of a length, those of the last cell where it had the same."""
        if self._made is None or self._made[:2] != (timed, length):
            self.forget()
            self._made = timed, length, ComparedModels(timed.build(length), self.precision)
        return self._made[2]

    def forget(self) -> None:
        """Give all memory back."""
        self._made = None
        timing.free_memory(self.device)


class ComparedModels:
    """A model and what it is compared with.

    peer: its equal in transformers; None: there is none, and no_peer says why where there should be one.
    plain: the plain transformer of its size; None where it is that itself.
    """

    def __init__(self, model: LanguageModel, precision: torch.dtype) -> None:
        self.model, self.plain = model, _plain_like(model)
        for one in (model, self.plain):
            if one is not None:
                _warm_up(one)
        self.peer: Peer | None = None
        self.no_peer = ""
        if family_of(model)[0] is None:
            return
        try:
            self.peer = Peer(model, precision)
        except NoPeer as reason:
            self.no_peer = str(reason)
        except Exception as error:  # another version of transformers has other arguments, say
            self.no_peer = result_table.failure_reason(error)


@torch.no_grad()
def _warm_up(model: LanguageModel) -> None:
    """Each kind of call once on a few tokens: the first of its kind may import what takes seconds."""
    tokens = torch.zeros(1, WARM_UP, dtype=torch.int64, device=model.embedding.weight.device)
    model(tokens)
    _, state = prefill(model, list(tokens), room=1)
    model.step(tokens[:, 0], state)


def _plain_like(model: LanguageModel) -> LanguageModel | None:
    config = architectures(dataclasses.replace(model.config, depth=len(model.layers)))["transformer"]
    plain = LanguageModel(config, vocab_size=model.vocab_size, seq_len=model.seq_len)
    if used(config, plain.architecture) == used(model.config, model.architecture):
        return None
    return plain.to(model.embedding.weight.device).eval()


# Measuring one model in one mode at one length and batch, in turns with the others of its cell.

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
        self.architecture = architecture_of(timed.config)

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
            "depth": self.architecture.depth,
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
        rows = self.bench.table.find(**self._kind)
        shorter = [row for row in rows if int(row["tokens"]) < self.length and row["backend"] != PEER]
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
        times = {name: [ms / MODES[self.mode] for ms in samples] for name, samples in times.items()}
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
        return model_steps.state_bytes(model, self._context(name), self.bench.precision, self.batch)

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
            "color": self.architecture.color,
            "backend": backend,
            **self.cell.names,
            **result_table.machine_facts(self.bench.device),
        }

    @staticmethod
    def _print(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for row in rows:
            tqdm.write(format_row(row))
        return rows


__all__ = ["COLUMNS", "finished", "run"]

# The suite.

CPU_LENGTHS = [256, 1024, 4096, 8192, 32_768]
LENGTHS = {"cpu": CPU_LENGTHS, "cuda": [*CPU_LENGTHS, GPU_LENGTHS[-1]]}
BATCHES = (1, 8)


def run(config: Config) -> list[dict[str, Any]]:
    """All rows of the table, those of earlier runs included."""
    table = _table(config)
    table.fill(_cells(config, table), config.bench.budget_s, "inference")
    return table.rows


def finished(config: Config) -> bool:
    """Return whether every cell has its row."""
    table = _table(config)
    return not table.unmeasured(_cells(config, table))


def _table(config: Config) -> result_table.ResumableTable:
    return result_table.ResumableTable(config, pick_device(config.device), COLUMNS)


def _cells(config: Config, table: result_table.ResumableTable) -> Iterator[result_table.Cell]:
    """Short contexts first: they say how long the longer ones would take."""
    device = pick_device(config.device)
    lengths = sorted({*(config.bench.lengths or LENGTHS[device.type])})
    bench = Bench(config, table, shortest=lengths[0])
    measured = timed_models(config, device)
    for length in lengths:
        for timed in measured:
            for mode in MODES:
                for batch in BATCHES:
                    yield ModelTiming(bench, timed, mode, length, batch).cell
