"""The jobs that look at models and results: list, cost, generate, report; and what a summary holds."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from support.program import Lab

from experiments import cli, jobs
from experiments.configuration.schema import Config
from experiments.data import TASKS
from experiments.data.tasks_base import Task, register_task
from experiments.jobs import Job, all_jobs, spelled_out
from experiments.runs import METRIC_COLUMNS, read_metrics
from experiments.system.paths import CONF
from zoo import registry
from zoo.config import LAYOUTS
from zoo.probes import Measure, register_event, register_measure
from zoo.registry import NoOptions

# The contract with analysis: nested keys of summary.json. A name that ends in "?" may be null.
SUMMARY = {
    "": "schema experiment run name model blocks block_files seed data recipe parameters parameters_non_embedding "
    "flops_per_token state_bytes metrics best_step steps stopped tokens seconds tokens_per_second mfu? mfu_peak_flops "
    "mfu_peak_source peak_memory_bytes commit? dirty? versions machine command finished",
    "model": "preset pattern layout? depth d_model residual channel color family match? match_length?",
    "data": "name train validation test tokenizer vocab_size seq_len pack fingerprint splits",
    "data.splits": "train validation test",
    "data.splits.train": "tokens words bytes documents",
    "recipe": "steps batch_size accumulate tokens_per_step lr lr_min warmup_steps weight_decay clip precision",
    "flops_per_token": "forward training",
    "state_bytes": "1024 8192 131072",
    "metrics.test": "loss perplexity word_perplexity bits_per_byte tokens words bytes stride",
    "versions": "python torch lightning",
    "machine": "host_cpu cores memory_bytes gpu? threads platform",
}


def test_a_word_behind_job_list_is_what_to_show_and_flags_stay_flags():
    assert spelled_out(["job=list", "tasks", "--cfg=job", "-c", "seed=1"]) == [
        *("job=list", "show=tasks", "--cfg=job", "-c", "seed=1"),
    ]
    assert spelled_out(["tasks", "--cfg"]) == ["tasks", "--cfg"]


def test_the_summary_has_every_key_of_the_contract(finished: Lab):
    summary = json.loads((finished.run_folder() / "summary.json").read_text())
    for where, keys in SUMMARY.items():
        node = summary
        for part in filter(None, where.split(".")):
            node = node[part]
        for key in keys.split():
            assert key.rstrip("?") in node, f"{where}.{key}"
            assert key.endswith("?") or node[key] is not None, f"{where}.{key}"
    for block in summary["blocks"]:
        assert block.keys() == {"letter", "name", "title", "family", "color", "mask", "choice", "sketch"}
    assert [block["letter"] for block in summary["blocks"]] == ["F", "S"]
    assert summary["schema"] == 1
    assert summary["experiment"] == finished.run_folder().parent.name
    assert summary["run"] == finished.run_folder().name
    assert re.fullmatch("[0-9a-f]{12}", summary["run"])
    assert summary["steps"] == summary["recipe"]["steps"] == 20
    assert summary["tokens"] == 20 * summary["recipe"]["tokens_per_step"] == 20 * 4 * 32
    assert summary["stopped"] == "finished"
    assert summary["model"]["pattern"] == "SF"
    assert re.fullmatch(r"#[0-9A-Fa-f]{6}", summary["model"]["color"])


def test_the_summarys_speed_is_the_median_row_and_its_mfu_of_forward_and_backward(finished: Lab):
    summary = json.loads((finished.run_folder() / "summary.json").read_text())
    rows = read_metrics(finished.run_folder() / "metrics.csv")
    rates = sorted(float(row["tokens_per_second"]) for row in rows if row["split"] == "train")
    assert summary["tokens_per_second"] in rates[1:3]  # the middle two of four
    done = summary["tokens_per_second"] * summary["flops_per_token"]["training"]
    assert summary["flops_per_token"]["training"] > 2 * summary["flops_per_token"]["forward"]
    assert summary["mfu"] == pytest.approx(done / summary["mfu_peak_flops"])


def test_metric_rows_have_the_columns_of_the_contract(finished: Lab):
    rows = read_metrics(finished.run_folder() / "metrics.csv")
    assert list(rows[0]) == [*METRIC_COLUMNS, "aux:timeline_balance"]
    assert [(row["split"], row["step"]) for row in rows] == [
        ("train", "5"),
        ("train", "10"),
        ("validation", "10"),
        ("train", "15"),
        ("train", "20"),
        ("validation", "20"),
    ]
    for row in rows:
        assert float(row["loss"]) > 0
        assert bool(row["aux:timeline_balance"]) == (row["split"] == "train")


def test_a_word_that_list_does_not_know_is_refused(lab: Lab):
    outcome = lab.here("job=list", "taks")
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith(
        "error: unknown part of job=list 'taks'; did you mean 'tasks'? Known: channels, "
    )
    assert outcome.err.count("\n") == 1


@pytest.mark.slow
def test_list_names_everything(lab: Lab):
    outcome = lab.done("job=list")
    names = [block.name for kind in registry.KINDS for block in registry.blocks(kind).values()]
    files = [
        path.stem
        for group in ("model", "size", "recipe", "experiment", "data")
        for path in (CONF / group).glob("*.yaml")
    ]
    for name in [
        *names,
        *files,
        *LAYOUTS,
        *(job.name for job in all_jobs()),
        "report",
        "bytes",
        "bpe",
        "gpt2",
    ]:
        assert re.search(rf"\b{name}\b", outcome.out), name
    assert lab.left_behind() == []


@pytest.mark.slow
def test_a_job_that_cannot_be_used_takes_only_itself_away(lab: Lab, tmp_path, monkeypatch):
    for name, source in {"torn": "import (", "leaves": "raise SystemExit", "empty": ""}.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.setattr(jobs, "__path__", [*jobs.__path__, str(tmp_path)])
    outcome = lab.here("job=list", "show=jobs")
    assert outcome.status == 0, outcome
    assert "train one model" in outcome.out
    said = [line.split("notice: ")[1] for line in outcome.err.splitlines()]
    assert [
        reason in line for reason, line in zip(["no JOB", "SystemExit", "SyntaxError"], said, strict=True)
    ] == [True] * 3
    outcome = lab.here("job=torn")
    assert (outcome.status, outcome.err.count("SyntaxError")) == (2, 1), outcome
    broken = type("Broken", (TASKS["parity"],), {"__init__": lambda *_: 1 / 0})
    monkeypatch.setitem(TASKS, "broken", broken)
    outcome = lab.here("job=list", "show=tasks")
    assert (outcome.status, "selective_copy" in outcome.out) == (0, True), outcome
    assert outcome.err == "notice: task broken cannot be used: ZeroDivisionError: division by zero\n"


def test_what_cannot_be_used_is_refused_where_it_is_registered():
    """So that its file is left out with a notice, and nothing that goes through all of them meets it."""
    config, about = NoOptions, {"title": "", "source": ""}
    for register, said in (
        (lambda: register_measure(type("M", (Measure,), {"name": 5, "kinds": ()})), "has a name, and kinds"),
        (
            lambda: register_measure(type("M", (Measure,), {"name": "m", "kinds": "x"})),
            "has a name, and kinds",
        ),
        (
            lambda: register_measure(type("M", (Measure,), {"name": "m", "kinds": ()})),
            "does not define update",
        ),
        (lambda: register_event(5), "texts, not 5"),
        (lambda: register_event("e", x=3), "texts, not 'e'"),
        (lambda: register_task("t", config=config, **about)(type("T", (Task,), {})), "does not define draw"),
    ):
        with pytest.raises(ValueError, match=said):
            register()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "parameters"),
    [("transformer", 137710080), pytest.param("hypergraph", 138152448, marks=pytest.mark.long)],
)
def test_cost_prints_the_parameters_of_the_reference_models(lab: Lab, model: str, parameters: int):
    lab.arguments = lambda: ["job=cost", f"model={model}", "size=reference"]
    outcome = lab.done()
    assert f"parameters: {parameters}\n" in outcome.out
    assert (model == "hypergraph") == ("interlaced_sf" in outcome.out)
    lengths = [int(line.split()[0]) for line in outcome.out.splitlines() if re.match(r" +\d+ ", line)]
    assert lengths == [1024, 8192, 131072]
    assert lab.left_behind() == []


@pytest.mark.parametrize(
    ("given", "calls"),
    [
        (["table"], ["table 0"]),
        (["table", "table"], ["table 0 and 1 together"]),
        (["plain", "plain"], ["plain 0", "plain 1"]),
        (["table", "plain"], ["table 0", "plain 1"]),
        (["plain", "table", "table"], ["plain 0", "table 1", "table 2"]),
    ],
)
def test_configurations_go_together_to_a_job_that_takes_many_and_others_each_to_its_own(
    monkeypatch, given: list[str], calls: list[str]
):
    made: list[str] = []

    def job(name: str, **more) -> Job:
        return Job(name, "", lambda config: made.append(f"{name} {config.seed}"), **more)

    def together(configs: list[Config]) -> None:
        made.append(f"table {' and '.join(str(config.seed) for config in configs)} together")

    monkeypatch.setattr(
        cli, "find_job", {"table": job("table", run_sweep=together), "plain": job("plain")}.get
    )
    cli.perform([Config(job=name, seed=seed) for seed, name in enumerate(given)])
    assert made == calls


@pytest.mark.slow
def test_a_run_of_an_older_program_stays_readable(lab: Lab, finished: Lab):
    """A key that has since gone from the configuration, in a part that reading a model does not need."""
    shutil.copytree(finished.results, lab.results)
    config = lab.run_folder() / "config.yaml"
    config.write_text(config.read_text().replace("trainer:\n", "trainer:\n  key_of_long_ago: 1\n"))
    for job in ("evaluate", "generate"):
        lab.done(f"job={job}", f"run={lab.run_folder()}", "generate.tokens=2")


@pytest.mark.slow
def test_a_complete_run_is_not_computed_again(lab: Lab):
    assert lab.here("trainer.max_steps=2").status == 0
    before = {path: path.stat().st_mtime_ns for path in lab.run_folder().rglob("*") if path.is_file()}
    outcome = lab.here("trainer.max_steps=2")
    assert "already complete" in outcome.out
    assert "bits/byte" in outcome.out
    assert {path: path.stat().st_mtime_ns for path in lab.run_folder().rglob("*") if path.is_file()} == before
    lab.done("--multirun", "trainer.max_steps=2", "name=default")


@pytest.mark.slow
def test_a_complete_run_of_a_block_that_was_changed_since_says_so(lab: Lab, finished: Lab):
    """Its name does not tell the block's code: what is shown would pass for the new one's."""
    shutil.copytree(finished.results, lab.results)
    path = lab.run_folder() / "summary.json"
    summary = json.loads(path.read_text())
    files = [
        "zoo/channels/swiglu.py",
        "zoo/mixers/attention.py",
        "zoo/mixers/hypergraph.py",
        "zoo/residuals/add.py",
    ]
    assert sorted(summary["block_files"]) == files
    assert lab.here().err == ""
    for name, words in ((files[2], []), (files[3], ["--multirun", "seed=0,0"])):
        path.write_text(json.dumps({**summary, "block_files": {**summary["block_files"], name: "0" * 16}}))
        outcome = lab.done(*words)
        assert outcome.err.startswith(f"notice: {name} was changed after {lab.run_folder()} had been trained")
        assert outcome.err.count("\n") == 1
    del summary["block_files"]  # as in runs of before
    path.write_text(json.dumps(summary))
    assert lab.here().err == ""


@pytest.mark.slow
def test_a_run_that_goes_on_after_its_block_was_changed_says_so_and_keeps_the_files_it_began_with(lab: Lab):
    lab.here("trainer.pause_at=5")
    path = lab.run_folder() / "block_files.json"
    name = "zoo/mixers/hypergraph.py"
    began = {**json.loads(path.read_text()), name: "0" * 16}
    path.write_text(json.dumps(began))
    outcome = lab.here("trainer.pause_at=10")
    assert outcome.err.startswith(f"notice: {name} was changed after {lab.run_folder()} had begun; ")
    sweep = lab.here("--multirun", "seed=0")
    assert (sweep.status, sweep.err.count("had begun; they go on from their checkpoints")) == (0, 1)
    assert json.loads((lab.run_folder() / "summary.json").read_text())["block_files"] == began
    shutil.rmtree(lab.run_folder())
    assert "notice" not in lab.here("trainer.pause_at=5").err  # from its start
    assert json.loads(path.read_text())[name] != began[name]


@pytest.mark.slow
def test_a_sweep_and_its_report(lab: Lab):
    sweep = lab.run(
        "--multirun", "trainer.max_steps=4", "model.pattern=F,SF", "trainer.val_every=2", "name=pair"
    )
    assert sweep.status == 0, sweep.err
    assert sweep.out.startswith("2 cells: 0 complete, 2 to train")
    assert os.listdir(lab.cwd) == []
    assert [
        path for path in lab.temp.iterdir() if "torchinductor" not in path.name
    ] == []  # PyTorch's own cache
    report = lab.done("job=report", f"runs={lab.results / 'pair'}")
    page = Path(report.out.strip().splitlines()[-1].removeprefix("report: "))
    page = page if page.is_absolute() else lab.cwd / page
    assert page.name == "index.html"
    assert "<html" in page.read_text()
    for folder in lab.run_folders():
        assert folder.name in page.read_text()
    again = lab.here(
        "--multirun", "trainer.max_steps=4", "model.pattern=F,SF", "trainer.val_every=2", "name=pair"
    )
    assert again.status == 0
    assert again.out.startswith("2 cells: 2 complete, 0 to train")
