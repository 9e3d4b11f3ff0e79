"""job=import: a published model becomes a run folder that the jobs for runs take."""

import json
import shutil

import pytest
import torch
from support.published import saved, with_tokenizer

import zoo
from analysis import load_results

pytest.importorskip("transformers")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder, _ = saved(tmp_path_factory.mktemp("published") / "Tiny", "Qwen3", vocab_size=300)
    with_tokenizer(folder)
    return folder


def imported(lab, published, *more):
    done = lab.here("job=import", f"from={published}", "name=in", *more)
    assert (done.status, done.err) == (0, "")
    (run,) = (path for path in (lab.results / "in").iterdir() if path.is_dir())
    assert f"run: {run}" in done.out
    return run


@pytest.mark.long
def test_the_run_is_read_by_the_jobs_that_read_runs(lab, published):
    run = imported(lab, published)
    tokens = torch.randint(300, (1, 20))
    with torch.no_grad():
        assert torch.equal(zoo.load(run)(tokens)[0], zoo.from_pretrained(published)(tokens)[0])
    assert lab.here("job=generate", f"run={run}", "generate.tokens=3").status == 0
    assert "bits/byte" in lab.here("job=evaluate", f"run={run}", "evaluate.windows=2").out
    assert lab.here("job=probe", f"run={run}", "probe.tokens=2", "probe.windows=1").status == 0
    report = lab.done("job=report", "runs=" + str(run.parent))
    assert "Tiny" in report.out
    found = load_results(run.parent)
    (problem,) = found.problems
    assert "it has no curve" in problem
    assert list(found.runs["preset"]) == ["qwen3"]
    assert found.runs["steps"].isna().all()  # nobody knows


def test_the_summary_says_where_the_weights_are_from(lab, published):
    summary = json.loads((imported(lab, published) / "summary.json").read_text())
    assert summary["source"]["folder"] == str(published)
    assert summary["source"]["family"] == "qwen3"
    assert len(summary["source"]["sha256"]) == 64
    assert summary["parameters"] == sum(p.numel() for p in zoo.from_pretrained(published).parameters())


def test_importing_again_changes_nothing_and_other_weights_are_another_run(lab, published, tmp_path):
    run = imported(lab, published)
    before = {path.name: path.stat().st_mtime_ns for path in run.iterdir()}
    assert imported(lab, published) == run
    assert {path.name: path.stat().st_mtime_ns for path in run.iterdir()} == before
    other, _ = saved(tmp_path / "other", "Qwen3", vocab_size=300, tie_word_embeddings=True)
    with_tokenizer(other)
    assert lab.here("job=import", f"from={other}", "name=in").status == 0
    assert len([path for path in run.parent.iterdir() if path.is_dir()]) == 2


def test_a_model_is_trained_in_the_tokens_of_a_published_one(lab, published):
    words = ("data.tokenizer=pretrained", f"data.tokenizer_path={published}", "model=transformer")
    lab.done(*words, "trainer.max_steps=2", "name=own")
    (run,) = (path for path in (lab.results / "own").iterdir() if path.is_dir())
    assert zoo.tokenizer(run).identity() == zoo.pretrained.read_tokenizer(published).identity()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "needs from=FOLDER"),
        (("from=nowhere",), "it has no config.json"),
        (("from={published}", "name=report"), "name=report: results/report is no place for runs"),
        (("from={bare}",), "has no tokenizer.json"),
        (("from={small}",), "use the model's own tokenizer"),
    ],
)
def test_what_cannot_be_imported_is_refused_and_nothing_is_written(lab, published, words, said, tmp_path):
    bare = shutil.copytree(published, tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer.json"))
    small, _ = saved(tmp_path / "small", "Qwen3")
    with_tokenizer(small)
    words = [word.format(published=published, bare=bare, small=small) for word in words]
    error = lab.refused("job=import", *words)
    assert said in error
    assert error.count("\n") == 1
    assert not lab.results.exists()
