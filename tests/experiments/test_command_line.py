"""What a command line asks for is done or refused: Hydra's flags, sweeps, keys; help without PyTorch."""

import dataclasses
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import hydra.conf
import pytest
from hydra.core.config_store import ConfigStore
from support.program import ROOT, Lab, Outcome

from experiments.configuration.hydra_settings import read_command
from experiments.system.paths import CONF
from zoo.errors import UserError

MAY_BE_SET = {"mode", "searchpath", "defaults"}
HYDRA = [field.name for field in dataclasses.fields(hydra.conf.HydraConf) if field.name not in MAY_BE_SET]
GROUPS = [next(iter(group)) for group in hydra.conf.HydraConf().defaults]
ENGINE, PLACE = "sweep.engine=", "results=FOLDER and name=NAME"


@pytest.fixture
def plain(lab: Lab) -> Lab:
    """A lab whose words are given as they are, a key twice too; without those of a small model."""
    lab.arguments = lambda *words: list(words)
    return lab


def assert_refused(lab: Lab, outcome: Outcome, *says: str) -> None:
    assert (outcome.status, outcome.out) == (2, ""), outcome
    # What a corpus holds is told when it is first read, which may be before.
    (error,) = (line for line in outcome.err.splitlines() if not line.startswith("notice: "))
    assert error.startswith("error: "), outcome
    for words in says:
        assert words in outcome.err, outcome.err
    assert lab.left_behind() == []


def test_no_setting_of_hydras_is_taken():
    keys = [*(f"hydra.{name}" for name in HYDRA), *(f"hydra/{group}" for group in GROUPS), "hydra"]
    for key, sign, flags in itertools.product(keys, ("", "+", "++", "~"), ([], ["-m"])):
        with pytest.raises(UserError, match=f"^{key} has no effect here"):
            read_command([*flags, "job=cost", f"{sign}{key}=x"])


@pytest.mark.parametrize(
    ("word", "way"),
    [
        ("hydra/launcher=joblib", ENGINE),
        ("hydra.launcher.n_jobs=2", ENGINE),
        ("hydra/sweeper=optuna", ENGINE),
        ("hydra.sweep.dir=x", PLACE),
        ("hydra.sweep.subdir=x", PLACE),
        ("hydra.run.dir=x", PLACE),
        ("hydra.output_subdir=x", PLACE),
        ("hydra.job.chdir=true", PLACE),
        ("hydra.job.name=x", PLACE),
        ("hydra/job_logging=default", "leave it out"),
        ("hydra.job.env_set.A=1", "leave it out"),
    ],
)
def test_a_refused_setting_names_the_way(plain: Lab, word: str, way: str):
    assert_refused(plain, plain.here("--multirun", "seed=0,1", word), way)


OF_FILES = {
    "run.dir": "{run: {dir: left}}",
    "sweep.dir": "{sweep: {dir: left}}",
    "sweep.subdir": "{sweep: {subdir: left}}",
    "output_subdir": "{output_subdir: left}",
    "job.chdir": "{job: {chdir: true}}",
    "job.env_set": "{job: {env_set: {A: '1'}}}",
    "verbose": "{verbose: true}",
    "sweeper.max_batch_size": "{sweeper: {max_batch_size: 1}}",
}


@pytest.mark.slow
@pytest.mark.parametrize("key", OF_FILES)
def test_no_setting_of_hydras_is_taken_from_a_file(plain: Lab, tmp_path: Path, key: str):
    flags = ["-m"] if key.startswith("sweep") else []
    words = write_experiment(tmp_path, f"hydra: {OF_FILES[key]}\n")
    assert_refused(plain, plain.here(*flags, *words), f"hydra.{key} has no effect here")


def write_experiment(folder: Path, text: str) -> list[str]:
    """Words of a command that takes +experiment=mine from a folder of one's own."""
    (folder / "own" / "experiment").mkdir(parents=True)
    (folder / "own" / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{text}")
    return ["--config-dir", str(folder / "own"), "job=cost", "size=smoke", "+experiment=mine"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["launcher", "sweeper"])
def test_no_plugin_gets_the_cells(plain: Lab, tmp_path: Path, kind: str):
    """One whose choice is there, so that everything is composed, and one that is not installed."""
    groups = ConfigStore.instance().repo["hydra"]
    with mock.patch.dict(groups[kind]):
        node = {"_target_": "hydra_plugins.elsewhere.Elsewhere"}
        ConfigStore.instance().store(group=f"hydra/{kind}", name="elsewhere", node=node)
        for name in ("elsewhere", "absent"):
            words = write_experiment(tmp_path / name, f"defaults: [override /hydra/{kind}: {name}]\n")
            assert_refused(plain, plain.here("--multirun", *words, "seed=0,1"), ENGINE)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--package", "trainer", "job=cost"], "--cfg job"),
        (["-p", "trainer"], "--cfg job"),
        (["--resolve", "job=cost"], "--cfg job"),
        (["--experimental-rerun", "config.pickle"], "repeat the command"),
        (["--multirun", "--cfg", "job", "seed=0,1"], "dry=true"),
        (["--multirun", "hydra.mode=RUN", "job=cost"], "leave one of them out"),
        (["--run", "--cfg", "job"], "--run"),
        (["--run", "job=cost", "hydra.mode=MULTIRUN", "seed=0,1"], "leave --run out"),
        (["--info", "--multirun"], "--multirun"),
        (["--shell-completion"], "install"),
        (["--shell-completion", "install=nosh"], "nosh"),
        (["--no-such-flag", "job=cost"], "--no-such-flag"),
        (["seed=1", "--multirun", "job=cost"], "before the keys"),
        (["--config-dir", "nowhere", "job=cost"], "nowhere"),
        (["--config-name", "nothing", "job=cost"], "nothing"),
        (["--config-path", "/", "job=cost"], "config"),
    ],
    ids=" ".join,
)
def test_a_flag_does_what_it_says_or_is_refused(plain: Lab, words: list[str], says: str):
    assert_refused(plain, plain.here(*words), says)


@pytest.mark.slow
def test_flags_that_work(plain: Lab, tmp_path: Path, capfd):
    """Choices and configurations of one's own, and what Hydra shows."""
    (tmp_path / "model").mkdir()
    shutil.copy(CONF / "model" / "kda.yaml", tmp_path / "model" / "mine.yaml")
    (tmp_path / "own.yaml").write_text("defaults: [config, _self_]\nseed: 7\n")
    for words in (
        ["--config-dir", str(tmp_path), "model=mine"],
        [f"hydra.searchpath=[file://{tmp_path}]", "model=mine"],
        ["--run", "model=kda"],
        ["hydra.mode=RUN", "+experiment=quickstart"],
    ):
        assert [config.model.preset for config in plain.compose(*words)] in (["kda"], ["transformer"]), words
    assert [c.seed for c in plain.compose("--config-dir", str(tmp_path), "--config-name", "own")] == [7]
    assert [c.seed for c in plain.compose("hydra.mode=MULTIRUN", "seed=3,4")] == [3, 4]
    for words, says in (
        (["--cfg", "job", "--package", "trainer"], "max_steps:"),
        (["--cfg", "hydra", "hydra.run.dir=x"], "dir: x"),
        (["--info", "searchpath"], "conf"),
        (["--shell-completion", "install=bash"], "complete"),
    ):
        outcome = plain.done(*words)
        assert says in outcome.out
    (tmp_path / "bare.yaml").write_text("seed: 7\n")
    outcome = plain.here("--config-dir", str(tmp_path), "--config-name", "bare")
    assert (outcome.status, "defaults: [config, _self_]" in outcome.err) == (2, True), outcome


@pytest.mark.parametrize(
    "words",
    [
        *(["seed=1", "seed=2"], ["seed=1", "seed=1"], ["model=kda", "model=mla"], ["model=kda", "~model"]),
        *(["-m", "seed=1,2", "seed=3,4"], ["-m", "seed=1,2", "seed=3"], ["optim.lr=1", "++optim.lr=2"]),
        *(["+experiment=quickstart", "+experiment=residuals"], ["job=list", "tasks", "mixers"]),
    ],
    ids=" ".join,
)
def test_a_key_is_given_once(plain: Lab, words: list[str]):
    assert_refused(plain, plain.here(*words), "is given twice", words[-1])


@pytest.mark.slow
def test_a_choice_and_keys_of_it_go_together(plain: Lab):
    (config,) = plain.compose("model=kda", "model.depth=2", "data=mqar", "data.tasks.mqar.pairs=3")
    assert (config.model.preset, config.model.depth, config.data.tasks.mqar.pairs) == ("kda", 2, 3)


@pytest.mark.parametrize("word", ["optim.lr=glob(*)", "seed=range(0,0)", "model=glob(none*)"], ids=str)
def test_a_sweep_of_no_cells_is_an_error(plain: Lab, word: str):
    assert_refused(plain, plain.here("--multirun", word), "no cells", word)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["trainer.threads=1,2"],
        ["trainer.compile=false,true", "dry=true"],
        ["evaluate.splits=[test],[validation]"],
        ["job=compare", "compare.grid=['trainer.threads=1,2']"],
    ],
    ids=" ".join,
)
def test_a_sweep_over_what_names_no_run_is_refused(lab: Lab, words: list[str]):
    key = "trainer.threads" if "job=compare" in words else words[0]
    outcome = lab.here("--multirun", "seed=0" if "job=compare" in words else "seed=0,1", *words)
    assert_refused(lab, outcome, f"{key.partition('=')[0]} cannot be swept")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["job=bench", "bench.repeats=1,2"], "harness.csv"),
        (["job=report", "baseline=a,b"], "results"),
        (["job=publish", "question=a,b"], "results"),
        (["job=generate", "run=x", "generate.out=texts", "generate.tokens=1,2"], "texts"),
        (["job=probe", "runs=x", "probe.windows=4,8"], "x"),
        (["job=claims", "trainer.threads=1,2"], "results"),
        (["job=headlines", "seed=1,2"], "results"),
        (["job=gpu", "gpu.minutes=1,2"], "gpu"),
        (["job=cost", "cost.lengths=[8],[16]"], "cost.lengths="),
        (["job=cost", "model=kda,mla", "cost.memory=true"], "cost.memory=true"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_sweep_keeps_no_last_value_alone(lab: Lab, words: list[str], says: str):
    assert_refused(lab, lab.here("--multirun", *words), says)


@pytest.mark.slow
def test_dry_lists_the_cells_and_how_far_they_are(lab: Lab, finished: Lab):
    """No run begins, and nothing is written."""
    shutil.copytree(finished.results, lab.results)
    complete = lab.run_folder()
    assert lab.here("seed=1", "trainer.pause_at=5").status == 1
    (paused,) = set(lab.run_folders()) - {complete}
    lab_files = files(lab)
    outcome = lab.here("--multirun", "seed=0,1,2", "optim.lr=3e-3,1e-3", "dry=true", "sweep.engine=list")
    assert (outcome.status, outcome.err.count("\n"), "optim.lr_min_ratio" in outcome.err) == (0, 1, True), (
        outcome
    )
    lines = [line.split("  ") for line in outcome.out.splitlines()]
    states = {line[-1]: line[0].strip() for line in lines[:-1]}
    assert list(states) == [
        f"hypergraph seed {seed} optim.lr={rate}" for seed in range(3) for rate in ("0.003", "0.001")
    ]
    assert states.pop("hypergraph seed 0 optim.lr=0.003") == "complete"
    assert states.pop("hypergraph seed 1 optim.lr=0.003") == "to resume"
    assert set(states.values()) == {"new"}
    assert str(complete) in outcome.out
    assert str(paused) in outcome.out
    assert lines[-1][0].startswith("6 cells: 1 complete, 4 new, 1 to resume")
    tokens = outcome.out.split("up to ")[1].split(" tokens")[0].replace(",", "")
    one = lab.here("seed=2", "dry=true").out
    assert int(tokens) == 5 * int(one.split("up to ")[1].split(" tokens")[0].replace(",", ""))
    assert lab.here("--multirun", "optim.lr=3e-3,1e-3", "optim.lr_min_ratio=0.1", "dry=true").err == ""
    assert one.startswith("new  ")
    assert "seed 2" in one
    assert "to score" in lab.here("evaluate.splits=[validation,test]", "dry=true").out
    assert "3 cells (2 runs" in lab.here("--multirun", "seed=0,1,1", "dry=true").out
    assert files(lab) == lab_files
    (paused / "failure.json").write_text("{}")
    shutil.rmtree(paused / "checkpoints")
    assert lab.here("seed=1", "dry=true").out.startswith("failed  ")
    assert_mistake = lab.here("--multirun", "seed=0,-1", "dry=true")
    assert (assert_mistake.status, "seed=-1" in assert_mistake.err) == (2, True)


def files(lab: Lab) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in lab.folder.rglob("*") if path.is_file()}


RUN = """
import runpy, sys
sys.argv = ["run.py", *sys.argv[1:]]
try:
    runpy.run_path("run.py", run_name="__main__")
finally:
    sys.stdout.flush()
    print("torch" in sys.modules, file=sys.stderr)
"""
QUESTIONS = ("--help", "--cfg job", "model=kda data=mqar seed=3 --cfg job", "job=list", "job=list tasks")
MISTAKES = (
    "optim.lrr=1",
    "lr=3",
    "-m trainer.stepz=1,2 model=kda",
    "model.residual.iters=3",
    "nothing.like.it=1",
    "-m model=kda,kdaa data=mqar",
    "+experiment=tasks size=smalll lr=3",
)
LEFT_TO_OTHERS = (
    *("seed.x=1 --cfg job", "seed.x=1", "optim.lrr=1 hydra.verbose=true", "optim.lrr=1 optim.lrr=2"),
    *("optim.lr=many --cfg job", "job=list nothing", "model=nothing --cfg job", "model=null"),
    "model=nothing data=nothing",
)

Answer = tuple[int, str, str]


class Tree:
    """A copy of the program with a cache of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for room in ("kernels", "zoo", "experiments", "analysis", "conf"):
            shutil.copytree(ROOT / room, folder / room)
        shutil.copy(ROOT / "run.py", folder)

    def ask(self, words: str, cache: str = "cache") -> tuple[Answer, bool]:
        """The status and the words of both outputs, and whether PyTorch was imported."""
        environment = {**os.environ, "ARCHZOO_CACHE": str(self.folder / cache), "PYTHONPATH": ""}
        command = [sys.executable, "-c", RUN, *words.split()]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True)
        told, _, torch = done.stderr.rstrip().rpartition("\n")
        return (done.returncode, done.stdout, told), torch == "True"


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Tree:
    made = Tree(tmp_path_factory.mktemp("tree"))
    for question in ("--help", "job=list"):
        _, torch = made.ask(question)
        assert torch, "nothing was known yet"
    return made


shared_tree = pytest.mark.xdist_group("tree")  # or every test process makes its own


@shared_tree
@pytest.mark.parametrize("words", [*QUESTIONS, *MISTAKES])
def test_questions_and_refused_words_are_answered_without_torch(tree: Tree, words: str):
    answer, torch = tree.ask(words)
    assert not torch
    assert answer[0] == (2 if words in MISTAKES else 0)
    assert answer[2] if words in MISTAKES else answer[1]


@shared_tree
@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, marks=[pytest.mark.long] * (i % 6 > 0))
        for i, words in enumerate([*QUESTIONS, *MISTAKES, *LEFT_TO_OTHERS])
    ],
)
def test_the_answer_is_that_of_the_command_line(tree: Tree, words: str):
    known, _ = tree.ask(words)
    (tree.folder / "no_cache").touch()  # a file, so that no catalogue can be written
    answer, torch = tree.ask(words, cache="no_cache")
    assert torch
    assert known == answer


@shared_tree
def test_a_block_that_was_added_is_there_and_one_with_a_mistake_is_told(tree: Tree):
    mixer = (tree.folder / "zoo/mixers/gated_conv.py").read_text()
    new = tree.folder / "zoo/mixers/newcomer.py"
    new.write_text(mixer.replace('"gated_conv"', '"newcomer"').replace('letter="C"', 'letter="Y"'))
    try:
        (status, shown, _), torch = tree.ask("--cfg job")
        assert torch, "the catalogue is of other files"
        assert status == 0
        assert "    newcomer:\n" in shown
        again, torch = tree.ask("--cfg job")
        assert again[1] == shown
        assert not torch
        new.write_text("this is no Python\n")
        for _ in range(2):
            (status, shown, told), _ = tree.ask("--cfg job")
            assert status == 0
            assert "newcomer" not in shown
            assert "zoo/mixers/newcomer.py, line 1: SyntaxError" in told
    finally:
        new.unlink()


@shared_tree
def test_a_damaged_catalogue_is_written_anew(tree: Tree):
    place = tree.folder / "cache" / "catalogue.json"
    whole = place.read_text()
    place.write_text(whole[:-10])
    first, torch = tree.ask("--cfg job")
    assert torch
    second, torch = tree.ask("--cfg job")
    assert not torch
    assert first == second
