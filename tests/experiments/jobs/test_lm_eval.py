"""job=lm_eval: what the lm-evaluation-harness asks of a model is what the model computes; local tasks, offline."""

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from support.program import Lab
from torch import Tensor

import zoo
from analysis import load_results, write_report
from analysis.report.columns import harness
from experiments import evaluate
from experiments.configuration.compose import architectures
from experiments.data import DataConfig
from experiments.jobs import lm_eval
from experiments.runs import LoadedRun, write_splits
from zoo import LanguageModel, ModelConfig
from zoo.errors import UserError
from zoo.tokenization import ByteTokenizer

pytest.importorskip("lm_eval")

from experiments.lm_harness import HarnessModel

LENGTH = 24
PRESETS = [
    "transformer",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("kda", "hypergraph")),
    *(pytest.param(name, marks=pytest.mark.long) for name in ("lfm2", "mom", "nsa", "orthgsa")),
    *(pytest.param(name, marks=pytest.mark.long) for name in ("path_fox", "mla")),
]


def made(preset: str = "transformer") -> LoadedRun:
    config = dataclasses.replace(architectures(ModelConfig())[preset], d_model=16, n_heads=2, depth=2)
    model = LanguageModel(config, vocab_size=257, seq_len=LENGTH, seed=3).eval()
    for parameter in model.parameters():  # an untrained model's probabilities are nearly equal
        parameter.data.mul_(3)
    return LoadedRun(model, ByteTokenizer(), Path(), DataConfig(), None)


def asked(*pairs: tuple[Any, ...]) -> list[SimpleNamespace]:
    return [SimpleNamespace(args=pair) for pair in pairs]


def by_one_pass(loaded: LoadedRun, context: str, more: str) -> tuple[float, bool]:
    """Σ ln p of `more`, by the logits of one forward pass over both."""
    ids = [256, *context.encode(), *more.encode()]
    with torch.no_grad():
        logits = loaded.model(torch.tensor([ids[:-1][-LENGTH:]]))[0][0, -len(more.encode()) :]
    wanted = torch.tensor(ids[-len(more.encode()) :])
    logs = logits.log_softmax(-1)
    return float(logs.gather(-1, wanted[:, None]).sum()), bool((logs.argmax(-1) == wanted).all())


LONG = "a context longer than the model has seen"
QUESTIONS = [("ab", "cd"), ("ab", "c"), ("ab", "xyz"), ("other", "cd"), ("", "begin")]
QUESTIONS += [(LONG, "end"), (LONG, "of it")]


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("preset", PRESETS)
def test_log_likelihoods_are_those_of_one_pass_over_context_and_continuation(preset: str, reuse: bool):
    """Longer contexts lose their beginning; of several continuations of one context each has its own."""
    loaded = made(preset)
    model = HarnessModel(loaded, batch_size=2, reuse=reuse)
    answers = model.loglikelihood(asked(*QUESTIONS), disable_tqdm=True)
    for (context, more), (got, likeliest) in zip(QUESTIONS, answers, strict=True):
        wanted, is_greedy = by_one_pass(loaded, context, more)
        assert got == pytest.approx(wanted, rel=1e-5)
        assert likeliest == is_greedy


def test_a_context_is_read_once_for_all_its_continuations():
    shared, each = (HarnessModel(made(), reuse=reuse) for reuse in (True, False))
    for model in (shared, each):
        model.loglikelihood(asked(*QUESTIONS[:4]), disable_tqdm=True)
    assert each.tokens_read - shared.tokens_read == 2 * len([256, *b"ab"])


def test_the_likeliest_continuation_is_told():
    loaded = made()
    token = int(loaded.model(torch.tensor([[256, *b"ab"]]))[0][0, -1, :128].argmax())
    letters = [chr(token), chr((token + 1) % 128)]
    best = loaded.model(torch.tensor([[256, *b"ab"]]))[0][0, -1].argmax() == token
    answers = HarnessModel(loaded).loglikelihood(asked(*(("ab", x) for x in letters)), disable_tqdm=True)
    assert [greedy for _, greedy in answers] == [bool(best), False]


def test_carried_contexts_are_read_whole_and_a_continuation_may_be_long():
    loaded, text = made("kda"), "a text that is quite a bit longer than twenty-four bytes"
    model = HarnessModel(loaded, carry=True)
    ((got, _),) = model.loglikelihood(asked((text[:30], text[30:])), disable_tqdm=True)
    state, logits = loaded.model.init_state(1), []
    for token in [256, *text.encode()]:
        out, state = loaded.model.step(torch.tensor([token]), state)
        logits.append(out)
    logs = torch.stack(logits)[:-1, 0].log_softmax(-1)[30:]
    wanted = logs.gather(-1, torch.tensor([*text[30:].encode()])[:, None]).sum()
    assert got == pytest.approx(float(wanted), rel=1e-5)
    with pytest.raises(UserError, match="a continuation has 26 tokens and the model was trained on 24"):
        HarnessModel(loaded).loglikelihood(asked((text[:30], text[30:])), disable_tqdm=True)


@pytest.mark.parametrize("options", [{}, {"do_sample": False}, {"temperature": 0.0}])
def test_generation_is_the_models_own(options: dict[str, Any]):
    loaded = made()
    settings = {"until": ["\x00never"], "max_gen_toks": 5, **options}
    got = HarnessModel(loaded).generate_until(asked(("ab", settings), ("other", settings)))
    for text, context in zip(got, ("ab", "other"), strict=True):
        prompt = [torch.tensor([256, *context.encode()])]
        tokens = [int(step[0]) for step in zoo.generate(loaded.model, prompt, 5, temperature=0.0)]
        assert text == ByteTokenizer().decode([token for token in tokens if token >= 0]).rstrip("\ufffd")


def test_generation_ends_at_a_stop_sequence_and_unknown_settings_are_refused():
    loaded = made()
    (whole,) = HarnessModel(loaded).generate_until(asked(("ab", {"until": [], "max_gen_toks": 12})))
    stop = whole[2:4]
    (cut,) = HarnessModel(loaded).generate_until(asked(("ab", {"until": stop, "max_gen_toks": 12})))
    assert cut == whole[: whole.index(stop)]
    with pytest.raises(UserError, match="the generation options num_beams, which are not supported"):
        HarnessModel(loaded).generate_until(asked(("ab", {"until": [], "num_beams": 4})))


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Three tasks with data beside them: choices, a rolling log-likelihood, generation."""
    rows = {
        "choices": [
            {"question": f"alpha {i}", "choices": [" a", " beta", " c"], "answer": i % 3} for i in range(6)
        ],
        "rolling": [{"text": "alpha beta gamma delta " * (i + 2)} for i in range(3)],
        "generation": [{"question": f"alpha {i}", "answer": "x"} for i in range(2)],
    }
    names = ("output_type", "doc_to_text", "doc_to_target", "metric_list")
    more = {
        "choices": ("multiple_choice", "{{question}}", "answer", [{"metric": "acc"}]),
        "rolling": ("loglikelihood_rolling", "", "{{text}}", [{"metric": "bits_per_byte"}]),
        "generation": ("generate_until", "{{question}}", "{{answer}}", [{"metric": "exact_match"}]),
    }
    more = {name: dict(zip(names, values, strict=True)) for name, values in more.items()}
    more["choices"]["doc_to_choice"] = "{{choices}}"
    more["generation"]["generation_kwargs"] = {"until": ["\n"], "max_gen_toks": 4, "do_sample": False}
    folder = tmp_path / "tasks"
    folder.mkdir()
    for name, found in rows.items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(f"{json.dumps(row)}\n" for row in found))
        task = {"task": f"local_{name}", "dataset_path": "json", "test_split": "test", **more[name]}
        task["dataset_kwargs"] = {"data_files": {"test": str(data)}, "cache_dir": str(folder / "cache")}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(task))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("stride", [1, 5, None])
def test_rolling_log_likelihoods_are_the_scores_of_evaluate(finished, tmp_path, stride):
    from experiments.runs import load_run

    text = "alpha beta gamma delta epsilon " * 5
    (tmp_path / "text.txt").write_text(text)
    run = finished.run_folder()
    (got,) = HarnessModel(load_run(str(run), torch.device("cpu")), stride=stride).loglikelihood_rolling(
        asked((text,))
    )
    found = evaluate(run, tmp_path / "text.txt", stride=stride)["text"]
    assert -got == pytest.approx(found["loss"] * found["tokens"], rel=1e-6)


@pytest.mark.long
def test_the_job_scores_local_tasks_and_the_report_has_them(finished, lab, tasks, tmp_path):
    run = Path(shutil.copytree(finished.run_folder(), tmp_path / "study" / finished.run_folder().name))
    words = [f"run={run}", f"lm_eval.include={tasks}"]
    lab.done("job=lm_eval", *words, "lm_eval.tasks=[local_choices]")
    outcome = lab.done("job=lm_eval", *words, "lm_eval.tasks=[local_r*,local_generation]")
    results = load_results(tmp_path / "study")
    table = results.table("lm_eval")
    table = table.set_index("task")
    assert table["samples"].to_dict() == {"local_choices": 6, "local_generation": 2, "local_rolling": 3}
    errors = table["stderr"].notna().to_dict()
    assert errors == {"local_choices": True, "local_generation": True, "local_rolling": False}
    assert f"{table['value']['local_rolling']:.4f}" in outcome.out
    assert set(harness(results)["task"]) == set(table.index)
    assert harness(results)["seeds"].eq(1).all()


@pytest.mark.long
def test_the_report_has_a_table_of_the_harness(finished: Lab, tmp_path: Path):
    run = Path(shutil.copytree(finished.run_folder(), tmp_path / "study" / finished.run_folder().name))
    write_splits(
        run / lm_eval.FILE, lm_eval.COLUMNS, {"arc": [("acc", "none", 0.5, 0.1, 20, 0, "1.0", "all", "x")]}
    )
    page = write_report(tmp_path / "study", tmp_path / "report")
    for name in ("index.html", "report.md"):
        text = (page.parent / name).read_text()
        assert "lm-evaluation-harness" in text
        assert "arc" in text
    assert "acc" in (page.parent / "tables" / "lm_eval.csv").read_text()


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "needs tasks: lm_eval.tasks="),
        (["lm_eval.tasks=[arc_eazy]"], "did you mean 'arc_easy'"),
        (
            ["lm_eval.tasks=[x]", "lm_eval.include=/nowhere"],
            "lm_eval.include=/nowhere is not a folder",
        ),
        (
            ["evaluate.stride=999", "lm_eval.tasks=[arc_easy]"],
            "evaluate.stride=999 is above the trained length",
        ),
        (["lm_eval.limit=0", "lm_eval.tasks=[arc_easy]"], "lm_eval.limit=0.0 must be a number above 0"),
    ],
)
def test_mistakes_are_told_in_a_line(lab: Lab, finished: Lab, words: list[str], says: str):
    outcome = lab.here("job=lm_eval", f"run={finished.run_folder()}", *words)
    assert (outcome.status, outcome.out) == (2, "")
    assert says in outcome.err.splitlines()[-1]


def test_a_model_in_training_mode_stays_so_and_draws_nothing():
    loaded = made()
    loaded.model.train()
    first, again = (
        HarnessModel(loaded).loglikelihood(asked(("ab", "cd")), disable_tqdm=True) for _ in range(2)
    )
    assert first == again
    assert loaded.model.training


def test_padding_changes_nothing():
    loaded = made()
    alone = [HarnessModel(loaded).loglikelihood(asked(pair), disable_tqdm=True)[0] for pair in QUESTIONS[:3]]
    together: list[tuple[float, bool]] = HarnessModel(loaded).loglikelihood(
        asked(*QUESTIONS[:3]), disable_tqdm=True
    )
    got, wanted = (torch.tensor([value for value, _ in found]) for found in (together, alone))
    assert isinstance(got, Tensor)
    torch.testing.assert_close(got, wanted)
