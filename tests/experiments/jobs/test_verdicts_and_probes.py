"""A verdict's models and probes, workers of probes, threads, models from before an option, parts of the list."""

import contextlib
import json
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from support.steady import changed, refusal, said, tiny_config, tiny_study

from experiments.configuration.compose import tell_other_model
from experiments.jobs import (
    compare,
    generate,
    probe,
    verdict,
)
from experiments.jobs import list as list_job
from zoo import LanguageModel
from zoo import io as zoo_io


def test_a_verdict_compares_every_model_on_every_task_and_probes_those_runs(tmp_path: Path, monkeypatch):
    from experiments.verdict import verdict_stages

    compared, probed = [], []
    monkeypatch.setattr(verdict_stages, "open_verdict", lambda *_: tmp_path)
    monkeypatch.setattr(verdict_stages, "check_contracts", lambda *_: [{"failed": "0"}])
    for name in ("measure_sizes", "measure_speeds"):
        monkeypatch.setattr(verdict_stages, name, lambda *_: None)
    monkeypatch.setattr(compare, "compare", compared.extend)
    monkeypatch.setattr(probe, "run", probed.append)
    asked = tiny_study(tmp_path, name="default", block="kda", verdict__relative="none")
    verdict.judge([verdict.named(changed(asked, data__name=name)) for name in ("mqar", "palindrome")])
    assert [(config.data.name, config.model.pattern) for config in compared] == [
        ("mqar", "F"),
        ("mqar", "K"),
        ("palindrome", "F"),
        ("palindrome", "K"),
    ]
    assert [config.runs for config in probed] == [str(tmp_path / "verdict_kda")]


def test_a_killed_worker_of_the_probes_costs_its_run_and_no_other(monkeypatch):
    """The outcomes of the other runs are told, and the command says which one failed."""

    class Workers:
        def __init__(self, workers, context) -> None:
            assert workers == 2

        def submit(self, call, run, config) -> Future:
            ended: Future = Future()
            if run.name == "two":
                ended.set_exception(BrokenProcessPool())
            else:
                ended.set_result((run, "", ["measures"]))
            return ended

        def shutdown(self, cancel_futures: bool) -> None:
            pass

    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(probe, "ProcessPoolExecutor", Workers)
    monkeypatch.setattr(probe.signals, "blocked", contextlib.nullcontext)
    found = probe._attempts([Path("one"), Path("two")], tiny_config(sweep__workers=9))
    assert sorted((run.name, problem, made) for run, problem, made in found) == [
        ("one", "", ["measures"]),
        ("two", "a worker was killed", []),
    ]


def test_texts_are_made_with_the_threads_of_the_command(monkeypatch):
    counts = []
    monkeypatch.setattr(generate.torch, "set_num_threads", counts.append)
    assert "no model given" in refusal(generate.run, tiny_config(trainer__threads=3))
    assert counts == [3]


def test_a_model_from_before_an_option_has_what_it_was_trained_with(tmp_path: Path):
    """Its card lacks the option; its forget gates began at 0, where a new model's begin at 4."""
    config = tiny_config(model__pattern="M", job="evaluate", run=str(tmp_path / "run"))
    zoo_io.export(LanguageModel(config.model, vocab_size=20, seq_len=16), tmp_path / "run")
    card = json.loads((tmp_path / "run" / zoo_io.CARD).read_text())
    del card["model"]["mixers"]["mesanet"]["forget_bias"]
    (tmp_path / "run" / zoo_io.CARD).write_text(json.dumps(card))
    config.given = frozenset({"model.mixers.mesanet.forget_bias"})
    with said() as printed:
        tell_other_model(config)
    assert "keeps the model that it was trained with, model.mixers.mesanet.forget_bias=0.0;" in " ".join(
        printed
    )


def test_every_part_of_the_list_is_shown_by_its_own_word_and_alone(monkeypatch):
    """Each with the headings that it has in the whole list, in that order."""
    words = [
        *("mixers", "residuals", "channels", "presets", "published", "sizes", "recipes"),
        *("experiments", "layouts", "data", "tasks", "tokenizers", "events", "measures", "jobs", "figures"),
    ]
    headings = {}
    for word in (None, *words):
        with said() as printed:
            list_job.run(tiny_config(job="list", show=word))
        lines = (line.removeprefix("| ") for line in printed)
        headings[word] = [line for line in lines if line and not line.startswith(" ")]
        assert headings[word]
    assert headings[None] == [line for word in words for line in headings[word]]
    assert headings["layouts"] == ["Layouts (model.pattern=)"]
