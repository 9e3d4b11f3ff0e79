"""suite=inference, at sizes that a CPU reads and decodes in milliseconds."""

from __future__ import annotations

import csv
import dataclasses
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
from experiments.bench.suites.inference import Bench, ComparedModels, compared, expected_ms, timed_models
from experiments.configuration.compose import architectures
from experiments.configuration.schema import BenchConfig, Config
from zoo import LanguageModel, ModelConfig, cost, export
from zoo.errors import UserError

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

    def absent(model):
        raise ImportError("No module named 'transformers'")

    for family in theirs.MAKE:
        monkeypatch.setitem(theirs.MAKE, family, absent)


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


@pytest.mark.slow
def test_without_transformers_a_row_says_so(tmp_path, without_transformers):
    rows = measured(tmp_path, "transformer", "kda_pure", lengths=[8])
    notes = [row for row in rows if row["note"]]
    assert {(row["model"], row["backend"]) for row in notes} == {("transformer", "transformers")}
    assert len(notes) == 4
    assert all("pip install" in row["note"] for row in notes)
    assert not any(row["ratio"] for row in own(rows) if row["model"] == "transformer")


class FakePeer(torch.nn.Module):
    """A model of ours with the calls of transformers; its logits are scaled."""

    def __init__(self, model: LanguageModel, scale: float = 1.0) -> None:
        super().__init__()
        self.model, self.scale = model, scale

    def forward(self, input_ids, use_cache, logits_to_keep, past_key_values=None):
        assert use_cache
        assert logits_to_keep == 1
        state = past_key_values or self.model.init_state(len(input_ids), capacity=64)
        logits, state = self.model.extend(input_ids, state)
        state.layers = [Rows(layer) for layer in state.layers]
        return mock.Mock(logits=self.scale * logits[:, None], past_key_values=state)


class Renamed(FakePeer):
    """The same by the words of transformers 5.24; any other is dropped without a word."""

    def forward(self, input_ids, use_cache, logits_to_keep, cache=None, **_dropped):
        out = super().forward(input_ids, use_cache, logits_to_keep, cache)
        return mock.Mock(spec_set=["logits", "cache"], logits=out.logits, cache=out.past_key_values)


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
    monkeypatch.setitem(theirs.MAKE, "Llama", FakePeer)
    rows = measured(tmp_path, "transformer", lengths=[8])
    assert len(rows) == 8
    assert {row["peer"] for row in rows} == {"Llama"}
    assert not any(row["note"] for row in rows)
    peers = [row for row in rows if row["backend"] == "transformers"]
    assert {float(row["ratio"]) for row in peers} == {1.0}
    for ours, peer in zip(own(rows), peers, strict=True):
        assert float(ours["ratio"]) > 0
        assert all(ours[key] == peer[key] for key in ("mode", "batch", "tokens", "repeats"))


@pytest.mark.slow
def test_a_peer_with_other_logits_is_void(tmp_path, monkeypatch):
    monkeypatch.setitem(theirs.MAKE, "Llama", lambda model: FakePeer(model, 1.01))
    rows = measured(tmp_path, "transformer", lengths=[8])
    notes = {row["note"] for row in rows if row["backend"] == "transformers"}
    assert notes == {"its Llama in transformers has other logits: relative error 0.0099"}
    assert all(row["milliseconds_median"] and not row["ratio"] for row in own(rows))


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


@pytest.mark.parametrize("version", [FakePeer, Renamed])
def test_a_cache_goes_by_the_name_that_the_installed_transformers_has_for_it(monkeypatch, version):
    monkeypatch.setitem(theirs.MAKE, "Llama", version)
    peer = Peer(model_of("transformer"), FP32)
    tokens = torch.arange(12).view(2, 6)
    whole, _ = peer.prefill(tokens)
    _, cache = peer.prefill(tokens[:, :-1])
    torch.testing.assert_close(peer.step(tokens[:, -1], cache), whole)


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (WithoutCache, "takes no cache or past_key_values"),
        (WithoutWords, "takes no logits_to_keep"),
        (Layerless, "its cache of kind object has no layers; pip install"),
    ],
)
def test_a_version_of_transformers_that_would_drop_what_it_is_given_is_no_peer(monkeypatch, version, says):
    monkeypatch.setitem(theirs.MAKE, "Llama", version)
    with pytest.raises(NoPeer, match=says):
        Peer(model_of("transformer"), FP32)


def test_a_model_that_transformers_does_not_have_has_no_peer():
    with pytest.raises(NoPeer, match="no such architecture"):
        Peer(model_of("kda"), FP32)


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


def test_exported_models_of_one_name_are_told_apart(tmp_path):
    names = []
    for place, preset in (("a", "transformer"), ("b", "kda_pure"), ("c", "kda_pure")):
        folder = export(model_of(preset), tmp_path / place / "mine")
        names += [x.name for x in timed_models(config(tmp_path, runs=[str(folder)]), CPU)]
    assert all(name.startswith("mine #") for name in names)
    assert names[0] != names[1] == names[2]


def test_a_model_that_is_named_twice_is_measured_once(tmp_path):
    folder = str(export(model_of("transformer"), tmp_path / "mine"))
    assert len(timed_models(config(tmp_path, runs=[folder, folder]), CPU)) == 1


def test_a_slow_model_of_transformers_says_nothing_of_what_ours_takes(tmp_path):
    made = config(tmp_path, "transformer")
    table = ResumableTable(made, CPU, suite.COLUMNS)
    (subject,) = timed_models(made, CPU)
    cell = inference.ModelTiming(Bench(made, table, shortest=8), subject, "prefill", 16, 1)
    same = {**cell._kind, "tokens": 8}
    table.rows = [
        {**same, "backend": "auto", "milliseconds_median": 1.0},
        {**same, "backend": "transformers", "milliseconds_median": 1e6},
    ]
    assert cell._expected_s("own") < 0.1
    table.rows = [
        {key: str(value) for key, value in row.items()} for row in table.rows
    ]  # as read from the file
    assert cell._expected_s("own") < 0.1


@pytest.mark.parametrize(("bytes_", "fits"), [(8000, True), (7998, False)])
def test_logits_of_a_whole_prompt_need_their_memory(tmp_path, monkeypatch, bytes_: int, fits: bool):
    """Two sequences of 50 tokens, of 10 words in four bytes each, in half of the memory."""
    made = config(tmp_path, "transformer")
    (subject,) = timed_models(made, CPU)
    bench = Bench(made, ResumableTable(made, CPU, suite.COLUMNS), shortest=8)
    monkeypatch.setattr(inference.machine, "describe", lambda _: {"memory_bytes": bytes_})
    cell = inference.ModelTiming(bench, subject, "prefill", 50, 2)
    models = SimpleNamespace(model=SimpleNamespace(vocab_size=10))
    if fits:
        cell._check_memory(models, ["forward"])
    else:
        with pytest.raises(torch.OutOfMemoryError):
            cell._check_memory(models, ["forward"])


def test_two_pairs_have_no_interval():
    assert compared("ratio", [2.0, 4.0], [1.0, 1.0]) == {"ratio": 3.0}
    assert set(compared("ratio", [2.0, 4.0, 6.0], [1.0] * 3)) == {"ratio", "ratio_low", "ratio_high"}


@pytest.mark.slow
def test_a_length_named_twice_is_measured_once(tmp_path, without_transformers):
    assert len(own(measured(tmp_path, "kda_pure", lengths=[8, 8]))) == 4


def test_a_place_without_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="no folder"):
        suite.run(config(tmp_path, runs=[str(tmp_path / "nowhere")]))
    with pytest.raises(UserError, match="no complete run"):
        suite.run(config(tmp_path, runs=[str(tmp_path)]))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_runs_are_of_this_suite_alone(lab: Lab):
    outcome = lab.here("job=bench", "suite=latency", "bench.runs=[x]")
    assert outcome.status == 2
    assert "suite=inference" in outcome.err


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


@pytest.mark.slow
def test_what_a_model_is_compared_with_is_left_out_where_it_alone_takes_too_long(
    tmp_path, without_transformers
):
    def timed(calls, *_):
        return {name: [5e3 if name == "transformer" else 1e3] for name in calls}

    with (
        mock.patch.object(timing, "interleaved_within", side_effect=timed),
        mock.patch.object(inference.ModelTiming, "_call", return_value=None),
    ):
        rows = own(measured(tmp_path, "kda_pure", lengths=[8, 16, 32]))
    ratios = {(row["tokens"], row["mode"]): row["ratio_transformer"] for row in rows}
    assert ratios[("8", "prefill")] == "5.0"
    assert ratios[("16", "prefill")] == ratios[("32", "prefill")] == ""
    assert all(row["ratio_forward"] == "1.0" for row in rows if row["mode"] == "prefill")


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


@pytest.mark.slow
def test_where_memory_holds_no_two_models_one_is_measured_alone(tmp_path, without_transformers):
    state = 8 * cost.state_bytes(model_of("kda_pure"), 8)
    for memory, folder in ((2 * state + 1, "tight"), (1, "none")):
        facts = {"memory_bytes": memory, "gpu": None, "host_cpu": "", "threads": 1}
        with (
            mock.patch.object(inference.machine, "describe", return_value=facts),
            mock.patch.object(suite, "BATCHES", (8,)),
        ):
            rows = own(measured(tmp_path / folder, "kda_pure", lengths=[8]))
        assert [bool(row["milliseconds_median"]) for row in rows] == [folder == "tight"] * 2
        assert {row["note"] for row in rows} == {"" if folder == "tight" else "out of memory"}
        assert not any(row["ratio_transformer"] or row["ratio_forward"] for row in rows)


@pytest.mark.slow
def test_a_step_is_compared_with_one_after_the_shortest_context(tmp_path, without_transformers):
    with mock.patch.object(inference, "decode_call", side_effect=inference.decode_call) as made:
        measured(tmp_path, "kda_pure", lengths=[8, 32])
    batch = 8
    contexts = [call.args[1].shape[1] for call in made.call_args_list if call.args[1].shape[0] == batch]
    assert sorted(contexts) == [
        8,
        8,
        8,
        32,
        32,
    ]  # own and the transformer's at both, and the shortest once more


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


@pytest.mark.parametrize("precision", [FP32, torch.bfloat16])
def test_logits_are_compared_in_the_precision_that_both_are_timed_in(monkeypatch, precision: torch.dtype):
    seen: list[bool] = []

    class Watched(FakePeer):
        def forward(self, input_ids, use_cache, logits_to_keep, past_key_values=None):
            seen.append(torch.is_autocast_enabled("cpu"))
            return super().forward(input_ids, use_cache, logits_to_keep, past_key_values)

    monkeypatch.setitem(theirs.MAKE, "Llama", Watched)
    assert Peer(model_of("transformer"), precision).family == "Llama"
    assert seen == [precision == torch.bfloat16] * 2


def test_the_plain_transformer_has_as_many_layers_as_a_pattern_without_a_depth():
    model = LanguageModel(dataclasses.replace(LIKE, pattern="KKL", depth=None), vocab_size=30, seq_len=16)
    assert len(inference._plain_like(model).layers) == 3


def test_recurrent_states_hold_the_last_tokens_of_a_context():
    """States of zeros would be another case for a processor's arithmetic than those of a text."""
    tokens = torch.arange(24)[None] % 30
    state = inference._state_after(model_of("kda_pure"), tokens, FP32, room=4)
    assert all(x.any() for x in model_steps.tensors_in(state.layers))


@pytest.mark.parametrize("length", [1, 24, 200])
def test_no_round_of_decoding_has_to_make_its_caches_longer(monkeypatch, length: int):
    """Moving them would be timed: there is room for the context, the tokens read at its end, and all steps."""
    room = []
    fill = model_steps.state_after

    def filled(model, tokens, dtype, batch, **more):
        room.append(tokens + more["room"])
        return fill(model, tokens, dtype, batch, **more)

    monkeypatch.setattr(model_steps, "state_after", filled)
    inference.decode_call(model_of("transformer"), torch.zeros(2, length, dtype=torch.int64), FP32, rounds=3)
    assert room == [length + 3 * inference.STEPS]


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


def test_memory_is_looked_at_before_anything_is_timed(tmp_path, monkeypatch):
    """A CPU whose memory is full ends the program."""
    made = config(tmp_path, "transformer")
    (subject,) = timed_models(made, CPU)
    cell = inference.ModelTiming(
        Bench(made, ResumableTable(made, CPU, suite.COLUMNS), shortest=8), subject, "prefill", 16, 1
    )
    monkeypatch.setattr(inference.timing, "interleaved_within", lambda *_: pytest.fail("timed"))
    monkeypatch.setattr(cell, "_check_memory", mock.Mock(side_effect=torch.OutOfMemoryError))
    with pytest.raises(torch.OutOfMemoryError):
        cell._time(SimpleNamespace(), ["own"])


def _parts(state):
    if isinstance(state, list | tuple | dict):
        return [x for part in (state.values() if isinstance(state, dict) else state) for x in _parts(part)]
    if dataclasses.is_dataclass(state):
        return _parts([getattr(state, field.name) for field in dataclasses.fields(state)])
    return [state]
