"""What models are trained on, as numbers: sequences of tasks, splits of texts, tokens, batches, windows, hashes."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.recorded import check, flat
from support.steady import refusal

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
from experiments.data.batches import counter_hash, document_boundaries, extend_hash, state_after
from experiments.data.cache import content_hash, load_fact, store_fact
from experiments.data.corpus import Split, token_dtype, unigram_entropy, write_tokens
from experiments.data.scoring_text import read_splits
from experiments.data.sources import base, pydocs, text, wikitext
from experiments.data.sources.base import Document, check_sizes, contents
from experiments.data.task_set import example
from experiments.data.tasks_base import Draws
from experiments.data.tokenizers import read_tables
from zoo.tokenization import SEPARATOR, ByteTokenizer, from_json

RECORDED = Path(__file__).parent / "recorded"


def digest(*arrays: Any) -> str:
    """Twelve digits for integers of any width."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array, dtype=np.int64).tobytes())
    return found.hexdigest()[:12]


# Task -> options beside its defaults, of which each may change sequences.
VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "entity_tracking": ({"boxes": 2}, {"items": 3}, {"swaps": 4}),
    "flip_flop": ({"operations": 6}, {"ignore": 0.1}, {"ignore": 0.0}),
    "fuzzy_recall": ({"length": 40}, {"entries": 2}, {"key_tokens": 5}, {"value_tokens": 3}, {"longest": 1}),
    "induction": ({"length": 30}, {"shortest": 2}, {"longest": 9}, {"vocab": 30}),
    "memorisation": ({"facts": 9}, {"values": 5}, {"asked": 4}, {"facts_seed": 1}),
    "mqar": ({"length": 40}, {"pairs": 2}, {"vocab": 32}, {"power": 1.0}, {"fill": "values"}),
    "needle": ({"context": 20}, {"needles": 2}, {"keys": 5}, {"values": 4}, {"hay": 3}),
    "noisy_recall": (
        {"length": 30},
        {"keys": 4},
        {"values": 3},
        {"noise": 2},
        {"share": 0.7},
        {"share": 0.0},
    ),
    "palindrome": ({"items": 7}, {"values": 3}, {"values": 27}),
    "parity": ({"length": 13},),
    "permutations": ({"group": "S5"}, {"group": "A5"}, {"length": 12}),
    "regression": (
        {"points": 6},
        {"dimensions": 7},
        {"bins": 3},
        {"weights": "signs"},
        {"unasked": 4},
        {"inputs": "bits"},
        {"inputs": "bits", "weights": "signs", "points": 63},
        {"points": 1, "dimensions": 1, "bins": 2},
    ),
    "selective_copy": ({"context": 12}, {"items": 3}, {"values": 2}),
    "stack": ({"operations": 8}, {"stacks": 1}, {"stacks": 5}, {"values": 3}),
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


REFUSED_OPTIONS = {
    "entity_tracking": ({"boxes": 1}, {"items": 1}, {"swaps": 0}),
    "flip_flop": ({"operations": 1}, {"operations": 2}, {"ignore": 1.0}, {"ignore": -0.1}, {"ignore": 0.999}),
    "fuzzy_recall": (
        {"entries": 0},
        {"key_tokens": 1},
        {"value_tokens": 1},
        {"longest": 0},
        {"entries": 9},
        {"length": 29},
        {"length": 30},
    ),
    "induction": (
        {"shortest": 1},
        {"shortest": 2},
        {"longest": 7},
        {"longest": 8},
        {"length": 24},
        {"length": 25},
        {"vocab": 23},
        {"vocab": 24},
    ),
    "memorisation": ({"facts": 0}, {"values": 1}, {"asked": 0}, {"facts": 1}),
    "mqar": (
        {"pairs": 0},
        {"power": 0.0},
        {"fill": "x"},
        {"vocab": 8},
        {"vocab": 9},
        {"vocab": 10},
        {"length": 15},
        {"length": 16},
    ),
    "needle": (
        {"needles": 0},
        {"values": 1},
        {"hay": 0},
        {"keys": 3},
        {"keys": 4},
        {"context": 7},
        {"context": 8},
    ),
    "noisy_recall": (
        {"keys": 0},
        {"values": 1},
        {"noise": 0},
        {"share": 1.0},
        {"share": -0.1},
        {"length": 63},
        {"length": 16},
        {"length": 18},
    ),
    "palindrome": ({"items": 1}, {"values": 1}, {"items": 2, "values": 2}),
    "parity": ({"length": 1}, {"length": 2}),
    "permutations": ({"group": "S4"}, {"length": 1}, {"length": 2}),
    "regression": (
        {"dimensions": 0},
        {"bins": 1},
        {"weights": "x"},
        {"inputs": "x"},
        {"points": 0},
        {"points": 33},
        {"points": 32},
        {"unasked": -1},
        {"unasked": 24},
        {"unasked": 23},
        {"inputs": "bits", "points": 64},
        {"inputs": "bits", "points": 63},
    ),
    "selective_copy": ({"items": 0}, {"values": 1}, {"context": 7}, {"context": 8}),
    "stack": ({"operations": 1}, {"stacks": 0}, {"values": 1}, {"operations": 2}),
}


def test_options_that_tasks_refuse():
    def lines() -> Iterator[str]:
        for name, table in REFUSED_OPTIONS.items():
            for options in table:
                said = refusal(TASKS[name], dataclasses.replace(TASKS[name].config(), **options))
                yield f"{name} {options}: {'taken' if said.startswith('taken') else said}"

    check(RECORDED / "refused_options.txt", lines())


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


def test_hashes_and_draws():
    def lines() -> Iterator[str]:
        for words in ((0,), (1, 2), (2**63, -1), (3, 0, 7), (5,)):
            yield f"{words}: {counter_hash(*words).tolist()} {state_after(*words)}"
        places = np.arange(5)
        yield f"{counter_hash(1, 2, places).tolist()} {extend_hash(state_after(1, 2), places).tolist()}"
        d = Draws(9, 8)
        for name, found in (
            ("below", d.below(7, 12)),
            ("uniform", d.uniform(4)),
            ("normal", d.normal(5)),
            ("distinct", d.distinct(9, 9)),
            ("few", d.distinct(50, 4)),
            ("weighted", d.weighted(np.arange(1.0, 9.0), 5)),
            ("rare", d.weighted(np.arange(1.0, 60.0), 3)),
        ):
            yield f"{name} {[float(f'{x:.9g}') for x in found.tolist()]}"

    check(RECORDED / "hashes.txt", lines())


def _corpus_file(folder: Path, name: str, paragraphs: int, seed: int) -> Path:
    draw = random.Random(seed)
    words = ["Alpha", "beta", "gamma,", "théta", "don't", "42", "zeta\n", "eta  of", "και", "the"]
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        "\n\n".join(" ".join(words[draw.randrange(10)] for _ in range(40)) for _ in range(paragraphs)) + "\n",
        encoding="utf-8",
    )
    return file


def test_texts_and_their_splits(tmp_path: Path, monkeypatch):
    """Files cut or dealt out whole, hashes of texts, labels, tokens; what is hidden, alike, short or foreign."""
    monkeypatch.setenv("ARCHZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for number in range(22):
        _corpus_file(tmp_path, f"many/{number:02d}.{'md' if number % 3 else 'txt'}", 2 + number % 4, number)
    _corpus_file(tmp_path, "many/deep/.hidden/x.txt", 2, 99)
    _corpus_file(tmp_path, "many/other.rst", 2, 98)
    for number in range(3):
        _corpus_file(tmp_path, f"few/{number}.txt", 6, number)
    (tmp_path / "few" / "again.txt").write_bytes(
        b"\xef\xbb\xbf" + (tmp_path / "few" / "0.txt").read_bytes().replace(b"\n", b"\r\n")
    )
    (tmp_path / "few" / "short.txt").write_text("a short text\r\n")
    usual = DataConfig(name="text", path="few", tokenizer="bytes", seq_len=32, batch_size=4)

    def lines() -> Iterator[str]:
        for keys in (
            {},
            {"path": "many"},
            {"path": "few/0.txt"},
            {"path": "few/*.txt"},
            {"path": "many/**/*.md"},
            {"tokenizer": "bpe", "vocab_size": 300},
            {"pack": "document"},
        ):
            config = dataclasses.replace(usual, **keys)
            yield f"{keys}: {data.fingerprint(config)}"
            yield from flat(contents(config), "  ")
            corpus = data.prepare(config, progress=False)
            told = corpus.describe()
            yield from (f"  {line}" for line in flat(told))
            yield f"  separator {corpus.document_bos}, {corpus.vocab_size}, {corpus.tokenizer.identity()}"
            yield f"  tokens { ({name: digest(split.tokens) for name, split in corpus.splits.items()}) }"
            again = from_json(corpus.tokenizer.to_json())
            ids = [int(x) for x in again.encode("Alpha théta don't 42\n\nκαι  x")]
            yield f"  {ids} {again.decode(ids)!r}"
            found = [
                (
                    one.name,
                    one.text,
                    digest(one.split.tokens),
                    one.split.n_words,
                    one.split.n_bytes,
                    one.split.n_documents,
                )
                for one in read_splits(config, ["test"], again)
            ]
            yield f"  whole {found}"
        for place in ("few", "few/*.txt", "/a/b/*.md", "many/**/*.md", "nothing"):
            yield f"named {place}: {text.corpus_name(place).removeprefix(str(tmp_path))}"
        for size in (20, 41, 60):
            homes = text.splits_of_digests([f"{n:03d}" for n in range(size)] * 2)
            yield (
                f"{size} files: "
                f"{[(name, sum(x == name for x in homes.values())) for name in ('test', 'validation', 'train')]}"
                f" first {homes['000']} {homes['001']}"
            )
        for words in ("x" * 1000, "a b " * 100, "line\n" * 60, "one. two.\n\n" * 40, "y" * 50):
            parts = text.cut_text(words)
            yield f"cut {[(name, len(part), part[:6], part[-3:]) for name, part in parts.items()]}"
        yield (
            f"parts of 49 {[text._part('z' * 49, split) for split in data.SPLITS]}, of 50 "
            f"{[len(text._part('z' * 50, split)) for split in data.SPLITS]}"
        )
        for one in ("", "a", "a\n", "a\n\nb"):
            yield (
                f"{one!r}: {base.count_lines(one)} lines, "
                f"{base.Document(one, base.count_lines(one)).n_words} words"
            )
        for sizes in ((33, 2, 2), (32, 2, 2), (33, 1, 2), (33, 2, 1)):
            yield (
                f"{sizes}: "
                f"{refusal(check_sizes, usual, dict(zip(data.SPLITS, sizes, strict=True)), 'tokens')}"
            )
        for keys in (
            {"path": None},
            {"path": "no"},
            {"path": "no*"},
            {"train_path": "x"},
            {"revision": "x"},
            {"path": "many/deep"},
        ):
            yield f"{keys}: {refusal(data.check, dataclasses.replace(usual, **keys))}"
        for name, raw in (
            ("latin", b"caf\xe9 x"),
            ("nul", b"ab\0c\xff"),
            ("nul first", b"\xff\0"),
            ("empty", b"\xef\xbb\xbf \r\n"),
            ("mark", b"\xef\xbb\xbfa\rb\r\nc"),
        ):
            (tmp_path / name).write_bytes(raw)
            yield f"{name}: {refusal(text.read_text, Path(name))!r}"
        yield f"{text.Text.rule} | {pydocs.PyDocs.rule} | {wikitext.WikiText.rule}"

    check(RECORDED / "texts.txt", (line.replace(str(tmp_path), "<place>") for line in lines()))


def test_articles_and_documentation(monkeypatch):
    """WikiText's rows as articles; prose of modules; which of them go where."""
    rows = [
        "",
        " lead \n",
        "",
        " = One = \n",
        "",
        " text \n",
        " = National record = \n",
        " = = Section = = \n",
        "",
        " = Two = \n",
        "",
        "x",
        "",
    ]
    source = '''"""A module of several words here."""
#! not a comment
# A comment of at least four words
#   indented more than that
x = """
# no comment but part of text
"""
# 1 2 3 4 5

class A(B):
    """What this class is all about."""

    def f(self, x=1, *, y):
        """Too short."""

    class Inner:
        """A class inside of another class."""

    async def g(self):
        """Long enough to be kept here.

            indented
        """
        if True:
            def inner(): "a docstring that is on one line"

if x:
    def late(): "four words are enough"
'''

    def lines() -> Iterator[str]:
        for files in ([rows], [rows, rows[3:6]], [[]], [["x"], ["y"]]):
            yield f"{[(one.text, one.rows, one.n_words) for one in wikitext.articles(files)]}"
        for block in pydocs.module_blocks(source):
            yield repr(block)
        named = [
            ("a", ["long " * 50 + "\n\nshort\n\n" + "again " * 20]),
            ("b", ["again " * 20, "own " * 60, "short"]),
            ("c", ["brief"]),
        ]
        yield f"{list(pydocs._distinct(named))}"
        modules = pydocs._modules()
        named_ = (
            "email",
            "email.message",
            "email.__init__",
            "json.tool",
            "test",
            "this",
            "sitecustomize",
            "xml.dom",
        )
        yield (
            f"modules {[name for name in named_ if name in modules]}, in order "
            f"{list(modules) == sorted(modules)}"
        )
        names = [f"module.{n}" for n in range(60)]
        yield f"{[(split, [n for n in names if pydocs.split_of_name(n) == split]) for split in ('test', 'validation')]}"
        both = dataclasses.replace(DataConfig(), name="wikitext2", path="here", revision="x")
        for keys in ({}, {"revision": None}):
            yield refusal(data.check, dataclasses.replace(both, **keys))
        yield (
            f"{wikitext.REPOSITORY} {wikitext.REVISION} "
            f"{[one.folder for one in (data.SOURCES['wikitext103'], data.SOURCES['wikitext2'])]}"
        )
        yield f"{data.SOURCES['wikitext2'].stamp(DataConfig(name='wikitext2'))}"
        yield f"{data.SOURCES['wikitext103'].labels(DataConfig(name='wikitext103'))}"
        yield refusal(data.check, dataclasses.replace(DataConfig(), path="x"))

    check(RECORDED / "articles.txt", lines())


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
    """A trained BPE, GPT-2's tables, bytes; pieces of long texts; files of tokens; facts in the cache."""
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
        yield (
            f"{[(len(piece), piece[:4]) for piece in tokenizers.pieces('ab cd  ef ' * 40, 50)]} "
            f"{len(list(tokenizers.pieces('x' * 300, 50)))}"
        )
        vocabulary = {SEPARATOR: 3, "a": 0, "b": 1, "ab": 2}
        (tmp_path / "vocab.json").write_text(str(vocabulary).replace("'", '"'))
        for merges in ("#version: 0.2\na b\n", "a b\n\n", "a c\n", "a b c\n"):
            (tmp_path / "merges.txt").write_text(merges)
            yield f"{merges!r}: {refusal(read_tables, tmp_path / 'vocab.json', tmp_path / 'merges.txt')}"
        (tmp_path / "vocab.json").write_text("{}")
        yield refusal(read_tables, tmp_path / "vocab.json", tmp_path / "merges.txt")
        documents = [base.Document(words, 3), base.Document("théta", 1)]
        sizes: list[int] = []
        yield f"{write_tokens(documents, plain, tmp_path / 'tokens.bin', sizes.append)} {sizes}"
        yield digest(np.fromfile(tmp_path / "tokens.bin", np.uint16))
        yield f"{content_hash({'b': 1, 'a': [1, 'é']})} {content_hash([1], 5)}"
        store_fact(tmp_path / "new" / "fact.json", {"a": 1})
        yield (
            f"{load_fact(tmp_path / 'new' / 'fact.json')} {load_fact(tmp_path / 'none.json')} "
            f"{load_fact(tmp_path / 'tokens.bin')}"
        )

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


def test_runs_of_comments_are_texts_wherever_they_stand_and_lines_in_strings_are_none():
    """Each with the number of its first line; a line for the shell and what has few words are left out."""
    words = "one two three four five six seven eight nine ten"
    text = f"# {words}"
    lines = [f"#!/usr/bin/python {words}", text, f"#  {words}", "x = '''", text, "'''", "if x:"]
    source = "\n".join([*lines, f"    {text}", "    # short", "    pass", "    # few words"])
    found = list(pydocs._comments(ast.parse(source), source))
    assert found == [(2, f"{words}\n {words}"), (8, f"{words}\nshort")]


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


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("/a/texts/*.md", "texts/*.md"),
        ("/a/texts/**/x-?.txt", "texts/**/x-?.txt"),
        ("/*.md", "*.md"),
        ("/a/gone.txt", "gone.txt"),
    ],
)
def test_a_glob_is_named_with_the_folder_it_starts_in_and_no_folders_of_this_machine(place: str, name: str):
    assert text.corpus_name(place) == name


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
