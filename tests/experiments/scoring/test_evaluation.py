"""Scores against a computation by hand: one token after the other, each with exactly the context it may have."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from support.program import Lab, write_text

from experiments import data
from experiments.data import DataConfig, Split
from experiments.data.sources.base import Document
from experiments.runs import LoadedRun, RunFolder, load_corpus
from experiments.scoring.text import format_metrics, score_split
from zoo import LanguageModel, ModelConfig
from zoo.config import from_dict
from zoo.errors import UserError

T = 12


@pytest.fixture
def model() -> LanguageModel:
    """Random weights, scaled so that what the context is matters."""
    config = ModelConfig(pattern="SF", depth=2, d_model=16, n_heads=2)
    made = LanguageModel(config, vocab_size=257, seq_len=T, seed=3)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() == 2:
                parameter.mul_(12)
    return made.eval()


@pytest.fixture
def documents(tmp_path: Path) -> data.Corpus:
    """Three short documents, cut into splits each."""
    folder = tmp_path / "books"
    folder.mkdir()
    for seed in range(3):
        write_text(folder / f"{seed}.txt", paragraphs=4, seed=seed)
    cfg = DataConfig(
        name="text", path=str(folder), tokenizer="bytes", seq_len=T, cache_dir=str(tmp_path / "cache")
    )
    return data.prepare(cfg)


def nats_by_hand(model: LanguageModel, tokens: np.ndarray, stride: int, bos: int | None = None) -> float:
    """Σ −ln p(token i | its context), i = 1 … N−1.

    Windows end at T, T + stride, T + 2·stride, … and at the last token; token i belongs to the first window that
    reaches it and sees what that window holds before it: from the window's start, or (packing) from the last
    separator before i if that comes later.
    """
    last, total = len(tokens) - 1, 0.0
    for i in range(1, last + 1):
        end = T
        while end < min(i, last):
            end += stride
        start = max(0, min(end, last) - T)
        if bos is not None:
            start = max([start, *(j for j in range(start, i) if tokens[j] == bos)])
        context = torch.tensor(tokens[start:i].astype(np.int64))[None]
        with torch.no_grad():
            logits, _ = model(context)
        total -= float(logits[0, -1].double().log_softmax(0)[int(tokens[i])])
    return total


@pytest.mark.parametrize("packed", [False, True], ids=["stream", "document"])
@pytest.mark.parametrize("stride", [1, T // 2, T])
def test_every_token_once_with_its_context(model, documents: data.Corpus, stride: int, packed: bool):
    split = documents.splits["test"]
    bos = documents.tokenizer.bos_id if packed else None
    assert (split.tokens == documents.tokenizer.bos_id).sum() == 3
    assert len(split.tokens) > 4 * T
    score = score_split(model, split, stride=stride, batch_size=5, document_bos=bos)
    assert score.tokens == len(split.tokens) - 1
    assert score.nats == pytest.approx(nats_by_hand(model, split.tokens, stride, bos), rel=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_scoring_evaluates_and_leaves_the_model_as_it_was(training: bool):
    """A balanced mixture of experts counts what it sees in training, and moves its routing by that."""
    model = LanguageModel(
        from_dict(ModelConfig, {"pattern": "S", "d_model": 16, "n_heads": 2, "channel": {"name": "moe"}}),
        vocab_size=257,
        seq_len=T,
    ).train(training)
    before, modes = {name: x.clone() for name, x in model.state_dict().items()}, set()
    for module in model.modules():
        module.register_forward_pre_hook(lambda module, _: modes.add(module.training))
    tokens = np.random.default_rng(0).integers(0, 257, 40).astype(np.uint16)
    score_split(model, Split(tokens, 1, 1, 1), stride=5, batch_size=3)
    assert modes == {False}
    assert {module.training for module in model.modules()} == {training}
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_scores_are_taken_in_the_precision_that_is_asked_for(model, precision: str):
    seen = []
    model.layers[0].register_forward_pre_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    tokens = np.random.default_rng(0).integers(0, 257, 20).astype(np.uint16)
    score_split(model, Split(tokens, 1, 1, 1), stride=T, batch_size=3, precision=precision)
    assert set(seen) == {precision == "bf16"}


def test_metrics_are_normalised_by_the_raw_text(model, documents: data.Corpus):
    split = documents.splits["test"]
    # Byte tokens are the raw text: read it back, a document at a time.
    ids = split.tokens.tolist()
    starts = [i for i, token in enumerate(ids) if token == documents.tokenizer.bos_id]
    pieces = [ids[a + 1 : b] for a, b in zip(starts, [*starts[1:], len(ids)], strict=True)]
    texts = [bytes(piece).decode() for piece in pieces]
    words = sum(len(text.split()) + len(text.splitlines()) for text in texts)
    size = sum(len(text.encode()) for text in texts)
    nats = nats_by_hand(model, split.tokens, T // 2)
    m = score_split(model, split, stride=T // 2, batch_size=4).metrics()
    assert (m["words"], m["bytes"], m["tokens"], m["stride"]) == (words, size, len(ids) - 1, T // 2)
    assert m["loss"] == pytest.approx(nats / (len(ids) - 1), rel=1e-5)
    assert m["perplexity"] == pytest.approx(math.exp(nats / (len(ids) - 1)), rel=1e-4)
    assert m["word_perplexity"] == pytest.approx(math.exp(nats / words), rel=1e-3)
    assert m["bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)


@pytest.mark.parametrize(
    ("text", "has_words"), [("two words. " * 200, True), ("ACGT" * 500, False), ("語" * 50, False)]
)
def test_word_perplexity_is_of_words(model, text: str, has_words: bool):
    """A text without blanks has none: the number would be e to the nats of all of it."""
    tokens = np.frombuffer(text.encode(), np.uint8).astype(np.uint16)
    words = Document(text, rows=1).n_words
    m = score_split(model, Split(tokens, words, len(tokens), 1), stride=T, batch_size=4).metrics()
    assert (m["word_perplexity"] is not None) == has_words
    assert ("word perplexity" in format_metrics("test", m, "text")) == has_words
    assert "inf" not in format_metrics("test", m, "text")


@pytest.mark.slow
def test_job_evaluate_prints_the_numbers_of_the_summary(finished: Lab):
    folder = finished.run_folder()
    expected = RunFolder(folder).summary()["metrics"]["test"]
    outcome = finished.done("job=evaluate", f"run={folder}")
    line = next(line for line in outcome.out.splitlines() if line.startswith("test: "))
    for text in (
        f"loss {expected['loss']:.4f} nats",
        f"word perplexity {expected['word_perplexity']:.2f},",
        f"{expected['bits_per_byte']:.4f} bits/byte",
        f"stride {expected['stride']})",
    ):
        assert text in line
    other = finished.here("job=evaluate", f"run={folder}", "evaluate.stride=32").out
    assert "stride 32)" in other
    assert re.findall(r"loss ([\d.]+)", other) != re.findall(r"loss ([\d.]+)", line)


@pytest.mark.parametrize(
    ("splits", "says"),
    [
        ("[test,validatoin]", "unknown evaluate.splits[1] 'validatoin'; did you mean 'validation'?"),
        ("[]", "evaluate.splits is empty"),
    ],
)
@pytest.mark.parametrize("carry", [False, True])
def test_splits_that_there_are_not_are_refused_before_any_is_scored(finished: Lab, splits, says, carry):
    words = f"run={finished.run_folder()}", f"evaluate.splits={splits}", f"evaluate.carry={carry}"
    outcome = finished.here("job=evaluate", *words)
    assert (outcome.status, outcome.out) == (2, "")
    assert says in outcome.err


def test_text_that_gives_another_tokenizer_of_as_many_entries_is_refused(tmp_path: Path):
    """Its tokens mean something else to the model, and its score would be of noise."""
    texts = []
    for name, letters in (("own", "abcde"), ("other", "vwxyz")):
        (tmp_path / name).write_text(
            "".join(f"{a}{b}{c} " for a in letters for b in letters for c in letters) * 5
        )
        texts.append(str(tmp_path / name))
    options = {
        "name": "text",
        "tokenizer": "bpe",
        "vocab_size": 262,
        "seq_len": T,
        "cache_dir": str(tmp_path / "cache"),
    }
    own, other = (DataConfig(path=path, **options) for path in texts)
    trained, strange = (data.prepare(cfg, progress=False).tokenizer for cfg in (own, other))
    assert trained.vocab_size == strange.vocab_size == 262
    run = LoadedRun(None, trained, tmp_path / "run", own)
    assert load_corpus(run, DataConfig(path=None), progress=False).fingerprint == data.fingerprint(own)
    with pytest.raises(
        UserError, match=r"another tokenizer than .*/run was trained with; restore the run's text"
    ):
        load_corpus(run, other, progress=False)
