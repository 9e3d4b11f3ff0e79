"""When a synthetic task counts as learned: 95 % of the answers right, on average over the seeds of one model."""

import pandas as pd
import pytest

from analysis.comparing.verdicts import LEARNED, any_learned


@pytest.mark.parametrize(
    ("accuracies", "learned"),
    [
        ({"one": [LEARNED]}, True),
        ({"one": [0.9499]}, False),
        ({"one": [1.0, 0.89]}, False),
        ({"one": [0.5], "two": [1.0, 0.91]}, True),
    ],
)
def test_a_model_has_learned_a_task_with_just_so_many_right_answers_on_average(accuracies, learned):
    rows = [(label, value) for label, values in accuracies.items() for value in values]
    assert any_learned(pd.DataFrame(rows, columns=["label", "test_accuracy"])) is learned
