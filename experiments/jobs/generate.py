"""job=generate: continue a prompt, token by token; prints tokens a second."""

from __future__ import annotations

import codecs
import sys
import time

import torch

import zoo
from experiments import machine
from experiments.jobs import Job
from experiments.load_run import load_run
from experiments.schema import Config
from zoo.errors import UserError


def run(config: Config) -> None:
    """Print the prompt and its continuation, token by token."""
    g = config.generate
    if g.tokens < 1:
        raise UserError(f"generate.tokens={g.tokens} must be at least 1")
    torch.set_num_threads(config.trainer.threads)
    loaded = load_run(config.run, machine.pick(config.device))
    ids = [loaded.tokenizer.bos_id, *loaded.tokenizer.encode(g.prompt)]
    prompt = torch.tensor([ids], device=loaded.model.embedding.weight.device)
    tokens = zoo.generate(
        loaded.model,
        prompt,
        g.tokens,
        temperature=g.temperature,
        top_k=g.top_k,
        top_p=g.top_p,
        seed=config.seed,
    )
    sys.stdout.write(g.prompt)
    written: list[int] = []
    shown = 0
    began = time.perf_counter()
    for token in tokens:
        written.append(int(token))
        text = loaded.tokenizer.decode(written)
        # A token may end inside a character; the replacement sign at the end waits for the rest of it.
        whole = text.rstrip(codecs.decode(b"\xff", "utf-8", "replace"))
        sys.stdout.write(whole[shown:])
        sys.stdout.flush()
        shown = max(shown, len(whole))
    seconds = time.perf_counter() - began
    steps = len(ids) + len(written) - 1
    print(f"\n\n{len(written)} tokens after a prompt of {len(ids)}; {steps / seconds:.1f} tokens/s")


JOB = Job(
    "generate",
    "continue a prompt with a finished run or checkpoint",
    run,
    needs="run=results/NAME/RUN generate.prompt='...'",
)
