"""Mistakes on the command line: one line that says what to do, at once, and nothing left behind."""

import dataclasses
import importlib.util
import os
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from support.program import Lab, Outcome, write_text

from experiments.bench.run_suite import SUITES
from experiments.configuration import explain
from zoo import registry

WAYS = pytest.mark.parametrize(
    "flags",
    [pytest.param([], id="single"), pytest.param(["--multirun"], id="multirun", marks=pytest.mark.long)],
)


def assert_refused(lab: Lab, outcome: Outcome, *says: str) -> None:
    assert outcome.status == 2, outcome
    # A text of an earlier cell may have been read, which is told.
    errors = [line for line in outcome.err.splitlines() if not line.startswith("notice: data.")]
    assert len(errors) == 1, outcome
    assert errors[0].startswith("error: "), outcome
    assert outcome.out == "", outcome
    assert "Traceback" not in outcome.err, outcome
    for words in says:
        assert words in outcome.err, outcome.err
    assert lab.left_behind() == []


@WAYS
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["model.pattern=(SF)*4"], "'model.pattern=\"(SF)*4\"'"),
        (["+experiment=quickstrat"], "did you mean 'quickstart'?"),
        (["experiment=quickstart"], "+experiment=NAME"),
        (["job=trian"], "did you mean 'train'?"),
        (["trainer.max_steps=abc"], "trainer.max_steps: Value 'abc'"),
        (["+foo=1"], "unknown key 'foo'"),
        (["+trainer.foo=1"], "unknown key 'trainer.foo'; trainer has max_steps, accumulate, "),
        (["model.residual.iters=5"], "did you mean 'model.residual.mhc.iters'?"),
        (["model.window=8"], "did you mean 'model.mixers.nsa.window' or 'model.mixers.attention.window'?"),
        (["trainer.lr=1"], "did you mean 'optim.lr'?"),
        (["trainer.batch=4"], "did you mean 'data.batch_size' or"),
        (["model.residual=mhc"], "did you mean 'model.residual.name=mhc'?"),
        (["model.mixers=kda"], "model.mixers has the keys attention, "),
        (["results=${foo}"], "there is no key 'foo', whose value ${foo} stands for"),
        (["name=${oc.env:NOWHERE_SET}"], "the environment variable NOWHERE_SET is not set"),
        (["~optim.clip"], "leave it out for the default of optim.clip"),
        (["--dry-run"], "there is no flag --dry-run"),
        (["--seed=1"], "did you mean 'seed=1'?"),
        (["cost"], "(a job: job=cost)"),
        ([f"seed={'9' * 5000}"], "more than 4,300 digits"),
        ([f"optim.lr={'9' * 400}"], "optim.lr: the number is too large; give one below 1e308"),
        (["residual=mhc"], "did you mean 'model.residual.name'?"),
        (["model.residual.mhc.itres=5"], "did you mean 'model.residual.mhc.iters'?"),
        (["optim.lr=nan"], "optim.lr=nan"),
        (["trainer.max_minutes=nan"], "trainer.max_minutes=nan must be a number above 0"),
        (["trainer.compile=3"], "trainer.compile=3 must be true or false"),
        (["name=1e3"], "name=1e3 would be read as 1000.0; quote it"),
        (["job=generate", "run=/nope", "generate.prompt=1_000"], "would be read as 1000; quote it"),
        (["data.seq_len=100000"], "the text is too small"),
        (["job=evaluate", "evaluate.carry=true", "evaluate.stride=3"], "scores without windows"),
        (["seed=null"], "seed cannot be null"),
        (["model=null"], "take the name of a choice"),
        (["kda"], "'kda'; give key=value"),
        (["generate.prompt=it's"], "'generate.prompt=\"...\"'"),
        (["run=results/a/b"], "job=train does not read run="),
        (["job=cost", "dry=true"], "job=cost does not read dry=; leave it out"),
        (["job=report", "runs=/nope", "dry=true"], "job=report does not read dry=; leave it out"),
        (["job=evaluate"], "run=results/NAME/RUN"),
        (["job=evaluate", "run=/nope"], "no model at /nope"),
        (["job=generate", "run=/nope"], "no model at /nope"),
        (["job=report", "runs=/nope"], "/nope does not exist"),
        (["job=report", "run=/nope"], "job=report does not read run=; give runs=..."),
        (["job=generate", "runs=/nope"], "job=generate does not read runs=; give run=..."),
        (["job=generate", "run=/nope", "seed=-1"], "seed=-1 must be at least 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.slow
def test_mistakes(lab: Lab, words: list[str], says: str, flags: list[str]):
    assert_refused(lab, lab.here(*flags, *words), says)


@pytest.mark.slow
@pytest.mark.parametrize("dry", ["false", "true"])
def test_a_micro_batch_that_does_not_fit_is_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch, dry: str):
    """What layers read is 16 GB, what they keep seven times that."""
    monkeypatch.setattr("experiments.costs.device_memory.memory_bytes", lambda device: 2**35)
    outcome = lab.here("data.batch_size=1000000", f"dry={dry}")
    assert_refused(lab, outcome, "micro-batches of 32,000,000 tokens need at least 57,")


def test_several_values_without_multirun_are_refused(lab: Lab):
    assert_refused(lab, lab.here("optim.clip=1,2", "seed=0"), "optim.clip")


RUN_OF = {"evaluate": "run=x", "generate": "run=x", "export": "run=x", "probe": "runs=x", "report": "runs=x"}


@pytest.mark.parametrize(
    ("job", "word", "says"),
    [
        ("train", "trainer.max_steps=1" + 20 * "0", "at most 2147483647"),
        ("cost", "trainer.threads=1000000", "at most 1024"),
        ("cost", "data.vocab_size=-5", "at least 1"),
        ("generate", "generate.tokens=1" + 23 * "0", "at most 1048576"),
        ("generate", "generate.out={device}", "must be a regular file, or a new one"),
        ("evaluate", "data.batch_size=1000000000000", "at most 1048576"),
        ("evaluate", "model.mixers.kda.kernel_size=3000000000", "at most 2147483647"),
        ("probe", "sweep.workers=0", "at least 1"),
        ("report", "name=_x", "plain folder name"),
        ("report", 'name="a\tb"', "control characters"),
        ("bench", "bench.budget_s=nan", "at least 0"),
        ("bench", "bench.out={device}", "is a file; give a folder"),
        ("bench", "model.norm_eps=inf", "a number above 0"),
        ("export", "out={device}/x", "is a file; give a folder"),
        ("train", "data.cache_dir={device}/x", "is a file; give a folder"),
        ("import", "cost.lengths=[[1]]", "must be one value"),
        ("gpu", "device=foo", "unknown device 'foo'"),
        ("publish", "model.d_model=1000000000", "at most 131072"),
        ("list", "optim.lr=1e999", "a number above 0"),
        ("verdict", "verdict.lengths=[1" + 21 * "0" + "]", "at most 1048576"),
        ("train", "model.d_model=131072", "bytes in training, and this machine has"),
        ("compare", "compare.grid=['optim.clip=range(1,1000000)']", "more than 10,000 combinations"),
        ("compare", "compare.grid=['mixers.kda.kernel_size=3']", "did you mean 'model.mixers.kda.ker"),
    ],
    ids=str,
)
@pytest.mark.slow
def test_every_job_is_checked_in_front(lab: Lab, tmp_path: Path, job: str, word: str, says: str):
    """Above as below, whether the job reads the key or not; places before anything is read or measured."""
    os.mkfifo(tmp_path / "device")
    words = [f"job={job}", *([RUN_OF[job]] if job in RUN_OF else []), "device=cpu"]
    outcome = lab.here(*words, word.format(device=tmp_path / "device"))
    assert_refused(lab, outcome, says)
    assert (tmp_path / "device").is_fifo()


@pytest.mark.parametrize(
    "words", [["seed=range(10000000000)"], ["seed=range(1000)", "optim.clip=range(1,9,0.5)"]]
)
def test_a_sweep_of_millions_is_counted_before_it_is_composed(lab: Lab, words: list[str]):
    assert_refused(lab, lab.here("--multirun", *words), words[0], "more than 10,000 cells")


def test_options_that_no_configuration_can_hold_are_named_with_their_file(monkeypatch):
    """Whatever else was wrong: with them nothing can be composed."""

    @dataclasses.dataclass
    class Options:
        scale: torch.Tensor | None = None

    block = registry.get("mixer", "attention")
    blocks = {**registry.blocks("mixer"), "attention": dataclasses.replace(block, config=Options)}
    monkeypatch.setitem(registry._BLOCKS, "mixer", blocks)
    said = explain.explain(ValueError("Unexpected type annotation"))
    assert "zoo/mixers/attention.py: options of mixer 'attention': Unexpected type annotation" in said


@pytest.mark.parametrize(
    "value", ["/texts [raw]/*.txt", "(1).txt", "a{b", "a}b", "x]", "it's", 'say "x', "a,,b", "${x"]
)
def test_a_word_that_the_grammar_cannot_read_is_named_with_how_to_write_it(value):
    with pytest.raises(HydraException) as refused:
        OverridesParser.create().parse_overrides([f"data.path={value}"])
    said = explain.explain(refused.value)
    assert f"data.path={value}. Quotes" in said
    assert said.endswith("""quote it twice on a command line: 'data.path="..."'""")


def test_blanks_around_the_sign_are_told_of():
    with pytest.raises(HydraException) as refused:
        OverridesParser.create().parse_overrides(["seed = 1"])
    assert "'seed = 1'; give key=value, without spaces around =" in explain.explain(refused.value)


def test_an_error_that_no_rule_explains_is_told_with_its_cause():
    error = ValueError("it cannot be read")
    error.__cause__ = OSError("the disk is gone")
    assert explain.explain(error) == "it cannot be read the disk is gone"


@pytest.mark.slow
@pytest.mark.parametrize("folder", [False, True], ids=["nothing", "a folder of that name"])
def test_loggers_that_are_not_installed_are_refused_with_their_extra(lab: Lab, monkeypatch, folder: bool):
    found = importlib.util.find_spec
    absent = {
        name: ModuleSpec(name, None) if folder else None for name in ("wandb", "tensorboard", "tensorboardX")
    }
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: absent[name] if name in absent else found(name)
    )
    for name in ("wandb", "tensorboard"):
        assert_refused(lab, lab.here(f"trainer.loggers=[{name}]"), f"names {name}", "'.[log]'")


@pytest.mark.slow
def test_a_tilde_is_the_home_folder(lab: Lab, monkeypatch):
    """In quotes no shell replaces it, and a folder named ~ is one that nobody should have to remove."""
    monkeypatch.setenv("HOME", "/home/of_someone")
    (config,) = lab.compose('results="~/x"', 'run="~/x/a/b"', 'runs="~/x/a"')
    assert (config.results, config.run, config.runs) == (
        "/home/of_someone/x",
        "/home/of_someone/x/a/b",
        "/home/of_someone/x/a",
    )
    (config,) = lab.compose('runs="/x/~"')
    assert config.runs == "/x/~"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@WAYS
@pytest.mark.slow
def test_cuda_that_is_not_there(lab: Lab, flags: list[str]):
    assert_refused(lab, lab.here(*flags, "device=cuda"), "device=cpu")


ON_NO_GPU = {"cpu", "mixers", "compile"}
"""Suites of the CPU, and of a compiler for a GPU that need not be here."""
ON_A_DEVICE = [
    ["job=evaluate", "run={run}"],
    ["job=generate", "run={run}"],
    ["job=probe", "runs={run}"],
    ["job=verdict", "block=kda"],
    ["job=verdict", "block=kda", "sweep.engine=slurm"],  # what it measures is measured here
    ["--multirun", "job=compare", "model=transformer,kda"],
    *(["job=bench", f"suite={suite}"] for suite in SUITES if suite not in ON_NO_GPU),
]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("words", ON_A_DEVICE, ids=" ".join)
@pytest.mark.slow
def test_no_job_takes_another_device_than_the_one_asked_for(lab: Lab, finished: Lab, words: list[str]):
    told = [word.format(run=finished.run_folder()) for word in words]
    assert_refused(lab, lab.here(*told, "device=cuda"), "device=cuda, but PyTorch sees no CUDA device")


@pytest.mark.slow
def test_the_last_cell_is_checked_before_the_first_trains(lab: Lab, tmp_path: Path):
    other = write_text(tmp_path / "other.txt", paragraphs=20)
    outcome = lab.here("--multirun", f"data.path={other},/nope")
    assert_refused(lab, outcome, "/nope")
