"""Sources: own text, WikiText's layout, the prose of the standard library."""

import platform
import sys
from collections import Counter
from itertools import chain
from types import SimpleNamespace

import pytest
from support.sample_text import prose

from experiments.data import DataConfig, check, fingerprint, prepare
from experiments.data.sources import SOURCES, SPLITS, pydocs, read_split, wikitext
from experiments.data.sources.pydocs import module_blocks
from zoo.errors import UserError


def texts(cfg, split, tmp_path):
    return [document.text for document in SOURCES[cfg.name].documents(cfg, split, tmp_path)]


def decoded(corpus, split):
    return corpus.tokenizer.decode(corpus.splits[split].tokens)


# own text


def test_a_folder_inside_a_hidden_one_is_read_and_hidden_ones_in_it_are_not(config, tmp_path):
    folder = tmp_path / ".hidden" / "texts"
    for place in (folder, folder / ".drafts", folder / "more"):
        place.mkdir(parents=True, exist_ok=True)
        (place / "book.txt").write_text(f"words in {place.name}")
    (folder / ".notes.txt").write_text("notes")
    cfg = config(path=str(folder))
    assert texts(cfg, "train", tmp_path) == ["words in texts", "words in more"]


def test_one_file_is_cut_and_nothing_is_lost(config, text_file):
    corpus = prepare(config(), progress=False)
    whole = "".join(decoded(corpus, split).removeprefix("<|endoftext|>") for split in SPLITS)
    assert whole == text_file.read_text(encoding="utf-8")
    for split in corpus.splits.values():
        assert split.n_documents == 1
        assert len(split.tokens) == split.n_bytes + 1


def test_line_ends_and_mark_are_normalised(config, text_file, tmp_path):
    other = tmp_path / "windows.txt"
    raw = text_file.read_bytes()
    other.write_bytes(b"\xef\xbb\xbf" + raw.replace(b"\n", b"\r\n"))
    assert fingerprint(config()) == fingerprint(config(path=str(other)))
    other.write_bytes(raw.replace(b"\n", b"\r"))
    assert fingerprint(config()) == fingerprint(config(path=str(other)))


def test_many_files_go_whole_to_one_split(config, tmp_path):
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    for i in range(40):
        (folder / ("deep" * (i % 2)) / f"{i}.{'md' if i % 3 else 'txt'}").write_text(prose(3, i), "utf-8")
    (folder / "copy.md").write_text(prose(3, 0), "utf-8")
    (folder / "left out.py").write_text("print(1)")
    (folder / ".hidden" / "secret.md").write_text("never read")
    found = {split: texts(config(path=str(folder)), split, tmp_path) for split in SPLITS}
    assert [len(found[split]) for split in SPLITS] == [36, 2, 2]
    assert Counter(chain(*found.values())) == Counter(prose(3, i) for i in range(40))


def test_many_files_of_which_one_is_most_of_the_text_are_each_cut(config, tmp_path):
    """A tenth of the bytes in one file would make a split of that file alone."""
    folder = tmp_path / "notes"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i}.txt").write_text(prose(3, i), "utf-8")
    (folder / "long.txt").write_text(prose(60, 99), "utf-8")
    found = {split: texts(config(path=str(folder)), split, tmp_path) for split in SPLITS}
    assert [len(found[split]) for split in SPLITS] == [41, 41, 41]
    assert sorted(map("".join, zip(*found.values(), strict=True))) == sorted(
        [*(prose(3, i) for i in range(40)), prose(60, 99)]
    )


def test_few_files_are_each_cut(config, tmp_path):
    folder = tmp_path / "chapters"
    folder.mkdir()
    for i in range(3):
        (folder / f"{i}.txt").write_text(prose(40, i), "utf-8")
    (folder / "tiny.txt").write_text("a short note\n")
    found = {split: texts(config(path=str(folder / "*.txt")), split, tmp_path) for split in SPLITS}
    assert [len(found[split]) for split in SPLITS] == [4, 3, 3]
    for i in range(3):
        assert "".join(found[split][i] for split in SPLITS) == prose(40, i)


def test_two_stars_match_files_in_any_depth(config, tmp_path):
    places = [".", "one", "one/two", "one/two/three"]
    for place in places:
        (tmp_path / "notes" / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / "notes" / place / "a.txt").write_text(f"in {place}\n" * 100)
        (tmp_path / "notes" / place / "a.log").write_text("of another kind")

    def read(pattern: str) -> set[str]:
        documents = texts(config(path=str(tmp_path / pattern)), "train", tmp_path)
        return {text.splitlines()[0].removeprefix("in ") for text in documents}

    assert read("notes/**/*.txt") == set(places)
    assert read("notes/one/**/*.txt") == set(places[1:])
    assert read("notes/*/*.txt") == {"one"}


# WikiText


def test_articles_start_at_level_one_headings(article_rows):
    rows = article_rows(5)
    documents = list(wikitext.articles([rows]))
    assert len(documents) == 5
    assert all(document.text.startswith(" = Title ") for document in documents)
    assert "".join(document.text for document in documents) == "".join(rows)
    assert sum(document.rows for document in documents) == len(rows)


def test_what_looks_like_a_heading_and_is_followed_by_text_starts_no_article():
    """As the legend of a table does: behind a blank row, but with its table below."""
    rows = [" = One = \n", "", " text \n", "", " = National record = \n", " 9.58 s \n", ""]
    (document,) = wikitext.articles([rows])
    assert document.text == "".join(rows)


@pytest.mark.parametrize("name", ["wikitext103", "wikitext2"])
def test_local_folder(wikitext_folder, cache, name, article_rows):
    cfg = DataConfig(
        name=name, path=str(wikitext_folder), tokenizer="bytes", seq_len=32, cache_dir=str(cache)
    )
    corpus = prepare(cfg, progress=False)
    assert [corpus.splits[split].n_documents for split in SPLITS] == [12, 3, 4]
    rows = article_rows(3, seed=2)
    validation = corpus.splits["validation"]
    assert validation.n_words == len("".join(rows).split()) + len(rows)
    assert validation.n_bytes == len("".join(rows).encode()) == len(validation.tokens) - 3
    assert decoded(corpus, "validation").replace("<|endoftext|>", "") == "".join(rows)
    assert corpus.describe()["validation"] == "validation (27 rows, not as published)"


def published(monkeypatch, cfg: DataConfig, name: str, digests: bool) -> None:
    """Let what `cfg` reads be what was published under a name, with its digests or by rows and bytes alone."""
    folder = SOURCES[name].folder
    found = {split: read_split(cfg, split) for split in SPLITS}
    sizes = {split: (part["rows"], part["bytes"]) for split, part in found.items()}
    monkeypatch.setitem(wikitext._PUBLISHED, folder, sizes)
    known = {(folder, split): part["digest"] for split, part in found.items()} if digests else {}
    monkeypatch.setattr(wikitext, "_DIGESTS", known)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(
    ("change", "digests"),
    [
        (lambda rows: [*rows, ""], False),
        (lambda rows: rows[:-1], True),
        (lambda rows: [*rows[:-1], rows[-1] + "more words, many of them, to be seen\n"], False),
        (lambda rows: [row.replace("Section", "Sektion") for row in rows], True),
    ],
    ids=["a row more", "a row fewer", "more bytes", "other words of equal length"],
)
def test_a_text_is_called_wikitext_where_it_is_what_was_published(
    wikitext_folder, cache, monkeypatch, capsys, split, change, digests
):
    """By its rows, its bytes and its digest; whatever the name of its file."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    cfg = DataConfig(name="wikitext2", path=str(wikitext_folder), tokenizer="bytes", seq_len=32)
    cfg.cache_dir = str(cache)
    published(monkeypatch, cfg, "wikitext2", digests)
    names = {one: f"wikitext-2-raw-v1 {one}" for one in SPLITS}
    assert prepare(cfg, progress=False).labels == names
    (file, *others) = sorted(wikitext_folder.glob(f"{split}-*"))
    rows = [row for one in (file, *others) for row in pq.read_table(one)["text"].to_pylist()]
    for one in others:
        one.unlink()
    pq.write_table(pa.table({"text": change(rows)}), file)
    labels = prepare(cfg).labels
    assert "wikitext" not in labels.pop(split)
    assert labels == {one: name for one, name in names.items() if one != split}
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("notice:")]
    assert f"is not wikitext-2-raw-v1 as published; its text is called {split} (" in line


def test_training_split_replaced(wikitext_folder, cache, tmp_path, article_rows):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for file in wikitext_folder.glob("train-*"):
        file.unlink()
    other = tmp_path / "other-train-00000-of-00001.parquet"
    pq.write_table(pa.table({"text": article_rows(7, seed=9)}), other)
    cfg = DataConfig(name="wikitext103", path=str(wikitext_folder), train_path=str(other), tokenizer="bytes")
    cfg.cache_dir, cfg.seq_len = str(cache), 32
    for place in (other, tmp_path, tmp_path / "other-*.parquet"):
        cfg.train_path = str(place)
        corpus = prepare(cfg, progress=False)
        assert corpus.splits["train"].n_documents == 7
        assert corpus.labels["train"] == "other-train"
    assert len(list((cache / "corpora").iterdir())) == 1


def test_a_blank_row_more_is_another_corpus(cache, tmp_path, article_rows):
    """The text is the same, but a row end is a word, which word perplexity is an average over."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    found = []
    for blanks in (0, 1, 0):
        for split in SPLITS:
            rows = article_rows(3) + [""] * blanks * (split == "test")
            pq.write_table(pa.table({"text": rows}), tmp_path / f"{split}-00000-of-00001.parquet")
        cfg = DataConfig(
            name="wikitext2", path=str(tmp_path), tokenizer="bytes", seq_len=32, cache_dir=str(cache)
        )
        corpus = prepare(cfg, progress=False)
        found.append((corpus.fingerprint, corpus.splits["test"].n_words))
    plain, more, again = found
    assert again == plain
    assert more[0] != plain[0]
    assert more[1] == plain[1] + 1


class Hub:
    """A stand-in for the package datasets that has rows of one commit and gives them whatever it is asked for.

    So does the real one (5.2) where it cannot reach the hub and has a copy.
    """

    def __init__(self, rows: list[str], commit: str) -> None:
        self.rows, self.commit = rows, commit

    def load_dataset(self, repository, folder, revision, split):
        files = {f"hf://datasets/{repository}@{self.commit}/{folder}/{split}-00000-of-00001.parquet": {}}
        info = SimpleNamespace(download_checksums=files)
        return SimpleNamespace(info=info, iter=lambda batch_size: iter([{"text": self.rows}]))


@pytest.mark.parametrize("asked", [None, wikitext.REVISION, "c" * 40])
def test_a_copy_of_another_revision_is_not_taken_for_the_one_asked_for(
    monkeypatch, cache, article_rows, asked
):
    """Neither by its commit nor, where a copy calls itself by the right one, by its text."""
    rows, wanted = article_rows(4), asked or wikitext.REVISION
    cfg = DataConfig(name="wikitext2", revision=asked, tokenizer="bytes", seq_len=32, cache_dir=str(cache))
    monkeypatch.setitem(sys.modules, "datasets", Hub(rows, "a" * 40))
    for entry in (fingerprint, prepare):
        with pytest.raises(UserError, match="another text came: it is of revision aaaaaaaaaaaa"):
            entry(cfg)
    monkeypatch.setitem(sys.modules, "datasets", Hub(rows, wanted))
    if asked == "c" * 40:
        corpus = prepare(cfg, progress=False)
        assert corpus.describe()["train"] == "wikitext-2-raw-v1 train of revision cccccccccccc"
        assert corpus.describe()["revision"] == asked
        return
    with pytest.raises(UserError, match="another text came: train has 36 rows"):
        prepare(cfg)
    published(monkeypatch, cfg, "wikitext2", digests=True)
    corpus = prepare(cfg, progress=False)
    assert corpus.describe()["train"] == "wikitext-2-raw-v1 train"
    assert corpus.describe()["revision"] == wanted


@pytest.mark.parametrize("revision", ["main", "b08601e", "v1.0"])
def test_a_revision_is_a_whole_commit(cache, revision):
    """What a branch, a tag or a beginning stands for is known to the hub alone, and changes."""
    with pytest.raises(UserError, match="must be a full commit hash"):
        check(DataConfig(name="wikitext2", revision=revision, cache_dir=str(cache)))


@pytest.mark.parametrize("name", ["wikitext103", "wikitext2"])
def test_the_hub_is_asked_for_the_commit_that_was_given(monkeypatch, tmp_path, article_rows, name):
    asked = []

    def load_dataset(repository, folder, revision, split):
        asked.append((repository, folder, revision, split))
        return SimpleNamespace(iter=lambda batch_size: iter([{"text": article_rows(2)}]))

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    source, given, plain = SOURCES[name], DataConfig(name=name, revision="c0ffee"), DataConfig(name=name)
    for cfg in (given, plain):
        assert texts(cfg, "test", tmp_path) == [
            document.text for document in wikitext.articles([article_rows(2)])
        ]
    place = "Salesforce/wikitext", source.folder
    assert asked == [(*place, "c0ffee", "test"), (*place, wikitext.REVISION, "test")]
    assert source.stamp(given) != source.stamp(plain), "nor is what was read of another commit taken for it"


# the standard library


def test_prose_of_a_module():
    source = '''#!/usr/bin/env python
# Copyright of somebody who wrote this
# on two lines.
"""The module says what it is for."""
x = """
# not a comment but a line of a string
"""
y = 1  # a comment behind code is left out
# too few words


class A:
    """A class with a docstring here."""

    def method(self, a, *, b=2):
        """Do something to a and b.

        At length.
        """
        # ------------
        # x = 1
        # Explains the line that follows below.
        return f"""
        # nor is this one here a comment
        """

        def inner():
            """Inner functions count as well."""
'''
    assert module_blocks(source) == [
        "Copyright of somebody who wrote this\non two lines.",
        "The module says what it is for.",
        "class A\n\n    A class with a docstring here.",
        "A.method(self, a, *, b=2)\n\n    Do something to a and b.\n\n    At length.",
        "------------\nx = 1\nExplains the line that follows below.",
        "A.method.inner()\n\n    Inner functions count as well.",
    ]


@pytest.mark.long
def test_pydocs(cache):
    cfg = DataConfig(cache_dir=str(cache))
    check(cfg)
    assert not cache.exists()
    corpus = prepare(cfg, progress=False)
    train, validation, test = (corpus.splits[split] for split in SPLITS)
    # Pythons differ: 3.13 has 3.0 MB in 464 training documents, 3.11 more. 18 of 20 names are for training.
    assert train.n_bytes > 2_000_000
    assert min(validation.n_bytes, test.n_bytes) > 50_000
    documents = [split.n_documents for split in (train, validation, test)]
    assert sum(documents) > 300
    assert 0.8 < documents[0] / sum(documents) < 0.97
    assert corpus.tokenizer.vocab_size == 4096
    assert 0.25 < len(train.tokens) / train.n_bytes < 0.35
    assert prepare(cfg, progress=False).fingerprint == corpus.fingerprint == fingerprint(cfg)
    paragraphs = {
        split: {block for block in decoded(corpus, split).split("\n\n") if len(" ".join(block.split())) >= 60}
        for split in SPLITS
    }
    assert not paragraphs["train"] & (paragraphs["validation"] | paragraphs["test"])


def test_a_paragraph_stands_in_one_document_of_the_standard_library():
    """Twins and licence headers would otherwise be in training and test; short paragraphs may come again."""
    licence, short = "this is a licence header " * 10, "see above"
    own = {name: f"what the module {name} is for " * 10 for name in "abcd"}
    named = [
        ("a", [licence, own["a"], licence]),
        ("b", [own["b"], short, licence]),
        ("c", [own["c"], short]),
        ("d", [licence, own["d"], short]),
    ]
    found = dict(pydocs._distinct(named))
    assert found["a"] == f"{licence}\n\n{own['a']}\n\n{licence}\n"
    assert found["b"] == f"{own['b']}\n\n{short}\n"
    assert found["c"] == f"{own['c']}\n\n{short}\n"
    assert found["d"] == f"{own['d']}\n\n{short}\n", "seen three documents before"
    assert dict(pydocs._distinct([*named, ("e", [licence, short])])) == found  # too little is left of it


@pytest.mark.parametrize(
    ("place", "label"),
    [
        ("texts", "texts"),
        ("texts/a.txt", "a.txt"),
        ("texts/*.txt", "texts/*.txt"),
        ("texts/**/*.txt", "texts/**/*.txt"),
    ],
)
def test_a_corpus_is_called_by_what_was_given_without_the_place_it_lies_in(tmp_path, place, label):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("words\n" * 100)
    labels = SOURCES["text"].labels(DataConfig(name="text", path=str(tmp_path / place)))
    assert labels["train"] == f"{label} (train part)"


def test_the_standard_librarys_text_is_named_with_pythons_version():
    labels = SOURCES["pydocs"].labels(DataConfig())
    assert set(labels) == {"train", "validation", "test"}
    assert set(labels.values()) == {f"pydocs (Python {platform.python_version()})"}
