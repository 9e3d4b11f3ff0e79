"""load_results: documented columns, every kind of folder, errors for people."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import analysis
from analysis import ResultsError, gallery, load_results
from analysis.files import write_atomically, write_text
from analysis.loading.columns import METRIC_COLUMNS, RUN_COLUMNS, markdown

ROOT = Path(analysis.__file__).parents[1]


def dig(value, path):
    for key in path.split("."):
        value = value[key]
    return value


def test_the_documented_columns_are_the_columns_present(quickstart):
    results = load_results(quickstart)
    assert list(results.runs.columns) == [column.name for column in RUN_COLUMNS]
    assert list(results.metrics.columns) == [*(column.name for column in METRIC_COLUMNS), "aux:load_balance"]
    for frame, columns in ((results.runs, RUN_COLUMNS), (results.metrics, METRIC_COLUMNS)):
        assert {column.name: str(frame[column.name].dtype) for column in columns} == {
            column.name: column.dtype for column in columns
        }


def test_the_readme_documents_the_columns():
    text = (ROOT / "analysis" / "README.md").read_text(encoding="utf-8")
    assert markdown(RUN_COLUMNS) in text
    assert markdown(METRIC_COLUMNS) in text


def test_a_row_holds_what_the_summary_says(tmp_path, write_run):
    solved = {"match": "flops", "match_length": 128}
    folder = write_run(
        tmp_path / "exp", seed=4, loss=2.5, machine={"gpu": "NVIDIA H200"}, mfu=0.41, model=solved
    )
    summary = json.loads((folder / "summary.json").read_text())
    row = load_results(folder).runs.iloc[0]
    for column in RUN_COLUMNS:
        if column.meaning.startswith("of a synthetic task") or column.name == "lr_study":
            assert pd.isna(row[column.name]), column.name
        elif column.source and column.dtype == "str" and column.name not in ("blocks", "versions", "layout"):
            assert row[column.name] == dig(summary, column.source), column.name
        elif column.source and column.dtype in ("Int64", "float64"):
            assert row[column.name] == pytest.approx(dig(summary, column.source)), column.name
    assert json.loads(row["blocks"]) == summary["blocks"]
    assert json.loads(row["versions"]) == summary["versions"]
    assert pd.isna(row["layout"])
    assert bool(row["dirty"]) is False


@pytest.mark.slow
def test_one_run_one_experiment_all_of_them_and_lists(tmp_path, write_run):
    first = write_run(tmp_path / "results" / "a", seed=0)
    write_run(tmp_path / "results" / "a", seed=1)
    second = write_run(tmp_path / "results" / "b", seed=2)
    assert len(load_results(first).runs) == 1
    assert len(load_results(str(tmp_path / "results" / "a")).runs) == 2
    everything = load_results(tmp_path / "results")
    assert sorted(everything.runs["seed"]) == [0, 1, 2]
    assert everything.problems == []
    listed = load_results([first, second, tmp_path / "results" / "a"])
    assert sorted(listed.runs["seed"]) == [0, 1, 2]


def test_folders_without_a_complete_run_are_named_with_the_reason(quickstart):
    def folder(name, **files):
        (quickstart / name).mkdir()
        for file, text in files.items():
            (quickstart / name / file.replace("_", ".")).write_text(text)

    failure = {
        "kind": "NonFiniteLoss",
        "message": "loss is nan",
        "step": 120,
        "module": "layers.3",
        "time": "now",
    }
    folder("failed", config_yaml="a: 1\n", failure_json=json.dumps(failure))
    folder("unexplained", failure_json="{")
    folder("stopped", metrics_csv="step,tokens,split,loss\n25,25600,train,5.0\n50,51200,train,4.0\n")
    folder("fresh", config_yaml="a: 1\n")
    folder("torn", summary_json='{"schema": 1, "na')
    folder("list", summary_json="[]")
    folder("binary")
    (quickstart / "binary" / "summary.json").write_bytes(b"\xff\xfe\x00")
    folder("wordy", summary_json=json.dumps({"schema": 1, "name": "x", "seed": "zero"}))
    folder("empty", summary_json=json.dumps({"schema": 1}))
    folder("photos", holiday_jpg="not a run")

    results = load_results(quickstart)
    assert len(results.runs) == 8
    status = dict(zip(results.unfinished["run"], results.unfinished["status"], strict=True))
    assert status == {
        "failed": "failed",
        "unexplained": "failed",
        "stopped": "incomplete",
        "fresh": "incomplete",
        **dict.fromkeys(("torn", "list", "binary", "wordy", "empty"), "broken"),
        "photos": "foreign",
    }
    steps = dict(zip(results.unfinished["run"], results.unfinished["step"], strict=True))
    assert (steps["failed"], steps["stopped"]) == (120, 50)
    said = "\n".join(results.problems)
    assert "quickstart/failed: failed: NonFiniteLoss at step 120 in layers.3: loss is nan" in said
    assert "seed is 'zero', not a whole number" in said
    assert "summary.json has no name" in said
    assert len(results.problems) == 10


def test_a_summary_with_gaps_still_counts_and_the_gaps_are_named(tmp_path, write_run):
    folder = write_run(tmp_path / "exp", schema=2)
    summary = json.loads((folder / "summary.json").read_text())
    del summary["machine"], summary["parameters"]
    (folder / "summary.json").write_text(json.dumps(summary))
    results = load_results(folder)
    assert pd.isna(results.runs["parameters"].iloc[0])
    said = "\n".join(results.problems)
    assert "schema 2" in said
    assert "parameters" in said
    assert "machine.threads" in said


def test_missing_empty_and_torn_metrics_are_problems_not_crashes(tmp_path, write_run):
    experiment = tmp_path / "exp"
    (write_run(experiment, seed=0) / "metrics.csv").unlink()
    (write_run(experiment, seed=1) / "metrics.csv").write_text("")
    (write_run(experiment, seed=2) / "metrics.csv").write_text(
        "step,tokens,split,loss\n25,25600,train,5.0\n50,oops\n"
    )
    (write_run(experiment, seed=3) / "metrics.csv").write_text("split,loss\ntrain,5.0\n")
    results = load_results(experiment)
    assert len(results.runs) == 4
    assert len(results.metrics) == 3
    assert len(results.problems) == 5
    assert sum("cannot be read" in problem for problem in results.problems) == 2
    assert any("1 cells are not numbers" in problem for problem in results.problems)
    assert any("end at step 50 of 300: its curve is short" in problem for problem in results.problems)
    assert any("no column step, tokens" in problem for problem in results.problems)


def test_a_key_that_differs_is_a_column_and_names_the_run(tmp_path, write_run):
    for beta2 in (0.95, 0.99):
        for bias in (True, None):
            model = {"mixers": {"attention": {"bias": bias, "n_heads": 8}}}
            write_run(tmp_path / "exp", recipe={"beta2": beta2, "eps": 1e-8}, model=model)
    results = load_results(tmp_path / "exp")
    keys = ["model.mixers.attention.bias", "optim.beta2"]
    values = [("null", 0.95), ("null", 0.99), ("true", 0.95), ("true", 0.99)]
    assert sorted(map(tuple, results.runs[keys].to_numpy())) == values
    assert "optim.eps" not in results.runs
    assert results.columns("runs").loc["optim.beta2", "dtype"] == "float64"
    labels = {
        f"transformer (model.mixers.attention.bias={bias}, optim.beta2={beta2})"
        for bias in ("null", "true")
        for beta2 in (0.95, 0.99)
    }
    assert set(results.runs["label"]) == labels
    results.to_parquet(tmp_path / "export")
    again = load_results(tmp_path / "export").runs
    pd.testing.assert_frame_equal(again[[*keys, "label"]], results.runs[[*keys, "label"]])


def test_a_key_that_some_runs_lack_tells_them_apart_where_they_have_its_node(tmp_path, write_run):
    write_run(tmp_path / "exp", recipe={"eps": 1e-8})
    write_run(tmp_path / "exp", recipe={"eps": 1e-8, "later": 2})
    write_run(tmp_path / "exp", name="kda", model={"mixers": {"kda": {"kernel_size": 4}}})
    results = load_results(tmp_path / "exp")
    assert set(results.runs["label"]) == {"transformer", "transformer (optim.later=2)", "kda"}
    assert "model.mixers.kda.kernel_size" not in results.runs


def test_names_that_do_not_exist_are_refused_with_what_was_meant(tmp_path, write_run):
    results = load_results(write_run(tmp_path / "a"))
    for ask, meant in (
        (lambda: results.table("measres"), "'measures'"),
        (lambda: results.columns("metrcs"), "'metrics'"),
        (lambda: gallery.draw("comparisn", results), "'comparison'"),
    ):
        with pytest.raises(ResultsError, match=f"did you mean {meant}"):
            ask()


@pytest.mark.slow
def test_parquet_round_trip_leaves_nothing_else(quickstart, tmp_path):
    results = load_results(quickstart)
    paths = results.to_parquet(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["metrics.parquet", "runs.parquet"]
    pd.testing.assert_frame_equal(pd.read_parquet(paths[0]), results.runs)
    pd.testing.assert_frame_equal(pd.read_parquet(paths[1]), results.metrics)


def test_a_failed_write_keeps_the_old_file(tmp_path):
    path = write_text(tmp_path / "page.html", "old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    assert [item.name for item in tmp_path.iterdir()] == ["page.html"]
    assert path.read_text() == "old"


@pytest.mark.slow
def test_imports_stay_light_and_inside_the_room():
    code = (
        "import sys, analysis; heavy = {'pandas', 'matplotlib', 'torch'} & set(sys.modules); "
        "import analysis.report; rooms = {'kernels', 'zoo', 'experiments', 'torch'} & set(sys.modules); "
        "print(sorted(heavy), sorted(rooms))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"


def test_the_records_of_selections_in_a_folder_of_experiments_are_read_together(tmp_path, write_run):
    header = "task,model,lr,settings,seed,run,validation_loss,status,chosen,edge,confirmed_by,color"
    for name, place in (("kda", "monday"), ("mla", "tuesday"), ("mom", "report")):
        write_run(tmp_path / place, name, 1, 3.0)
        (tmp_path / place / "selection.csv").write_text(
            f"{header}\n,{name},0.01,,0,abc,3.1,complete,True,,,#000000\n"
        )
    assert list(load_results(tmp_path).selection["model"]) == ["kda", "mla"], "report/ holds no experiments"
    assert list(load_results(tmp_path / "tuesday").selection["model"]) == ["mla"]
    shutil.copytree(tmp_path / "tuesday", tmp_path / "wednesday")
    assert list(load_results(tmp_path).selection["model"]) == ["kda", "mla"], "a copy adds no trial"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "labels"),
    [("ab", {"transformer"}), ("aa", {"transformer"}), ("abb", {"start.sha256=a", "start.sha256=b"})],
)
def test_each_seed_may_begin_with_weights_of_its_own(tmp_path, write_run, weights, labels):
    """And is a seed of one model then; two weights of one seed are two models."""
    for i, first in enumerate(weights):
        run = write_run(tmp_path / f"exp{i}", seed=i % 2)
        identity = json.loads((run / "identity.json").read_text())
        (run / "identity.json").write_text(json.dumps({**identity, "start": {"sha256": first}}))
    runs = load_results(tmp_path).runs
    assert runs["setting"].nunique() == len(labels)
    assert all(any(said in label for label in runs["label"]) for said in labels)
