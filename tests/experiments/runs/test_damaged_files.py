"""Damaged files, one by one: a run goes on as if undisturbed, or a line names the file; nothing is wrong in silence."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.program import Lab, assert_same_run
from support.steady import forget_texts

from experiments.data.tokenizers import train
from experiments.engines.engine import record_path, write_record
from experiments.planning.plan import plan
from experiments.runs import read_config
from zoo.errors import UserError
from zoo.files import fit
from zoo.tokenization import BytePairTokenizer, from_json

# A run that was stopped: whatever happened to a checkpoint, the rows or the weights beside it.


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, small_text: Path, shared_cache: Path) -> Lab:
    lab = Lab(tmp_path_factory.mktemp("stopped") / "lab", small_text, shared_cache)
    assert lab.here("trainer.pause_at=14").status == 1
    return lab


def checkpoint(run: Path) -> Path:
    return max((run / "checkpoints").glob("*.ckpt"))


def changed(*path: str, to: object = None) -> Callable[[Path], None]:
    """Another value, or none, at a place in the newest checkpoint."""

    def change(run: Path) -> None:
        found = torch.load(checkpoint(run), weights_only=True)
        node, last = found, path[-1]
        for key in path[:-1]:
            node = node[key]
        node.pop(last) if to is None else node.update({last: to})
        torch.save(found, checkpoint(run))

    return change


def flipped(run: Path) -> None:
    """One bit of the weights in the newest checkpoint."""
    content = bytearray(checkpoint(run).read_bytes())
    content[len(content) // 2] ^= 1
    checkpoint(run).write_bytes(content)


def piped(name: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        place = checkpoint(run) if name == "checkpoint" else run / name
        place.unlink()
        os.mkfifo(place)

    return change


REFUSED = {
    "without callbacks": (changed("callbacks"), "it has no callbacks"),
    "without rows of metrics": (changed("callbacks", "MetricRows"), "callbacks: it has no MetricRows"),
    "without an optimizer": (changed("optimizer_states", to=[]), "its optimizer is of another model"),
    "without a schedule": (changed("lr_schedulers", to=[]), "it is of step 0, 14, not 14"),
    "other weights": (changed("state_dict", to={}), "its weights are of another model"),
    "another run": (changed("callbacks", "MetricRows", "run", to="0" * 12), "it is of the run 000000000000"),
    "no checkpoint": (lambda run: torch.save([1], checkpoint(run)), "it holds [1], not an object"),
    "a bit of the weights": (flipped, "is damaged"),
    "a pipe": (piped("checkpoint"), "it is no regular file"),
    "another step": (lambda run: shutil.copy(min((run / "checkpoints").iterdir()), checkpoint(run)), "of step 10"),
    "weights gone": (lambda run: (run / "model.safetensors").unlink(), "the best weights before it, of step 10"),
    "card gone": (lambda run: (run / "model.json").unlink(), "the best weights before it, of step 10"),
}  # fmt: skip
MENDED = {
    "rows binary": lambda run: (run / "metrics.csv").write_bytes(b"\0\xff\xfe" * 99),
    "rows torn": lambda run: (run / "metrics.csv").write_bytes((run / "metrics.csv").read_bytes()[:-9]),
    "rows gone": lambda run: (run / "metrics.csv").unlink(),
    "rows a pipe": piped("metrics.csv"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*REFUSED, *MENDED])
def test_a_stopped_run_ends_as_if_undisturbed(lab: Lab, finished: Lab, stopped: Lab, name: str):
    shutil.copytree(stopped.results, lab.results)
    run = lab.run_folder()
    newest = checkpoint(run)
    change, said = REFUSED.get(name) or (MENDED[name], None)
    change(run)
    outcome = lab.done()
    lines = [line for line in outcome.out.splitlines() if line.startswith("warning")]
    assert [said in line and str(newest) in line and "the one before" in line for line in lines] == [
        True
    ] * bool(said), outcome
    assert_same_run(run, finished.run_folder())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model.safetensors", "model.json"])
def test_weights_of_the_last_checkpoint_are_exported_again(lab: Lab, finished: Lab, name: str):
    shutil.copytree(finished.results, lab.results)
    (lab.run_folder() / "summary.json").unlink()
    (lab.run_folder() / name).write_bytes(b"")
    assert lab.here().status == 0
    assert_same_run(lab.run_folder(), finished.run_folder())


@pytest.mark.slow
@pytest.mark.parametrize("torn", [False, True])
def test_without_a_checkpoint_to_go_on_from_nothing_is_begun_again_unasked(
    lab: Lab, finished: Lab, stopped: Lab, torn: bool
):
    """Here of an earlier version, whose checkpoints had no rows of metrics: those of the file have to be whole."""
    shutil.copytree(stopped.results, lab.results)
    run = lab.run_folder()
    for path in (run / "checkpoints").iterdir():
        found = torch.load(path, weights_only=True)
        del found["callbacks"]["MetricRows"]["rows"]
        torch.save(found, path)
    whole = (run / "metrics.csv").read_bytes()
    (run / "metrics.csv").write_bytes(whole[:-9] if torn else b"")
    outcome = lab.here()
    assert outcome.status == 2, outcome
    assert f"has no row of {'validation at step 10' if torn else 'train at step 5'}" in outcome.err
    assert f"delete {run / 'checkpoints'} and the same command trains from the start" in outcome.err
    shutil.rmtree(run / "checkpoints")
    assert lab.here().status == 0
    assert_same_run(run, finished.run_folder())


# Records of cells.


@pytest.mark.slow
def test_a_record_chooses_no_place_and_is_of_the_run_that_it_says(lab: Lab, tmp_path: Path):
    (config,) = lab.compose()
    planned = plan(config)
    path = write_record(planned)
    whole = json.loads(path.read_text())
    for change, said in (
        ({"config": {**whole["config"], "seed": 7}}, "is of another run than its name says"),
        ({"format": True}, "format is true, not a whole number from 1 to 1"),
        ({"folder": "a\0b"}, "where the sweep was started"),
        ({"config": {**whole["config"], "name": "../up"}}, "name="),
    ):
        path.write_text(json.dumps({**whole, **change}))
        outcome = lab.here("job=cell", f"run={path}")
        assert (outcome.status, outcome.err.count("error: ")) == (2, 1), outcome
        assert said in outcome.err
    theirs = {**whole["config"]["data"], "cache_dir": str(tmp_path / "theirs")}
    path.write_text(json.dumps({**whole, "letters": "FF", "config": {**whole["config"], "data": theirs}}))
    assert lab.here("job=cell", f"run={path}").status == 0
    assert not (tmp_path / "theirs").exists()
    assert record_path(planned) == path


# The cache.


@pytest.mark.slow
def test_a_damaged_cache_is_made_again(lab: Lab, finished: Lab, shared_cache: Path, recwarn):
    """Also where the damage is other tokens of equal size."""
    lab.cache = Path(shutil.copytree(shared_cache, lab.folder / "cache"))
    draw = random.Random(0)
    texts = (b"", b"[]", b"{}", b'{"train": 5}', b"[" * 99_999, b"\xff")
    for pattern in ("contents/*.json", "corpora/*/meta.json", "corpora/*/tokenizer.json", "peaks/*.json"):
        for path in lab.cache.glob(pattern):
            path.write_bytes(draw.choice(texts))
    assert lab.here("trainer.max_steps=2", "trainer.val_every=2").status == 0
    for path in lab.cache.glob("corpora/*/tokens-train.bin"):
        path.write_bytes(bytes(path.stat().st_size))
    forget_texts()
    assert lab.here().status == 0
    assert any("does not hold what was written" in str(one.message) for one in recwarn)
    assert_same_run(lab.results / "default" / finished.run_folder().name, finished.run_folder())


# Schemas, configurations, tokenizers.


@pytest.mark.parametrize(
    ("value", "schema", "said"),
    [
        ({"a": True}, {"a": int}, "a is true, not of type int"),
        ({"a": float("nan")}, {"a": float}, "a is NaN, not of type float"),
        ({"a": {"b": -1}}, {"a": {"b": range(9)}}, "a.b is -1, not a whole number from 0 to 8"),
        ({"a": [1, "x"]}, {"a": [int]}, 'a[1] is "x", not of type int'),
        ({}, {"a": {"b": int}}, "it has no a"),
        ({"a": 1}, {"a": int, "b?": str}, None),
        ({"x": 1, "y": 2.5}, {str: int | float}, None),
    ],
)
def test_a_file_that_has_another_schema_is_named_by_its_key(value, schema, said):
    if said is None:
        assert fit(value, schema) is None
        return
    with pytest.raises(ValueError, match="^" + said.replace("[", r"\[").replace("]", r"\]")):
        fit(value, schema)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &a [1]\nb: *a", "aliases"),
        ("a: " + "[" * 50 + "]" * 50, "too deep"),
        ("[]", "hold a mapping"),
        ("a: !!python/name:os.system x", "could not determine a constructor"),
        ("#" * 2**20 + "\n", "bytes, more than any such file"),
    ],
)
def test_the_shape_of_a_configuration_is_looked_at_first(tmp_path: Path, text: str, said: str):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises((OSError, ValueError), match=said):
        read_config(tmp_path / "config.yaml")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t["model"].update(type="WordPiece"), "it is a WordPiece of other symbols than bytes"),
        (lambda t: t["model"].update(dropout=0.5), "dropout draws tokens at random"),
        (lambda t: t.update(decoder={"type": "Fuse"}), "its decoder is not that of bytes"),
        (lambda t: t.update(normalizer={"type": "Lowercase"}), "its normalizer Lowercase changes texts"),
        (lambda t: t["pre_tokenizer"].update(add_prefix_space=True), "add_prefix_space changes texts"),
        (lambda t: t["model"]["vocab"].update(x=2**30), "model.vocab.x is 1073741824, not a whole number"),
        (lambda t: t.update(pre_tokenizer={"type": "Sequence"}), "are damaged"),
    ],
)
@pytest.mark.parametrize("kind", ["bpe", "pretrained"])
def test_a_tokenizer_that_changes_texts_is_refused(change, said: str, kind: str):
    saved = json.loads(train(["the cat sat"], 260).to_json())
    tables = json.loads(saved["tokenizer"])
    change(tables)
    with pytest.raises(UserError, match=said):
        from_json(json.dumps({**saved, "kind": kind, "tokenizer": json.dumps(tables)}))
    assert isinstance(from_json(json.dumps(saved)), BytePairTokenizer)
