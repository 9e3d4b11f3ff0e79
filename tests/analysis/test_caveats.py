"""What spoils a comparison is told where it does, alone and in one sentence; what does not is not."""

from __future__ import annotations

import pytest

from analysis import load_results
from analysis.caveats import caveats

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
        "numbers of one machine (Example CPU, AVX512, 1 thread(s))",
        "still falling",
    ]
    found = told(tmp_path / "other", write_run, changes)
    assert [text for text in found if text not in usual] == [sentence]
    assert [text for text in usual if text not in found] == []
