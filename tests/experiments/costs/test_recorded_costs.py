"""FLOPs that are extrapolated, decode states that do not fit, bytes alive, memory by strategy; prompts."""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import torch
from support.recorded import check, flat
from support.steady import changed, masked, refusal, tiny_config

from experiments.configuration.schema import GenerateConfig
from experiments.costs import device_memory, model_costs
from experiments.costs.model_costs import LiveBytes
from experiments.generation import Continuation, Speed, encode_prompts, read_prompts
from experiments.parallel import group, sharded
from experiments.parallel.checkpoint import count_for_all, count_for_one
from zoo.generate import ENDED
from zoo.model import meta_model

RECORDED = Path(__file__).parent / "recorded"


def test_flops_at_long_lengths():
    def lines() -> Iterator[str]:
        counted: list[int] = []

        def total(tokens: int) -> float:
            counted.append(tokens)
            return 3.0 * tokens * tokens + 5 * tokens + 7

        for length, enough in ((100, True), (300, True), (1000, True), (5000, True), (5000, False)):
            counted.clear()
            found = model_costs._extrapolate(total, length, lambda enough=enough: enough)
            yield f"{length} {enough}: {found.per_token:.9g} counted to {found.counted_to}, {counted}"
        counted.clear()
        cubic = model_costs._extrapolate(lambda n: float(n**3), 3000, lambda: True)
        yield f"no polynomial: {cubic.per_token:.9g} {cubic.counted_to}"
        yield (
            f"{model_costs._is_exact(1.0, 1.0 + 1e-10)} {model_costs._is_exact(1.0, 1.0 + 1e-8)} "
            f"{model_costs.OPERATORS} {model_costs.SHORTEST}"
        )
        config = tiny_config(data__tokenizer="none", data__vocab_size=50, data__seq_len=64)
        model = meta_model(config.model, **config.sizes)
        for budget in (10**6, 100):
            found = [
                model_costs.count_flops(model, 600, backward=backward, budget=budget)
                for backward in (False, True)
            ]
            yield f"{budget}: {[(one.per_token, one.counted_to) for one in found]}"

    check(RECORDED / "flops.txt", lines())


def test_sequences_that_do_not_fit_together_are_told_by_the_longest(monkeypatch):
    model = SimpleNamespace(
        config=tiny_config().model,
        vocab_size=50,
        seq_len=32,
        embedding=SimpleNamespace(weight=torch.zeros(1)),
    )
    monkeypatch.setattr(model_costs, "_free_memory", lambda device: 100)
    told = refusal(model_costs.check_decode_memory, model, [[300, 512, 64]], "give less")
    assert "the decode state of 512 tokens (3 at once) takes" in told


def test_memory(monkeypatch):
    """What does not fit is refused before; what fails is told; bytes alive at once; shares of several devices."""

    def lines() -> Iterator[str]:
        config = tiny_config(data__tokenizer="none", data__vocab_size=50)
        model = SimpleNamespace(
            config=config.model, vocab_size=50, seq_len=32, embedding=SimpleNamespace(weight=torch.zeros(1))
        )
        for free in (10**9, 300_000, 100):
            monkeypatch.setattr(model_costs, "_free_memory", lambda device, free=free: free)
            for batches in ([[64]], [[64], [512, 300]], [[4096] * 3]):
                yield (
                    f"{free} {[len(b) for b in batches]}: "
                    f"{refusal(model_costs.check_decode_memory, model, batches, 'do this')}"
                )
        for error in (
            MemoryError(),
            RuntimeError("DefaultCPUAllocator: can't allocate memory: x\ny"),
            RuntimeError("other"),
            ValueError("x"),
        ):

            def fail(error=error):
                with model_costs.explaining_memory("do that"):
                    raise error

            yield refusal(fail) if str(error) else refusal(fail).replace("()", "( )")
        with LiveBytes() as alive:
            a = torch.zeros(100)
            b = a + 1
            del a
            c = b.view(10, 10).mul_(2)
            d = torch.zeros(5, dtype=torch.float64)
            yield f"{alive.live} {alive.peak} {len(c)} {len(d)}"
            del b, c
            yield f"{alive.live} {alive.peak}"
        for keys in (
            {},
            {"trainer__devices": 2},
            {"trainer__devices": 2, "trainer__strategy": "fsdp"},
            {
                "trainer__devices": 2,
                "trainer__nodes": 2,
                "trainer__strategy": "fsdp",
                "trainer__reshard": False,
            },
            {"trainer__precision": "bf16"},
        ):
            found = device_memory.device_memory(changed(config, data__batch_size=2, data__seq_len=16, **keys))
            parts = found.parts()
            yield (
                f"{keys}: {found.strategy}, {found.precision}, "
                f"{[(name, size) for name, size in parts.items() if name != 'activations']}, "
                f"{found.total == sum(parts.values())}"
            )
            yield f"  activations {parts['activations'] > 0}"
        for shape, devices in (((5, 3), 2), ((4,), 4), ((), 3), ((1, 2), 8)):
            yield f"{shape} {devices}: {device_memory._shard(torch.zeros(shape), devices)}"
        yield device_memory.FOOTNOTE

    check(RECORDED / "memory.txt", lines())


def test_texts_that_are_continued(monkeypatch):
    """Tokens that end inside a character, stop sequences across tokens, separators, what is safe to show."""
    pieces = {1: b"ab", 2: b"c\n", 3: b"\xc3", 4: b"\xa9", 5: b"STO", 6: b"P and", 7: b"x"}
    tokenizer = SimpleNamespace(
        bos_id=0, decode=lambda ids: b"".join(pieces[i] for i in ids).decode(errors="replace")
    )

    def lines() -> Iterator[str]:
        for stop, separator, tokens in (
            ((), False, (1, 3, 4, 2)),
            (("STOP",), False, (1, 5, 6)),
            (("STOP", "b"), False, (7, 1, 5)),
            (("\n",), True, (1, 2)),
            ((), True, (1, 0)),
            (("cab",), False, (7, 2)),
            (("STOP",), False, (5, 7, 5, 6)),
        ):
            made = Continuation(tokenizer, stop, stop_at_separator=separator)
            shown = []
            for token in tokens:
                made.add(token)
                shown.append((made.text, made.safe_text, made.ended))
                if made.ended:
                    break
            yield f"{stop} {separator} {tokens}: {shown} {made.tokens}"
        speed, ticks = Speed(), itertools.count(0.0, 0.25)
        monkeypatch.setattr("experiments.generation.time", SimpleNamespace(perf_counter=lambda: next(ticks)))
        for _ in range(2):
            list(speed.clock(iter([torch.tensor([1, 2]), torch.tensor([3, ENDED]), torch.tensor([4, 5])]), 9))
        yield "; ".join(flat(speed))
        yield speed.describe()

    check(RECORDED / "continuations.txt", lines())


def test_prompts(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {
        "plain.txt": "one\ntwo\n",
        "gap.txt": "one\n\ntwo\n",
        "empty.txt": " \n",
        "good.jsonl": '{"prompt": "a"}\n{"prompt": ""}\n',
        "bad.jsonl": '{"prompt": 3}\n',
        "worse.jsonl": "{\n",
    }
    for name, content in files.items():
        Path(name).write_text(content)
    Path("latin.txt").write_bytes(b"\xe9")

    def lines() -> Iterator[str]:
        for keys in (
            {},
            {"prompt": "x"},
            {"prompts": ["a", ""]},
            {"prompts": ["a"], "prompt": "b"},
            {"file": "plain.txt", "prompts": ["a"]},
            {"file": ""},
            {"prompt": "\ud800"},
            *({"file": name} for name in (*files, "latin.txt", "none.txt", ".")),
        ):
            yield f"{keys!a}: {refusal(read_prompts, changed(GenerateConfig(), **keys))!a}"
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"from\nhere")))
        yield f"{read_prompts(changed(GenerateConfig(), file='-'))}"
        loaded = SimpleNamespace(
            tokenizer=SimpleNamespace(bos_id=9, encode=lambda text: list(range(len(text)))),
            model=SimpleNamespace(embedding=SimpleNamespace(weight=torch.zeros(1))),
        )
        monkeypatch.setattr(
            "experiments.generation.check_decode_memory",
            lambda model, lengths, remedy: told.append((list(lengths), remedy)),
        )
        told: list = []
        batches = encode_prompts(loaded, ["a", "", "abc"], changed(GenerateConfig(), batch_size=2, tokens=5))
        yield f"{[[x.tolist() for x in batch] for batch in batches]} {told}"

    check(RECORDED / "prompts.txt", masked(list(lines()), {str(tmp_path): "<place>"}))


def test_micro_batches_and_processes(monkeypatch):
    """Which process computes which micro-batches; progress counted for all and for one."""

    def lines() -> Iterator[str]:
        for size, context in ((1, 1), (2, 1), (4, 2), (6, 3)):
            monkeypatch.setattr(group, "size", lambda size=size: size)
            monkeypatch.setattr(group, "context", lambda context=context: context)
            for rank in range(size):
                monkeypatch.setattr(group, "rank", lambda rank=rank: rank)
                numbers = group.own_micro_batches(12)
                first = [next(numbers) for _ in range(3)]
                yield (
                    f"{rank} of {size}, {context} together: {first}, {group.share(12)} of 12, main "
                    f"{group.is_main()}, {group.holds_main_s_sequence()} {group.replica()}"
                )
        monkeypatch.undo()
        gradients = [torch.full((2,), float(n)) for n in (3, 4, 5)]
        monkeypatch.setattr(sharded.dist, "all_reduce", lambda found: None)
        monkeypatch.setattr(group, "size", lambda: 2)
        for rank in (0, 1):
            monkeypatch.setattr(group, "rank", lambda rank=rank: rank)
            yield f"{rank} of 2 takes {[round(x, 5) for x in sharded._norms(gradients).tolist()]}"
        monkeypatch.undo()
        for change in (count_for_all, count_for_one):
            progress = {
                part: {"ready": 8, "started": 8, "processed": 8, "completed": 7}
                for part in ("total", "current")
            }
            checkpoint = {"loops": {"fit_loop": {"epoch_loop.batch_progress": progress}}}
            change(checkpoint, 2)
            yield "; ".join(flat(checkpoint))
        monkeypatch.setenv("LOCAL_RANK", "3")
        yield (
            f"{group.own_device(torch.device('cuda'))} {group.own_device(torch.device('cpu'))} "
            f"{group.from_all(5)} {group.from_process(4, 0)} {group.gathered(torch.ones(2)).shape}"
        )

    check(RECORDED / "processes.txt", lines())
