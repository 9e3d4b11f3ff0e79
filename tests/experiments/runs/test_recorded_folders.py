"""Run folders in all their states, what is refused of links and damage, what a loaded run must have."""

from __future__ import annotations

import dataclasses
import errno
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.recorded import check, flat
from support.steady import files_in, masked, refusal, said, set_by_formula, tiny_config

from experiments import runs
from experiments.data import DataConfig
from experiments.runs import LoadedRun, RunFolder, load_corpus, load_run, recorded_data
from zoo import LanguageModel
from zoo import io as zoo_io
from zoo.errors import UserError
from zoo.tokenization import ByteTokenizer

RECORDED = Path(__file__).parent / "recorded"


def test_states_of_a_folder(tmp_path: Path, monkeypatch):
    def lines() -> Iterator[str]:
        run = RunFolder(tmp_path / "study" / "abc")

        def state() -> str:
            return (
                f"complete {run.complete}, failed {run.failed}, resumable {run.resumable}, "
                f"{files_in(run.path) if run.path.is_dir() else 'no folder'}"
            )

        yield state()
        run.begin("a: 1\n", {"seed": 3}, {"f.py": "1"})
        (run.path / "x.partial").touch()
        yield f"{state()} {run.block_files()}"
        run.begin("a: 2\n", {"seed": 3}, {"f.py": "2"})
        yield f"{(run.path / 'config.yaml').read_text()!r} {run.block_files()}"
        run.checkpoints.mkdir()
        (run.checkpoints / "step-1.ckpt").touch()
        run.begin("a: 3\n", {}, {"f.py": "3"})
        yield f"{state()} {run.block_files()}"
        error = ValueError("bad")
        error.step, error.module = 7, "m"
        run.fail(error)
        found = run.failure()
        yield (
            f"{state()} {sorted(found)} {found['kind']} {found['message']} {found['step']} {found['module']}"
        )
        run.record({"kind": "X"})
        yield f"{run.failure()}"
        (run.path / "failure.json").write_text("[")
        yield f"{run.failure()['message']}".partition("(")[0]
        yield f"{refusal(run.summary)}".partition("[Errno")[0]
        run.finish({"block_files": {"f.py": "9"}, "x": 1})
        yield f"{state()} {run.summary()} {run.block_files()}"
        for content in ('{"x": 1}', '{"block_files": [1]}', "3"):
            (run.path / "summary.json").write_text(content)
            yield f"{content}: {refusal(run.block_files)}"
        yield f"{run.damaged('x.json', KeyError('y'))}"
        (run.path / "summary.json").unlink()
        (run.path / "summary.json").symlink_to(tmp_path / "elsewhere")
        yield state()
        for place in ("summary.json", "config.yaml"):
            yield f"{refusal(runs.refuse_link, run.path / place)}"
        yield f"{refusal(run.begin, '', {}, {})}"
        for inside in ("checkpoints", "weights/a", "probes"):
            other = RunFolder(tmp_path / f"links-{inside.partition('/')[0]}")
            (other.path / inside).mkdir(parents=True)
            (other.path / inside / "link").symlink_to(tmp_path)
            yield f"{inside}: {refusal(runs.refuse_links, other.path)}"
        (tmp_path / "linked").symlink_to(tmp_path / "study")
        yield f"{refusal(RunFolder(tmp_path / 'linked').locked().__enter__)}"
        places = [tmp_path / place for place in ("study/abc", "linked", "other", "study/../x")]
        yield f"{[runs.resolves_outside(place, tmp_path / 'study') for place in places]}"
        for one_machine in (True, False):
            monkeypatch.setattr(runs.locks, "is_of_one_machine", lambda path, one=one_machine: one)
            held = RunFolder(tmp_path / f"lock{one_machine}" / "run")
            with held.locked():
                yield f"{one_machine}: {files_in(tmp_path / f'lock{one_machine}')}"
        yield f"{runs.NOT_EXPERIMENTS} {issubclass(runs.RunPaused, runs.RunFailed)}"
        with said() as printed, held.locked():
            from experiments.system import signals

            signals._received.append(15)
            try:
                yield refusal(held.locked().__enter__)
            finally:
                signals._received.clear()
        yield f"{printed}"

    check(RECORDED / "folders.txt", masked(list(lines()), {str(tmp_path): "<place>"}))


def test_a_failure_that_cannot_be_recorded_is_not_hidden_by_another(tmp_path: Path, monkeypatch):
    """Where the disk is full the error of the run itself is what its command tells."""

    def full(path: Path, values: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(runs, "write_json", full)
    RunFolder(tmp_path).fail(ValueError("the run's own"))
    assert list(tmp_path.iterdir()) == []


def test_loading(tmp_path: Path):
    """A run with and without what it needs; the text that it was trained on, changed or not."""
    model = set_by_formula(LanguageModel(tiny_config().model, vocab_size=257, seq_len=16))
    run = tmp_path / "run"
    (tmp_path / "book.txt").write_text("some words in a text\n" * 40)

    def lines() -> Iterator[str]:
        yield refusal(load_run, None, torch.device("cpu"))
        zoo_io.export(model, run, step=5, tokenizer=ByteTokenizer().to_json())
        yield refusal(load_run, str(run), torch.device("cpu"))
        (run / "config.yaml").write_text(
            f"data: {{name: text, path: {tmp_path}/book.txt, tokenizer: bytes, seq_len: 16, "
            f"cache_dir: x, tasks: {{gone: {{a: 1}}, mqar: {{pairs: 7}}}}}}\n"
        )
        loaded = load_run(str(run), torch.device("cpu"))
        yield (
            f"{loaded.step} {loaded.folder.name} {loaded.tokenizer.name} {loaded.data.cache_dir} "
            f"{loaded.data.tasks.mqar} {loaded.model.training}"
        )
        corpus = load_corpus(
            loaded, tiny_config(data__cache_dir=str(tmp_path / "cache")).data, progress=False
        )
        yield f"{corpus.describe()['test']} {corpus.config.cache_dir}"
        for content in ("data: 3\n", "x: 1\n", "data: {name: text, nonsense: 1}\n", "[\n"):
            (run / "config.yaml").write_text(content)
            yield (
                f"{content!r}: "
                f"{str(refusal(recorded_data, run / 'config.yaml')).partition(' (')[0].partition(', path=')[0]}"
            )
        zoo_io.export(model, run, task={"name": "mqar", "options": {}})
        yield refusal(load_run, str(run), torch.device("cpu"))
        small = set_by_formula(LanguageModel(tiny_config().model, vocab_size=20, seq_len=16))
        (run / "config.yaml").write_text("data: {name: text}\n")
        zoo_io.export(small, run, tokenizer=ByteTokenizer().to_json())
        yield refusal(load_run, str(run), torch.device("cpu"))

    check(RECORDED / "loading.txt", masked(list(lines()), {str(tmp_path): "<place>"}))


def test_failures_as_records():
    try:
        raise UserError("said")
    except UserError as error:
        found = runs.failure_record(error)
    found["traceback"] = found["traceback"].splitlines()[-1]
    check(RECORDED / "failure.txt", masked(list(flat(json.loads(json.dumps(found)))), {}))


@pytest.mark.parametrize("key", ["path", "train_path", "gpt2_path", "cache_dir"])
def test_a_text_that_moved_is_read_where_the_command_says(tmp_path: Path, monkeypatch, key: str):
    own, tokenizer = DataConfig(path="a", train_path="b", gpt2_path="c"), ByteTokenizer()
    monkeypatch.setattr(runs.data, "check", lambda asked: None)
    monkeypatch.setattr(
        runs.data,
        "prepare",
        lambda asked, progress: SimpleNamespace(config=asked, tokenizer=tokenizer),
    )
    found = load_corpus(LoadedRun(None, tokenizer, tmp_path, own), DataConfig(**{key: "moved"}))
    assert found.config == dataclasses.replace(own, **{key: "moved"})
