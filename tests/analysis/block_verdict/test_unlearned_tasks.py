"""A task counts for a verdict on two models where one of them has learned it: 95 % of the answers right."""

import pandas as pd
import pytest
from support.pretended_runs import model, pretended

from analysis.verdict_page.findings import TABLES, TESTS, VerdictTables
from analysis.verdict_page.page import gather

PATTERNS = {"transformer": "F", "delta": "K", "mesa": "M"}
MODELS = {
    name: {"pattern": letter, "residual": {"name": "add"}, "channel": {"name": "swiglu"}}
    for name, letter in PATTERNS.items()
}
EQUAL = "Equal, or not shown to differ"
RATES = {1e-3: 0.3, 3e-3: 0.0, 1e-2: 0.3}
"""What a rate adds to the validation loss: the middle one is the best."""


def said(**accuracies: float) -> dict[str, list[str]]:
    """The sentences of the verdict on delta beside the transformer, by heading: three seeds of these accuracies."""
    runs = [
        model(
            f"{name} mqar",
            [accuracy - 0.004, accuracy, accuracy + 0.004],
            data="mqar",
            pattern=PATTERNS[name] * 4,
            lr=rate,
            validation_loss=1 + more,
        )
        for name, accuracy in accuracies.items()
        for rate, more in RATES.items()
    ]
    return beside_transformer(runs)


def beside_transformer(runs: list[list[dict]]) -> dict[str, list[str]]:
    record = {"block": {"kind": "mixer", "name": "delta"}, "models": MODELS}
    tables = (pd.DataFrame(columns=list(columns)) for columns in TABLES.values())
    page = gather(VerdictTables(record, *tables), pretended(*runs))
    assert page.tests == TESTS
    groups = next(beside.groups for beside in page.beside if beside.peer == "transformer")
    return {heading: sentences for heading, sentences in groups.items() if sentences}


@pytest.mark.parametrize(
    ("delta", "best"),
    [(0.27, "transformer: 0.370"), (0.3704, "delta: 0.370"), (0.5, "delta: 0.500"), (0.94, "delta: 0.940")],
)
def test_where_nobody_learned_a_task_no_difference_is_better_worse_or_equal(delta, best):
    ((heading, (sentence,)),) = said(transformer=0.37, delta=delta).items()
    assert heading == "Learned by neither"
    accuracies = f"delta {delta:.3f} ± 0.010, transformer 0.370 ± 0.010, chance 0.031, copying 0.380"
    assert sentence.startswith(f"Accuracy on mqar: {accuracies}; difference ")
    assert sentence.endswith(
        f"tells little, as no model has 95% right on average (the best, {best} ± 0.010)."
    )


@pytest.mark.parametrize(
    ("accuracies", "heading", "verb"),
    [
        ({"transformer": 0.37, "delta": 0.99}, "Better", "better than"),
        ({"transformer": 0.99, "delta": 0.37}, "Worse", "worse than"),
        ({"transformer": 0.37, "delta": 0.951, "mesa": 0.99}, "Better", "better than"),
    ],
)
def test_where_one_of_the_two_learned_it_the_interval_decides(accuracies, heading, verb):
    ((found, (sentence,)),) = said(**accuracies).items()
    assert found == heading
    assert sentence.endswith(f"95 % intervals: {verb} transformer.")


@pytest.mark.parametrize(
    ("delta", "heading", "verb"),
    [
        (0.97, EQUAL, "not shown to differ from"),
        (0.99, "Better", "better than"),
        (0.955, "Worse", "worse than"),
    ],
)
def test_where_both_learned_it_a_harder_task_is_asked_for(delta, heading, verb):
    ((found, (sentence,)),) = said(transformer=0.97, delta=delta).items()
    assert found == heading
    assert sentence.endswith(
        f"{verb} transformer; both learned it (95% right or more), so that only a harder task could tell more."
    )
