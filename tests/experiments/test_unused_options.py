"""Options of blocks that no model of a command uses are named in a line, and change nothing else."""

from __future__ import annotations

import pytest
from support.program import Lab

from experiments.compose import compose

UNUSED = "no model of this command uses "


def told(lab: Lab, *words: str) -> list[str]:
    lines: list[str] = []
    with lab._inside(*words):
        compose(notify=lines.append)
    return lines


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["model.residual.mhc.iters=5"], "model.residual.mhc.iters; model.residual.name=mhc would"),
        (["model.mixers.kda={neg_eigval: false}"], "model.mixers.kda; a model with a layer K would"),
        (
            ["model.channel.moe.n_experts=4", "model.channel.moe.top_k=1"],
            "model.channel.moe.n_experts, model.channel.moe.top_k; model.channel.name=moe would",
        ),
        (
            ["--multirun", "model=mla,lfm2", "model.mixers.nsa.window=8,16"],
            "model.mixers.nsa.window; a model with a layer N would",
        ),
    ],
)
def test_an_option_that_no_model_uses_is_named_once(lab: Lab, words: list[str], says: str):
    assert told(lab, *words) == [UNUSED + says]


@pytest.mark.parametrize(
    "words",
    [
        ["model=orthgsa"],
        ["model=kda", "model.depth=4", "model.mixers.mla.rope_dim=0", "model.mixers.kda.neg_eigval=false"],
        ["model.residual.name=mhc", "model.residual.mhc.iters=5"],
        ["--multirun", "model=kda,lfm2", "model.depth=4", "model.mixers.attention.window=64"],
        ["--multirun", "model.residual.name=add,mhc", "model.residual.mhc.iters=5"],
        ["--multirun", "model.pattern=F,SF,K", "model.mixers.kda.neg_eigval=false"],
        ["+experiment=residuals"],
        ["+experiment=sinks", "model=transformer"],
        ["+experiment=routing"],
        ["model.pattern=nonsense", "model.mixers.kda.neg_eigval=false"],
    ],
    ids=" ".join,
)
def test_what_one_model_uses_or_a_file_sets_is_not_named(lab: Lab, words: list[str]):
    assert told(lab, *words) == []


def test_a_command_with_such_an_option_does_the_same_and_says_so(lab: Lab):
    plain = lab.here("job=cost", "cost.lengths=[16]")
    noted = lab.here("job=cost", "cost.lengths=[16]", "model.residual.mhc.iters=5")
    assert plain.err == ""
    assert noted == (
        0,
        plain.out,
        f"notice: {UNUSED}model.residual.mhc.iters; model.residual.name=mhc would\n",
    )
