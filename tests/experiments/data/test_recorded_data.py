"""What models are trained on, as numbers: sequences of tasks, tokens, batches, windows, hashes; texts by hand."""

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.recorded import check, flat
from support.steady import each, refusal

from experiments import data
from experiments.data import (
    TASKS,
    Batches,
    DataConfig,
    TaskSet,
    corpus,
    eval_windows,
    resolve_task,
    tasks_base,
    tokenizers,
)
from experiments.data.batches import document_boundaries
from experiments.data.cache import content_hash
from experiments.data.corpus import Split, token_dtype, unigram_entropy, write_tokens
from experiments.data.sources import base, pydocs
from experiments.data.sources.base import Document
from experiments.data.task_set import example
from experiments.data.tasks_base import Draws
from zoo.tokenization import SEPARATOR, ByteTokenizer

RECORDED = Path(__file__).parent / "recorded"


def digest(*arrays: Any) -> str:
    """Twelve digits for integers of any width."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array, dtype=np.int64).tobytes())
    return found.hexdigest()[:12]


# Task -> options beside its defaults, of which each may change sequences.
VARIANTS = {
    "entity_tracking": each(boxes=2, items=3, swaps=4),
    "flip_flop": each(operations=6, ignore=(0.1, 0.0)),
    "fuzzy_recall": each(length=40, entries=2, key_tokens=5, value_tokens=3, longest=1),
    "induction": each(length=30, shortest=2, longest=9, vocab=30),
    "memorisation": each(facts=9, values=5, asked=4, facts_seed=1),
    "mqar": each(length=40, pairs=2, vocab=32, power=1.0, fill="values"),
    "needle": each(context=20, needles=2, keys=5, values=4, hay=3),
    "noisy_recall": each(length=30, keys=4, values=3, noise=2, share=(0.7, 0.0)),
    "palindrome": each(items=7, values=(3, 27)),
    "parity": each(length=13),
    "permutations": each(group=("S5", "A5"), length=12),
    "regression": [
        *each(points=6, dimensions=7, bins=3, weights="signs", unasked=4, inputs="bits"),
        {"inputs": "bits", "weights": "signs", "points": 63},
        {"points": 1, "dimensions": 1, "bins": 2},
    ],
    "selective_copy": each(context=12, items=3, values=2),
    "stack": each(operations=8, stacks=(1, 5), values=3),
}


@pytest.mark.parametrize("name", sorted(TASKS))
def test_sequences_of_a_task(name: str):
    """Sizes, chance, words, and sequences of every split at several options: integers of a hash."""

    def lines() -> Iterator[str]:
        task = TASKS[name]
        yield f"{task.title} | {task.source} | {task.rule} | {task.hardness}"
        for options in ({}, *VARIANTS.get(name, ())):
            made = task(dataclasses.replace(task.config(), **options))
            yield f"{options}: {made.seq_len} tokens of {made.vocab_size}, chance {made.chance:.9g}"
            drawn = [made.draw(Draws(4, 7, number, 0)) for number in range(30)]
            yield f"  30 sequences {digest(*(part for one in drawn for part in one))}"
            yield (
                f"  answers {sum(int((one.targets >= 0).sum()) for one in drawn)}, difficulty "
                f"{[int(max(one.difficulty)) for one in drawn[:5]]}"
            )
            yield f"  words {' '.join(made.word(token) for token in range(min(made.vocab_size, 200)))}"
        made = task(task.config())
        yield "  ".join(f"{word}:{answer}" for word, answer in example(made))
        first = made.draw(Draws(1, 2))
        for field, values in zip(first._fields, first, strict=True):
            yield f"{field} {values.tolist()}"

    check(RECORDED / f"task_{name}.txt", lines())


def test_task_sets():
    """Held-out sequences, which training and the other split never meet; batches; summaries; too small a space."""

    def lines() -> Iterator[str]:
        config = dataclasses.replace(DataConfig(), name="parity", batch_size=3)
        config.tasks.parity.length = 12
        config = resolve_task(config)
        made = TaskSet(config)
        yield from flat(made.describe())
        yield f"{made.label} {made.card} {made.vocab_size}"
        parts = {name: made.held_out(name) for name in ("validation", "test")}
        for name, part in parts.items():
            yield (
                f"{name}: {digest(part.tokens, part.targets, part.difficulty)}, {part.answers} "
                f"answers, of two {part.first(2).answers}"
            )
        rows = {name: {row.tobytes() for row in part.tokens} for name, part in parts.items()}
        trained = {row.tobytes() for n in range(40) for row in made.batches(1).batch(n)["tokens"].numpy()}
        yield (
            f"different {len(rows['validation'])} {len(rows['test'])}, shared "
            f"{len(rows['validation'] & rows['test'])}"
        )
        yield f"of training {len(trained & (rows['validation'] | rows['test']))}, taken {len(made.taken)}"
        for seed, number in ((0, 0), (0, 5), (1, 0)):
            yield (
                f"batch {number} of seed {seed}: "
                f"{ ({k: digest(x.numpy()) for k, x in made.batches(seed).batch(number).items()}) }"
            )
        two, one = (dataclasses.replace(config, batch_size=size) for size in (6, 3))
        yield (
            f"order {digest(TaskSet(two).batches(0).batch(1)['tokens'])} "
            f"{digest(TaskSet(one).batches(0).batch(2)['tokens'], TaskSet(one).batches(0).batch(3)['tokens'])}"
        )
        config.tasks.parity.length = 11
        yield refusal(
            TaskSet(
                resolve_task(dataclasses.replace(config, seq_len=128, vocab_size=4096, tokenizer="bpe"))
            ).batches,
            0,
        )

    check(RECORDED / "task_sets.txt", lines())


def test_batches_and_windows():
    """Which windows come in which order, over epochs, seeds and batch sizes; packed documents; windows to score."""
    split = Split(np.arange(103, dtype=np.uint16) % 11, 50, 200, 4)

    def lines() -> Iterator[str]:
        for pack in ("stream", "document"):
            for size, seed in ((3, 0), (1, 0), (4, 5)):
                batches = Batches(split, 10, size, seed, pack, bos_id=0)
                for number in (0, 1, 3, 7):
                    found = batches.batch(number)
                    yield (
                        f"{pack} {size} {seed} {number}: "
                        f"{ ({k: [list(x.shape), digest(x.numpy())] for k, x in found.items()}) }"
                    )
        batches = Batches(split, 10, 2, 0)
        yield f"windows {batches.windows_per_epoch}, starts {batches._starts(np.arange(23)).tolist()}"
        first = batches.batch(0)
        yield f"{first['tokens'].tolist()} {first['targets'].tolist()} {first['noise_keys'].tolist()}"
        yield f"{Batches(split, 10, 2, 0, 'document', 0).batch(1)['cu_seqlens'].tolist()}"
        yield refusal(Batches, split, 103, 1, 0)
        yield f"{document_boundaries(np.array([[1, 0, 2], [0, 3, 0]]), 0).tolist()}"
        small = Split(np.arange(23, dtype=np.uint16), 1, 1, 1)
        for length, stride in ((8, 8), (8, 3), (8, 1), (30, 5), (22, 22), (5, 6), (5, 0)):
            try:
                found = [
                    (int(x[0]), len(x), int(y[-1]), first)
                    for x, y, first in eval_windows(small, length, stride)
                ]
            except ValueError as error:
                found = error
            yield f"{length} by {stride}: {found}"
        yield refusal(lambda: list(eval_windows(Split(np.arange(1), 1, 1, 1), 4, 2)))
        yield f"{unigram_entropy(np.array([0, 0, 1, 3]), 9):.9g} {token_dtype(65535)} {token_dtype(65536)}"

    check(RECORDED / "batches.txt", lines())


def test_tokens_of_fixed_text(tmp_path: Path):
    """A trained BPE and bytes, with the identities that runs are named by; a file of tokens; hashes of content."""
    words = "the cat sat on the mat, the cat's 12 mats théta " * 20

    def lines() -> Iterator[str]:
        made = tokenizers.train([words, "another text of the cat"], 280)
        yield f"{made.vocab_size} {made.bos_id} {made.name} {made.identity()}"
        for sample in ("the cat", "théta 12\n\n mats", "", SEPARATOR):
            ids = [int(x) for x in made.encode(sample)]
            yield f"{sample!r}: {ids} {made.decode(ids)!r}"
        plain = ByteTokenizer()
        yield (
            f"{list(map(int, plain.encode('théta')))} {plain.bos_id} {plain.vocab_size} {plain.name} "
            f"{plain.decode([116, 195, 169])!r}"
        )
        documents = [base.Document(words, 3), base.Document("théta", 1)]
        sizes: list[int] = []
        yield f"{write_tokens(documents, plain, tmp_path / 'tokens.bin', sizes.append)} {sizes}"
        yield digest(np.fromfile(tmp_path / "tokens.bin", np.uint16))
        yield f"{content_hash({'b': 1, 'a': [1, 'é']})} {content_hash([1], 5)}"

    check(RECORDED / "tokens.txt", (line.replace(str(tmp_path), "<place>") for line in lines()))


def test_long_text_is_cut_into_tokens_in_parts_and_none_is_kept(tmp_path: Path, monkeypatch):
    """Of about so many characters: the text of a whole corpus would not fit into memory."""
    parts: list[int] = []

    class Tokenizer(ByteTokenizer):
        def encode_batch(self, texts):
            parts.append(sum(map(len, texts)))
            return super().encode_batch(texts)

    monkeypatch.setattr(corpus, "_BATCH_CHARACTERS", 10)
    documents = [Document("abc", 0) for _ in range(10)]
    counts = write_tokens(documents, Tokenizer(), tmp_path / "tokens.bin", lambda size: None)
    assert parts == [12, 12, 6]
    assert (counts["tokens"], counts["documents"], counts["bytes"]) == (40, 10, 30)
    tokens = np.fromfile(tmp_path / "tokens.bin", np.uint16)
    assert tokens.tolist() == [256, *b"abc"] * 10


def test_documents_are_of_the_standard_library_and_not_of_its_tests_or_of_what_was_installed_into_it(
    tmp_path: Path, monkeypatch
):
    """Or the text, and every number from it, would be another on each machine."""
    for file in (
        *("json/__init__.py", "json/tool.py", "json/tests/case.py", "json/test/case.py", "abc.py", "abc.txt"),
        *("site-packages/json.py", "mine/__init__.py", "mine.py", "json/__pycache__/tool.py", "test/case.py"),
    ):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    monkeypatch.setattr(pydocs, "_stdlib", lambda: tmp_path)
    found = pydocs._modules()
    assert {name: str(path.relative_to(tmp_path)) for name, path in found.items()} == {
        "abc": "abc.py",
        "json": "json/__init__.py",
        "json.tool": "json/tool.py",
    }


def test_two_files_claim_no_task_of_one_name_and_options_have_defaults(monkeypatch):
    """One file may be imported again."""
    monkeypatch.setattr(tasks_base, "TASKS", {})

    @dataclasses.dataclass
    class Options:
        length: int = 4

    @dataclasses.dataclass
    class Incomplete:
        length: int

    register = tasks_base.register_task("mine", config=Options, title="Mine", source="a paper")
    first, again = (type("Mine", (), {"__module__": "first"}) for _ in range(2))
    assert register(first) is first
    assert register(again) is again
    assert {"mine": again} == tasks_base.TASKS
    assert (again.name, again.config, again.title, again.source) == ("mine", Options, "Mine", "a paper")
    with pytest.raises(ValueError, match=r"task 'mine' is taken by .*; choose another"):
        register(type("Other", (), {"__module__": "second"}))
    assert {"mine": again} == tasks_base.TASKS
    with pytest.raises(ValueError, match="a dataclass whose every field has a default"):
        tasks_base.register_task("half", config=Incomplete, title="", source="")(first)


def test_a_document_has_at_least_200_characters_and_what_stood_before_counts_no_more():
    """A paragraph of 40 characters or more is kept where it stands first; shorter ones repeat."""
    short, long = "x" * 39, "y" * 40
    rest = "z" * (200 - 1 - len(f"{short}\n\n{long}\n\n"))
    named = [("a", [short, long, rest]), ("b", [short, long, rest + "z"]), ("c", [short, "w" * (157 + 1)])]
    found = dict(pydocs._distinct(named))
    assert {name: len(document) for name, document in found.items()} == {"a": 200, "c": 200}
    assert long not in found.get("b", "")


def test_parts_of_a_text_are_read_in_the_order_of_their_names(tmp_path: Path, monkeypatch):
    """Whatever the file system's order: the tokens of a run are its identity."""
    names = ["train-2.parquet", "train-0.parquet", "train-1.parquet"]
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: iter([folder / name for name in names]))
    source, cfg = (
        data.SOURCES["wikitext103"],
        dataclasses.replace(DataConfig(), name="wikitext103", path=str(tmp_path)),
    )
    assert [path.name for path in source._files(cfg, "train")] == sorted(names)
