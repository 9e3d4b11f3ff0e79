"""Numbers of the statistics for fixed samples: intervals, tests, ranks, seeds needed, power laws, correlations."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
from support import recorded

from analysis.statistics import (
    against_baseline,
    critical_value,
    curves_over_seeds,
    estimate,
    fit_line,
    fit_with_floor,
    holm,
    over_documents,
    over_seeds,
    pair_probabilities,
    pareto_front,
    paying_correlation,
    power,
    rank_ranges,
    seed_correlation,
    seeds_needed,
    share_tail,
    single_heads,
    spread_of,
    student_t,
    student_tail,
    within,
)

RECORDED = Path(__file__).with_name("recorded")
SAMPLES = {
    "alike": [[1.0, 1.1, 1.05], [1.2, 1.25, 1.22], [0.9, 0.95, 1.0], [1.05, 1.02, 1.07]],
    "unequal numbers": [[3.0, 3.1], [2.9, 2.95, 3.0, 2.97], [3.3], [3.05, 3.2, 3.1]],
    "one noisy": [
        [1.0, 1.01, 1.02],
        [2.0, 3.0, 1.0],
        [1.1, 1.11, 1.12],
        [0.8, 0.81, 0.79],
        [1.0, 1.012, 1.01],
    ],
    "two noisy": [[1.0, 1.01], [2.0, 3.0], [1.1, 1.11], [0.2, 4.0], [0.5, 0.51], [0.7, 0.71], [0.3, 0.305]],
    "one each": [[1.0], [2.0], [3.0]],
    "constant": [[1.0, 1.0], [2.0, 2.0], [1.0, 1.0]],
    "two": [[1.0, 1.2], [1.5, 1.6]],
    "ties": [[1.0, 1.2], [1.2, 1.0], [1.1, 1.1]],
}


def test_comparisons_of_samples():
    lines = []
    for name, samples in SAMPLES.items():
        spread = spread_of([np.array(sample) for sample in samples])
        lines += [
            f"# {name}",
            *recorded.flat(spread, "spread"),
            f"degrees {spread.degrees}, pooled {spread.pooled}",
        ]
        one, other = np.triu_indices(len(samples), 1)
        lines += recorded.flat(spread.errors(one, other), "errors")
        for baseline in {0, len(samples) - 1}:
            for confidence in (0.95, 0.8):
                found = against_baseline(spread, baseline, confidence)
                lines += recorded.flat(found._asdict(), f"from {baseline} at {confidence}")
        lines += recorded.flat(rank_ranges(spread), "ranks")
        lines += recorded.flat(rank_ranges(spread, 0.7), "ranks at 0.7")
        lines += recorded.flat(pair_probabilities(spread), "pairs")
    recorded.check(RECORDED / "samples.txt", lines, relative=1e-5, absolute=1e-9)


def test_distributions():
    lines = [
        f"t({degrees}, {level}) {student_t(degrees, level):.8g}."
        for degrees in (1, 2, 3.5, 30)
        for level in (0.9, 0.95)
    ]
    lines += recorded.flat(
        student_tail(np.array([0.0, 0.5, -2.0, 40.0]), np.array([1.0, 2.0, 3.5, 5.0])), "tail"
    )
    lines += [
        f"share {share} of {n}: {share_tail(share, 2, n):.8g}." for share in (0.2, 0.5, 0.9) for n in (6, 12)
    ]
    for counts, own in (((3, 3), 3), ((2, 5, 3), 4), ((3,) * 9, 3)):
        for degrees in (4.0, 20.0):
            critical = critical_value(counts, own, degrees, 0.95)
            lines.append(
                f"{counts} beside {own}, {degrees:g}: {critical:.8f} {within(2.0, counts, own, degrees):.8f}"
            )
    lines += [
        f"{deviation} {models}: {seeds_needed(0.01, deviation, models)}"
        for deviation in (0.001, 0.01, 0.05, 2.0)
        for models in (2, 6, 12)
    ]
    lines += [
        f"power of {seeds}: {power(0.01, 0.01, seeds, 4):.8f} {paying_correlation(4, seeds):.8f}"
        for seeds in (1, 2, 3, 9)
        if seeds > 1
    ]
    lines += [
        f"holm {recorded.short(holm(np.array([0.01, 0.04, math.nan, 0.03, 0.5, 0.011])))}",
        f"power of one {power(1, 1, 1, 2)}",
    ]
    values = np.array([[1.0, 2.0, 4.0], [1.1, 2.2, math.nan], [0.9, 2.1, 3.0]])
    lines += [f"correlation {seed_correlation(part):.8f}" for part in (values, values[:, :1], values[::2])]
    recorded.check(RECORDED / "distributions.txt", lines, relative=1e-5, absolute=1e-7)


def test_fits_and_intervals():
    sizes = [1e5, 2e5, 4e5, 8e5, 8e5]
    lines = []
    for name, losses in (
        ("floor", [2 + 30 * size**-0.3 * (1 + 0.01 * (-1) ** n) for n, size in enumerate(sizes)]),
        ("line", [40 * size**-0.2 * (1 + 0.01 * math.sin(n)) for n, size in enumerate(sizes)]),
        ("rising", [1 + 1e-7 * size + 0.01 * n for n, size in enumerate(sizes)]),
    ):
        for count in (2, 3, 4, 5):
            for fit in (fit_line, fit_with_floor):
                found = fit(sizes[:count], losses[:count])
                lines += recorded.flat(
                    None if found is None else list(found), f"{name} {count} {fit.__name__}"
                )
    lines += [
        f"estimate of {sample}: {recorded.short(tuple(estimate(sample)))}"
        for sample in ([], [1.0], [1.0, 1.0], [1.0, math.nan, 2.0], [1, 2, 4, 8])
    ]
    costs = np.array([[1.0, 5.0], [2.0, 4.0], [2.0, 4.0], [3.0, 4.0], [4.0, 1.0], [5.0, 1.5]])
    lines.append(f"front {recorded.short(pareto_front(costs))} {recorded.short(pareto_front(costs[:, :1]))}")
    tokens = np.array([100, 200, 50, 400, 100, 30])
    base = tokens * 3.0
    for shift in (np.array([0.1, 0.2, -0.1, 0.15, 0.3, 0.0]), np.zeros(6)):
        found = over_documents(base - shift * tokens, base, tokens)
        lines.append(f"documents {found.documents} difference {found.difference:.6f} error {found.error:.6f}")
    recorded.check(RECORDED / "fits.txt", lines, relative=1e-5, absolute=1e-9)


def test_means_over_seeds():
    rows = [
        {
            "run": f"r{seed}",
            "label": "a",
            "seed": seed,
            "layer": layer,
            "head": head,
            "x": x,
            "value": seed + layer * head + x**2 / 7,
        }
        for seed in (0, 1, 2)
        for layer in (0, 1)
        for head in (0, 1)
        for x in ((1, 2, 3) if seed else (1, 2))
    ]
    table = pd.DataFrame(rows)
    lines = [
        *recorded.flat(over_seeds(table, "x"), "by x"),
        *recorded.flat(over_seeds(table, "layer"), "by layer"),
    ]
    lines += [
        *recorded.flat(curves_over_seeds(table, "x", "value"), "curves"),
        *recorded.flat(single_heads(table), "heads"),
    ]
    recorded.check(RECORDED / "seeds.txt", lines)
