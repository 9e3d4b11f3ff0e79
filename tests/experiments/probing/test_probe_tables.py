"""Tables of probes, number by number: against loops over a model that shows what a test knows."""

import itertools
import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from support.steady import pretended_machine
from torch import nn

import zoo
from analysis.loading.results import TABLES, columns_of
from experiments.configuration.schema import Config, ProbeConfig
from experiments.data import DataConfig, Split
from experiments.data.tasks_base import IGNORE
from experiments.data.tokenizers import TOKENIZERS
from experiments.probing import per_token, probe_run
from experiments.probing.held_out import (
    average_rows,
    evenly_spaced_windows,
    loss_by_position,
)
from experiments.probing.per_token import answer_attention
from experiments.probing.probe_run import _make_tables
from experiments.runs import LoadedRun
from zoo.probes import Row, all_measures

VOCAB, EXPERTS = 11, 3


class Showing(nn.Module):
    """Shows weights and selections that it is given, and routes by token id, head and rank."""

    def __init__(self, weights: torch.Tensor | None = None, selected: torch.Tensor | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 1)
        self.vocab_size, self.weights, self.selected = VOCAB, weights, selected

    def forward(self, tokens, ctx):
        assert not self.training
        assert not torch.is_grad_enabled()
        mixer = ctx.at(layer=2, part="mixer", block="one")
        mixer.record("attention", lambda: {"weights": self.weights})
        mixer.record("selection", lambda: {"selected": self.selected})
        ctx.at(layer=2, part="channel", block="two").record("routing", lambda: self.routing(tokens))
        return torch.zeros(*tokens.shape, VOCAB), {}

    def routing(self, tokens):
        return {
            "choices": torch.stack(
                [torch.stack([chosen(tokens, h, r) for r in (0, 1)], -1) for h in (0, 1)], 2
            ),
            "probabilities": torch.stack(
                [torch.stack([odds(tokens, h, e) for e in range(3)], -1) for h in (0, 1)], 2
            ),
        }


def chosen(token, head, rank):
    return (token * (head + 1) + rank) % EXPERTS


def odds(token, head, expert):
    return (token + 10 * head + 100 * expert) / 1000


def test_maps_hold_every_weight_that_is_not_tiny():
    time = 6
    weights = torch.softmax(4 * torch.randn(1, 2, time, time, generator=torch.Generator().manual_seed(0)), -1)
    weights[0, 1, 3] = torch.tensor([0.9985, 0.0005, 0.001, 0, 0, 0])
    selected = torch.zeros(1, 1, time, time, dtype=torch.bool)
    selected[0, 0, 4, 2] = True
    model = Showing(weights, selected).train()
    rows = per_token.attention_maps(model, torch.zeros(1, time, dtype=torch.long))
    assert model.training
    expected = [
        (2, "one", head, "attention", query, key, pytest.approx(float(weights[0, head, query, key])))
        for head in range(2)
        for query in range(time)
        for key in range(time)
        if float(weights[0, head, query, key]) >= 0.001
    ]
    assert [row for row in rows if row[3] == "attention"] == expected
    assert (2, "one", 1, "attention", 3, 2, pytest.approx(0.001)) in rows
    assert [row for row in rows if row[3] == "selection"] == [(2, "one", 0, "selection", 4, 2, 1.0)]


def test_routes_hold_every_choice_with_its_probability():
    tokens = [3, 1, 4, 10]
    rows = per_token.routes_of(Showing(), torch.tensor([tokens]))
    expected = []
    for (at, token), head, rank in itertools.product(enumerate(tokens), (0, 1), (0, 1)):
        choice = chosen(token, head, rank)
        probability = pytest.approx(odds(token, head, choice))
        expected.append((2, "channel", "two", head, at, rank, choice, probability))
    assert sorted(rows) == sorted(expected)


def test_alternatives_are_the_other_choices_by_probability():
    tokens = [3, 1, 4, 10]
    rows = per_token.alternatives(Showing(), torch.tensor([tokens]))
    expected = []
    for position, token in enumerate(tokens):
        for head in (0, 1):
            (other,) = set(range(EXPERTS)) - {chosen(token, head, rank) for rank in (0, 1)}
            probability = pytest.approx(odds(token, head, other))
            expected.append((2, "channel", "two", head, position, 2, other, probability))
    assert rows == expected


def test_assignments_count_first_choices_over_all_batches():
    windows = torch.randint(VOCAB, (5, 7), generator=torch.Generator().manual_seed(1))
    batches = [*windows.split(2), torch.tensor([[3, 3, 4]])]
    rows = per_token.assignments(Showing(), batches, "t{}".format)
    counted: Counter = Counter()
    for token in (*windows.flatten().tolist(), 3, 3, 4):
        for head in (0, 1):
            counted[head, chosen(token, head, 0), token] += 1
    assert rows == [
        (2, "channel", "two", head, choice, token, f"t{token}", count)
        for (head, choice, token), count in sorted(counted.items())
    ]


def tables_of_random_text(monkeypatch, folder, tokens: dict[str, int], **probe):
    """Tables of an untrained model of 16 tokens with one router, on random bytes: so many of each split."""
    routing = {name: cls for name, cls in all_measures().items() if name == "routing"}
    monkeypatch.setattr("zoo.probes.measure._MEASURES", routing)
    config = zoo.ModelConfig(pattern="S", depth=1, d_model=8, n_heads=2)
    tokenizer = TOKENIZERS["bytes"].make(None, None, "", None)
    model = zoo.LanguageModel(config, vocab_size=tokenizer.vocab_size, seq_len=16)
    small = {
        "prompts": [],
        "windows": 1,
        "long_windows": 1,
        "extrapolate": 1,
        "map_tokens": 4,
        "batch_size": 2,
    }
    rng = np.random.default_rng(0)
    splits = {
        name: Split(rng.integers(0, 256, count).astype(np.uint16), 0, 0, 0) for name, count in tokens.items()
    }
    run = LoadedRun(model, tokenizer, folder, DataConfig())
    return _make_tables(run, splits, ProbeConfig(**(small | probe)), "fp32"), splits, run


def by_place(rows) -> Counter:
    counted: Counter = Counter()
    for *place, _choice, _token, _text, count, _split in rows:
        counted[tuple(place)] += count
    return counted


@pytest.mark.parametrize(
    ("asked", "read"),
    [(1, 16), (16, 16), (17, 32), (31, 32), (32, 32), (33, 48), (10_000, 96), (None, 100)],
)
def test_assignments_are_of_as_many_tokens_as_were_asked_for_in_whole_windows_or_of_all(
    monkeypatch, tmp_path, asked: int | None, read: int
):
    tables, *_ = tables_of_random_text(monkeypatch, tmp_path, {"validation": 100}, routing_tokens=asked)
    assert by_place(tables["assignments"]) == {(0, "mixer", "hypergraph", head): read for head in (0, 1)}
    assert {row[-1] for row in tables["assignments"]} == {"validation"}
    assert {(row[8], row[-2], row[-1]) for row in tables["measures"] if row[8] == "load"} == {
        ("load", 16, "validation")
    }, "loads are of the probed windows"


def test_loads_are_of_every_token_of_the_split_that_is_asked_for(monkeypatch, tmp_path):
    options = {"routing_split": "test", "routing_tokens": None}
    tables, splits, run = tables_of_random_text(
        monkeypatch, tmp_path, {"validation": 100, "test": 71}, **options
    )
    assert {row[-1] for row in tables["assignments"]} == {"test"}
    text = torch.from_numpy(splits["test"].tokens.astype(np.int64))
    counted: Counter = Counter()
    for start in range(0, 71, 16):
        for _, _, _, head, _, _, choice, _ in per_token.routes_of(run.model, text[None, start : start + 16]):
            counted[head, choice] += 1
    assert sum(counted.values()) == 2 * 71
    listed: Counter = Counter()
    for _, _, _, head, choice, _, _, count, _ in tables["assignments"]:
        listed[head, choice] += count
    assert listed == counted
    measures = [(row[4], *row[6:7], *row[8:]) for row in tables["measures"] if row[3] == "hypergraph"]
    loads = {(head, int(start)): rest for head, start, name, *rest in measures if name == "load"}
    assert len(loads) == 2 * 6
    for place, (value, count, split) in loads.items():
        assert (value, count, split) == (pytest.approx(counted[place] / 71), 71, "test")
    for head, _, value, count, split in (
        (h, s, v, c, where) for h, s, name, v, c, where in measures if name == "imbalance"
    ):
        largest = max(counted[head, choice] for choice in range(6))
        assert (value, count, split) == (pytest.approx(6 * largest / 71), 71, "test")
    assert {row[-1] for row in tables["measures"] if row[8] == "loss"} == {"validation"}


def test_an_answer_that_comes_after_its_question_was_not_seen():
    """Token 3 is asked for at place 1, before it comes, and at place 3, after: one question, one place of four."""
    config = zoo.ModelConfig(pattern="F", depth=1, d_model=8, n_heads=2)
    model = zoo.LanguageModel(config, vocab_size=8, seq_len=5).eval()
    targets = torch.tensor([[IGNORE, 3, IGNORE, 3, IGNORE]])
    rows = answer_attention(model, torch.tensor([[1, 2, 3, 2, 3]]), targets, 1)
    uniform = {(row.head, row.value, row.count) for row in rows if row.measure == "answer_uniform"}
    assert uniform == {(0, 0.25, 1), (1, 0.25, 1)}


def test_rows_of_batches_are_averaged_by_count():
    def row(value, count, head=0, start=0.0):
        return Row(1, "mixer", "one", head, "position", start, 16.0, "top_mass", value, count)

    rows = average_rows(
        [row(0.5, 30), row(0.1, 7, head=1), row(0.2, 10), row(3.0, 5, start=1.0), row(math.nan, 0)]
    )
    assert rows == [
        row(pytest.approx((0.5 * 30 + 0.2 * 10) / 40), 40),
        row(pytest.approx(0.1), 7, head=1),
        row(3.0, 5, start=1.0),
    ]


@pytest.mark.slow
def test_loss_by_position_against_a_loop():
    config = zoo.ModelConfig(pattern="F", depth=1, d_model=8, n_heads=2)
    model = zoo.LanguageModel(config, vocab_size=VOCAB, seq_len=16, seed=3)
    whole = torch.randint(VOCAB, (3, 129), generator=torch.Generator().manual_seed(2))
    rows = loss_by_position(model, whole[:, :-1], whole[:, 1:], 2, "fp32")
    assert model.training
    model.eval()
    assert [(row.start, row.end) for row in rows] == [(0, 16), (16, 32), (32, 64), (64, 128)]
    for row in rows:
        start, end = int(row.start), int(row.end)
        nats = []
        for text in whole:
            for place in range(64, 128):  # every token of the last bucket, wherever the bucket's tiles put it
                position = start + (place - 64) % (end - start)
                logits = model(text[None, place - position : place + 1])[0][0, -1].detach()
                nats.append(-math.log(float(logits.softmax(-1)[text[place + 1]])))
        assert row.value == pytest.approx(sum(nats) / len(nats), rel=1e-5)
        assert row.count == len(nats) == 3 * 64


def test_buckets_that_do_not_tile_leave_a_rest_out():
    config = zoo.ModelConfig(pattern="F", depth=1, d_model=8, n_heads=2)
    model = zoo.LanguageModel(config, vocab_size=VOCAB, seq_len=20, seed=3)
    whole = torch.randint(VOCAB, (3, 101), generator=torch.Generator().manual_seed(2))
    rows, rounded = (
        loss_by_position(model, whole[:, :-1], whole[:, 1:], 2, precision) for precision in ("fp32", "bf16")
    )
    for row, other in zip(rows, rounded, strict=True):
        assert row.value != other.value == pytest.approx(row.value, rel=1e-2)
    counts = {(row.start, row.end): row.count for row in rows}
    assert counts == {(0, 16): 96, (16, 20): 120, (20, 40): 120, (40, 80): 120, (80, 100): 60}


def test_windows_are_spread_over_the_split():
    split = Split(np.arange(103, dtype=np.uint16), 0, 0, 0)
    tokens, targets = evenly_spaced_windows(split, 3, 10)
    assert tokens[:, 0].tolist() == [0, 46, 92]
    assert targets[-1, -1] == 102
    assert (targets == tokens + 1).all()
    assert len(evenly_spaced_windows(split, 500, 10)[0]) == 10, "no overlap"
    shorter = Split(split.tokens[:30], 0, 0, 0)
    assert len(evenly_spaced_windows(shorter, 500, 10)[0]) == 2, "after the last token nothing is predicted"
    assert evenly_spaced_windows(split, 4, 1000)[0].shape == (1, 102)


def test_tables_have_the_columns_that_analysis_reads(tmp_path):
    types = {pa.int64(): "Int64", pa.float64(): "float64", pa.string(): "str"}
    assert {
        name: [(f.name, types[f.type]) for f in schema] for name, schema in probe_run.SCHEMAS.items()
    } == {name: [(column.name, column.dtype) for column in columns] for name, columns in TABLES.items()}
    rows = [(5, None, "", "", None, "position", 0.0, 16.0, "loss", 3.25, 7, "validation")]
    for content in (rows, []):
        probe_run.write(tmp_path, "measures", content)
        assert probe_run.read(tmp_path, "measures") == content
    path = probe_run.file(tmp_path, "measures")
    assert columns_of(path, "measures") == TABLES["measures"], "the file carries the same units and meanings"
    assert pq.read_schema(path).field("step").metadata[b"unit"] == b"steps"


@pytest.fixture
def probed(tmp_path, monkeypatch):
    """Probes a run of step 4, whose tables are given, and returns its folder."""
    loaded = LoadedRun(None, None, tmp_path, DataConfig(), step=1)
    monkeypatch.setattr(probe_run, "task_of", lambda place: None)
    monkeypatch.setattr(probe_run, "load_run", lambda *_, **_how: loaded)
    monkeypatch.setattr(probe_run, "load_corpus", lambda *_: SimpleNamespace(splits={}))
    monkeypatch.setattr(probe_run.runs, "find", lambda run, at: (run, 4))
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)

    def probe(**tables):
        seen = []
        monkeypatch.setattr(probe_run, "_make_tables", lambda loaded, *_: seen.append(loaded.step) or tables)
        with pretended_machine(torch_version=None):
            probe_run.probe_run(tmp_path, Config(device="cpu"))
        assert seen == [4]
        return tmp_path

    return probe


SENTENCE, ROUTE = (0, 5, "x", None), (0, "channel", "moe", 0, 0, 0, 2, 0.5)


def test_a_table_that_a_later_pass_has_no_rows_for_goes(probed):
    run = probed(sentence=[SENTENCE], routes=[ROUTE])
    assert probe_run.file(run, "routes").is_file()
    probed(sentence=[SENTENCE], routes=[])
    assert not probe_run.file(run, "routes").exists()
    assert probe_run.is_probed(run, ProbeConfig())


def test_a_pass_that_ended_amid_its_tables_leaves_no_record_of_them(probed, monkeypatch):
    run = probed(sentence=[SENTENCE], routes=[ROUTE])
    whole, written = probe_run.write, []

    def write(run, name, rows):
        if written:
            raise OSError("no room")
        written.append(whole(run, name, rows))

    monkeypatch.setattr(probe_run, "write", write)
    with pytest.raises(OSError, match="no room"):
        probed(sentence=[SENTENCE], routes=[ROUTE])
    assert not probe_run.is_probed(run, ProbeConfig())
