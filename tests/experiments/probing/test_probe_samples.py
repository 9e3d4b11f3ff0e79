"""Samples of job=probe: what a model is given to go on from."""

from types import SimpleNamespace
from unittest import mock

import torch

from experiments.configuration.schema import ProbeConfig
from experiments.probing.samples import samples


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
