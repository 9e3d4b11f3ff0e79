"""suite=cpu: the torch forms on a CPU, as ratios of times taken in one run, in four parts.

recurrence   delta_rule, mesa and memory_mixture against their recurrences      ratio: recurrence / this
length       every mixer alone at growing lengths         ratio: time a token at the shortest / here (1: flat)
step         a training step of every preset, equal parameters      ratio: the transformer's time / this one's
memory       peak memory of a forward and backward pass of every mixer at the longest length, each in its own process
"""

from __future__ import annotations

import functools
import multiprocessing as mp
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from experiments.bench import result_table, timing
from experiments.bench.cases import Call, InputFactory
from experiments.bench.model_steps import LATE_STEP
from experiments.bench.suites.steps import PLAIN, matched_steps
from experiments.bench.timing import CPU
from experiments.configuration.compose import architectures
from experiments.configuration.schema import Config
from experiments.system import machine
from zoo import registry
from zoo.config import ModelConfig
from zoo.context import Context
from zoo.errors import UserError
from zoo.interfaces import Mixer, set_step
from zoo.model import LanguageModel, Layer

# length: every mixer alone.

D_MODEL, HEADS = 256, 4


def run_lengths(lengths: list[int], repeats: int) -> list[dict[str, Any]]:
    """Rows of forward+backward at batch 1, 4 heads of 64; ratio: time a token at the shortest length over here."""
    rows = []
    for block in tqdm(registry.blocks("mixer").values(), desc="length", unit="mixer"):
        works = {
            n: functools.partial(forward_backward, make_mixer(block.word, n), *inputs(n)) for n in lengths
        }
        times = timing.interleaved({str(n): work for n, work in works.items()}, repeats, CPU)
        first = timing.summary(times[str(lengths[0])])["milliseconds_median"] / lengths[0]
        for length in lengths:
            row = result_table.row(
                "length", block.name, times[str(length)], first * length, CPU, tokens=length
            )
            rows.append({**row, "backend": "auto", "mode": "forward+backward", "precision": "float32"})
            tqdm.write(result_table.format_row(rows[-1]))
    return rows


def make_mixer(letter: str, length: int, d_model: int = D_MODEL, heads: int = HEADS) -> Mixer:
    """A fresh mixer in a model configured for `length` tokens, past its warm-up."""
    config = ModelConfig(pattern=letter, depth=1, d_model=d_model, n_heads=heads)
    layer = LanguageModel(config, vocab_size=8, seq_len=length).layers[0]
    assert isinstance(layer, Layer)
    set_step(layer, LATE_STEP)
    return layer.mixer.train()


def inputs(length: int, d_model: int = D_MODEL) -> tuple[torch.Tensor, Context]:
    """Normalised activations [1, length, D] that require a gradient, and their context."""
    torch.manual_seed(0)
    x = InputFactory(1, length, CPU, torch.float32).normal(d_model)
    return x, Context.of(torch.zeros(1, length, dtype=torch.int64))


def forward_backward(mixer: Mixer, x: torch.Tensor, context: Context) -> None:
    """One forward and backward pass, auxiliary losses included."""
    y, aux = mixer(x, context)
    torch.autograd.backward([y.square().mean() + sum(aux.values(), torch.zeros(()))])
    mixer.zero_grad(set_to_none=True)
    x.grad = None


# memory: peak memory of every mixer.

WARM_UP = 256
"""Tokens of a first pass, which loads code and makes buffers that every pass needs."""


def run_memory(length: int, threads: int) -> list[dict[str, Any]]:
    """A row a mixer: peak_memory_bytes beyond those of the process before the pass; batch 1, 4 heads of 64."""
    rows = []
    for block in tqdm(registry.blocks("mixer").values(), desc="memory", unit="mixer"):
        peak = peak_memory_of(block.word, length, threads=threads)
        row = {
            "suite": "memory",
            "model": block.name,
            "backend": "auto",
            "mode": "forward+backward",
            "batch": 1,
        }
        rows.append(
            {
                **row,
                "precision": "float32",
                "tokens": length,
                "peak_memory_bytes": peak,
                **result_table.machine_facts(CPU),
            }
        )
        tqdm.write(f"{length:>7} tokens  {block.name:<22} {peak / 2**20:8.0f} MiB")
    return rows


def peak_memory_of(
    letter: str, length: int, *, threads: int = 1, configured: int | None = None, **size: int
) -> int:
    """Peak bytes of one pass of a mixer; configured: the length it is made for, if not this one.

    The peak memory of a process never decreases, so that each pass runs in a process of its own. Raises
    RuntimeError where that one ends without a result.
    """
    context = mp.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(
        target=_measure, args=(there, letter, length, configured or length, threads, size)
    )
    process.start()
    there.close()
    try:
        return here.recv()
    except EOFError:
        process.join()
        raise RuntimeError(
            f"measuring the memory of mixer {letter} ended with status {process.exitcode}"
        ) from None
    finally:
        process.join()


def _measure(
    channel: Connection, letter: str, length: int, configured: int, threads: int, size: dict[str, int]
) -> None:
    torch.set_num_threads(threads)
    width = {"d_model": size["d_model"]} if size else {}
    mixer = make_mixer(letter, configured, **size)
    forward_backward(mixer, *inputs(min(WARM_UP, length), **width))
    x, context = inputs(length, **width)
    before = machine.peak_memory(CPU)
    forward_backward(mixer, x, context)
    channel.send(machine.peak_memory(CPU) - before)


# recurrence: the torch forms against recurrences, forward and backward.

TOKENS, RECURRENCE_HEADS, WIDTH = 2048, 4, 64
MEMORIES, CHOSEN, CG_STEPS = 4, 2, 30
SLOW_MS = 5e3
"""A recurrence that takes longer is timed twice and no more."""
MODES = {"forward": timing.forward, "forward+backward": timing.forward_backward}


def run_recurrences(tokens: int, repeats: int) -> list[dict[str, Any]]:
    """Rows at B1 H4 K64; ratio: time of the recurrence over time of the form."""
    rows = []
    for name, make in tqdm(OPERATIONS.items(), desc="recurrence", unit="operation"):
        call = make(InputFactory(1, tokens, CPU, torch.float32))
        for mode, times in _time(call, repeats).items():
            peer = timing.summary(times["reference"])["milliseconds_median"]
            for backend, milliseconds in times.items():
                row = result_table.row("recurrence", name, milliseconds, peer, CPU, mode=mode, tokens=tokens)
                rows.append({**row, "backend": backend, "precision": "float32"})
                tqdm.write(result_table.format_row(rows[-1]))
    return rows


def _time(call: Call, repeats: int) -> dict[str, dict[str, list[float]]]:
    """Mode -> backend -> milliseconds of every repetition."""
    leaves, samples = [x for x in call.tensors() if x.requires_grad], {}
    for mode, work in MODES.items():
        outputs = {b: functools.partial(_output, call, b) for b in ("reference", "torch")}
        forms = {b: functools.partial(work, output, leaves) for b, output in outputs.items()}
        forms["torch"]()
        times = timing.interleaved(forms, 1, CPU, warm_up=0)
        again = repeats if times["reference"][0] < SLOW_MS else 1
        for backend, more in timing.interleaved(forms, again, CPU, warm_up=0).items():
            times[backend] += more
        samples[mode] = times
    return samples


def _output(call: Call, backend: str) -> Tensor:
    """The output o without the state, which is None here."""
    return call.run(backend)[0]


def _delta_rule(make: InputFactory, *gate_width: int) -> Call:
    q, k, v = (
        make.unit(RECURRENCE_HEADS, WIDTH),
        make.unit(RECURRENCE_HEADS, WIDTH),
        make.normal(RECURRENCE_HEADS, WIDTH),
    )
    return Call(
        "delta_rule", (q, k, v, make.log_gate(RECURRENCE_HEADS, *gate_width), make.gate(RECURRENCE_HEADS)), {}
    )


def _mesa(make: InputFactory) -> Call:
    q, k, v = (
        make.unit(RECURRENCE_HEADS, WIDTH),
        make.unit(RECURRENCE_HEADS, WIDTH),
        make.normal(RECURRENCE_HEADS, WIDTH),
    )
    gates = make.log_gate(RECURRENCE_HEADS), make.gate(RECURRENCE_HEADS)
    return Call("mesa", (q, k, v, *gates, make.ones(RECURRENCE_HEADS, WIDTH)), {"cg_steps": CG_STEPS})


def _memory_mixture(make: InputFactory) -> Call:
    """The chosen of MEMORIES routed memories and one that all tokens share."""
    each = MEMORIES + 1, RECURRENCE_HEADS
    q, k, v = make.unit(RECURRENCE_HEADS, WIDTH), make.unit(*each, WIDTH), make.normal(*each, WIDTH)
    gates = make.log_gate(*each), make.gate(*each)
    weights, routes = torch.softmax(make.normal(MEMORIES).detach(), -1).topk(CHOSEN, -1)
    routes, weights = F.pad(routes, (0, 1), value=MEMORIES), F.pad(weights, (0, 1), value=1.0)
    return Call("memory_mixture", (q, k, v, *gates, routes, weights), {})


OPERATIONS: dict[str, Callable[[InputFactory], Call]] = {
    "delta_rule": lambda make: _delta_rule(make, WIDTH),
    "delta_rule, a gate a head": _delta_rule,
    "mesa": _mesa,
    "memory_mixture": _memory_mixture,
}


# step: a training step of every preset.


def run_training_steps(config: Config) -> list[dict[str, Any]]:
    """Rows at the configured size and batch; ratio: the transformer's time over this architecture's."""
    d = config.data
    steps = matched_steps(config, list(architectures(config.model)), d.batch_size, CPU)
    with tqdm(total=1, desc="step", unit="round") as bar:
        times = timing.interleaved(steps, max(config.bench.repeats, 5), CPU)
        bar.update()
    plain = timing.summary(times[PLAIN])["milliseconds_median"]
    rows = []
    for name, milliseconds in times.items():
        row = result_table.row("step", name, milliseconds, plain, CPU, tokens=d.seq_len)
        row |= {"batch": d.batch_size, "backend": "auto", "mode": "training step", "precision": "float32"}
        tqdm.write(result_table.format_row(row))
        rows.append(row)
    return rows


# The suite.

LENGTHS = [1024, 2048, 4096, 8192]


def run(config: Config) -> list[dict[str, Any]]:
    """The rows of all four parts. Raises UserError where a GPU is asked for."""
    if config.device == "cuda":
        raise UserError("suite=cpu measures the CPU; for a GPU: suite=attention or suite=latency")
    tried = sorted(config.bench.lengths or LENGTHS)
    repeats = config.bench.repeats
    rows = run_recurrences(min(tried[-1], TOKENS), repeats)
    rows += run_lengths(tried, repeats)
    rows += run_training_steps(config)
    return rows + run_memory(tried[-1], torch.get_num_threads())
