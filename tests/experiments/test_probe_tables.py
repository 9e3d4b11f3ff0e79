"""Tables of probes, number by number: against loops over a model that shows what a test knows."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import zoo
from analysis.loading.probe_tables import TABLES, columns_of
from experiments.data import DataConfig, Split
from experiments.data.tokenization import TOKENIZERS
from experiments.load_run import LoadedRun
from experiments.probing import per_token, probe_tables
from experiments.probing.held_out import (
    average_rows,
    document_start,
    evenly_spaced_windows,
    loss_by_position,
    position_buckets,
)
from experiments.probing.probe_run import _make_tables
from experiments.schema import ProbeConfig
from zoo.probes import Row

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
    rows = per_token.routes(Showing(), torch.tensor([tokens]))
    assert sorted(rows) == sorted(
        (
            2,
            "channel",
            "two",
            head,
            position,
            rank,
            c := chosen(token, head, rank),
            pytest.approx(odds(token, head, c)),
        )
        for position, token in enumerate(tokens)
        for head in (0, 1)
        for rank in (0, 1)
    )


def test_assignments_count_first_choices_over_all_batches():
    windows = torch.randint(VOCAB, (5, 7), generator=torch.Generator().manual_seed(1))
    rows = per_token.assignments(Showing(), windows, 2, "t{}".format)
    counted: Counter = Counter()
    for token in windows.flatten().tolist():
        for head in (0, 1):
            counted[head, chosen(token, head, 0), token] += 1
    assert rows == [
        (2, "channel", "two", head, choice, token, f"t{token}", count)
        for (head, choice, token), count in sorted(counted.items())
    ]


@pytest.mark.parametrize(
    ("asked", "read"), [(1, 16), (16, 16), (17, 32), (31, 32), (32, 32), (33, 48), (10_000, 96)]
)
def test_assignments_are_of_as_many_tokens_as_were_asked_for_or_all_in_whole_windows(
    monkeypatch, tmp_path, asked: int, read: int
):
    monkeypatch.setattr("zoo.probes.measure._MEASURES", {})
    config = zoo.ModelConfig(pattern="S", depth=1, d_model=8, n_heads=2)
    tokenizer = TOKENIZERS["bytes"].make(None, None, "", None)
    model = zoo.LanguageModel(config, vocab_size=tokenizer.vocab_size, seq_len=16)
    probe = ProbeConfig(
        routing_tokens=asked, prompts=[], windows=1, long_windows=1, extrapolate=1, map_tokens=4, batch_size=2
    )
    tokens = np.random.default_rng(0).integers(0, 256, 100).astype(np.uint16)
    run = LoadedRun(model, tokenizer, tmp_path, DataConfig())
    rows = _make_tables(run, Split(tokens, 0, 0, 0), probe, "fp32")["assignments"]
    counted: Counter = Counter()
    for *place, _choice, _token, _text, count in rows:
        counted[tuple(place)] += count
    assert counted == {(0, "mixer", "hypergraph", head): read for head in (0, 1)}


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
    rows = loss_by_position(model, whole[:, :-1], whole[:, 1:], 2, "fp32")
    counts = {(row.start, row.end): row.count for row in rows}
    assert counts == {(0, 16): 96, (16, 20): 120, (20, 40): 120, (40, 80): 120, (80, 100): 60}


def test_position_buckets_of_a_short_text_end_with_it():
    assert position_buckets(128, 40) == [(0, 16), (16, 32), (32, 40)]


def test_windows_are_spread_over_the_split():
    split = Split(np.arange(103, dtype=np.uint16), 0, 0, 0)
    tokens, targets = evenly_spaced_windows(split, 3, 10)
    assert tokens[:, 0].tolist() == [0, 46, 92]
    assert targets[-1, -1] == 102
    assert (targets == tokens + 1).all()
    assert len(evenly_spaced_windows(split, 500, 10)[0]) == 10, "no overlap"
    assert evenly_spaced_windows(split, 4, 1000)[0].shape == (1, 102)


def test_the_sentence_starts_a_document():
    tokens = np.array([0, 5, 6, 0, 7, 8, 9, 0, 1, 2, 3, 4], dtype=np.uint16)
    split = Split(tokens, 0, 0, 3)
    assert document_start(split, 0, 4).tolist() == [[0, 7, 8, 9]]
    assert document_start(split, 0, 5).tolist() == [[0, 1, 2, 3, 4]]
    assert document_start(split, 0, 6).tolist() == [[0, 5, 6, 0, 7, 8]]


def test_tables_have_the_columns_that_analysis_reads(tmp_path):
    types = {pa.int64(): "Int64", pa.float64(): "float64", pa.string(): "str"}
    assert {
        name: [(f.name, types[f.type]) for f in schema] for name, schema in probe_tables.SCHEMAS.items()
    } == {name: [(column.name, column.dtype) for column in columns] for name, columns in TABLES.items()}
    rows = [(5, None, "", "", None, "position", 0.0, 16.0, "loss", 3.25, 7)]
    for content in (rows, []):
        probe_tables.write(tmp_path, "measures", content)
        assert probe_tables.read(tmp_path, "measures") == content
    path = probe_tables.file(tmp_path, "measures")
    assert columns_of(path, "measures") == TABLES["measures"], "the file carries the same units and meanings"
    assert pq.read_schema(path).field("step").metadata[b"unit"] == b"steps"
