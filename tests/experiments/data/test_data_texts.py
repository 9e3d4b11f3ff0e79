"""Texts as people bring them: splits by the names of files, tables, packed files, and a line of what was read."""

import csv
import gzip
import io
import json
import time
from pathlib import Path

import pytest
from support.sample_text import prose

from experiments.data import check, fingerprint, prepare
from experiments.data.sources import SOURCES, SPLITS
from experiments.scoring.evaluate import read_splits
from zoo.errors import UserError
from zoo.tokenization import ByteTokenizer

PARTS = {split: prose(30, seed) for seed, split in enumerate(SPLITS)}


def texts(cfg, split, tmp_path):
    return [document.text for document in SOURCES["text"].documents(cfg, split, tmp_path)]


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    return folder


# splits by name

TRIPLES = [
    ("train.txt", "valid.txt", "test.txt"),
    ("training.text", "validation.md", "TEST.TXT"),
    ("Train.txt", "val.txt", "test.txt"),
    ("wiki.train.raw", "wiki.valid.raw", "wiki.test.raw"),
    ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"),
    ("corpus.train.txt", "corpus.dev.txt", "corpus.test.txt"),
    ("my_corpus-train.txt", "my_corpus-dev.txt", "my_corpus-test.txt"),
    ("train-00000-of-00001.txt", "validation-00000-of-00001.txt", "test-00000-of-00001.txt"),
    ("train-v1.1.txt", "dev-v1.1.txt", "test-v1.1.txt"),
    ("train_clean.txt", "dev_clean.txt", "test_clean.txt"),
    ("train1.txt", "dev1.txt", "test1.txt"),
    ("wikiTrain.txt", "wikiValid.txt", "wikiTest.txt"),
    ("wiki_train_part1.txt", "wiki_dev_part1.txt", "wiki_test_part1.txt"),
    ("my train set (1).txt", "my dev set (1).txt", "my test set (1).txt"),
    ("trn.txt", "development.txt", "tst.txt"),
    ("train.txt", "devel.txt", "held-out.txt"),
    ("train.txt.raw", "valid.txt.raw", "test.txt.raw"),
    ("train.txt", "dev.txt", "news_test_plain.txt"),
    ("train/test_1.txt", "valid/train_1.txt", "test/0_9.txt"),
    ("train-clean/a.txt", "dev-clean/b.txt", "test-clean/c.txt"),
    ("Training_Data/a.txt", "Validation_Data/b.txt", "Test_Data/c.txt"),
    ("en/train/a.txt", "en/val/a.txt", "en/test/a.txt"),
]


@pytest.mark.parametrize("names", TRIPLES, ids=lambda names: names[0])
def test_splits_that_names_tell_are_used_as_they_are(config, tmp_path, names, capsys):
    folder = write(tmp_path / "texts", dict(zip(names, PARTS.values(), strict=True)))
    for place in (folder, folder / "**" / "*.*"):
        cfg = config(path=str(place))
        assert {split: texts(cfg, split, tmp_path) for split in SPLITS} == {s: [t] for s, t in PARTS.items()}
    prepare(config(path=str(folder)))
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("notice:")]
    for split, name in zip(SPLITS, names, strict=True):
        assert f"{split} from {Path(name).name}" in line


@pytest.mark.parametrize(
    ("stem", "packed"), [("corpus.", ""), ("corpus.", ".gz"), ("", ".gz"), ("my_", ".gz")]
)
def test_splits_of_a_text_may_have_suffixes_of_their_own(config, tmp_path, stem, packed):
    """Or that of packing alone."""
    (tmp_path / "texts").mkdir()
    for split, name in zip(SPLITS, ("train", "dev", "test"), strict=True):
        raw = PARTS[split].encode()
        (tmp_path / "texts" / f"{stem}{name}{packed}").write_bytes(gzip.compress(raw) if packed else raw)
    for place in (tmp_path / "texts", tmp_path / "texts" / "*"):
        cfg = config(path=str(place))
        assert {split: texts(cfg, split, tmp_path) for split in SPLITS} == {s: [t] for s, t in PARTS.items()}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("corpus.train", bytes(range(256))),
        ("train.gz", gzip.compress(b"a\0b", mtime=0)),
        ("train.gz", b"no gzip"),
    ],
)
def test_a_suffix_that_is_a_splits_name_does_not_make_a_text(config, tmp_path, name, content):
    folder = write(tmp_path / "t", {"test.txt": PARTS["test"], "README.md": PARTS["train"]})
    (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"no training text \(left out: \*{Path(name).suffix}, README.md"):
        check(config(path=str(folder)))


def test_equal_documents_of_a_split_that_was_given_all_count(config, tmp_path):
    """What was published is not changed."""
    rows = [prose(2, i % 3) for i in range(6)]
    table = "".join(json.dumps({"text": row}) + "\n" for row in rows)
    folder = write(tmp_path / "t", {"train.jsonl": table, "valid.jsonl": table, "test.jsonl": table})
    for split in SPLITS:
        assert texts(config(path=str(folder)), split, tmp_path) == rows


@pytest.mark.parametrize("missing", ["validation", "test"])
@pytest.mark.parametrize("many", [False, True], ids=["one file", "many files"])
def test_a_split_that_no_name_tells_is_taken_from_the_training_text(config, tmp_path, missing, many):
    """And the other one stays what it is."""
    (given,) = {"validation", "test"} - {missing}
    training = [prose(20, i) for i in range(40 if many else 1)]
    files = {f"train-{i:02d}.txt": text for i, text in enumerate(training)} | {f"{given}.txt": PARTS[given]}
    cfg = config(path=str(write(tmp_path / "t", files)))
    found = {split: texts(cfg, split, tmp_path) for split in SPLITS}
    assert found[given] == [PARTS[given]]
    if many:
        assert sorted(found["train"] + found[missing]) == sorted(training)
        assert len(found[missing]) == 2
    else:
        assert found["train"][0] + found[missing][0] == training[0]
        assert 0.02 < len(found[missing][0]) / len(training[0]) < 0.08


def test_beside_a_test_text_the_rest_is_for_training(config, tmp_path, capsys):
    folder = write(tmp_path / "t", {"corpus.txt": PARTS["train"], "test.txt": PARTS["test"]})
    cfg = config(path=str(folder))
    assert texts(cfg, "test", tmp_path) == [PARTS["test"]]
    assert texts(cfg, "train", tmp_path) + texts(cfg, "validation", tmp_path) != []
    assert "".join(texts(cfg, "train", tmp_path) + texts(cfg, "validation", tmp_path)) == PARTS["train"]
    check(cfg)
    assert "validation from the end of each document for training" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["{}.txt", "{}_clean.txt", "wiki_{}_part1.txt", "{}-clean/a.txt"])
def test_what_is_of_no_split_is_left_out_and_named(config, tmp_path, capsys, name):
    names = {name.format(split): text for split, text in PARTS.items()}
    folder = write(tmp_path / "t", {**names, "README.md": "about this text " * 20})
    check(config(path=str(folder)))
    assert "left out: README.md (of no split)" in capsys.readouterr().err
    assert texts(config(path=str(folder)), "train", tmp_path) == [PARTS["train"]]


def test_several_files_of_a_split_are_all_of_it(config, tmp_path):
    names = [f"{split}{i}.txt" for split in ("train", "val", "test") for i in (1, 2)]
    folder = write(tmp_path / "t", {name: prose(30, i) for i, name in enumerate(names)})
    for i, split in enumerate(SPLITS):
        assert texts(config(path=str(folder)), split, tmp_path) == [prose(30, 2 * i), prose(30, 2 * i + 1)]


@pytest.mark.parametrize(
    "names",
    [
        ["notes.txt", "my_test.txt"],
        ["train.txt", "training.txt"],
        ["training_dogs.md", "testing_cars.md", "tea.md"],
    ],
    ids=str,
)
def test_names_that_tell_no_two_splits_tell_nothing(config, tmp_path, names):
    folder = write(tmp_path / "t", {name: prose(30, i) for i, name in enumerate(names)})
    cfg = config(path=str(folder))
    parts = [texts(cfg, split, tmp_path) for split in SPLITS]
    assert sorted(map("".join, zip(*parts, strict=True))) == sorted(prose(30, i) for i in range(len(names)))


@pytest.mark.parametrize(
    ("names", "left_out"),
    [
        (["train.doc", "test.txt"], "(left out: *.doc)"),
        (["train.txt.zst", "wiki_test.txt"], "(left out: train.txt.zst)"),
        (["train.txt.zst", "test.txt", "README.md"], "(left out: README.md (of no split), train.txt.zst)"),
        (["train.bin", "test.txt", "README.md"], "(left out: *.bin, README.md (of no split))"),
        (["wiki.train.npy", "wiki_test.txt", "notes.md"], "(left out: *.npy, notes.md (of no split))"),
        (
            ["train/0001", "test/test.txt", "README.md"],
            "(left out: README.md (of no split), files without a suffix)",
        ),
        (["test.txt"], ""),
        (["eval.txt", "testing.md"], ""),
    ],
    ids=str,
)
def test_what_is_called_a_test_is_not_trained_on_where_the_training_text_was_left_out(
    config, tmp_path, names, left_out
):
    folder = write(tmp_path / "t", {name: prose(30, i) for i, name in enumerate(names)})
    with pytest.raises(
        UserError, match="has only test files, by their names, and no training text"
    ) as refused:
        check(config(path=str(folder)))
    assert left_out in str(refused.value)
    by_itself = next(folder.rglob("*test*.txt"), folder / "eval.txt")
    check(config(path=str(by_itself)))  # is a text like others


@pytest.mark.parametrize("name", ["train.py", "train.log", "train/run.yaml"])
def test_what_is_called_after_what_it_does_is_no_training_text(config, tmp_path, name):
    names = {"book.txt": PARTS["train"], "test.txt": PARTS["test"], name: "x"}
    cfg = config(path=str(write(tmp_path / "t", names)))
    assert "".join(texts(cfg, "train", tmp_path) + texts(cfg, "validation", tmp_path)) == PARTS["train"]


def test_a_table_without_the_column_does_not_leave_its_test_file_to_train_on(config, tmp_path):
    rows = {"train.jsonl": '{"content": "x"}\n', "test.jsonl": '{"text": "a b c"}\n{"text": "d e f"}\n'}
    folder = write(tmp_path / "t", rows)
    with pytest.raises(UserError, match=r"no training text \(left out: train.jsonl \(no column 'text'\)\)"):
        check(config(path=str(folder)))


def test_what_is_beside_the_texts_does_not_stand_in_for_them(config, tmp_path):
    """A README is not trained on where no file of the splits can be read."""
    rows, readme = '{"content": "x"}\n', {"README.md": prose(30)}
    folder = write(tmp_path / "tables", {"train.jsonl": rows, "test.jsonl": rows, **readme})
    with pytest.raises(UserError, match=r"has no column 'text' \(it has content\)"):
        check(config(path=str(folder)))
    folder = write(tmp_path / "packed", {"train.txt.zst": "x", "test.txt.zst": "x", **readme})
    with pytest.raises(UserError, match=r"e.g. test.txt.zst; decompress them"):
        check(config(path=str(folder)))
    folder = write(tmp_path / "binary", {"train.bin": "x", "val.bin": "x", **readme})
    with pytest.raises(
        UserError, match=r"cannot read .*, e.g. train.bin; .* give a glob of the files to read"
    ):
        check(config(path=str(folder)))
    assert texts(config(path=str(folder / "*.md")), "train", tmp_path)


@pytest.mark.slow
def test_splits_of_a_folder_are_not_those_that_another_path_to_its_files_told(config, tmp_path):
    folder = write(tmp_path / "t", {f"test/{i}.txt": prose(30, i) for i in range(3)})
    time.sleep(2.1)  # what was read of a file is kept once the file is no longer new
    fingerprint(config(path=str(folder / "test")))
    with pytest.raises(UserError, match="no training text"):
        fingerprint(config(path=str(folder)))


def test_json_lines_under_another_name_are_told_of(config, tmp_path, capsys):
    folder = write(tmp_path / "t", {"lines.txt": '{"text": "a"}\n' * 60})
    check(config(path=str(folder)))
    assert "lines of lines.txt are JSON objects, read as they stand" in capsys.readouterr().err


def test_text_for_scoring_alone_is_no_text_to_train_on(config, tmp_path):
    folder = write(tmp_path / "t", {"wiki.valid.raw": PARTS["validation"], "wiki.test.raw": PARTS["test"]})
    with pytest.raises(
        UserError, match="has only validation and test files, by their names, and no training text"
    ):
        check(config(path=str(folder)))
    (whole,) = read_splits(config(path=str(folder)), [], ByteTokenizer())
    assert whole.split.n_documents == 2


# tables

ROWS = [prose(2, i) for i in range(40)]


def parquet(kind):
    def make(rows) -> bytes:
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        values = [row and row.encode() for row in rows] if "binary" in str(kind) else rows
        out = io.BytesIO()
        array = pa.array(values) if kind is None else pa.array(values).cast(kind(pa))
        gaps = pa.array([None if i % 3 else i for i in range(len(rows))], pa.int64())
        try:
            pq.write_table(pa.table({"id": gaps, "text": array}), out, row_group_size=7)
        except pa.ArrowNotImplementedError as error:  # views, before 19
            pytest.skip(f"this pyarrow does not write them: {error}")
        return out.getvalue()

    return make


def lines(rows) -> bytes:
    return "".join(
        json.dumps({"id": i, "meta": {"a": [1]}, "text": row}) + "\n" for i, row in enumerate(rows)
    ).encode()


def separated(separator: str):
    def make(rows) -> bytes:
        out = io.StringIO()
        writer = csv.writer(out, delimiter=separator)
        writer.writerows([["id", "text"], *([i if i % 3 else "", row] for i, row in enumerate(rows))])
        return out.getvalue().encode()

    return make


KINDS = {
    "strings.parquet": parquet(lambda pa: pa.string()),
    "large.PARQUET": parquet(lambda pa: pa.large_string()),
    "view.parquet": parquet(lambda pa: pa.string_view()),
    "category.parquet": parquet(lambda pa: pa.dictionary(pa.int32(), pa.string())),
    "large_category.parquet": parquet(lambda pa: pa.dictionary(pa.int8(), pa.large_string())),
    "bytes.parquet": parquet(lambda pa: pa.binary()),
    "a.csv": separated(","),
    "marked.csv": lambda rows: b"\xef\xbb\xbf" + separated(",")(rows),
    "semicolons.csv": separated(";"),
    "a.tsv": separated("\t"),
    "a.jsonl": lines,
    "A.JSONL": lines,
    "a.ndjson": lines,
    "a.json": lines,
    "list.json": lambda rows: json.dumps([{"text": row} for row in rows], indent=1).encode(),
    "absent_keys.jsonl": lambda rows: b"".join(
        json.dumps({"id": i} if row is None else {"text": row}).encode() + b"\n" for i, row in enumerate(rows)
    ),
}
KINDS |= {
    f"{name}.gz": lambda rows, make=make: gzip.compress(make(rows))
    for name, make in KINDS.items()
    if "parquet" not in name.lower()
}


@pytest.mark.parametrize("name", KINDS)
def test_a_table_is_read_by_its_column_a_document_a_row(config, tmp_path, name):
    """Beside other columns, with numbers and gaps in them; rows without a text are no documents."""
    rows = [*ROWS[:11], None, *ROWS[11:]]
    (tmp_path / name).write_bytes(KINDS[name](rows))
    plain = write(tmp_path / "plain", {f"{i:02d}.txt": row for i, row in enumerate(ROWS)})
    cfg = config(path=str(tmp_path / name))
    found = [text for split in SPLITS for text in texts(cfg, split, tmp_path)]
    assert sorted(found) == sorted(ROWS)
    assert fingerprint(cfg) == fingerprint(config(path=str(plain))), "the same text in files"


def test_values_that_look_like_gaps_or_numbers_stay_what_they_are(config, tmp_path):
    rows = ["NA", "null", "nan", "007", "1e3", "True", "-", "a, b", 'say "x"', "two\nlines", *ROWS]
    for name in ("a.csv", "a.tsv", "a.jsonl", "strings.parquet"):
        (tmp_path / name).write_bytes(KINDS[name](rows))
        found = [t for split in SPLITS for t in texts(config(path=str(tmp_path / name)), split, tmp_path)]
        assert sorted(found) == sorted(rows), name


def test_a_text_longer_than_a_csv_reader_expects_is_one_document(config, tmp_path):
    long = prose(3000)
    csv.field_size_limit(131_072)  # its own
    assert len(long) > 2 * csv.field_size_limit()
    (tmp_path / "a.csv").write_bytes(KINDS["a.csv"]([long]))
    cfg = config(path=str(tmp_path / "a.csv"))
    assert "".join(text for split in SPLITS for text in texts(cfg, split, tmp_path)) == long


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "list.json", "strings.parquet", "a.csv.gz"])
def test_another_column_can_be_named(config, tmp_path, name):
    (tmp_path / name).write_bytes(KINDS[name](ROWS))
    cfg = config(path=str(tmp_path / name), text_column="body")
    with pytest.raises(UserError, match=r"no column 'body' \(it has .*text.*\); .*data.text_column="):
        check(cfg)
    if "parquet" not in name and "list" not in name:
        renamed = KINDS["a.csv"](ROWS) if "csv" in name else KINDS[name](ROWS)
        renamed = renamed.replace(b"text", b"body", 1 if "sv" in name else -1)
        (tmp_path / name).write_bytes(gzip.compress(renamed) if name.endswith("gz") else renamed)
        assert len([t for split in SPLITS for t in texts(cfg, split, tmp_path)]) == len(ROWS)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"id,text\n1,a,b\n", "line 2 has 3 fields and the first line 2"),
        ("a.csv", b'id,text\n1,"never ends\n', "line 2: unexpected end of data"),
        ("a.csv", b"text,text\na,b\n", "no column 'text'"),
        ("a.csv", b"id,text\n1,caf\xe9\n", "not UTF-8 text: it has the byte 0xe9"),
        ("a.csv", b"", r"no column 'text' \(it has none\)"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "b"\n', "line 2 is not JSON"),
        ("a.jsonl", b'{"text": "a"}\n{"text": 7}\n', "line 2: 'text' is 7, not a string"),
        ("a.jsonl", b'{"text": "a"}\n"b"\n', "line 2 is not of the form"),
        ("a.jsonl", b'{"text": "half \\ud83d"}\n', "row 1 has half of a character"),
        ("a.jsonl", b'{"text": "nul \\u0000"}\n', "row 1 is binary, not text: byte 4 is NUL"),
        ("a.json", b'{"text":\n "a"}\n', "line 1 is not JSON"),
        ("a.txt.gz", b"plain", "is not a complete gzip file"),
        ("a.txt.gz", gzip.compress(b"cut off " * 99, mtime=0)[:-9], "is not a complete gzip file"),
        ("a.parquet", b"PAR1", "cannot be read as parquet"),
        ("a.txt", gzip.compress(b"text", mtime=0), "is gzip: rename it to"),
        ("a.txt", b"PAR1", "is Parquet: rename it to"),
        ("a.zip", b"PK\x03\x04", "is a zip archive: extract it"),
        ("a.xz", b"\xfd7zXZ\x00", "is compressed with xz: decompress it"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_to_do(config, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        check(config(path=str(tmp_path / name)))
    assert "\n" not in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize("kind", ["int64", "float64", "list<item: string>"])
def test_a_column_of_parquet_that_is_no_text_is_refused(config, tmp_path, kind):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    values = {"int64": [1, None], "float64": [1.5, None], "list<item: string>": [["a"], None]}[kind]
    pq.write_table(pa.table({"text": values, "body": ["a", "b"]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"column 'text' holds .*, not strings; name another"):
        check(config(path=str(tmp_path / "a.parquet")))


def test_a_column_is_of_tables(config, text_file):
    with pytest.raises(UserError, match=r"data.text_column=body works for tables"):
        check(config(text_column="body"))
    with pytest.raises(UserError, match=r"data.text_column=body does not apply to data.name=pydocs"):
        check(config(name="pydocs", path=None, text_column="body"))


# folders and globs


def test_a_folder_is_read_as_far_as_it_holds_texts_and_the_rest_is_named(config, tmp_path, capsys):
    kinds = {"a.txt": 0, "b.TXT": 1, "c.text": 2, "d.Md": 3, "deep/e.txt": 4}
    folder = write(tmp_path / "t", {name: prose(20, seed) for name, seed in kinds.items()})
    write(
        folder, {"copy.txt": prose(20, 0), "x.py": "1", "y.py": "2", "Makefile": "all:", ".git/config": "[a]"}
    )
    write(folder, {"package.json": '{\n "name": "text"\n}\n', "numbers.csv": "a,b\n1,2\n"})
    (folder / "f.txt.gz").write_bytes(gzip.compress(prose(20, 5).encode()))
    (folder / "g.jsonl").write_bytes(lines([prose(20, 6), None]))
    (folder / "z.zip").write_bytes(b"PK\x03\x04")
    cfg = config(path=str(folder))
    whole = map("".join, zip(*(texts(cfg, split, tmp_path) for split in SPLITS), strict=True))
    assert sorted(whole) == sorted(prose(20, seed) for seed in range(7))
    check(cfg)
    (line,) = capsys.readouterr().err.splitlines()
    assert "8 files" in line
    for name in ("*.py (2)", "*.zip", "hidden files", "files without a suffix"):
        assert name in line
    (whole,) = read_splits(cfg, [], ByteTokenizer())
    assert whole.split.n_documents == 7


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"package.json": "{\n}"}, "package.json (no column 'text')"),
        ({"numbers.csv": "a,b\n1,2\n"}, "numbers.csv (no column 'text')"),
        ({"a.txt": "the same " * 50, "b.txt": "the same " * 50}, "documents equal to others (1)"),
        (
            {"rows.jsonl": '{"text": "' + "words " * 50 + '"}\n{"text": null}\n{"text": " "}\n'},
            "rows without text (2)",
        ),
    ],
    ids=["no table", "no column", "copies", "gaps"],
)
def test_what_is_left_out_is_said(config, tmp_path, capsys, files, named):
    folder = write(tmp_path / "t", {"book.txt": prose(30), **files})
    check(config(path=str(folder)))
    assert f"left out: {named}" in capsys.readouterr().err


def test_a_folder_of_tables_without_the_column_is_refused_with_the_columns_there_are(config, tmp_path):
    folder = write(tmp_path / "t", {"a.csv": "title,body\n1,2\n"})
    with pytest.raises(UserError, match=r"no column 'text' \(it has title, body\); .*data.text_column="):
        check(config(path=str(folder)))


def test_brackets_in_the_name_of_a_folder_are_no_wild_cards(config, tmp_path):
    folder = write(tmp_path / "texts [raw]", {"a.txt": PARTS["train"], "b.md": PARTS["test"]})
    cfg = config(path=str(folder / "*.txt"))
    assert "".join(text for split in SPLITS for text in texts(cfg, split, tmp_path)) == PARTS["train"]
    assert SOURCES["text"].label(cfg, "train") == "texts [raw]/*.txt (train part)"


def test_a_packed_text_is_the_text_in_it(config, text_file, tmp_path):
    (tmp_path / "book.txt.gz").write_bytes(gzip.compress(text_file.read_bytes()))
    assert fingerprint(config(path=str(tmp_path / "book.txt.gz"))) == fingerprint(config())


def test_files_are_told_of_once(config, capsys):
    for entry in (check, fingerprint, prepare):
        entry(config())
    assert capsys.readouterr().err.count("notice:") == 1
