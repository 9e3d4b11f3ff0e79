"""data=hf: a folder or a name of the package datasets, streamed into the cache; the real WikiText-103."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import datasets
import huggingface_hub
import pytest

from experiments.configuration.schema import Config
from experiments.data import DataConfig, prepare
from experiments.planning.identity import identify, recorded_config
from experiments.planning.plan import plan, to_record
from zoo import UserError
from zoo.tokenization import from_json

ROWS = [{"body": f"Document {i} says that {i} comes before {i + 1}. " * 8, "n": i} for i in range(60)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The same rows as every kind of file, and as `save_to_disk` writes them."""
    place, made = tmp_path_factory.mktemp("sets"), datasets.Dataset.from_list(ROWS)
    for kind, write in (("parquet", made.to_parquet), ("json", made.to_json), ("csv", made.to_csv)):
        (place / kind).mkdir()
        write(place / kind / f"train.{kind}")
    made.save_to_disk(place / "disk")
    (place / "arrow").mkdir()
    shutil.copy(next((place / "disk").glob("*.arrow")), place / "arrow" / "train.arrow")
    return place


def config(dataset, cache, **more) -> DataConfig:
    options = {"column": "body", "tokenizer": "bytes", "seq_len": 32, "cache_dir": str(cache), **more}
    return DataConfig(name="hf", dataset=str(dataset), **options)


def test_every_kind_of_folder_is_the_same_text(folders, tmp_path):
    found = [
        prepare(config(folders / kind, tmp_path), False)
        for kind in ("parquet", "json", "csv", "arrow", "disk")
    ]
    assert len({corpus.fingerprint for corpus in found}) == 1
    assert sum(split.n_documents for split in found[0].splits.values()) == len(ROWS)
    assert found[0].describe()["train"] == "parquet (train part)"


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_no_more_documents_are_read_than_max_tokens_asks_for(folders, tmp_path, tokenizer):
    corpus = prepare(config(folders / "csv", tmp_path, max_tokens=4000, tokenizer=tokenizer), False)
    read = sum(split.n_bytes for split in corpus.splits.values())
    wanted = 4000 * (4 if tokenizer == "bpe" else 1)
    assert wanted - 400 < read < wanted + 400  # a document has 400 bytes, and counts as a whole


class Hub:
    """A stand-in for the hub and for what `datasets` streams from it."""

    def __init__(self, monkeypatch) -> None:
        self.asked, self.rows, self.sha = [], 0, "a" * 40
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda: self)
        monkeypatch.setattr(datasets, "load_dataset", self.load_dataset)

    def dataset_info(self, name, revision):
        self.asked.append((name, revision))
        return SimpleNamespace(sha=self.sha)

    def load_dataset(self, name, config, *, streaming, revision):
        self.asked.append((name, config, streaming, revision))
        return {"fit": self.stream(), "validation": [{"body": "held out " * 9}], "test": [{"body": None}]}

    def stream(self):
        for row in ROWS:
            self.rows += 1
            yield row


def test_a_name_is_streamed_once_at_the_commit_that_names_the_run(monkeypatch, tmp_path):
    hub = Hub(monkeypatch)
    text = config("org/set", tmp_path, config="en", split="fit", max_tokens=4000)
    planned = plan(Config(data=text, results=str(tmp_path / "results")))
    assert hub.asked == [("org/set", None), ("org/set", "en", True, "a" * 40)]
    assert hub.rows < 15
    assert planned.identity["data"]["revision"] == planned.config.data.revision == "a" * 40
    corpus = prepare(planned.config.data, False)
    assert corpus.describe()["revision"] == "a" * 40
    assert corpus.splits["validation"].n_bytes == len("held out " * 9)
    assert corpus.splits["test"].n_documents > 0  # of the training text: its own has no text
    hub.sha = "b" * 40  # a newer commit, which nobody asked for
    assert plan(Config(data=text, results=str(tmp_path / "results"))).identity == planned.identity
    assert len(hub.asked) == 2
    recorded = recorded_config(to_record(planned)["config"])
    assert identify(recorded, planned.layers, planned.identity["data"]["content"]) == planned.identity
    text.revision = "v2"
    assert plan(Config(data=text, results=str(tmp_path / "results"))).identity != planned.identity


@pytest.mark.parametrize(
    ("dataset", "more", "said"),
    [
        (None, {}, "data=hf needs data.dataset=NAME"),
        ("csv/train.csv", {}, "is a file; give its folder, or data=text data.path="),
        ("csv", {"revision": "a"}, "data.revision is a commit on the hub"),
        ("csv", {"path": "x"}, "data.path=x does not apply to data.name=hf"),
        ("csv", {"column": None}, "'text'. Known: body, n"),
        ("csv", {"column": "n"}, "data.column=n of"),
        ("csv", {"split": "dev"}, "unknown data.split 'dev'. Known: train"),
        ("csv", {"config": "x"}, "BuilderConfig 'x' not found"),
        ("csv", {"name": "pydocs"}, "leave it out, or choose data=hf"),
        ("org/absent", {}, "check the name, data.config and the network"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(folders, tmp_path, monkeypatch, dataset, more, said):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    place = dataset and (dataset if dataset.startswith("org/") else str(folders / dataset))
    name, cache = more.pop("name", "hf"), tmp_path / "cache"
    text = DataConfig(**{"name": name, "dataset": place, "column": "body", "cache_dir": str(cache), **more})
    with pytest.raises(UserError) as caught:
        plan(Config(data=text, results=str(tmp_path / "results")))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not [path for path in cache.rglob("*") if path.is_file()]


@pytest.mark.slow
def test_tokens_words_and_articles(cache):
    place = os.environ.get("ARCHZOO_WIKITEXT")
    if not place:
        pytest.skip("set ARCHZOO_WIKITEXT to the folder that holds wikitext-103-raw-v1 and gpt2")
    folder = Path(place) / "wikitext-103-raw-v1"
    cfg = DataConfig(
        name="wikitext103",
        path=str(folder),
        # The training split is not needed for these counts.
        train_path=str(next(folder.glob("validation-*.parquet"))),
        tokenizer="gpt2",
        gpt2_path=str(Path(place) / "gpt2"),
        cache_dir=str(cache),
    )
    corpus = prepare(cfg, progress=False)
    for name, tokens, words in (("validation", 247_289, 217_646), ("test", 283_287, 245_569)):
        split = corpus.splits[name]
        assert split.n_documents == 60
        assert len(split.tokens) - split.n_documents == tokens
        assert split.n_words == words
    assert corpus.tokenizer.vocab_size == 50_257
    assert corpus.tokenizer.bos_id == 50_256
    sample = corpus.splits["test"].tokens[1:20_000]
    text = corpus.tokenizer.decode(sample)
    assert from_json(corpus.tokenizer.to_json()).encode(text.split("<|endoftext|>")[0]) == list(
        sample[: list(sample).index(50_256)] if 50_256 in sample else sample
    )
