"""Bad input is refused with a line that says what to do, before anything is written."""

import dataclasses

import pytest

from experiments.data import DataConfig, check, fingerprint, prepare
from zoo.errors import UserError


@pytest.fixture(params=[check, fingerprint, prepare], ids=["check", "fingerprint", "prepare"])
def refused(request, cache):
    """Assert that a configuration is refused by all three entries with nothing left behind."""

    def test(cfg: DataConfig, message: str) -> None:
        with pytest.raises(UserError, match=message) as caught:
            request.param(cfg)
        assert "\n" not in str(caught.value)
        assert not cache.exists()

    return test


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "wikitxt103"}, "unknown data source 'wikitxt103'; did you mean 'wikitext103'"),
        ({"tokenizer": "gpt"}, "unknown tokenizer 'gpt'; did you mean 'gpt2'"),
        ({"pack": "documents"}, "unknown data.pack 'documents'; did you mean 'document'"),
        ({"seq_len": 0}, "data.seq_len=0 must be at least 1"),
        ({"batch_size": 0}, "data.batch_size=0 must be at least 1"),
        ({"tokenizer": "bpe", "vocab_size": 256}, "data.vocab_size=256 is too small"),
        ({"tokenizer": "bpe", "vocab_size": 2**20 + 1}, "data.vocab_size=1048577 must be at most 1048576"),
        ({"path": None}, "data.name=text needs data.path"),
        ({"train_path": "x"}, "data.train_path=x does not apply to data.name=text"),
        ({"name": "pydocs"}, "data.path=.* does not apply to data.name=pydocs; .*data.name=text"),
        (
            {"seq_len": 100_000},
            "the text is too small: training has .* data.seq_len=100000 needs at least 100001",
        ),
    ],
)
def test_settings(config, refused, changes, message):
    refused(config(**changes), message)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "is empty; give a file with text"),
        (b" \n\r\n\t", "is empty"),
        (b"text with a \x00 in it", "is binary, not text: byte 12 is NUL"),
        (b"\x00 at the start", "is binary, not text: byte 0 is NUL"),
        (b"caf\xe9 in latin-1", "is not UTF-8 text: byte 3 is 0xe9; convert it"),
        ("UTF-16".encode("utf-16"), "is not UTF-8 text: byte 0 is 0xff"),
        (b"\xef\xbb\xbfmark \xff", "byte 8 is 0xff"),
        (b"short", "the text is too small"),
    ],
)
def test_text_files(config, refused, tmp_path, raw, message):
    file = tmp_path / "bad.txt"
    file.write_bytes(raw)
    refused(config(path=str(file)), message)


def test_nothing_there(config, refused, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "code.py").touch()
    refused(
        config(path=str(tmp_path / "missing.txt")), "no such file or folder, and as a glob it matches nothing"
    )
    refused(config(path=str(tmp_path / "*.rst")), "matches nothing")
    refused(
        config(path=str(tmp_path / "folder")),
        r"no text in this folder .*; for other names give a glob",
    )


def test_one_bad_file_among_many_is_named(config, refused, tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    for i in range(30):
        (folder / f"{i:02}.txt").write_text(f"note {i} " * 100)
    (folder / "17.txt").write_bytes(b"\x89PNG\r\n")
    refused(config(path=str(folder)), r"17\.txt is not UTF-8 text: byte 0 is 0x89")


def wikitext(folder, cache, **changes) -> DataConfig:
    settings = {"name": "wikitext103", "path": str(folder), "tokenizer": "bytes", "seq_len": 32}
    return DataConfig(**{**settings, "cache_dir": str(cache), **changes})


def test_wikitext_folders(wikitext_folder, refused, cache, tmp_path):
    refused(
        wikitext(tmp_path / "missing", cache),
        "is not a folder; give the folder that holds wikitext-103-raw-v1",
    )
    refused(wikitext(wikitext_folder, cache, revision="abc"), "data.revision is a commit on the hub")
    refused(
        wikitext(wikitext_folder, cache, train_path=str(tmp_path / "x*")), "data.train_path=.*no parquet file"
    )
    for file in wikitext_folder.glob("train-*"):
        file.unlink()
    refused(wikitext(wikitext_folder, cache), "no train-.*give another training text with data.train_path=")
    for file in wikitext_folder.glob("validation-*"):
        file.unlink()
    refused(wikitext(wikitext_folder, cache, train_path=str(wikitext_folder)), r"no validation-\*.parquet in")


def test_wikitext_files(wikitext_folder, refused, cache, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    train = tmp_path / "train.parquet"
    train.write_bytes(b"this is no parquet")
    refused(
        wikitext(wikitext_folder, cache, train_path=str(train)), r"train\.parquet cannot be read as parquet"
    )
    pq.write_table(pa.table({"body": ["x"]}), train)
    refused(wikitext(wikitext_folder, cache, train_path=str(train)), r"no column 'text' \(it has body\)")
    pq.write_table(pa.table({"text": [1]}), train)
    refused(wikitext(wikitext_folder, cache, train_path=str(train)), "column 'text' holds int64, not strings")
    for kind in (pa.string(), pa.binary()):
        pq.write_table(pa.table({"text": pa.array([b"good", b"caf\xe9"], pa.binary()).view(kind)}), train)
        cfg = dataclasses.replace(wikitext(wikitext_folder, cache), name="text", path=str(train))
        refused(cfg, "column 'text' is not UTF-8 text: it has the byte 0xe9; write it again from text")


def test_a_cache_folder_that_is_a_file(config, text_file):
    for entry in (check, fingerprint, prepare):
        with pytest.raises(UserError, match=r"data.cache_dir=.* is a file"):
            entry(config(cache_dir=str(text_file)))


def test_too_few_tokens_although_enough_bytes(config, tmp_path):
    file = tmp_path / "short.txt"
    file.write_text("the same words again and again\n" * 40)
    cfg = config(path=str(file), tokenizer="bpe", vocab_size=400, seq_len=1000)
    check(cfg)
    with pytest.raises(UserError, match=r"training has \d+ tokens.*data.seq_len=1000"):
        prepare(cfg, progress=False)


@pytest.mark.slow
def test_the_hub_out_of_reach(cache, monkeypatch, tmp_path):
    datasets = pytest.importorskip("datasets")
    # Offline mode is what the libraries themselves offer for a machine without a network.
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    cfg = DataConfig(name="wikitext2", tokenizer="bytes", cache_dir=str(cache))
    check(cfg)
    with pytest.raises(UserError, match=r"cannot get Salesforce/wikitext .* local folder .* data.path="):
        prepare(cfg, progress=False)
    assert not cache.exists()
