"""What spoils a comparison is told where it does, alone and in one sentence; what does not is not."""

import pytest

from analysis import load_results
from analysis.caveats import caveats
from analysis.loading.tables import COLUMNS

OTHERWISE = [
    ({"commit": "f" * 40}, "runs from different commits: 0123456789 (2 runs) and ffffffffff (1 run)."),
    (
        {"dirty": True},
        "uncommitted changes: 1 of 3 runs came from a dirty working tree, which no commit describes.",
    ),
    (
        {"versions": {"torch": "2.14.0"}},
        "runs with different versions of Python or the libraries; see the table of runs' machines.",
    ),
    ({"data": {"train": "stand-in"}}, "mixed training sets: pydocs (2 runs) and stand-in (1 run)."),
    ({"data": {"test": "stand-in"}}, "mixed test sets: pydocs (2 runs) and stand-in (1 run)."),
    (
        {"data": {"fingerprint": "beef"}},
        "the text behind these names differs between runs (different content fingerprints).",
    ),
    (
        {"data": {"train": "stand-in", "fingerprint": "beef"}},  # another name says so already
        "mixed training sets: pydocs (2 runs) and stand-in (1 run).",
    ),
    (
        {"data": {"vocab_size": 256, "fingerprint": "beef"}},
        "mixed tokenizers: bpe 4,096 (2 runs) and bpe 256 (1 run). Loss and perplexity per token cannot be "
        "compared; bits per byte and word perplexity can.",
    ),
    (
        {"recipe": {"tokens_per_step": 2048}},
        "unequal training budgets: 307k tokens (2 runs) and 614k tokens (1 run).",
    ),
    (
        {"recipe": {"steps": 150, "tokens_per_step": 2048}, "steps": 150},
        "equal tokens in unequal steps: 300 steps (2 runs) and 150 steps (1 run).",
    ),
    (
        {"steps": 200, "tokens": 204_800},
        "stopped before their budget was used: three seed 0 (205k tokens).",
    ),
    (
        {"recipe": {"warmup_steps": 50, "clip": 0.5}},
        "unequal recipes: steps of warm-up 30 (2 runs) and 50 (1 run); "
        "gradient norm limit 1.0 (2 runs) and 0.5 (1 run).",
    ),
]


def told(place, write_run, changes: dict) -> list[str]:
    """The notices of three models of one seed each, the last with these changes."""
    for name in ("one", "two"):
        write_run(place, name, option=name)
    write_run(place, "three", option="three", **changes)
    return caveats(load_results(place))


@pytest.mark.parametrize(("changes", "sentence"), OTHERWISE)
def test_a_run_that_differs_in_one_thing_gives_the_sentence_of_that_thing(
    tmp_path, write_run, changes, sentence
):
    usual = told(tmp_path / "usual", write_run, {})
    assert [text.split(":")[0] for text in usual] == [
        "one seed",
        "one learning rate, 0.003, for all models",
        "still falling",
        "context use not measured",
        "numbers of one machine (Example CPU, AVX512, 1 thread(s))",
    ]
    found = told(tmp_path / "other", write_run, changes)
    assert [text for text in found if text not in usual] == [sentence]
    assert [text for text in usual if text not in found] == []


def rates_told(place, write_run, **rates: list[float]) -> list[str]:
    for name, tried in rates.items():
        for rate in tried:
            write_run(place, name, option=name, recipe={"lr": rate, "lr_min": rate / 10})
    return [text for text in caveats(load_results(place)) if "learning rate" in text]


@pytest.mark.slow
def test_rates_that_favour_some_models_are_told(tmp_path, write_run):
    one = rates_told(tmp_path / "one", write_run, a=[3e-3], b=[3e-3])
    (sentence,) = one
    assert sentence.startswith("one learning rate, 0.003, for all models")
    unequal = rates_told(tmp_path / "unequal", write_run, a=[3e-3], b=[1e-3])
    assert unequal == ["unequal learning rates: 0.003 (1 run) and 0.001 (1 run)."]
    some = rates_told(tmp_path / "some", write_run, a=[3e-3, 1e-3], b=[3e-3], c=[1e-3])
    assert some == ["learning rates were swept for some models only: b and c had one each."]
    assert rates_told(tmp_path / "all", write_run, a=[3e-3, 1e-3], b=[3e-3, 1e-2]) == []
    assert rates_told(tmp_path / "alone", write_run, a=[3e-3]) == []
    (tmp_path / "unequal" / "selection.csv").write_text(
        f"{','.join(COLUMNS)}\na,#000000,0.003,optim.lr=0.003,0,0123456789ab,3.2,complete,True,,\n"
    )
    assert [text for text in caveats(load_results(tmp_path / "unequal")) if "learning rate" in text] == []
