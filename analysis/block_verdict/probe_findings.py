"""Findings of probes inside the models of a verdict: sentences, each a number a model with its interval over seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pandas as pd

from analysis.block_verdict.loss_findings import model_in_runs
from analysis.block_verdict.verdict_tables import VerdictTables
from analysis.loading.probe_measures import SUMMARY
from analysis.loading.rate_sweeps import at_best_rates
from analysis.loading.results import Results
from analysis.significance.intervals import estimate

METHOD = (
    "Of a model the median over layers and heads, the mean over seeds and its 95 % t interval, of the runs that were "
    "compared, on a few held-out sequences."
)


class Reading(NamedTuple):
    """A measure as a sentence says it.

    rows: the rows of one run -> those that the number is the median of.
    """

    measure: str
    words: str
    unit: str
    rows: Callable[[pd.DataFrame], pd.DataFrame]


def _whole(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows over all positions."""
    return rows[rows["axis"].fillna(SUMMARY) == SUMMARY]


def _median(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the median over tokens and channels."""
    return rows[rows["end"] == 0.5]


def _last(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the last bucket: the end of a window, the last step."""
    return rows[rows["end"] == rows["end"].max()]


def _fall(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the fall of the loss from the first tokens of a window to those before the end of the trained length."""
    trained = rows[rows["end"] <= rows["seq_len"]].sort_values("end")
    if len(trained) < 2:
        return trained.iloc[:0]
    return trained.iloc[:1].assign(value=trained["value"].iloc[0] - trained["value"].iloc[-1])


READINGS = (
    Reading(
        "loss",
        "Loss at a window's first tokens less that at its last: what context gives",
        "nats/token",
        _fall,
    ),
    Reading("answer_mass", "Attention on the answer", "of all", _whole),
    Reading("first_token_mass", "Attention on the first token", "of all", _whole),
    Reading("attention_entropy", "Entropy of attention", "nats", _whole),
    Reading("selected_mass", "Attention on the selected keys", "of all", _whole),
    Reading("routing_entropy", "Entropy of the router", "nats", _whole),
    Reading("output_gate_mean", "Output gate, mean", "", _whole),
    Reading("decay_half_life", "Half-life of what a state holds", "tokens", _median),
    Reading("state_rank", "Effective rank of the state at a window's end", "", _last),
    Reading("memory_rank", "Effective rank of the memories at a window's end", "", _last),
    Reading("cg_residual", "Residual of the solver's last step", "", _last),
    Reading("path_gain", "Gain of the way through the coefficients", "", _whole),
    Reading("stream_spread", "Spread of the streams", "", _whole),
)


def probe_sentences(tables: VerdictTables, results: Results | None) -> list[str]:
    """Return a sentence for every text or task and every reading that a probed model has."""
    if results is None:
        return []
    rows = results.table("measures")
    chosen = at_best_rates(results.runs)
    names = {name: model_in_runs(chosen, tables.record["models"][name]) for name in tables.models}
    runs = pd.concat(
        [
            chosen.loc[chosen["model"] == model].assign(of=name)
            for name, model in names.items()
            if model is not None
        ]
        or [chosen.iloc[:0].assign(of="")]
    )
    runs = runs.assign(on=runs["task"].fillna(runs["test_set"]))
    found = rows.merge(runs[["experiment", "run", "of", "on", "seq_len"]], on=["experiment", "run"])
    found = found[found["value"].notna()]
    lines = [
        line for on, group in found.groupby("on", sort=False) for line in _sentences(group, on, tables.models)
    ]
    own = set(found.loc[found["of"] == tables.name, "measure"]) - {"loss"}
    if lines and not own & {reading.measure for reading in READINGS}:
        lines.append(
            f"{tables.name} records none of these itself; its gradients and its streams are in the table of measures."
        )
    return lines


def _sentences(rows: pd.DataFrame, on: str, models: list[str]) -> Iterator[str]:
    for reading in READINGS:
        of_measure = rows[rows["measure"] == reading.measure]
        numbers = [
            f"{model} {number}"
            for model in models
            if (number := _number(of_measure[of_measure["of"] == model], reading)) is not None
        ]
        if numbers:
            unit = f" ({reading.unit})" if reading.unit else ""
            yield f"{reading.words}{unit}, on {on}: {', '.join(numbers)}."


def _number(rows: pd.DataFrame, reading: Reading) -> str | None:
    """A model's number with its interval; None where no run has it, or all runs have none but 0."""
    by_run = [reading.rows(of_run)["value"].median() for _, of_run in rows.groupby("run")]
    mean, half_width, count = estimate(by_run)
    if not count or not any(by_run):
        return None
    return f"{mean:.3g} ± {half_width:.2g}" if half_width == half_width else f"{mean:.3g}"
