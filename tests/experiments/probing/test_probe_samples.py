"""Samples of job=probe: what a model is given to go on from."""

from types import SimpleNamespace
from unittest import mock

import torch

from experiments.configuration.schema import ProbeConfig
from experiments.probing.held_out import samples


def test_a_prompt_begins_a_document():
    tokenizer = SimpleNamespace(
        bos_id=7, encode=lambda text: [1, 2], decode=lambda ids: "".join(map(str, ids))
    )
    model = SimpleNamespace(embedding=SimpleNamespace(weight=torch.zeros(1)))
    given = []

    def generate(model, prompt, tokens, **options):
        given.append(prompt.tolist())
        return iter([3, 4])

    with mock.patch("zoo.generate", generate):
        (row,) = samples(SimpleNamespace(model=model, tokenizer=tokenizer), ProbeConfig(prompts=["x"]))
    assert given == [[[7, 1, 2]]]
    assert row[:2] == ("x", "34")


def test_the_speed_is_of_all_tokens_that_the_model_reads(monkeypatch):
    """Those of the prompt with its separator, and those written but for the last, in the seconds of both."""
    ticks = iter([10.0, 12.0])
    monkeypatch.setattr(
        "experiments.probing.held_out.time", SimpleNamespace(perf_counter=lambda: next(ticks))
    )
    monkeypatch.setattr("zoo.generate", lambda *_, **__: iter([3, 4, 5]))
    tokenizer = SimpleNamespace(bos_id=7, encode=lambda text: [1, 2], decode=str)
    model = SimpleNamespace(embedding=SimpleNamespace(weight=torch.zeros(1)))
    (row,) = samples(SimpleNamespace(model=model, tokenizer=tokenizer), ProbeConfig(prompts=["x"]))
    assert row[-1] == (3 + 3 - 1) / 2.0
