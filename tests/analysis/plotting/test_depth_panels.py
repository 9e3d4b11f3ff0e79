"""Series of models over depth."""

import pandas as pd

from analysis.plotting.depth_panels import deepest


def test_each_series_has_its_own_deepest_model():
    rows = pd.DataFrame({"series": ["add", "add", "ohc"], "depth": [4, 24, 12]})
    assert deepest(rows).values.tolist() == [["add", 24], ["ohc", 12]]
