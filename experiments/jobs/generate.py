"""job=generate: continue prompts, token by token; prints the speed of prefill and of decoding."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from experiments.configuration.compose import given_backend, tell_other_model
from experiments.configuration.schema import Config, GenerateConfig
from experiments.generation import Continuation, Speed, continue_prompts, encode_prompts, read_prompts
from experiments.jobs import Job
from experiments.parallel.group import pick_device
from experiments.runs import LoadedRun, load_run
from experiments.system import machine, paths
from experiments.system.processes import Bar
from zoo.errors import UserError
from zoo.files import write_atomic
from zoo.interfaces import NOT_BY_STEPS


def run(config: Config) -> None:
    """Print every prompt and its continuation: of one prompt token by token, of several when a batch is complete."""
    g = config.generate
    _check(g)
    backend = given_backend(config)
    if backend in NOT_BY_STEPS:
        raise UserError(
            f"model.backend={backend} computes only whole sequences, not the steps of job=generate; leave it out"
        )
    prompts = read_prompts(g)
    torch.set_num_threads(config.trainer.threads)
    loaded = load_run(config.run, pick_device(config.device), ("decoding",), backend=backend)
    tell_other_model(config)
    speed = Speed()
    if len(prompts) == 1:
        made = _stream(loaded, prompts[0], config, speed)
    else:
        made = _in_batches(loaded, prompts, config, speed)
    if g.out is not None:
        write_atomic(_out(g), "".join(map(_line, prompts, made)))
    print(_summary(made, speed))


def _check(g: GenerateConfig) -> None:
    """Refuse what makes no sense, before a model is loaded. Raises UserError."""
    if "" in g.stop:
        raise UserError("generate.stop has an empty string, which would end every text at once; leave it out")
    if g.out is not None:
        paths.check_file(g.out, "generate.out")


def _out(g: GenerateConfig) -> Path:
    return Path(g.out).expanduser()


def _stream(loaded: LoadedRun, text: str, config: Config, speed: Speed) -> list[Continuation]:
    """Continue one prompt and print the text token by token."""
    shown: int | None = None

    def show(made: list[Continuation]) -> None:
        nonlocal shown
        sys.stdout.write(machine.pictured(text if shown is None else made[0].safe_text[shown:]))
        sys.stdout.flush()
        shown = len(made[0].safe_text)

    (prompts,) = encode_prompts(loaded, [text], config.generate)
    made = continue_prompts(loaded, prompts, config.generate, config.seed, speed, show)
    print(f"{machine.pictured(made[0].text[shown:])}\n")
    return made


def _in_batches(loaded: LoadedRun, texts: Sequence[str], config: Config, speed: Speed) -> list[Continuation]:
    """Continue several prompts, generate.batch_size at once, and print the texts of a batch when it is complete."""
    g, bar = config.generate, Bar("generate", config.trainer.progress)
    finished: list[Continuation] = []
    for prompts in encode_prompts(loaded, texts, g):
        first, last = len(finished) + 1, len(finished) + len(prompts)

        def show(made: list[Continuation], phase: str = f"prompts {first} to {last}") -> None:
            done = sum(g.tokens if one.ended else len(one.tokens) for one in made)
            bar(phase, done, len(made) * g.tokens)

        finished += continue_prompts(loaded, prompts, g, config.seed + first - 1, speed, show)
        bar.close()
        for i in range(first, last + 1):
            text = machine.pictured(texts[i - 1] + finished[i - 1].text)
            print(f"── {i} of {len(texts)} ──\n{text}\n", flush=True)
    return finished


def _line(prompt: str, made: Continuation) -> str:
    """A prompt and its continuation as a line of JSON."""
    row = {"prompt": prompt, "text": made.text, "tokens": made.tokens, "stopped": made.ended}
    return json.dumps(row, ensure_ascii=False) + "\n"


def _summary(made: list[Continuation], speed: Speed) -> str:
    """Say how many tokens were generated after how many, and the speed of both."""
    tokens = sum(len(one.tokens) for one in made)
    prompts = "a prompt" if len(made) == 1 else f"{len(made)} prompts"
    return f"{tokens} tokens after {prompts} of {speed.prompt_tokens}: {speed.describe()}"


JOB = Job(
    "generate",
    "continue prompts with a finished run or checkpoint",
    run,
    reads=("run",),
    needs="run=results/NAME/RUN generate.prompt='...'",
    place=lambda config: config.generate.out,
)
