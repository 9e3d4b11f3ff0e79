"""Labels of models leave out what all of them share."""

import pandas as pd
import pytest

from analysis.loading.columns import SETTING_COLUMNS, labels, short_names


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["kda layerscale relu2", "nsa layerscale relu2"], ["kda", "nsa"]),
        (["kda relu2", "kda hc relu2", "nsa relu2"], ["kda", "kda hc", "nsa"]),
        (["kda relu2", "nsa"], ["kda relu2", "nsa"]),
        (["transformer hc", "transformer mhc"], ["transformer hc", "transformer mhc"]),
        (["kda relu2", "kda relu2"], ["kda relu2", "kda relu2"]),
        (["kda relu2", ""], ["kda relu2", ""]),
        (["", ""], ["", ""]),
    ],
)
def test_words_that_all_names_share_are_left_out(names, short):
    assert list(short_names(pd.Series(names))) == short


def test_labels_that_would_become_equal_stay():
    names = ["kda relu2", "kda relu2 relu2"]
    assert list(short_names(pd.Series(names))) == names


def runs(**columns: list) -> pd.DataFrame:
    """Two runs of one name and different settings, alike in all columns but these."""
    same = {column: [None, None] for column in [*SETTING_COLUMNS, "task"]}
    return pd.DataFrame({**same, "name": ["kda", "kda"], "setting": ["1" * 12, "2" * 12], **columns})


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"test_tokens": [512, 1024]}, ["kda (test_tokens=512)", "kda (test_tokens=1024)"]),
        ({"test_stride": [64, 32]}, ["kda (test_stride=64)", "kda (test_stride=32)"]),
        ({"depth": [2, 4], "test_tokens": [512, 1024]}, ["kda (depth=2)", "kda (depth=4)"]),
        ({}, ["kda (#111111)", "kda (#222222)"]),
    ],
)
def test_what_was_scored_tells_models_apart_only_where_nothing_else_does(columns, said):
    """`evaluate.windows` is a part of a run's identity; its label was a hash."""
    assert list(labels(runs(**columns), "setting")) == said
