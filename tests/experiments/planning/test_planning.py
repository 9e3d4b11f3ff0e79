"""What a configuration becomes before anything runs: cells, identity, name; backends that serve nothing."""

import argparse
import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.program import ROOT, Lab, write_text

from experiments.configuration.schema import Config
from experiments.jobs import bench
from experiments.planning.identity import run_name
from experiments.planning.plan import check_config, plan, resolve_steps
from experiments.sweep import cell_names
from experiments.system.paths import CONF
from zoo import ModelConfig, cost
from zoo.config import LAYOUTS, architecture_of
from zoo.errors import UserError
from zoo.model import meta_model

EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


@pytest.mark.slow
def test_layouts_follow_the_reports_protocol_and_can_be_made_small(lab: Lab):
    swept = yaml.safe_load((CONF / "experiment" / "layouts.yaml").read_text())["hydra"]["sweeper"]["params"]
    assert swept == {"model.pattern": ",".join(LAYOUTS), "seed": 0}
    lab.arguments = lambda *words: ["+experiment=layouts", "model.pattern=bookend", *words]
    (c,) = lab.compose()
    assert (c.name, c.data.name, c.model.d_model, c.model.depth) == ("layouts", "wikitext103", 768, 14)
    tokens = c.data.batch_size * c.trainer.accumulate * c.data.seq_len
    assert (tokens, c.data.seq_len, c.evaluate.stride, c.evaluate.windows) == (8192, 512, 512, 552)
    assert (c.optim.lr, c.optim.lr_min, c.optim.warmup_steps) == (3e-4, 3e-5, 2000)
    assert (c.optim.weight_decay, c.model.mixers.hypergraph.aux_weight) == (0.1, 0.01)
    assert (c.trainer.max_steps, c.trainer.val_every, c.trainer.patience) == (50_000, 500, 5)
    (c,) = lab.compose("size=small", "data=pydocs", "seed=2")
    assert (c.seed, c.model.d_model, c.model.depth) == (2, 64, 14)
    assert (c.data.name, c.evaluate.stride) == ("pydocs", 128)


@pytest.mark.slow
@pytest.mark.parametrize(
    "experiment",
    [
        pytest.param(x, marks=[] if x == "wikitext103" else pytest.mark.long)
        for x in EXPERIMENTS
        # No text or no weights for the first two here: the test above, test_start_from_weights.py; test_papers.py.
        if x not in ("layouts", "convert", "papers")
    ],
)
def test_every_experiment_composes_and_plans(lab: Lab, experiment: str, monkeypatch):
    monkeypatch.setenv("ARCHZOO_CACHE", str(lab.cache))
    lab.arguments = lambda: [f"+experiment={experiment}", f"results={lab.results}"]
    configs = lab.compose()
    named = "default" if experiment == "verdict" else experiment  # a verdict is named after its block
    assert {config.name for config in configs} == {named}
    if experiment == "wikitext103":  # its text is not here
        assert [(c.model.d_model, c.data.seq_len, c.trainer.max_steps) for c in configs] == [
            (768, 512, 50000)
        ]
        return
    plans = [plan(config) for config in configs]
    assert len({p.run for p in plans}) == len(plans)
    expected = dict.fromkeys(("comparison", "extrapolation", "quickstart_rates"), (11, 1))
    expected |= {"quickstart": (11, 2), "scaling": (11, 9), "tasks": (11 * 6, 1), "residuals": (6, 18)}
    expected |= {"ablation": (4, 9), "coefficient_rates": (12, 3), "sinks": (3, 2), "routing": (2, 1)}
    models, repeats = (expected | {"verdict": (3, 1), "long_context": (3, 2)})[experiment]
    assert len({p.title.partition(" seed")[0] for p in plans}) == models
    assert len(plans) == models * repeats
    if configs[0].match == "params":
        for size in {(p.config.model.d_model, p.config.data.name) for p in plans}:
            alike = [p.config for p in plans if (p.config.model.d_model, p.config.data.name) == size]
            sizes = [
                cost.parameters_non_embedding(meta_model(config.model, **config.sizes)) for config in alike
            ]
            assert max(sizes) <= 1.01 * min(sizes)
            assert len({config.trainer.max_steps for config in alike}) == 1
    assert lab.left_behind() == []


@pytest.mark.slow
def test_a_help_that_is_no_string_stops_no_command(lab: Lab, monkeypatch):
    """What Python 3.14's argparse does when an argument is added, on every Python."""

    def check(self, action):
        if not isinstance(action.help, str):
            raise ValueError("badly formed help string")

    def add(self, action):
        self._check_help(action)
        return action_added(self, action)

    action_added = argparse.ArgumentParser._add_action
    monkeypatch.setattr(argparse.ArgumentParser, "_check_help", check, raising=False)
    monkeypatch.setattr(argparse.ArgumentParser, "_add_action", add)
    assert lab.compose("seed=3")[0].seed == 3
    with pytest.raises(ValueError, match="badly formed"):
        argparse.ArgumentParser().add_argument("--lazy", help=object())


def test_tokens_grow_with_the_size_and_are_the_same_for_all_of_it():
    for width, hidden in ((32, 88), (64, 176)):
        # two layers: four projections, three of SwiGLU, two norms; and the last norm
        parameters = 2 * (4 * width**2 + 3 * width * hidden + 2 * width) + width
        for letter in "FK":
            config = Config()
            config.model.pattern, config.model.depth, config.model.d_model = letter, 2, width
            config.trainer.tokens_per_parameter = 20
            resolved = resolve_steps(config).trainer
            assert resolved.max_steps == round(20 * parameters / (8 * 128))
            assert resolved.tokens_per_parameter is None


@pytest.mark.slow
def test_a_run_is_named_by_the_steps_that_its_tokens_give(lab: Lab):
    size = ["model.d_model=32", "model.n_heads=2"]
    (by_tokens,) = lab.compose(*size, "trainer.max_steps=300", "trainer.tokens_per_parameter=2")
    planned = plan(by_tokens)
    by_tokens.trainer.max_steps = planned.config.trainer.max_steps
    by_tokens.trainer.tokens_per_parameter = None
    assert by_tokens.trainer.max_steps != 300
    assert plan(by_tokens).folder == planned.folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory, small_text: Path, shared_cache: Path) -> str:
    """The run that TINY asks for."""
    return run_of(Lab(tmp_path_factory.mktemp("plain") / "lab", small_text, shared_cache))


def run_of(lab: Lab, *words: str) -> str:
    (config,) = lab.compose(*words)
    return plan(config).run


@pytest.mark.slow
def test_identity_follows_the_content_of_the_text_and_not_its_path(lab: Lab, plain: str, tmp_path: Path):
    copy = tmp_path / "copy.txt"
    shutil.copy(lab.text, copy)
    other = write_text(tmp_path / "other.txt", seed=1)
    assert run_of(lab, f"data.path={copy}") == plain
    assert run_of(lab, f"data.path={other}") != plain


@pytest.mark.slow
def test_cells_of_equal_titles_are_told_apart(lab: Lab):
    plans = [plan(config) for config in lab.compose("--multirun", "optim.lr=1e-3,2e-3", "seed=0,1")]
    assert list(cell_names(plans).values()) == [
        f"{plans[0].title} optim.lr=0.001",
        f"{plans[1].title} optim.lr=0.001",
        f"{plans[2].title} optim.lr=0.002",
        f"{plans[3].title} optim.lr=0.002",
    ]
    assert list(cell_names(plans[:2]).values()) == [p.title for p in plans[:2]]


SWEEPS = [
    ("model=kda,mom", "optim.lr=1e-3,2", "trainer.patience=null,3", "seed=4", "match=params"),
    (
        "data=pydocs,mqar",
        "trainer.keep_steps=[1],[2,3]",
        "model.pattern='\"(FK)*2\"',FKF",
        "name=a",
        "dry=true",
    ),
    (
        "+experiment=wikitext103",
        "data.seq_len=64,96",
        "model=kda",
        "size=small",
    ),  # its windows follow the length
    ("optim={lr:2e-3},{lr:3e-3}", "model.residual.name=hc", "model.residual.hc.n_streams=2,3"),
    ("data.seq_len=${data.batch_size},32", "data.batch_size=16", "size=small,smoke"),
]


@pytest.mark.slow
@pytest.mark.parametrize("words", SWEEPS)
def test_cells_are_what_hydra_composes_for_each_alone(words: tuple[str, ...], lab: Lab):
    """Equal choices are composed once and values set on them, which shows nowhere."""
    lab.arguments = lambda *more: [*more]
    cells = lab.compose("--multirun", *words)
    assert len(cells) > 1
    assert cells == [lab.compose(*one)[0] for one in itertools.product(*map(_each, words))]


def _each(word: str) -> list[str]:
    key, _, values = word.partition("=")
    return [f"{key}={value}" for value in re.split(r",(?![^[{]*[\]}])", values)]


THOUSAND = [
    "model=transformer,kda,mom,nsa,mla",
    "model.residual.name=add,hc",
    "optim.lr=1e-3,2e-3,3e-3,4e-3,5e-3",
]
THOUSAND += ["optim.beta2=0.9,0.95", "seed=range(0,10)", "match=params", "size=small", "dry=true"]


@pytest.mark.long
def test_a_thousand_cells_are_planned_in_little_time_and_memory(lab: Lab):
    """Composed, checked, matched and named: 5 s on an Intel, where composing each by itself took 137 s and 1.3 GB."""
    code = f"""import sys, time; sys.argv[1:] = {["--multirun", *THOUSAND, f"results={lab.results}"]}
from experiments.cli import main
from support.peak_memory import peak
print(main(), time.process_time(), peak())"""
    words = [sys.executable, "-c", code]
    said = subprocess.run(
        words,
        cwd=ROOT,
        env=lab.environment() | {"PYTHONPATH": "tests"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    status, seconds, kilobytes = said[-1].split()
    assert len({line.split("  ")[-1] for line in said[:1000]}) == 1000
    assert (status, float(seconds) < 20, int(kilobytes) < 400_000) == ("0", True, True), said[-1]


@pytest.mark.parametrize(
    ("letters", "name"),
    [("KKKL", "kda"), ("LLLK", "mla"), ("SFFF", "hypergraph"), ("FFFF", "attention"), ("LK", "kda")],
)
def test_a_model_is_called_by_its_most_frequent_mixer_beside_plain_attention(letters: str, name: str):
    """Of two as frequent ones by the first letter."""
    assert architecture_of(ModelConfig(pattern=letters)).named_after.name == name


def test_an_identity_is_hashed_by_its_content_and_not_by_the_order_of_its_keys():
    one, other = {"a": 1, "b": {"c": 2, "d": [3, 4]}}, {"b": {"d": [3, 4], "c": 2}, "a": 1}
    assert run_name(one) == run_name(other) == "d20de7372091"
    assert run_name(one) != run_name({"a": 1, "b": {"c": 2, "d": [4, 3]}})


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
