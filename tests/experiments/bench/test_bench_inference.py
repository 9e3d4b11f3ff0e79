"""suite=inference, at sizes that a CPU reads and decodes in milliseconds."""

import csv
import dataclasses
import functools
import math
import warnings
from logging import Logger
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from support.failed_cells import row_of_failure
from support.program import Lab

from experiments.bench import hugging_face as theirs
from experiments.bench import model_steps, timing
from experiments.bench.hugging_face import BEGUN, NoPeer, Peer
from experiments.bench.result_table import ResumableTable
from experiments.bench.suites import inference
from experiments.bench.suites import inference as suite
from experiments.bench.suites.inference import Bench, ComparedModels, expected_ms, timed_models
from experiments.configuration.compose import architectures
from experiments.configuration.schema import BenchConfig, Config
from zoo import LanguageModel, ModelConfig, cost

LIKE = ModelConfig(d_model=16, n_heads=2, depth=1)
CPU, FP32 = torch.device("cpu"), torch.float32


def config(folder: Path, *cases: str, **bench) -> Config:
    options = {"lengths": [8, 16], "repeats": 3, "out": str(folder), **bench}
    made = Config(job="bench", suite="inference", device="cpu", model=LIKE)
    made.data.vocab_size = 300
    return dataclasses.replace(made, bench=BenchConfig(cases=list(cases) or None, **options))


def measured(*words, **bench) -> list[dict[str, str]]:
    """The table that a run leaves."""
    made = config(*words, **bench)
    suite.run(made)
    return list(csv.DictReader((Path(made.bench.out) / "inference.csv").read_text().splitlines()))


@pytest.fixture
def without_transformers(monkeypatch):
    """As on a machine where the optional package is not installed."""

    def absent(model, family):
        raise ImportError("No module named 'transformers'")

    monkeypatch.setattr(theirs, "in_transformers", absent)


@pytest.fixture(autouse=True)
def _no_draws(monkeypatch):
    """Ten thousand medians for every ratio take longer than the models; they have a test of their own."""
    monkeypatch.setattr(timing, "bootstrap_interval", lambda ratios: (min(ratios), max(ratios)))


def own(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [row for row in rows if row["backend"] != "transformers"]


def model_of(preset: str, depth: int = LIKE.depth) -> LanguageModel:
    like = dataclasses.replace(LIKE, depth=depth)
    return LanguageModel(architectures(like)[preset], vocab_size=30, seq_len=64).eval()


@pytest.mark.slow
def test_every_mode_length_and_batch_once(tmp_path, without_transformers):
    rows = own(measured(tmp_path, "transformer", "kda_pure"))
    assert sorted((row["model"], row["mode"], row["tokens"], row["batch"]) for row in rows) == sorted(
        (model, mode, length, batch)
        for model in ("transformer", "kda_pure")
        for mode in ("prefill", "decode")
        for length in ("8", "16")
        for batch in ("1", "8")
    )
    for row in rows:
        tokens = int(row["batch"]) * (int(row["tokens"]) if row["mode"] == "prefill" else 1)
        seconds = float(row["milliseconds_median"]) / 1e3
        assert float(row["tokens_per_second"]) == pytest.approx(tokens / seconds, rel=1e-4)
        state = cost.state_bytes(model_of(row["model"]), int(row["tokens"]))
        assert int(row["state_bytes"]) == int(row["batch"]) * state
        assert row["repeats"] == "3"
        assert (row["d_model"], row["depth"], row["precision"]) == ("16", "1", "float32")
        assert bool(row["ratio_forward"]) == (row["mode"] == "prefill")
        assert bool(row["ratio_shortest"]) == (row["mode"] == "decode" and row["tokens"] == "16")
    kda = [row for row in rows if row["model"] == "kda_pure"]
    for row in kda:
        assert row["peer"] == "transformer"
        assert row["ratio"] == row["ratio_transformer"]
        assert float(row["ratio_low"]) <= float(row["ratio"]) <= float(row["ratio_high"])
    assert not any(row["ratio_transformer"] for row in rows if row["model"] == "transformer")


@pytest.mark.slow
def test_rows_that_are_there_are_not_measured_again(tmp_path, without_transformers):
    made = config(tmp_path, "transformer", lengths=[8])
    suite.run(dataclasses.replace(made, bench=dataclasses.replace(made.bench, budget_s=0.0)))
    assert not suite.finished(made)
    first = measured(tmp_path, "transformer", lengths=[8])
    assert suite.finished(made)
    with mock.patch.object(timing, "interleaved_within", side_effect=AssertionError):
        assert measured(tmp_path, "transformer", lengths=[8]) == first
    wider = dataclasses.replace(made, model=dataclasses.replace(LIKE, d_model=32))
    assert not suite.finished(wider)


class FakePeer(torch.nn.Module):
    """A model of ours with the calls of transformers; its logits are scaled."""

    def __init__(self, model: LanguageModel, _family: object, scale: float = 1.0) -> None:
        super().__init__()
        self.model, self.scale = model, scale

    def forward(self, input_ids, use_cache, logits_to_keep, past_key_values=None):
        assert use_cache
        assert logits_to_keep == 1
        state = past_key_values or self.model.init_state(len(input_ids), capacity=64)
        logits, state = self.model.extend(input_ids, state)
        state.layers = [Rows(layer) for layer in state.layers]
        return mock.Mock(logits=self.scale * logits[:, None], past_key_values=state)


class WithoutCache(FakePeer):
    """A forward that has another name for its cache, and drops ours without a word."""

    def forward(self, input_ids, use_cache, logits_to_keep, memory=None, **_dropped):
        return super().forward(input_ids, use_cache, logits_to_keep, memory)


class WithoutWords(FakePeer):
    """A forward that computes all logits, whatever it is told."""

    def forward(self, input_ids, use_cache, cache=None, **_dropped):
        return super().forward(input_ids, use_cache, 1, cache)


class Layerless(FakePeer):
    """A forward whose cache is of a kind of its own, as that of LFM2 was before transformers 5.5."""

    def forward(self, input_ids, use_cache, logits_to_keep, past_key_values=None):
        out = super().forward(input_ids, use_cache, logits_to_keep, past_key_values)
        return mock.Mock(logits=out.logits, past_key_values=object())


class Rows:
    """A cache of ours as a layer of theirs; keys may be replaced, of which nothing here takes notice."""

    def __new__(cls, cache):
        cache.keys, cache.values = (x.clone() for x in cache.read())
        return cache


@pytest.mark.slow
def test_the_peer_is_timed_beside_ours(tmp_path, monkeypatch):
    monkeypatch.setattr(theirs, "in_transformers", FakePeer)
    rows = measured(tmp_path, "transformer", lengths=[8])
    assert len(rows) == 8
    assert {row["peer"] for row in rows} == {"Llama"}
    assert not any(row["note"] for row in rows)
    peers = [row for row in rows if row["backend"] == "transformers"]
    assert {float(row["ratio"]) for row in peers} == {1.0}
    for ours, peer in zip(own(rows), peers, strict=True):
        assert float(ours["ratio"]) > 0
        assert all(ours[key] == peer[key] for key in ("mode", "batch", "tokens", "repeats"))


@pytest.fixture
def transformers_as_it_will_be(monkeypatch):
    """Its deprecations are errors: those that it warns of, and those that it logs, by default once a process."""
    pytest.importorskip("transformers")

    def refuse(self: Logger, message: object, *_more, **_options) -> None:
        assert "deprecated" not in str(message), message

    for way in ("warning", "warning_once"):
        monkeypatch.setattr(Logger, way, refuse)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["transformer", "lfm2", "mla"])
def test_models_of_transformers_agree_and_keep_a_cache_of_the_length_asked_for(
    preset, transformers_as_it_will_be
):
    peer = Peer(model_of(preset, depth=3), FP32)
    for tokens, batch in ((4 * BEGUN, 1), (BEGUN + 3, 2)):
        cache = peer.cache_after(tokens, batch)
        assert cache.get_seq_length() == tokens
        stored = sum(x.nbytes for x in model_steps.tensors_in(cache.layers))
        assert peer.state_bytes(tokens, batch) == stored
        assert peer.step(torch.zeros(batch, dtype=torch.int64), cache).shape == (batch, 30)
        assert cache.get_seq_length() == tokens + 1


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (WithoutCache, "takes no cache or past_key_values"),
        (WithoutWords, "takes no logits_to_keep"),
        (Layerless, "its cache of kind object has no layers; pip install"),
        (
            functools.partial(FakePeer, scale=1.01),
            "its Llama in transformers has other logits: relative error 0.0099",
        ),
    ],
)
def test_a_version_of_transformers_that_drops_what_it_is_given_or_computes_something_else_is_no_peer(
    monkeypatch, version, says
):
    monkeypatch.setattr(theirs, "in_transformers", version)
    with pytest.raises(NoPeer, match=says):
        Peer(model_of("transformer"), FP32)


@pytest.mark.slow
def test_runs_are_measured(tmp_path, finished: Lab, without_transformers):
    run = finished.run_folder()
    for place in (run, run.parent):
        names = [x.name for x in timed_models(config(tmp_path, runs=[str(place)]), CPU)]
        assert names == [f"{run.parent.name}/{run.name}"]
    rows = own(measured(tmp_path, runs=[str(run)], lengths=[8]))
    assert len(rows) == 4
    assert all(float(row["milliseconds_median"]) > 0 and float(row["ratio_transformer"]) > 0 for row in rows)
    assert {(row["d_model"], row["depth"]) for row in rows} == {("16", "2")}
    beside = timed_models(config(tmp_path, "transformer", runs=[str(run)]), CPU)
    assert [x.name for x in beside] == ["transformer", f"{run.parent.name}/{run.name}"]


@pytest.mark.slow
def test_what_would_take_too_long_is_left_out(tmp_path, without_transformers):
    times = {"own": [5e3], "forward": [4e3], "transformer": [0.5e3]}

    def timed(calls, *_):
        return {name: times[name] for name in calls}

    with (
        mock.patch.object(timing, "interleaved_within", side_effect=timed),
        mock.patch.object(inference.ModelTiming, "_call", return_value=None),
    ):
        rows = own(measured(tmp_path, "kda_pure"))
    notes = {(row["mode"], row["tokens"]): row["note"] for row in rows}
    assert notes == {
        ("prefill", "8"): "",
        ("decode", "8"): "",
        ("prefill", "16"): "left out: it would take about 12 s",
        ("decode", "16"): "left out: it would take about 10 s",
    }


def row(tokens: int, ms: float, ratio: float | None = None) -> dict:
    return {"tokens": str(tokens), "milliseconds_median": str(ms), "ratio": "" if ratio is None else ratio}


def test_times_are_expected_to_grow_as_they_did():
    assert expected_ms([], None, 64, 2.0) is None
    assert expected_ms([row(8, 3)], None, 128, 2.0) == pytest.approx(3 * 32)
    assert expected_ms([row(8, 3)], None, 16, 1.0) == pytest.approx(6)
    assert expected_ms([row(8, 3), row(16, 6)], None, 32, 2.0) == pytest.approx(12)
    assert expected_ms([row(16, 6), row(8, 3), row(4, 3)], None, 64, 2.0) == pytest.approx(24)
    assert expected_ms([row(8, 1), row(16, 100)], None, 32, 2.0) == pytest.approx(400)
    assert expected_ms([row(8, 6), row(16, 3)], None, 32, 1.0) == pytest.approx(3)
    assert expected_ms([row(8, 3, 2.0), row(16, 6, 2.0)], "ratio", 32, 2.0) == pytest.approx(24)
    assert expected_ms([row(8, 3, 2.0), row(16, 6)], "ratio", 32, 2.0) == math.inf


@pytest.mark.parametrize("preset", architectures(LIKE))
def test_decoding_is_timed_at_the_length_that_the_row_names(preset):
    model = model_of(preset, depth=4)
    tokens = torch.zeros(2, 24, dtype=torch.int64)
    state = inference._state_after(model, tokens, FP32, room=8)
    caches = [x for x in _parts(state.layers) if hasattr(x, "appended")]
    assert max((cache.appended for cache in caches), default=24) == 24
    assert bool(caches) == (not set(model.letters) <= set("CKMO"))
    logits, _ = model.step(tokens[:, -1], state)
    assert logits.shape == (2, 30)
    assert logits.isfinite().all()


def test_a_version_of_transformers_that_takes_other_arguments_is_told(monkeypatch):
    monkeypatch.setattr(inference, "Peer", mock.Mock(side_effect=TypeError("unexpected keyword rope_theta")))
    made = ComparedModels(model_of("transformer"), FP32)
    assert made.peer is None
    assert made.no_peer == "TypeError: unexpected keyword rope_theta"


def test_recurrent_states_hold_the_last_tokens_of_a_context():
    """States of zeros would be another case for a processor's arithmetic than those of a text."""
    tokens = torch.arange(24)[None] % 30
    state = inference._state_after(model_of("kda_pure"), tokens, FP32, room=4)
    assert all(x.any() for x in model_steps.tensors_in(state.layers))


def test_a_model_that_does_not_fit_alone_is_not_tried_again(tmp_path, monkeypatch):
    made = config(tmp_path, "transformer")
    (subject,) = timed_models(made, CPU)
    cell = inference.ModelTiming(
        Bench(made, ResumableTable(made, CPU, suite.COLUMNS), shortest=8), subject, "decode", 8, 1
    )
    alone = SimpleNamespace(peer=None, plain=None)
    monkeypatch.setattr(cell.bench, "compared_models", lambda subject, length: alone)
    tried: list[list[str]] = []

    def full(models, names):
        tried.append(names)
        raise torch.OutOfMemoryError

    monkeypatch.setattr(cell, "_time", full)
    (row,) = cell.measure()
    assert row["note"] == "out of memory"
    assert tried == [["own"]]


@pytest.mark.parametrize(
    ("words", "ends"), [("CUDA error: an illegal memory access", True), ("no such form", False)]
)
def test_what_breaks_the_gpu_ends_the_suite_and_any_other_failure_is_a_row(
    tmp_path, monkeypatch, words: str, ends: bool
):
    """The broken one is kept as a row too; after another failure the next models find their memory free."""
    made, freed = config(tmp_path, "transformer"), []
    (subject,) = timed_models(made, CPU)
    bench = Bench(made, ResumableTable(made, CPU, suite.COLUMNS), shortest=8)
    monkeypatch.setattr(bench, "forget", lambda: freed.append("models"))
    cell = inference.ModelTiming(bench, subject, "prefill", 16, 1)
    monkeypatch.setattr(cell, "_what_fits", mock.Mock(side_effect=RuntimeError(words)))
    row = row_of_failure(cell.measure, words, ends=ends)
    assert (row["model"], row["mode"], row["tokens"], row["batch"]) == ("transformer", "prefill", 16, 1)
    assert freed == ([] if ends else ["models"])


def _parts(state):
    if isinstance(state, list | tuple | dict):
        return [x for part in (state.values() if isinstance(state, dict) else state) for x in _parts(part)]
    if dataclasses.is_dataclass(state):
        return _parts([getattr(state, field.name) for field in dataclasses.fields(state)])
    return [state]
