"""job=verdict: which models, contracts run as tests, tables measured once, blocks that break a contract condemned."""

import dataclasses
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.program import Lab
from support.tree_copy import copy_tree, python, shown

from experiments.configuration.schema import Config
from experiments.verdict import contracts, measurements, verdict_stages
from experiments.verdict.measurements import find_block, models, nearest_relative
from zoo import ModelConfig, registry
from zoo.errors import UserError

OUTCOME = """<testsuites><testsuite>
<testcase classname="a" name="test_the_future_changes_nothing[mixer-x]"/>
<testcase classname="a" name="test_the_future_changes_nothing[mixer-x-wide]">
  <failure message="AssertionError: token 33 differs&#10;more">trace</failure></testcase>
<testcase classname="a" name="test_saved[mixer-x]"><skipped message="no compiler"/></testcase>
<testcase classname="a" name="test_learns[mixer-x]"><error message="RuntimeError: set up"/></testcase>
</testsuite></testsuites>"""

BROKEN = """
import torch
from zoo.mixers.kda import KDA, KDAConfig
from zoo.registry import register_mixer


@register_mixer(
    "broken", letter="Z", config=KDAConfig, title="Broken", family="linear recurrence", color="#123456", source="none"
)
class Broken(KDA):
    def forward(self, x, ctx):
        {body}
"""
PEEKS = "return super().forward(x.roll(-1, 1), ctx)"
FORGETS = """parts = [self.extend(part, self.init_state(len(x), dtype=x.dtype))[0] for part in x.split(16, 1)]
        return torch.cat(parts, 1), {}"""

CUT = """
import torch
import torch.nn.functional as F
from zoo.mixers.ema import EMA, EMAConfig, scan
from zoo.registry import register_mixer


@register_mixer(
    "broken", letter="Z", config=EMAConfig, title="Broken", family="recurrent", color="#123456", source="none"
)
class Broken(EMA):
    # README's moving average, h = 0 at every 16th token wherever h is carried. State: h and the count of tokens.
    def forward(self, x, ctx):
        return self._carry(x, ctx.positions, torch.zeros_like(x[:, 0]))[0], {}

    def init_state(self, batch_size, **options):
        return F.pad(super().init_state(batch_size, **options), (0, 1))

    def extend(self, x, state):
        positions = state[:, -1:].long() + torch.arange(x.shape[1], device=x.device)
        y, h = self._carry(x, positions, state[:, :-1])
        return y, torch.cat([h, positions[:, -1:] + 1.0], 1)

    def _carry(self, x, positions, before):
        a = torch.sigmoid(self.decay)
        carry, new = a * (positions % 16 > 0).unsqueeze(-1), (1 - a) * self.v_proj(x)
        h = scan(torch.cat([carry[:, :1] * before.unsqueeze(1) + new[:, :1], new[:, 1:]], 1), carry)
        return self._out(h.to(x.dtype), x), h[:, -1]
"""


def test_the_models_are_the_transformer_with_the_block_in_every_layer_and_its_nearest_relative():
    config = Config()
    found = models(config.model, find_block("kda"), registry.get("mixer", "mesanet"))
    assert list(found) == ["transformer", "kda", "mesanet"]
    assert [model.pattern for model in found.values()] == ["F", "K", "M"]
    assert {model.d_model for model in found.values()} == {config.model.d_model}
    scheme = models(config.model, find_block("ohc"), None)["ohc"]
    assert (scheme.pattern, scheme.residual.name, scheme.channel.name) == ("F", "ohc", "swiglu")


def test_the_models_differ_in_the_block_alone_whatever_the_command_gave_them():
    given = ModelConfig(preset="ohc", pattern="K")
    given.residual.name, given.channel.name = "ohc", "moe"
    found = models(given, find_block("kda"), None)
    parts = [(model.pattern, model.residual.name, model.channel.name) for model in found.values()]
    assert parts == [("F", "add", "swiglu"), ("K", "add", "swiglu")]


@pytest.mark.parametrize(
    ("block", "relative"), [("kda", "mesanet"), ("hypergraph", "gsa"), ("mhc", "hc"), ("moe", None)]
)
def test_the_relative_is_of_the_same_family_and_if_there_is_one_of_the_same_mask(block, relative):
    found = nearest_relative(find_block(block), None)
    assert (found and found.name) == relative
    assert nearest_relative(find_block(block), "none") is None


@pytest.mark.slow
def test_a_block_that_cannot_be_judged_is_refused(lab: Lab):
    for words, says in (
        ([], "job=verdict needs block=NAME"),
        (["block=kdaa"], "did you mean 'kda'?"),
        (["block=attention"], "is part of the plain transformer"),
        (["block=kda", "verdict.relative=ohc"], "unknown mixer to compare kda with"),
        (["block=kda", "verdict.lengths=[]"], "verdict.lengths is empty"),
        (["block=kda", "verdict.lengths=[1]", "data.path=/nope"], "/nope"),  # a length of one token is one
        (["block=kda", "data.path=/nope"], "/nope"),
        (["block=kda", "optim.lr_min=1"], "optim.lr_min"),
    ):
        assert says in lab.refused("job=verdict", *words)
    said = lab.done("job=verdict", "block=kda", "verdict.relative=none", "dry=true").out
    assert said.startswith("verdict on kda, beside transformer\n")
    assert "core-minutes" in said
    assert lab.left_behind() == []


def test_outcomes_of_tests_become_a_row_a_contract():
    rows = contracts.summarise(
        list(contracts._cases(ElementTree.ElementTree(ElementTree.fromstring(OUTCOME))))
    )
    assert [tuple(row.values()) for row in rows] == [
        ("the future changes nothing", 2, 1, 0, "mixer-x-wide", "AssertionError: token 33 differs"),
        ("saved", 1, 0, 1, "", ""),
        ("learns", 1, 1, 0, "mixer-x", "RuntimeError: set up"),
    ]


def test_sizes_and_speeds_are_of_every_length(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(measurements, "size_rows", lambda config, models, length: [{"tokens": length}])
    monkeypatch.setattr(
        measurements, "speed_rows", lambda config, models, length, mode: [{"tokens": length, "mode": mode}]
    )
    config = Config()
    config.verdict.lengths = [8, 16]
    measured = verdict_stages.measure_sizes(tmp_path, config, {})
    assert [row["tokens"] for row in measured] == ["8", "16"]
    timed = verdict_stages.measure_speeds(tmp_path, config, {})
    expected = [(length, mode) for length in ("8", "16") for mode in measurements.MODES]
    assert [(row["tokens"], row["mode"]) for row in timed] == expected


@pytest.mark.parametrize("mode", measurements.MODES)
def test_speeds_are_of_pairs_taken_in_turns(mode, monkeypatch):
    monkeypatch.setattr(measurements, "REPEATS", 3)
    config = Config(match="params")
    config.model = dataclasses.replace(config.model, d_model=16, n_heads=2, depth=1)
    found = models(config.model, find_block("gated_conv"), registry.get("mixer", "kda"))
    rows = measurements.speed_rows(config, found, 16, mode)
    pairs = [(row["model"], row["peer"]) for row in rows]
    assert pairs == [("gated_conv", "transformer"), ("kda", "transformer"), ("gated_conv", "kda")]
    assert all(0 < row["ratio_low"] <= row["ratio"] <= row["ratio_high"] for row in rows)


@pytest.mark.slow
def test_a_table_is_measured_once_and_a_changed_block_needs_a_new_name(tmp_path, monkeypatch):
    config = Config(results=str(tmp_path), name="v", match="params")
    block = find_block("kda")
    found = models(config.model, block, None)
    folder = verdict_stages.open_verdict(config, block, found)
    first = verdict_stages.measure_sizes(folder, config, found)
    monkeypatch.setattr(measurements, "size_rows", None)
    assert (
        verdict_stages.measure_sizes(verdict_stages.open_verdict(config, block, found), config, found)
        == first
    )
    monkeypatch.setattr(verdict_stages, "file_hash", lambda _: "other")
    with pytest.raises(UserError, match="holds a verdict made with another file; give name="):
        verdict_stages.open_verdict(config, block, found)
    (folder / verdict_stages.RECORD).write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match="cannot be read"):
        verdict_stages.open_verdict(config, block, found)


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "breaks", "contract"),
    [
        pytest.param(
            BROKEN.replace("{body}", PEEKS), "", "the future changes nothing", id="looks a token ahead"
        ),
        pytest.param(
            BROKEN.replace("{body}", FORGETS),
            "",
            "step repeated is forward",
            id="forgets at every 16th token",
        ),
        pytest.param(
            CUT,
            "1 of",
            "memory does not end at fixed places",
            id="forgets there in forward and decoding alike",
        ),
    ],
)
def test_a_block_that_breaks_a_contract_is_condemned_and_not_trained(tmp_path, source, breaks, contract):
    tree = tmp_path / "tree"
    copy_tree(tree)
    for path, text in {**shown("README.md"), "zoo/mixers/broken.py": source}.items():
        (tree / path).write_text(text, encoding="utf-8")
    said = python(tree, "run.py", "job=verdict", "block=broken", "trainer.progress=false")
    assert f"broken fails: it breaks {breaks}" in said
    folder = tree / "results/verdict_broken"
    assert f"Broken: {contract}" in (folder / "verdict/verdict.md").read_text(encoding="utf-8")
    assert [path.name for path in folder.iterdir()] == ["verdict"]
    assert json.loads((folder / "verdict/verdict.json").read_text())["block"]["name"] == "broken"
