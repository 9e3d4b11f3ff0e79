"""Labels of models leave out what all of them share."""

from __future__ import annotations

import pandas as pd
import pytest

from analysis.loading.labels import short_names


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
