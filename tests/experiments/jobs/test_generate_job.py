"""job=generate with several prompts: each as if alone, stops, the file of results, both speeds."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.program import Lab

import zoo
from experiments.configuration.schema import Config, GenerateConfig
from experiments.costs import model_costs
from experiments.jobs import generate
from experiments.system.machine import pictured
from zoo import UserError, cost

PROMPTS = ["alpha", "beta gam", "the of and"]
Go = Callable[..., tuple[str, str]]


@pytest.fixture
def go(finished: Lab, capsys) -> Go:
    """The texts, with their prompts, and the last line that the job prints."""

    def run(seed: int = 5, **options) -> tuple[str, str]:
        options = {"tokens": 12, **options}
        config = Config(run=str(finished.run_folder()), device="cpu", seed=seed)
        config.trainer.progress = False
        generate.run(dataclasses.replace(config, generate=GenerateConfig(**options)))
        texts, _, summary = capsys.readouterr().out.rpartition("\n\n")
        return texts, summary

    return run


@pytest.fixture
def texts(go: Go) -> list[str]:
    """What each prompt gives alone, with it, from its own seed."""
    return [go(5 + i, prompt=prompt)[0] for i, prompt in enumerate(PROMPTS)]


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.open(encoding="utf-8")]


@pytest.mark.parametrize("batch_size", [1, 2, 16])
@pytest.mark.slow
def test_several_prompts_are_each_as_if_alone(go: Go, texts: list[str], tmp_path: Path, batch_size: int):
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    for given in ({"prompts": PROMPTS}, {"file": str(tmp_path / "prompts.txt")}):
        printed, summary = go(**given, batch_size=batch_size)
        assert printed == "\n\n".join(f"── {i} of 3 ──\n{text}" for i, text in enumerate(texts, 1))
        assert summary.startswith("36 tokens after 3 prompts of 26: first token after ")


@pytest.mark.slow
def test_results_go_to_a_file(go: Go, texts: list[str], tmp_path: Path):
    go(prompts=PROMPTS, out=str(tmp_path / "out.jsonl"))
    (path,) = tmp_path.iterdir()
    found = rows(path)
    assert [row["prompt"] for row in found] == PROMPTS
    assert [pictured(row["prompt"] + row["text"]) for row in found] == texts  # as a terminal shows them
    for row in found:
        assert list(row) == ["prompt", "text", "tokens", "stopped"]
        assert row["stopped"] is False
        written = b"".join(bytes([token]) if token < 256 else b"<|endoftext|>" for token in row["tokens"])
        assert written.decode(errors="replace").rstrip("\ufffd") == row["text"]


@pytest.mark.slow
def test_a_stop_ends_one_text_and_not_the_others(go: Go, texts: list[str], tmp_path: Path):
    written = [text.removeprefix(prompt) for prompt, text in zip(PROMPTS, texts, strict=True)]
    stop, out = written[0][2:4], tmp_path / "out.jsonl"
    go(prompts=PROMPTS, stop=[stop], out=str(out))
    assert [pictured(row["text"]) for row in rows(out)] == [text.partition(stop)[0] for text in written]
    assert [row["stopped"] for row in rows(out)] == [stop in text for text in written]
    assert {row["stopped"] for row in rows(out)} == {True, False}
    assert go(prompt=PROMPTS[0], stop=[stop])[0] == PROMPTS[0] + written[0].partition(stop)[0]


def test_chunks_of_a_prompt_change_nothing(go: Go):
    assert go(prompt="alpha beta", chunk=3)[0] == go(prompt="alpha beta")[0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"stop": [""]}, "generate.stop has an empty string"),
        (
            {"out": "/nope/out.jsonl"},
            "generate.out=/nope/out.jsonl must be a regular file, or a new one in a folder",
        ),
        ({"out": "/"}, "generate.out=/ must be a regular file"),
        ({"out": ""}, "generate.out= must be a regular file"),
        ({"file": "/nope"}, "generate.file=/nope: no such file"),
        ({"file": ""}, "generate.file is empty"),
        ({"prompt": "a", "prompts": ["b"]}, "both given"),
        ({"tokens": 10**12}, "GiB of memory are free; give shorter prompts"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_makes_no_sense_is_refused_and_nothing_is_written(go: Go, capsys, options: dict, says: str):
    with pytest.raises(UserError) as refused:
        go(**options)
    assert says in str(refused.value)
    assert capsys.readouterr().out == ""


def test_prompts_side_by_side_have_to_fit_into_memory(finished: Lab, go: Go, monkeypatch):
    one = cost.state_bytes(zoo.load(finished.run_folder()), 2 + 12)
    monkeypatch.setattr(model_costs, "_free_memory", lambda device: 1.5 * one)
    with pytest.raises(UserError, match="14 tokens \\(2 at once\\)"):
        go(prompts=["a", "b"])
    go(prompts=["a", "b"], batch_size=1)


@pytest.mark.parametrize("job", [["evaluate"], ["generate", "generate.tokens=2"]])
def test_a_model_that_the_run_has_not_is_named(finished: Lab, job: list[str]):
    command = [f"job={job[0]}", f"run={finished.run_folder()}", *job[1:]]
    assert "notice" not in finished.here(*command).err, "the words that trained it"
    more = ("model=mla", "model.depth=7", "model.mixers.attention.qk_norm=true", "model.variants.W.mixer=kda")
    told = finished.done(*command, *more)
    (line,) = [line for line in told.err.splitlines() if "keeps the model that it was trained with" in line]
    own = zoo.load(finished.run_folder()).config
    for words in (
        *(f"model.depth={own.depth}", "qk_norm=False", f"model.pattern={own.pattern}"),
        "model.variants.W.mixer=None",
    ):
        assert words in line
