"""job=export: a finished run becomes a folder that transformers loads."""

import json
from pathlib import Path

import pytest
import torch

import zoo

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

import zoo.hf  # noqa: E402  it needs transformers


def trained(lab, model: str, *words: str):
    assert lab.here(f"model={model}", "name=own", "model.residual.name=add", *words).status == 0
    (run,) = (path for path in (lab.results / "own").iterdir() if path.is_dir())
    return run


@pytest.mark.parametrize(
    ("model", "words", "kind"),
    [
        ("transformer", (), "llama"),
        ("transformer", ("family=archzoo",), "archzoo"),
        ("hypergraph", (), "archzoo"),
    ],
)
def test_the_folder_computes_what_the_run_computes(lab, model, words, kind, tmp_path):
    run, out = trained(lab, model), tmp_path / "out"
    done = lab.here("job=export", f"run={run}", f"out={out}", "licence=mit", *words)
    assert (done.status, done.err) == (0, "")
    assert f"model_type={kind}" in done.out
    assert ("no family has layers" in done.out) == (model == "hypergraph")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out).eval()
    ids = transformers.AutoTokenizer.from_pretrained(out)("the cat", return_tensors="pt").input_ids
    assert ids[0].tolist() == [256, *b"the cat"]
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, zoo.load(run)(ids)[0], rtol=1e-5, atol=1e-5)


def test_the_model_card_has_data_recipe_scores_licence_and_commands(lab, tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    for i in range(60):
        (texts / f"{i}.txt").write_text(" ".join(f"{word} {i * word % 7}" for word in range(40)))
    run = trained(lab, "transformer", f"data.path={texts}")
    lab.here("job=export", f"run={run}", f"out={tmp_path / 'out'}", "licence=mit")
    card = (tmp_path / "out" / "README.md").read_text()
    summary = json.loads((run / "summary.json").read_text())
    loss = summary["metrics"]["test"]["loss"]
    for words in (
        "license: mit",
        summary["data"]["train"],
        f"lr {summary['recipe']['lr']}",
        f"| test | {loss:.4f} |",
        summary["command"],
        "job=export",
    ):
        assert words in card
    assert " to " in card.partition(f"| test | {loss:.4f} |")[2].partition("|")[0]
    (run / "documents.csv").write_text("split,document,tok")
    assert "documents.csv is damaged" in lab.refused("job=export", f"run={run}", f"out={tmp_path / 'no'}")
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "needs out=FOLDER"),
        (("out={out}", "family=gpt"), "family=gpt must be one of archzoo"),
        (("out={out}", "family=qwen2"), "model_type=qwen2 cannot hold this model"),
        (("out={there}",), "already exists"),
        (("out={out}", "format=onnx"), "format"),
    ],
)
def test_what_cannot_be_exported_is_refused_and_nothing_is_written(lab, words, said, tmp_path):
    run, there = trained(lab, "transformer"), tmp_path / "there"
    there.mkdir()
    (there / "mine").write_text("kept")
    words = [word.format(out=tmp_path / "out", there=there) for word in words]
    assert said in lab.refused("job=export", f"run={run}", *words)
    assert [path.name for path in tmp_path.iterdir() if path.name in ("there", "out")] == ["there"]
    assert [path.name for path in there.iterdir()] == ["mine"]


@pytest.mark.parametrize("fails", [False, True])
def test_the_folder_is_uploaded_to_the_repository_that_push_names(lab, fails, tmp_path, monkeypatch):
    """Against a stand-in of the hub, which keeps what it is given."""
    kept = {}

    class Hub:
        def create_repo(self, name, *, exist_ok):
            assert exist_ok
            return f"https://hub/{name}"

        def upload_folder(self, *, repo_id, folder_path):
            if fails:
                raise OSError("401\nno right to write")
            kept[repo_id] = sorted(path.name for path in Path(folder_path).iterdir())

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    run, out = trained(lab, "transformer"), tmp_path / "out"
    done = lab.here("job=export", f"run={run}", f"out={out}", "push=me/mine")
    assert (out / "config.json").is_file()
    if fails:
        assert (done.status, done.err.count("\n")) == (2, 1)
        assert "cannot be uploaded to me/mine (401 no right to write)" in done.err
    else:
        assert "uploaded: https://hub/me/mine" in done.out
        assert kept == {"me/mine": sorted(path.name for path in out.iterdir())}


def test_an_imported_run_goes_out_as_what_it_was(lab, tmp_path):
    from support.published import saved, with_tokenizer

    folder, theirs = saved(tmp_path / "Tiny", "Qwen3", vocab_size=300)
    with_tokenizer(folder)
    assert lab.here("job=import", f"from={folder}", "name=in").status == 0
    (run,) = (path for path in (lab.results / "in").iterdir() if path.is_dir())
    assert "model_type=qwen3" in lab.here("job=export", f"run={run}", f"out={tmp_path / 'out'}").out
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    for name, x in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], x)
