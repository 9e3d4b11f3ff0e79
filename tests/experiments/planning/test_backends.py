"""A backend that serves nothing here is refused by every job that makes or loads a model, in a line."""

import json
import shutil
from pathlib import Path

import pytest
from support.program import Lab

from experiments.jobs import bench
from experiments.planning.plan import check_config
from zoo.errors import UserError

JOBS = {
    "a run": ["model=transformer", "model.backend=flash_attn"],
    "a run of documents": ["model=nsa", "model.backend=numba", "data.pack=document"],
    "another block": ["model=kda_pure", "model.backend=flash_attn"],
    "the last cell": ["--multirun", "model=transformer", "model.backend=auto,torch,varlen"],
    "a cell of another block": ["--multirun", "model=nsa,transformer", "model.backend=numba"],
    "costs": ["job=cost", "model=kda_pure", "model.backend=varlen"],
    **{
        f"suite={suite}": ["job=bench", f"suite={suite}", "model.backend=flash_attn", *more]
        for suite, more in {
            "steps": ["bench.cases=[kda_pure]"],
            "models": ["bench.cases=[hypergraph]"],
            "inference": ["bench.cases=[mla]"],
            "latency": [],
            "recompute": [],
        }.items()
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("words", JOBS.values(), ids=JOBS)
def test_a_backend_that_serves_nothing_here_is_refused_before_any_work(lab: Lab, words: list[str]):
    outcome = lab.here(*words)
    assert outcome.status == 2
    # What a corpus holds is told when it is first read, which may be before.
    (line,) = (line for line in outcome.err.splitlines() if not line.startswith("notice: "))
    assert "model.backend=" in line
    assert "cannot serve this call: " in line or "has no backend" in line
    assert "use model.backend=auto" in line
    assert not lab.left_behind()


@pytest.mark.slow
def test_every_suite_uses_a_backend_or_refuses_it(lab: Lab):
    """One that measures backends itself would take it and say nothing."""
    assert set(bench._USES) <= set(bench.SUITES)
    for suite in set(bench.SUITES) - set(bench._USES):
        error = lab.refused("job=bench", f"suite={suite}", "model.backend=torch")
        assert f"suite={suite} chooses backends itself; leave model.backend=torch out" in error
    assert not lab.left_behind()


def test_cells_of_other_machines_are_refused_only_what_none_has(lab: Lab):
    """Whether a machine has a GPU and the package is known there alone."""
    (config,) = lab.compose("model=transformer", "model.backend=flash_attn", "sweep.engine=ray")
    check_config(config)
    (config,) = lab.compose("model=kda_pure", "model.backend=flash_attn", "sweep.engine=ray")
    with pytest.raises(UserError, match="has no backend 'flash_attn'"):
        check_config(config)


@pytest.fixture
def trained_elsewhere(finished: Lab, tmp_path: Path) -> Path:
    """A run that was trained by a backend that this machine does not have."""
    run = Path(
        shutil.copytree(finished.run_folder(), tmp_path / "runs" / "elsewhere" / finished.run_folder().name)
    )
    card = json.loads((run / "model.json").read_text())
    card["model"]["backend"] = "varlen"
    (run / "model.json").write_text(json.dumps(card))
    return run


USES = {
    "evaluate": ["job=evaluate", "evaluate.splits=[validation]"],
    "evaluate with the state carried": [
        "job=evaluate",
        "evaluate.splits=[validation]",
        "evaluate.carry=true",
    ],
    "generate": ["job=generate", "generate.prompt=abc", "generate.tokens=2"],
    "probe": ["job=probe"],
    "bench": ["job=bench", "suite=inference", "bench.lengths=[8]", "bench.repeats=1"],
}


@pytest.mark.slow
@pytest.mark.parametrize("job", USES)
def test_a_run_that_was_trained_elsewhere_is_used_by_another_backend(lab, trained_elsewhere, job):
    where = f"bench.runs=[{trained_elsewhere}]" if job == "bench" else f"run={trained_elsewhere}"
    words = [*USES[job], where]
    refused = lab.here(*words)
    assert refused.status != 0
    said = refused.err + refused.out
    assert "model.backend=varlen: " in said
    assert "backend 'varlen' cannot serve this call: needs CUDA tensors, got cpu" in said
    assert "give model.backend=auto" in said
    used = lab.done(*words, "model.backend=auto")
    assert "keeps the model" not in used.err


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["varlen", "flash_attn"])
def test_generating_by_a_backend_of_whole_sequences_is_refused(finished: Lab, backend: str):
    """Whatever the run's blocks: attention alone would take another backend for every step, without a word."""
    words = ["job=generate", f"run={finished.run_folder()}", f"model.backend={backend}"]
    refused = finished.here(*words, "generate.prompt=abc", "generate.tokens=2")
    assert refused.status == 2
    assert f"model.backend={backend} computes only whole sequences" in refused.err
    assert refused.out == ""
