"""job=probe: which runs it takes, what it writes, what it leaves alone, how it fails."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from support.program import Lab

import zoo
from analysis import load_results
from zoo.probes import Measure
from zoo.probes.measure import row

pytestmark = pytest.mark.slow

# The measures there are belong to others; this one stands for them.
QUICK = [
    "probe.windows=3",
    "probe.batch_size=2",
    "probe.extrapolate=2",
    "probe.long_windows=1",
    "probe.tokens=4",
]


class StreamSize(Measure):
    """Mean absolute value of the streams before a sub-block."""

    name, kinds = "stream_size", ("streams",)

    def update(self, event):
        streams = event.values["streams"]
        yield row(event, "stream_size", streams.abs().mean(), count=streams.shape[0] * streams.shape[1])


@pytest.fixture(autouse=True)
def one_measure(monkeypatch):
    monkeypatch.setattr("zoo.probes.measure._MEASURES", {"stream_size": StreamSize})


@pytest.fixture
def runs(lab: Lab, finished: Lab) -> Path:
    """A results folder with one finished run."""
    shutil.copytree(finished.results, lab.results, ignore=shutil.ignore_patterns("probes"))
    return lab.results / "default"


def probe(lab: Lab, *words: str):
    return lab.here("job=probe", *QUICK, *words)


def contents(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()
    }


def test_a_run_gets_its_tables_once(lab: Lab, runs: Path):
    folder = lab.run_folder()
    before = contents(folder)
    outcome = probe(lab, f"run={folder}")
    assert outcome.status == 0, outcome.err
    assert "1 complete runs: 0 probed before, 1 to probe" in outcome.out
    after = contents(folder)
    assert {path: after[path] for path in before} == before, "the run itself is left as it was"
    record = json.loads((folder / "probes" / "probes.json").read_text())
    assert {path.stem for path in (folder / "probes").glob("*.parquet")} == set(record["tables"])
    assert {"measures", "sentence", "samples"} <= set(record["tables"])
    assert record["settings"]["windows"] == 3
    assert record["step"] == json.loads((folder / "model.json").read_text())["step"]

    again = probe(lab, f"runs={lab.results}")
    assert again.status == 0, again.err
    assert "1 complete runs: 1 probed before, 0 to probe" in again.out
    assert contents(folder) == after

    (folder / "probes" / "maps.parquet").write_text("a table that this model has nothing for")
    (folder / "probes" / "training.parquet").write_text("kept")
    other = probe(lab, f"run={folder}", "probe.prompts=[]", "probe.map_tokens=3")
    assert other.status == 0, other.err
    assert "1 to probe" in other.out
    record = json.loads((folder / "probes" / "probes.json").read_text())
    left = {path.stem for path in (folder / "probes").glob("*.parquet")}
    assert left == {*record["tables"], "training"}
    assert "samples" not in left
    assert len(pq.read_table(folder / "probes" / "sentence.parquet")) == 3


def test_the_numbers_are_of_the_best_weights_on_the_validation_text(lab: Lab, runs: Path):
    folder = lab.run_folder()
    assert probe(lab, f"run={folder}").status == 0
    results = load_results(runs)
    table = results.table("measures")
    assert results.problems == []
    (config,) = lab.compose()
    text = corpus(lab, config).splits["validation"].tokens
    model = zoo.load(folder)
    last = len(text) - 1
    starts = [0, (last - 32) // 2, last - 32]
    windows = torch.stack([torch.as_tensor(text[s : s + 32].astype("int64")) for s in starts])
    (value,) = table.query("measure == 'stream_size' and layer == 0 and part == 'mixer'")["value"]
    assert value == pytest.approx(float(model.embedding(windows).detach().abs().mean()), rel=1e-5)
    assert set(table["step"]) == {results.runs["best_step"].item()}
    assert set(table.query("measure == 'stream_size'")["count"]) == {3 * 32}
    loss = table.query("measure == 'loss'")
    assert list(zip(loss["start"], loss["end"], strict=True)) == [(0, 16), (16, 32), (32, 64)]


def corpus(lab: Lab, config):
    from experiments import data

    config.data.cache_dir = str(lab.cache)
    return data.prepare(config.data, progress=False)


def test_other_folders_are_named_and_a_damaged_run_fails_alone(lab: Lab, runs: Path):
    whole = lab.run_folder()
    damaged, torn, stopped, failed, photos = (
        runs / name for name in ("damaged", "torn", "stopped", "failed", "photos")
    )
    shutil.copytree(whole, damaged)
    (damaged / "model.safetensors").write_bytes(b"half of it")
    for folder in (torn, stopped, failed, photos):
        folder.mkdir()
    (torn / "summary.json").write_text('{"schema": 1, "na')
    (stopped / "config.yaml").touch()
    (failed / "failure.json").write_text("{}")
    (runs / "report").mkdir()
    outcome = probe(lab, f"runs={runs}", "sweep.workers=1")
    assert outcome.status == 1, outcome
    assert outcome.err == "error: 1 of 2 runs could not be probed; the same command tries them again\n"
    assert (whole / "probes" / "probes.json").is_file()
    assert "FAILED: cannot read weights" in outcome.out
    assert not list(damaged.glob("probes/*.parquet"))
    said = {
        line.split(": ")[0].removeprefix("skipped "): line
        for line in outcome.out.splitlines()
        if "skipped" in line
    }
    assert said.keys() == {str(folder) for folder in (torn, stopped, failed, photos)}
    for folder, why in (
        (torn, "cannot be read"),
        (stopped, "not complete"),
        (failed, "failed"),
        (photos, "no run"),
    ):
        assert why in said[str(folder)]


def test_what_is_named_as_a_run_has_to_be_one(lab: Lab, runs: Path):
    """Of a folder of runs none is probed."""
    outcome = probe(lab, f"run={runs}")
    assert (outcome.status, "holds no run" in outcome.err) == (2, True), outcome
    assert not (lab.run_folder() / "probes").exists()


def test_a_defect_is_recorded_with_its_traceback_until_it_is_gone(lab: Lab, runs: Path, monkeypatch):
    def broken(self, event):
        raise ZeroDivisionError("a measure that cannot count")

    record = lab.run_folder() / "probes" / "failure.json"
    with monkeypatch.context() as patch:
        patch.setattr(StreamSize, "update", broken)
        outcome = probe(lab, f"runs={runs}")
    assert outcome.status == 1
    assert "ZeroDivisionError: a measure that cannot count" in outcome.out
    assert "in broken" in json.loads(record.read_text())["traceback"]
    assert probe(lab, f"runs={runs}").status == 0
    assert not record.exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["probe.windows=0"], "probe.windows=0 must be at least 1"),
        (["probe.at=first"], "probe.at=first must be best, last or the number of a step"),
        (
            ["job=train", "trainer.keep_steps=[5,21]"],
            "trainer.keep_steps has 21; give steps from 1 to",
        ),
        (["probe.temperature=-1"], "probe.temperature=-1.0 must be at least 0"),
        (["probe.sentence= "], "probe.sentence is empty; give a text"),
        (["probe.routing_split=tests"], "did you mean 'test'?"),
        (["probe.routing_tokens=0"], "probe.routing_tokens=0 must be at least 1"),
        (["probe.window=3"], "did you mean 'probe.windows'?"),
        (["run=nowhere"], "nowhere is not a folder; give run="),
        (["runs=."], "no complete run in .: .: holds no run"),
        (["job=train", "probe.tokens=0"], "probe.tokens=0"),
        (["job=train", "trainer.probe_every=0"], "trainer.probe_every=0 must be at least 1"),
    ],
)
def test_mistakes_are_refused_before_any_work(lab: Lab, words: list[str], says: str):
    error = lab.refused("job=probe", *words)
    assert says in error
    assert error.count("\n") == 1
