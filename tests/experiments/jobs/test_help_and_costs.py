"""What --help says, and what job=cost prints: units, what is counted, and bounded work."""

import json
import re
import time

import pytest
import torch
from support.program import ROOT, Lab

from analysis.gallery import listed
from experiments.configuration.compose import presets_to_compare
from experiments.configuration.schema import Config
from experiments.costs import model_costs
from experiments.costs.model_costs import count_flops
from experiments.data import SOURCES, TOKENIZERS
from experiments.jobs import all_jobs, cost
from zoo import registry
from zoo.cost import flops_per_token, parameters, parameters_non_embedding, state_bytes
from zoo.model import meta_model
from zoo.probes import all_measures, event_kinds


@pytest.mark.slow
def test_help_says_what_it_is_the_jobs_and_where_keys_are_explained(lab: Lab):
    lab.arguments = lambda *words: list(words)
    outcome = lab.done("--help")
    assert outcome.out.startswith("Archzoo compares sequence-model blocks")
    for job in all_jobs():
        assert f"  {job.name:<9} {job.help}\n" in outcome.out
    for words in (
        *("--multirun", "+experiment=quickstart", "--cfg job", "experiments/configuration/schema.py"),
        *("docs/reference/keys.html", "job=list"),
    ):
        assert words in outcome.out
    assert len(outcome.out.splitlines()) < 60
    assert lab.left_behind() == []


def test_flags_that_exclude_each_other_are_a_mistake_in_one_line(lab: Lab):
    error = lab.refused("--multirun", "--cfg=job")
    assert error.count("\n") == 1
    assert "leave --multirun out to see a configuration" in error


@pytest.mark.slow
def test_everything_that_registers_is_listed(lab: Lab, capsys):
    outcome = lab.done("job=list")
    names = {line.split()[0] for line in outcome.out.splitlines() if line.startswith("  ")}
    names |= {line.split()[1] for line in outcome.out.splitlines() if re.match(r"  [A-Z]  ", line)}
    for registered in (
        *map(registry.blocks, registry.KINDS),
        all_measures(),
        event_kinds(),
        SOURCES,
        TOKENIZERS,
    ):
        assert registered.keys() <= names
    assert "Balance and certainty of a router to experts, memories or timelines" in outcome.out
    for entry in listed():
        assert f"  {entry.name} " in outcome.out


@pytest.mark.slow
def test_a_file_that_cannot_be_imported_is_named_and_other_models_go_on(lab: Lab, monkeypatch):
    line = "zoo/mixers/ema.py, line 3: SyntaxError: '(' was never closed"
    monkeypatch.setattr(registry, "_left_out", {"zoo.mixers.ema": line})
    notice = f"notice: {line} (left out until this is fixed: zoo.mixers.ema)\n"
    outcome = lab.here("job=cost", "cost.lengths=[16]")
    assert (outcome.status, outcome.err) == (0, notice)
    error = lab.refused("job=cost", "cost.lengths=[16]", "model.pattern=EF")
    assert error.startswith(f"{notice}error: model.pattern=EF: 'E' at position 1 is not a known mixer")


@pytest.mark.parametrize(
    ("size", "text"),
    [(16, "16 B"), (8192, "8.0 KiB"), (90 * 1024, "90.0 KiB"), (2**20, "1.0 MiB"), (2**31, "2,048.0 MiB")],
)
def test_bytes_have_a_unit_that_shows_them(size: int, text: str):
    assert cost.format_bytes(size) == text


@pytest.mark.slow
def test_costs_say_what_is_not_counted(lab: Lab):
    outcome = lab.done("job=cost", "cost.lengths=[64]")
    assert (
        "Elementwise work (norms, gates, scans written elementwise) and short\nconvolutions are not."
        in outcome.out
    )
    assert "extrapolated" not in outcome.out


@pytest.mark.parametrize("backward", [False, True])
def test_extrapolated_flops_are_the_counted_ones(backward: bool):
    """Dense attention is a square, the rest a line: both are followed exactly."""
    config = Config()
    config.model.depth, config.model.d_model, config.model.n_heads = 1, 16, 2
    config.data.seq_len = 8192
    model = meta_model(config.model, **config.sizes)
    found = count_flops(model, 8192, backward=backward, budget=0)
    assert found.counted_to == 256
    assert found.per_token == pytest.approx(flops_per_token(model, 8192, backward=backward), rel=1e-9)
    assert count_flops(model, 512).counted_to == 512


def test_a_count_within_the_budget_is_direct_however_long_it_takes(monkeypatch):
    """The budget is in operators: a machine so busy that a count takes minutes extrapolates nothing."""
    config = Config()
    config.model.depth, config.model.d_model, config.model.n_heads = 1, 16, 2
    model = meta_model(config.model, **config.sizes)
    with model_costs._Operators() as operators:
        expected = flops_per_token(model, 8192)
    clock = iter(range(0, 10**9, 3600))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    assert count_flops(model, 8192, budget=operators.count) == model_costs.FlopCount(expected, 8192)
    assert count_flops(model, 8192, budget=operators.count - 1).counted_to < 8192


def test_what_is_no_polynomial_is_counted_after_all():
    calls = []

    def total(tokens: int) -> float:
        calls.append(tokens)
        return float(tokens**3)

    assert model_costs._extrapolate(total, 8192, lambda: True) == model_costs.FlopCount(8192.0**2, 8192)
    assert calls[-1] == 8192


def test_a_bend_among_the_counted_lengths_is_waited_out(monkeypatch):
    """A window of 1,024 tokens: a square below it, a line above."""
    monkeypatch.setattr(model_costs, "SHORTEST", 256)

    def total(tokens: int) -> float:
        return float(sum(min(t, 1024) for t in (torch.arange(tokens) + 1).tolist()))

    found = model_costs._extrapolate(total, 65_536, lambda: True)
    assert found.counted_to == 8192
    assert found.per_token == pytest.approx(total(65_536) / 65_536, rel=1e-12)


def test_lengths_are_counted_as_far_as_the_budget_goes():
    found = model_costs._extrapolate(lambda tokens: float(min(tokens, 1024)), 65_536, lambda: False)
    assert found == model_costs.FlopCount(1024 / 65_536, 65_536)


@pytest.mark.parametrize(("tokenizer", "entries"), [("bytes", 256 + 1), ("gpt2", 50_257), ("bpe", 4096)])
def test_costs_are_of_the_vocabulary_that_a_run_has(tokenizer: str, entries: int):
    """256 bytes and a separator; GPT-2's table; as many entries as are asked for."""
    config = Config()
    config.data.tokenizer, config.data.vocab_size = tokenizer, 4096
    assert meta_model(config.model, **config.sizes).vocab_size == entries


@pytest.mark.slow
def test_a_summary_says_the_costs_of_the_model_that_was_trained(lab: Lab):
    """Of one whose backward pass is not twice its forward pass: the solver of the second is not run again."""
    assert lab.here("model=mesanet", "trainer.max_steps=1").status == 0
    summary = json.loads((lab.run_folder() / "summary.json").read_text())
    (config,) = lab.compose("model=mesanet")
    model, length = meta_model(config.model, **config.sizes), config.data.seq_len
    assert summary["parameters"] == parameters(model)
    assert summary["parameters_non_embedding"] == parameters_non_embedding(model)
    flops = {
        "forward": flops_per_token(model, length),
        "training": flops_per_token(model, length, backward=True),
    }
    assert flops["training"] != 3 * flops["forward"]
    assert summary["flops_per_token"] == flops
    lengths = sorted({length, 1024, 8192, 131_072})
    assert summary["state_bytes"] == {str(n): state_bytes(model, n) for n in lengths}


@pytest.mark.long
def test_the_page_shows_the_derived_costs(lab: Lab):
    shown = (ROOT / "docs" / "architectures.md").read_text(encoding="utf-8")
    shown = shown.split("<!-- costs -->\n")[1].split("<!-- /costs -->")[0]
    lab.arguments = lambda *words: list(words)
    command = ["--multirun", "job=cost", "size=reference", f"model={','.join(presets_to_compare())}"]
    outcome = lab.done(*command)
    assert outcome.out.startswith(shown.strip() + "\n\n")
