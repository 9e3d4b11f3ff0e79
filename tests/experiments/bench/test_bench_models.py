"""suite=models and suite=recompute, at sizes that a CPU steps through in milliseconds."""

import csv
import dataclasses
from pathlib import Path
from unittest import mock

import pytest
import torch
from support.failed_cells import row_of_failure

from experiments.bench.model_steps import state_after, state_bytes, tensors_in
from experiments.bench.result_table import ResumableTable
from experiments.bench.suites import models as suite
from experiments.configuration.compose import architectures
from experiments.configuration.schema import BenchConfig, Config, TrainerConfig
from zoo import LanguageModel, ModelConfig
from zoo.interfaces import set_step
from zoo.model import DecodeState
from zoo.modules.caches import GroupedKVCache, RowCache

LIKE = ModelConfig(d_model=16, n_heads=2, depth=2)


def config(folder: Path, *cases: str, suite: str = "models", **bench) -> Config:
    options = {"lengths": [8, 16], "tokens": 16, "repeats": 1, "out": str(folder), **bench}
    made = Config(job="bench", suite=suite, device="cpu", model=LIKE)
    made.data.vocab_size, made.data.seq_len, made.data.batch_size = 300, 16, 2
    return dataclasses.replace(made, bench=BenchConfig(cases=list(cases) or None, **options))


def rows_in(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "models.csv").read_text().splitlines()))


@pytest.mark.long
def test_every_mode_at_every_length_once(tmp_path):
    made = config(tmp_path, "transformer", "hypergraph", "orthgsa")
    suite.run(made)
    rows = rows_in(tmp_path)
    assert {(row["model"], row["mode"], row["tokens"]) for row in rows} == {
        (model, mode, length)
        for model in ("transformer", "hypergraph", "orthgsa")
        for mode in suite.MODES
        for length in ("8", "16")
    }
    assert all(float(row["milliseconds_median"]) > 0 for row in rows)
    assert {row["batch"] for row in rows if row["mode"] == "training step" and row["tokens"] == "8"} == {"2"}
    assert {float(row["ratio"]) for row in rows if row["model"] == "transformer"} == {1.0}
    assert all(row["ratio"] for row in rows)
    assert suite.finished(made)
    with mock.patch.object(suite.timing, "interleaved", side_effect=AssertionError):
        suite.run(made)
    assert rows_in(tmp_path) == rows


@pytest.mark.slow
def test_out_of_memory_is_a_row_and_longer_ones_are_not_tried(tmp_path):
    made = config(tmp_path, "transformer")
    with mock.patch.object(suite.timing, "interleaved", side_effect=torch.OutOfMemoryError) as tried:
        suite.run(made)
    assert {row["note"] for row in rows_in(tmp_path)} == {"out of memory", "out of memory at fewer tokens"}
    assert tried.call_count == len(suite.MODES)


def left_out(folder: Path, lengths: list[int], *milliseconds: float) -> dict[tuple[str, str], str]:
    """The notes of the transformer's rows by mode and tokens, where the rows take so long, one after the other."""
    times = [{"transformer": [time]} for time in milliseconds]
    with (
        mock.patch.object(suite.timing, "interleaved", side_effect=times) as timed,
        mock.patch.dict(suite._CALLS, dict.fromkeys(suite.MODES, lambda cell: lambda: None)),
    ):
        suite.run(config(folder, "transformer", lengths=lengths))
    assert timed.call_count == len(times)
    return {(row["mode"], row["tokens"]): row["note"] for row in rows_in(folder)}


@pytest.mark.slow
def test_what_would_take_minutes_is_left_out(tmp_path):
    """Twice the length: twice the tokens of one sequence, each meeting twice as many; of a step (here always of 16
    tokens) as many tokens in half as many sequences.
    """
    assert left_out(tmp_path, [8, 16], 40e3, 40e3, 40e3) == {
        ("training step", "8"): "",
        ("prefill", "8"): "",
        ("decode", "8"): "",
        ("training step", "16"): "left out: it would take about 80 s",
        ("prefill", "16"): "left out: it would take about 160 s",
        ("decode", "16"): "left out: it would take about 160 s",
    }


def test_what_breaks_the_gpu_ends_the_suite_and_any_other_failure_is_a_row(tmp_path):
    """The broken one is kept as a row too; the other models could not be measured by this process."""
    for words, ends in (("CUDA error: an illegal memory access", True), ("no such form", False)):
        cell = cell_beside(tmp_path, [])
        with mock.patch.object(suite.timing, "interleaved", side_effect=RuntimeError(words)):
            row = row_of_failure(cell.measure, words, ends=ends)
        assert (row["model"], row["mode"], row["tokens"]) == ("transformer", "training step", 16)


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_reading_is_of_all_tokens_and_a_step_of_the_last_after_all_of_them(tmp_path, monkeypatch, mode: str):
    """Without gradients, in evaluation, in the precision of the trainer."""
    asked: list[tuple] = []

    class Model(torch.nn.Module):
        def forward(self, tokens):
            asked.append(("forward", tokens, torch.is_grad_enabled(), self.training))

        def step(self, token, state):
            asked.append(("step", token, state, self.training))

    cell = cell_beside(tmp_path, [])
    monkeypatch.setattr(type(cell), "model", Model())
    monkeypatch.setattr(suite, "state_after", lambda model, length, dtype: (length, dtype))
    suite._CALLS[mode](cell)()
    (name, tokens, *rest) = asked[0]
    assert name == {"prefill": "forward", "decode": "step"}[mode]
    expected = cell.tokens() if mode == "prefill" else cell.tokens()[:, -1]
    assert torch.equal(tokens, expected)
    assert rest == ([False, False] if mode == "prefill" else [(16, torch.float32), False])


def cell_beside(folder: Path, rows: list[dict], *, recompute: str = "none", length: int = 16):
    """A training step of the transformer, in a table that has these rows of shorter ones."""
    made = dataclasses.replace(config(folder, "transformer"), trainer=TrainerConfig(recompute=recompute))
    table = ResumableTable(made, torch.device("cpu"))
    table.rows = [{"model": "transformer", "mode": "training step", "batch": 1, **row} for row in rows]
    return suite._Cell(suite._Bench(made, torch.device("cpu"), table), "transformer", "training step", length)


TOKENS = 42  # beyond every window at this size, and a multiple of the number of timelines


def decoded(model: LanguageModel, tokens: int, capacity: int) -> DecodeState:
    """The state after so many steps."""
    state = model.init_state(1, capacity=capacity)
    for token in torch.randint(30, (tokens, 1), generator=torch.Generator().manual_seed(0)):
        _, state = model.step(token, state)
    return state


@pytest.mark.parametrize("preset", architectures(LIKE))
def test_a_filled_state_is_as_large_as_after_decoding(preset):
    model = LanguageModel(architectures(LIKE)[preset], vocab_size=30, seq_len=TOKENS).eval()
    set_step(model, 10_000)  # past the warm-ups
    real, filled = decoded(model, TOKENS, TOKENS), state_after(model, TOKENS, torch.float32)
    for mixer, wanted, made in zip(model.letters, real.layers, filled.layers, strict=True):
        assert contents(made) == contents(wanted), mixer
        assert contents(made), mixer
    logits, _ = model.step(torch.zeros(1, dtype=torch.int64), filled)
    assert logits.isfinite().all()


def contents(state) -> list[int]:
    """Of every tensor and cache: bytes in storage, and of a cache the bytes of its rows in use and the tokens seen.

    The storage of grouped lists depends on how evenly tokens were routed: their rows in use do not.
    """
    if isinstance(state, torch.Tensor):
        return [state.nbytes]
    if isinstance(state, RowCache):
        return [state.nbytes(), sum(rows.nbytes for rows in state.read()), state.appended]
    if isinstance(state, GroupedKVCache):
        return [int(state.lengths.sum()), state.appended]
    if isinstance(state, dict):
        return [number for part in state.values() for number in contents(part)]
    if dataclasses.is_dataclass(state):
        return [n for field in dataclasses.fields(state) for n in contents(getattr(state, field.name))]
    assert state is None or isinstance(state, int), f"a kind of state that this test does not know: {state!r}"
    return []


def test_a_state_is_of_the_precision_asked_for_and_has_room_for_what_follows():
    model = LanguageModel(LIKE, vocab_size=300, seq_len=64)
    half, single = (state_bytes(model, 16, dtype) for dtype in (torch.bfloat16, torch.float32))
    assert 0 < half == single // 2
    state = state_after(model, 16, torch.bfloat16, room=8)
    stored = [x for x in tensors_in(state.layers) if x.is_floating_point()]
    assert {x.dtype for x in stored} == {torch.bfloat16}
    assert sum(x.nbytes for x in stored) * 16 == half * (16 + 8)


def test_a_kind_of_state_that_cannot_be_filled_is_refused_by_its_name():
    """Left empty, it would be timed as if the text had no tokens."""

    class Ring:
        rows = torch.zeros(3)

    model = LanguageModel(LIKE, vocab_size=30, seq_len=TOKENS)
    with (
        mock.patch.object(type(model.layers[1].mixer), "init_state", return_value=[Ring()]),
        pytest.raises(TypeError, match="Ring"),
    ):
        state_after(model, TOKENS, torch.float32)
