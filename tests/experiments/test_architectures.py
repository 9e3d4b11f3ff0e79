"""The presets as people use them: matched, named, costed, sampled from."""

from __future__ import annotations

import math

import numpy as np
import pytest
import yaml
from program import Lab

from experiments.cli import CONF
from experiments.data.corpus import unigram_entropy
from experiments.plan import plan
from experiments.presets import architectures
from zoo import ModelConfig

ELEVEN = [
    "transformer",
    "lfm2",
    "mla",
    "kda",
    "path_fox",
    "mesanet",
    "mom",
    "nsa",
    "hypergraph",
    "shc",
    "orthgsa",
]


def test_all_eleven_are_presets():
    assert set(ELEVEN) <= set(architectures(ModelConfig()))


def test_matching_is_part_of_what_a_run_is(lab: Lab):
    plans = [plan(lab.compose("model=mla", *words)[0]) for words in ([], ["match=params"])]
    assert plans[0].run != plans[1].run
    assert plans[0].config.model.channel.swiglu.hidden is None
    hidden = plans[1].config.model.channel.swiglu.hidden
    assert plans[1].identity["model"]["channel"]["swiglu"]["hidden"] == hidden > 0
    saved = yaml.safe_load(plans[1].yaml())
    assert (saved["match"], saved["model"]["channel"]["swiglu"]["hidden"]) == ("params", hidden)


@pytest.mark.parametrize(
    ("words", "label"),
    [
        (["model=shc"], "shc"),
        (["model=orthgsa", "model.residual.name=mhc"], "orthgsa mhc"),
        (["model=transformer", "model.residual.name=mhc"], "transformer mhc"),
        (["model=shc", "model.residual.name=add", "model.channel.name=moe"], "shc add moe"),
        (["model=transformer", "model.pattern=KKKF", "model.residual.name=hc"], "kda KKKF hc"),
    ],
)
def test_a_label_says_what_departs_from_the_preset(lab: Lab, words: list[str], label: str):
    (config,) = lab.compose(*words, "model.depth=4")
    assert plan(config).title == f"{label} seed 0"


def test_costs_of_a_sweep_are_one_table(lab: Lab):
    shown = lab.here("--multirun", "job=cost", "match=params", "model=transformer,mla", "cost.lengths=[1024]")
    rows = [line for line in shown.out.splitlines() if line.startswith("| `")]
    assert [row.split("|")[1].strip() for row in rows] == ["`transformer`", "`mla`"]
    assert all(len(row.split("|")) == 7 for row in rows)


def test_unigram_entropy_is_that_of_the_counts():
    tokens = np.array([3, 3, 1, 0], dtype=np.uint16)
    assert unigram_entropy(tokens, 9) == pytest.approx(1.5 * math.log(2))


@pytest.mark.slow
@pytest.mark.parametrize("preset", sorted(path.stem for path in (CONF / "model").glob("*.yaml")))
def test_every_preset_trains_and_generates_from_its_checkpoint(lab: Lab, preset: str):
    model = [f"model={preset}", "model.depth=4", "trainer.max_steps=6", "trainer.val_every=3"]
    trained = lab.here(*model)
    assert trained.status == 0, trained.err
    written = lab.here("job=generate", f"run={lab.run_folder()}", "generate.tokens=12", "generate.prompt=The")
    assert written.status == 0, written.err
    assert written.out.startswith("The")
    assert "12 tokens after a prompt of 4;" in written.out
    assert float(written.out.rsplit(";", 1)[1].split()[0]) > 0
