"""The rank of factorised streams from a probe's energies; what a model is given to go on from."""

from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from support.contract_cases import build, tokens

from experiments.configuration.schema import ProbeConfig
from experiments.probing import probe_run
from experiments.probing.held_out import samples
from experiments.probing.probe_run import settings, stream_rank
from zoo import ModelConfig, UserError
from zoo.options import check_limits
from zoo.probes import probe_model
from zoo.probes.measure import Row, smallest_rank


def energies(layer: int, *values: float, part: str = "mixer") -> list[Row]:
    return [
        Row(layer, part, "attention", None, "rank", 0, r, "stream_energy", value, 8)
        for r, value in enumerate(values, 1)
    ]


def test_the_rank_is_the_smallest_that_suffices_before_every_layer_but_the_first():
    """The embedding's copies have one direction; sub-blocks inside a layer and the head receive all streams."""
    rows = [
        *energies(0, 1.0, 1.0, 1.0),
        *energies(0, 0.1, 0.2, 1.0, part="channel"),
        *energies(1, 0.95, 0.995, 1.0),
        *energies(2, 0.97, 0.985, 1.0),
        *energies(3, 0.1, 0.2, 1.0, part="head"),
    ]
    wanted = {0.9: 1, 0.95: 1, 0.96: 2, 0.985: 2, 0.99: 3, 1.0: 3}
    assert {energy: smallest_rank(rows, energy) for energy in wanted} == {
        e: (r, 3) for e, r in wanted.items()
    }


def test_one_stream_has_no_rank_to_choose():
    assert smallest_rank(energies(1, 1.0), 0.99) is None
    assert smallest_rank(energies(0, 0.5, 1.0), 0.99) is None
    assert smallest_rank([], 0.99) is None


@torch.no_grad()
def test_streams_that_were_carried_as_one_have_rank_one():
    config = ModelConfig(pattern="F", depth=2, d_model=16, n_heads=2)
    config.residual.name = "shc"
    for r, found in ((0, 4), (2, 2), (1, 1)):
        config.residual.shc.factorise = r
        rows = probe_model(build(config), tokens(2, 9), names=["stream_dimensions"])
        assert smallest_rank(rows, 1 - 1e-9) == (found, 4)


def test_a_probed_run_says_it(tmp_path: Path):
    probe_run.write(tmp_path, "measures", [(10, *row, "validation") for row in energies(1, 0.95, 1.0)])
    assert (
        stream_rank(tmp_path, 0.99) == "0.99 of the energy of its 2 streams between layers is in 2 directions"
    )
    assert stream_rank(tmp_path / "none", 0.99) == ""


def test_the_share_decides_no_table():
    assert settings(ProbeConfig(stream_energy=0.5)) == settings(ProbeConfig())
    for value in (0.0, 1.5, float("nan")):
        with pytest.raises(UserError, match=r"probe.stream_energy=.* must be a number above 0 and at most 1"):
            check_limits(ProbeConfig(stream_energy=value), "probe.")


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
