"""The findings of a verdict, one sentence each: where a block is better, worse or equal, always from a number."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from analysis.comparing.tables import NAMES, order_metric, with_final_validation
from analysis.comparing.verdicts import (
    LEARNED,
    UNITS,
    WRONG,
    Family,
    accuracies,
    accuracy_text,
    any_learned,
    difference_text,
    families,
    known_levels,
    levels_text,
)
from analysis.files import ResultsError, pictured_cells
from analysis.loading.columns import layers_of
from analysis.loading.files import read_text
from analysis.loading.probes import SUMMARY, at_best_rates
from analysis.loading.results import Results
from analysis.loading.tables import architectures
from analysis.statistics import estimate

# Tables of job=verdict, read as files that may come from strangers.

FOLDER, RECORD = "verdict", "verdict.json"
_TEXTS = ("contract", "case", "reason", "model", "peer", "mode", "machine", "device")
_WHOLE = ("cases", "failed", "skipped", "tokens")
TABLES = {
    "contracts": ("contract", "cases", "failed", "skipped", "case", "reason"),
    "sizes": ("model", "tokens", "parameters_non_embedding", "flops_forward", "state_bytes"),
    "speeds": (
        "model",
        "peer",
        "mode",
        "tokens",
        "milliseconds_median",
        "ratio",
        "ratio_low",
        "ratio_high",
        "machine",
        "device",
    ),
}


class VerdictTables(NamedTuple):
    """The record verdict.json and the tables beside it, empty where a stage has not come yet."""

    record: dict[str, Any]
    contracts: pd.DataFrame
    sizes: pd.DataFrame
    speeds: pd.DataFrame

    @property
    def name(self) -> str:
        """The name of the block that is judged."""
        return self.record["block"]["name"]

    @property
    def models(self) -> list[str]:
        """The names of all models: the transformer, the block, its relative if there is one."""
        return list(self.record["models"])

    @property
    def peers(self) -> list[str]:
        """The models that the block is compared with."""
        return [name for name in self.models if name != self.name]

    @property
    def broken_contracts(self) -> pd.DataFrame:
        """The rows of contracts that were broken."""
        return self.contracts[self.contracts["failed"] > 0]


def read_verdict_tables(results: Path) -> VerdictTables:
    """Read results/NAME/verdict. Raises ResultsError where it is not there, or is damaged."""
    folder = results / FOLDER
    try:
        record = json.loads(read_text(folder, RECORD))
        _ = record["block"]["name"], record["block"]["kind"], list(record["models"])
        return VerdictTables(record, *(_table(folder, name) for name in TABLES))
    except FileNotFoundError as error:
        raise ResultsError(
            f"{results} has no verdict; make one: python run.py job=verdict block=NAME"
        ) from error
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ResultsError(f"{folder} cannot be read: {error}") from error


def _table(folder: Path, name: str) -> pd.DataFrame:
    types = {column: _type(column) for column in TABLES[name]}
    if not (folder / f"{name}.csv").is_file():
        return pd.DataFrame({column: pd.Series(dtype=kind) for column, kind in types.items()})
    frame = pd.read_csv(StringIO(read_text(folder, f"{name}.csv")), dtype=types, keep_default_na=False)
    return pictured_cells(frame[list(types)])


def _type(column: str) -> str:
    return "str" if column in _TEXTS else "int64" if column in _WHOLE else "float64"


# Findings from sizes and speeds.

BETTER, WORSE, LEAD, EQUAL, UNLEARNED = "better", "worse", "lead", "equal", "unlearned"
CLOSE = 0.01
"""Counts that differ by less, as a share, are called equal."""


class Finding(NamedTuple):
    """A sentence, and peer, the model compared with.

    side: BETTER, WORSE, LEAD (shown, but no verdict), EQUAL, or UNLEARNED (of a task that neither has learned).
    """

    side: str
    peer: str
    text: str


def count_findings(tables: VerdictTables) -> Iterator[Finding]:
    """Yield what was counted: FLOPs of a token's forward pass, and bytes of decode state, at every length."""
    for peer in tables.peers:
        for tokens, rows in tables.sizes.groupby("tokens"):
            by = rows.set_index("model")
            for column, what in (
                ("flops_forward", "FLOPs of a token's forward pass"),
                ("state_bytes", "Decode state"),
            ):
                ratio = by[column][tables.name] / by[column][peer]
                side = EQUAL if abs(ratio - 1) <= CLOSE else BETTER if ratio < 1 else WORSE
                told = f"equal within {CLOSE:.0%}" if side == EQUAL else f"{ratio:.3g} times {peer}'s"
                yield Finding(side, peer, f"{what} at {tokens:,} tokens: {told}, counted.")


def speed_findings(tables: VerdictTables) -> Iterator[Finding]:
    """Yield the times of a training step, of prefill and of decoding; equal where the interval holds 1."""
    own = tables.speeds[tables.speeds["model"] == tables.name]
    for row in own.itertuples():
        side = EQUAL if row.ratio_low <= 1 <= row.ratio_high else BETTER if row.ratio > 1 else WORSE
        verb = {BETTER: "faster", WORSE: "slower", EQUAL: "not shown to differ in speed"}[side]
        yield Finding(
            side,
            row.peer,
            f"{row.mode.capitalize()} at {row.tokens:,} tokens: {verb}, {row.ratio:.2f} times {row.peer}'s speed (95 % "
            f"interval {_end(row.ratio_low)} to {_end(row.ratio_high)}).",
        )


def _end(ratio: float) -> str:
    """The end of an interval, with as many digits as show on which side of 1 it is."""
    digits = next((n for n in (2, 3, 4) if round(ratio, n) != 1 or ratio == 1), 5)
    return f"{ratio:.{digits}f}"


def contract_sentence(tables: VerdictTables) -> str:
    """Return the sentence on the contracts."""
    rows, broken = tables.contracts, tables.broken_contracts
    if rows.empty:
        return "Its contracts have not been checked yet."
    if broken.empty:
        return f"{tables.name} keeps all {len(rows)} contracts ({rows['cases'].sum()} cases)."
    return (
        f"{tables.name} fails: it breaks {len(broken)} of {len(rows)} contracts. Its losses would not mean what "
        "they seem to, so nothing was trained."
    )


def broken_sentences(broken: pd.DataFrame) -> list[str]:
    """Return a sentence for every broken contract, with its first failure."""
    return [
        f"Broken: {row.contract} ({row.failed} of {row.cases} cases; {row.case}: {row.reason})"
        for row in broken.itertuples()
    ]


# Findings from losses: the block's beside those of the transformer and of its relative.

TESTS = (
    "On each text or task, the intervals of all models' differences from one of them hold jointly (Dunnett's test, or "
    "Welch's with Bonferroni's correction). \"Better than every other model\" in the report comes from another test, "
    "of every pair of models with Holm's correction. Either may show a difference that the other does not."
)
"""By which test losses and accuracies differ on this page, and why a comparison may say otherwise of a pair."""


def learned_findings(tables: VerdictTables, results: Results) -> Iterator[Finding]:
    """Yield a finding for every peer and every text or task: better or worse where the interval does not hold zero.

    Of a task that neither has learned it is neither, whatever the interval: places, and words that training showed,
    answer some questions without the rule.
    """
    runs = with_final_validation(results)
    metric, chosen = order_metric(runs), at_best_rates(runs)
    for peer in tables.peers:
        baseline = model_in_runs(chosen, tables.record["models"][peer])
        own = model_in_runs(chosen, tables.record["models"][tables.name])
        if baseline is None or own is None:
            continue
        for family in families(runs, metric, baseline):
            row = family.table[family.table["model"] == own]
            if len(row) and family.baseline is not None:
                yield _finding(family, row.iloc[0], tables.name, peer)


def model_in_runs(runs: pd.DataFrame, model: dict[str, Any]) -> str | None:
    """The name of a recorded model in the runs, without rates; None where it has no run."""
    same = (
        (runs["pattern"].map(lambda text: set(layers_of(text)) == set(layers_of(model["pattern"]))))
        & (runs["residual"] == model["residual"]["name"])
        & (runs["channel"] == model["channel"]["name"])
    )
    return runs.loc[same, "model"].iloc[0] if same.any() else None


def _finding(family: Family, row: pd.Series, block: str, peer: str) -> Finding:
    """The finding of a row of a family's table, whose baseline is the peer."""
    told = f"{_difference_sentence(family, row, block, peer)}{_interval(family, row, peer)}"
    if family.metric != WRONG:
        return Finding(_side(row), peer, f"{told}: {_judged(row, peer)}.")
    if accuracies(family.runs)[[row.name, family.baseline]].max() < LEARNED:
        why = _unlearned(family, {row.name: block, family.baseline: peer})
        return Finding(UNLEARNED, peer, f"{told}: tells little, as {why}.")
    return Finding(_side(row), peer, f"{told}: {_judged(row, peer)}{_both_learned(family, row)}.")


def _side(row: pd.Series) -> str:
    """The side of a difference: EQUAL unless its interval is without zero."""
    if pd.isna(row["difference_ci"]) or row["difference_p"] >= 0.05:
        return EQUAL
    return LEAD if row["lead"] else BETTER if row["difference"] < 0 else WORSE


def _judged(row: pd.Series, peer: str) -> str:
    """Return the conclusion from a difference and its interval: "better than transformer"."""
    if pd.isna(row["difference_ci"]):
        return "too few seeds, or none that differ, for an interval of the difference"
    side = _side(row)
    if side == LEAD:
        return f"{'ahead of' if row['difference'] < 0 else 'behind'} {peer}, but {row['lead']}"
    verb = {BETTER: "better than", WORSE: "worse than", EQUAL: "not shown to differ from"}[side]
    return f"{verb} {peer}"


def _unlearned(family: Family, names: dict[str, str]) -> str:
    """That neither has learned the task, and which model has the most right answers; names: of the two, by label."""
    best = accuracies(family.runs).index[0]
    name = names.get(best) or architectures(family.runs[family.runs["label"] == best]).iloc[0]
    who = "neither" if any_learned(family.runs) else "no model"
    return f"{who} has {LEARNED:.0%} right on average (the best, {name}: {_accuracy(family, best)})"


def _both_learned(family: Family, row: pd.Series) -> str:
    """That both have learned the task, where they have; else ""."""
    if accuracies(family.runs)[[row.name, family.baseline]].min() < LEARNED:
        return ""
    return f"; both learned it ({LEARNED:.0%} right or more), so that only a harder task could tell more"


def _accuracy(family: Family, label: str) -> str:
    """A model's share of right answers with its interval over seeds, as the tables have it."""
    mean, half_width, _ = estimate(family.runs.loc[family.runs["label"] == label, "test_accuracy"])
    return accuracy_text(mean, half_width)


def _difference_sentence(family: Family, row: pd.Series, block: str, peer: str) -> str:
    """The difference in words: "Test loss on pydocs: −0.03 ± 0.02 nats/token"; of a task accuracies and theirs."""
    of_task = family.metric == WRONG
    signed = row.mask(row.index == "difference", -row["difference"]) if of_task else row
    (shown,) = pd.DataFrame([signed]).rename_axis("label").reset_index().itertuples()
    if of_task:
        return (
            f"Accuracy on {family.task}: {block} {_accuracy(family, row.name)}, {peer} "
            f"{_accuracy(family, family.baseline)}, {levels_text(known_levels(family.runs))}; "
            f"difference {difference_text(shown)}"
        )
    text = family.task or family.runs["test_set"].iloc[0]
    unit = UNITS.get(family.metric, "nats/token")
    return f"{NAMES[family.metric].capitalize()} on {text}: {difference_text(shown)} {unit}"


def _interval(family: Family, row: pd.Series, peer: str) -> str:
    """Return the words for the number behind "±" of a difference; where it has none, those for the other model."""
    if pd.isna(row["difference_ci"]):
        return f" beside {peer}"
    return ", 95 % intervals" if family.metric == WRONG else ", 95 % interval"


# Findings of probes inside the models: a number a model with its interval over seeds.

METHOD = (
    "For each model, the median over layers and heads, then the mean over seeds with its 95 % t interval; measured on "
    "a few held-out sequences, on the runs that were compared."
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
        "Loss at a window's first tokens minus loss at its last: the gain from context",
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
