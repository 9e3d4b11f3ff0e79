"""Reading figures back, and the means they should show, one by one from the tables."""

import numpy as np


def line(axes, label):
    (found,) = [line for line in axes.get_lines() if line.get_label() == label]
    return found


def rows_of(results, label, name, axis):
    """Rows of a measure, from the table as it was written."""
    rows = results.table("measures")
    return rows[(rows["label"] == label) & (rows["measure"] == name) & (rows["axis"] == axis)]


def mean_of_means(rows, by):
    """For each value of `by` the mean over seeds of the mean over everything else, one by one."""
    found = {}
    for key in sorted(set(rows[by])):
        at = rows[rows[by] == key]
        seeds = [at.loc[at["seed"] == seed, "value"].tolist() for seed in sorted(set(at["seed"]))]
        found[float(key)] = sum(sum(values) / len(values) for values in seeds) / len(seeds)
    return found


def assert_drawn(drawn, expected):
    np.testing.assert_allclose(drawn.get_xdata(), list(expected))
    np.testing.assert_allclose(drawn.get_ydata(), list(expected.values()))
