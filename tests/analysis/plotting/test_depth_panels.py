"""Series of models over depth."""

import pandas as pd

from analysis.plotting.axes import deepest, drawn_depths, left_out_text


def test_each_series_has_its_own_deepest_model():
    rows = pd.DataFrame({"series": ["add", "add", "ohc"], "depth": [4, 24, 12]})
    assert deepest(rows).values.tolist() == [["add", 24], ["ohc", 12]]


def test_of_many_depths_the_first_the_middle_and_the_last_have_room():
    few, many = (pd.DataFrame({"depth": depths}) for depths in ([24, 4, 12], [24, 4, 12, 8, 16]))
    assert (drawn_depths(few), left_out_text(few)) == ([4, 12, 24], "")
    assert (drawn_depths(many), left_out_text(many)) == ([4, 12, 24], "Not drawn: 8, 16 layers. ")
