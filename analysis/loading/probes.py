"""Rows as figures need them: probes' measures and routes joined with their runs, and sweeps of rates as one model."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import pandas as pd

from analysis.files import NoData, listing, whole
from analysis.loading.columns import DEFAULT_NOUN, RATES, labels, nouns, short_names
from analysis.loading.results import Results, advice
from analysis.loading.tables import model_names

# The training steps of the weights that were probed.


def probed_steps(results: Results, runs: Collection[str] = ()) -> pd.Series:
    """Return the probed step by run (the index: experiment, run), of these runs or of all."""
    rows = results.table("measures")
    steps = rows.dropna(subset=["step"]).groupby(["experiment", "run"])["step"].max()
    return steps[steps.index.isin(list(runs), level="run")] if len(runs) else steps


def steps_text(steps: pd.Series) -> str:
    """Format probed steps as "weights of step 1,000", several with their numbers of runs; "" if none is known."""
    counts = steps.value_counts().sort_index()
    if counts.empty:
        return ""
    if len(counts) == 1:
        return f"weights of step {whole(counts.index[0])}"
    each = (f"{whole(step)} ({n} run{'s' if n > 1 else ''})" for step, n in counts.items())
    return f"weights of different steps: {listing(each)}"


def caveats(results: Results) -> list[str]:
    """Caveats about runs probed at different steps, which then differ by training and not by model alone."""
    steps = probed_steps(results)
    if steps.nunique() < 2:
        return []
    labels = results.runs.set_index(["experiment", "run"])["label"].reindex(steps.index)
    each = (
        f"{whole(step)} of {listing(sorted(group.unique()), limit=4)}"
        for step, group in labels.groupby(steps)
    )
    return [
        f"probes read weights of different steps: {listing(each)}. Differences may come from the length of training; "
        "job=probe probe.at=last probes every run after its last step."
    ]


# Sweeps of learning rates: a sweep counts as one model, at its best rate.

SELECTING = "selecting"
"""The column of the loss that selects a rate: see `validation_losses`."""


def unique_seeds(runs: pd.DataFrame) -> pd.DataFrame:
    """Drop repeated (setting, seed) pairs: a run found in two experiments is one sample, not two."""
    return runs.drop_duplicates(["setting", "seed"])


def sweeps_as_models(runs: pd.DataFrame) -> pd.DataFrame:
    """Treat each sweep as one model: drop repeated (setting, seed) pairs and add two columns.

    model: the label without rates, of runs of synthetic tasks without the task: a model has one name on all of them;
    rates: the number of settings tried.
    """
    tried, of_task = runs.groupby("sweep")["setting"].transform("nunique"), runs["task"].notna()
    model = labels(runs, "sweep", RATES)
    if of_task.any():
        model[of_task] = model_names(runs[of_task])
    return unique_seeds(runs.assign(model=model, rates=tried))


def best_rates(results: Results) -> pd.DataFrame:
    """Select the runs of every model at its best learning rate, with the columns of `at_best_rates`."""
    return at_best_rates(with_selection(results))


def at_best_rates(runs: pd.DataFrame) -> pd.DataFrame:
    """Select the runs of every model at its best learning rate, with the columns of `sweeps_as_models` and edge.

    The best has the lowest mean over seeds of SELECTING (the test loss chooses nothing), among the rates with the most
    seeds: where one seed chose and others followed, those followed the choice. A model without validation rows keeps
    all its rates. edge: the best is the lowest or the highest of several. Where job=compare recorded how runs were
    selected, rates and edge are those of the record. runs: `with_selection`, or Results.runs.
    """
    runs = sweeps_as_models(runs)
    scores = runs.groupby(["sweep", "setting"])[SELECTING if SELECTING in runs else "validation_loss"]
    means = scores.agg(["mean", "count"]).dropna()
    most = means.groupby("sweep")["count"].transform("max")
    best = means.loc[means["count"] == most, "mean"].groupby("sweep").idxmin().str[1]
    rates = runs.groupby("sweep")["lr"]
    outer = (runs["lr"] == rates.transform("min")) | (runs["lr"] == rates.transform("max"))
    runs = runs.assign(edge=outer & (rates.transform("nunique") > 1))
    if "selected_among" in runs:
        recorded = runs["selected_among"].notna()
        runs.loc[recorded, "rates"] = runs.loc[recorded, "selected_among"].astype("int64")
        runs.loc[recorded, "edge"] = runs.loc[recorded, "selected_at_edge"].astype("bool")
    return runs[runs["setting"] == runs["sweep"].map(best).fillna(runs["setting"])]


def with_selection(results: Results) -> pd.DataFrame:
    """Add to the runs SELECTING, and what job=compare recorded of the selection that they confirm.

    selected_among: the number of rates tried for their model; selected_at_edge: theirs is at an end of those;
    selected_by_seeds: the number of seeds by which it was selected. All are empty for runs of which there is no record.
    """
    tried = results.selection.groupby(["task", "model"])["lr"].transform("nunique")
    chosen = results.selection.assign(tried=tried)[results.selection["chosen"]]
    # By who confirms: a model of one name may stand in the records of several studies.
    seeds = chosen.groupby("confirmed_by")["chosen"].transform("size")
    known = {
        run: (row.tried, row.edge != "", row.seeds)
        for row in chosen.assign(seeds=seeds).itertuples()
        for run in str(row.confirmed_by).split()
    }
    names = ["selected_among", "selected_at_edge", "selected_by_seeds"]
    recorded = [known.get(run, (None,) * len(names)) for run in results.runs["run"]]
    columns = pd.DataFrame(recorded, columns=names, index=results.runs.index, dtype="object")
    return results.runs.join([validation_losses(results), columns])


def validation_losses(results: Results) -> pd.Series:
    """Return the loss that selects settings, "selecting", by row of ``results.runs``.

    It is that of the whole validation split where every run has one, else the lowest one while training (which may
    cover a part of the split); missing for runs that were never validated.
    """
    runs, metrics = results.runs, results.metrics
    if runs["validation_loss"].notna().all():
        return runs["validation_loss"].rename(SELECTING)
    lowest = metrics[metrics["split"] == "validation"].groupby(["experiment", "run"])["loss"].min()
    return runs.join(lowest.rename(SELECTING), on=["experiment", "run"])[SELECTING]


# Rows of the table `measures`.

SUMMARY = ""
"""Value of `axis` in rows over all positions; in rows of buckets `axis` names the unit of start and end."""

JOINED_COLUMNS = ("experiment", "run", "color", "residual", "depth", "training_set", "seq_len")
COLUMNS = (
    *("run", "name", "label", "color", "residual", "depth", "seed", "training_set", "seq_len"),
    *("layer", "part", "head", "block", "axis", "start", "end", "measure", "value", "count", "split"),
)


def probe_measures(results: Results, names: Collection[str]) -> pd.DataFrame:
    """Return the rows of these measures (COLUMNS): one run a setting and seed, of each run the last step.

    Models without any of them have one row with nothing but label and color, so that all figures of these results
    draw a model in the same style, and captions can name the missing ones. Raises NoData if there is no row at all.
    """
    rows = results.table("measures")
    rows = rows[rows["measure"].isin(names) & rows["value"].notna()]
    if rows.empty:
        raise NoData(f"no run has the measure {' or '.join(names)}; {advice(results)}")
    last = rows.groupby(["experiment", "run"])["step"].transform("max")
    rows = rows[(rows["step"] == last).fillna(True)]
    runs = unique_seeds(results.runs.merge(rows[["experiment", "run"]].drop_duplicates()))
    measured = rows.merge(runs[list(JOINED_COLUMNS)], on=["experiment", "run"])[list(COLUMNS)]
    short = short_names(results.runs["name"]).groupby(results.runs["run"]).first()
    measured = measured.assign(name=measured["run"].map(short))
    absent = results.runs[~results.runs["label"].isin(measured["label"])].drop_duplicates("label")
    joined = pd.concat(
        [measured, absent[["label", "color"]].reindex(columns=COLUMNS).astype(measured.dtypes)]
    )
    return joined.reset_index(drop=True)


def select_axis(rows: pd.DataFrame, axis: str | Mapping[str, str]) -> pd.DataFrame:
    """Select summary rows (axis SUMMARY) or the rows of one kind of bucket ("position", "rank", ...).

    A measure such as first_token_mass is in the table both ways: once a head over all positions, and once a bucket;
    a mean over both counts everything twice. axis: one for all rows, or by measure. Rows of models without data
    (`probe_measures`) stay.
    """
    wanted = axis if isinstance(axis, str) else rows["measure"].map(axis)
    return rows[rows["run"].isna() | (rows["axis"].fillna(SUMMARY) == wanted)]


# Routes and assignments of routers.


def routing_rows(results: Results, name: str) -> pd.DataFrame:
    """Return rows of "routes" or "assignments" with JOINED_COLUMNS, `series` and `noun`; a run a setting and seed.

    Raises NoData if no run has such rows.
    """
    rows = results.table(name)
    if rows.empty:
        raise NoData(f"no run has probes/{name}.parquet; {advice(results)}")
    runs = unique_seeds(results.runs.merge(rows[["experiment", "run"]].drop_duplicates()))
    return with_routers(rows.merge(runs[list(JOINED_COLUMNS)], on=["experiment", "run"]), results.runs)


def with_routers(rows: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Add `series`, the label (and the block where a model has several routers), and `noun`, the kind of choice."""
    several = rows.groupby("label")["block"].transform("nunique") > 1
    series = rows["label"].where(~several, rows["label"] + ", " + rows["block"])
    return rows.assign(series=series, noun=rows["block"].map(nouns(runs)).fillna(DEFAULT_NOUN))


def one_model(rows: pd.DataFrame) -> pd.DataFrame:
    """Select the rows of one router of one run: mixers before channel mixers, by block, label and seed."""
    order = rows.assign(other=rows["part"] != "mixer").sort_values(
        ["other", "block", "label", "seed"], kind="stable"
    )
    first = order.iloc[0]
    return rows[(rows["block"] == first["block"]) & (rows["run"] == first["run"])]


def sentence_routes(results: Results, longest: int) -> pd.DataFrame:
    """Return all choices of `one_model` for the first tokens of the sentence, what it did not take included.

    Columns as `routing_rows`, and taken (whether the block used the choice), heads (that have a router), text (the
    token), given (the sentence, if it was given). Raises NoData if no run has routes.
    """
    taken = one_model(routing_rows(results, "routes"))
    keys = ["experiment", "run", "part", "block"]
    others = results.table("alternatives")
    joined = [name for name in taken.columns if name in keys or name not in others.columns]
    others = others.merge(taken[joined].drop_duplicates(), on=keys)
    rows = pd.concat([taken.assign(taken=True), others.assign(taken=False)], ignore_index=True)
    rows["heads"] = rows["head"].nunique()
    texts = results.table("sentence")[["experiment", "run", "position", "text", "given"]]
    rows = rows[rows["position"] < longest].merge(texts, how="left", on=["experiment", "run", "position"])
    return rows.sort_values(["layer", "head", "position", "rank"], ignore_index=True)


def spaced_layers(rows: pd.DataFrame, most: int) -> pd.DataFrame:
    """Select the rows of the first layer, the last and evenly spaced ones between, `most` in all."""
    layers = sorted(rows["layer"].unique())
    places = np.linspace(0, len(layers) - 1, min(most, len(layers))).round().astype(int)
    return rows[rows["layer"].isin([layers[place] for place in places])]


def most_informative_heads(rows: pd.DataFrame) -> pd.DataFrame:
    """Select in each layer of `sentence_routes` the head whose probabilities tell the tokens apart best.

    Σ_c of h(mean_t p_tc) − mean_t h(p_tc) with h(p) = −p·ln p, in nats: the information in the token's place about a
    choice drawn from p; 0 where all tokens have the same probabilities.
    """
    tokens = rows.groupby(["layer", "head"])["position"].transform("nunique")
    spread = rows.assign(p=rows["probability"] / tokens, h=_entropy(rows["probability"]) / tokens)
    sums = spread.groupby(["layer", "head", "choice"])[["p", "h"]].sum()
    information = (_entropy(sums["p"]) - sums["h"]).groupby(["layer", "head"]).sum()
    best = pd.MultiIndex.from_tuples(information.groupby("layer").idxmax(), names=["layer", "head"])
    return rows[pd.MultiIndex.from_frame(rows[["layer", "head"]]).isin(best)]


def place_title(rows: pd.DataFrame) -> str:
    """Name the layer and, where routers have several, the head of the rows: "layer 2, head 0"."""
    first = rows.iloc[0]
    return f"layer {first['layer']}" + (f", head {first['head']}" if first["heads"] > 1 else "")


def which_heads(table: pd.DataFrame) -> str:
    """Return the sentence of a caption on what `most_informative_heads` selected; "" where there is one head."""
    several = "In each layer the head whose probabilities tell these tokens apart best. "
    return several if table["heads"].iloc[0] > 1 else ""


def _entropy(p: pd.Series) -> pd.Series:
    return -p * np.log(p.where(p > 0, 1.0))


def mutual_information(choices: np.ndarray, kinds: np.ndarray, counts: np.ndarray | None = None) -> float:
    """Return the plug-in estimate of mutual information, I(C; K) = Σ_ck n_ck/N · ln(n_ck·N / (n_c·n_k)), in nats.

    choices, kinds: [P] integers ≥ 0; counts: [P] how often the pair occurs (None: once), repeated pairs add up.
    The plug-in estimate is never below 0, and above the truth by about (|C| − 1)(|K| − 1)/2N.
    """
    counts = np.ones(len(choices)) if counts is None else counts
    n_kinds = int(kinds.max()) + 1
    joint = np.bincount(choices * n_kinds + kinds, counts, minlength=(int(choices.max()) + 1) * n_kinds)
    joint = joint.reshape(-1, n_kinds) / counts.sum()
    free = joint.sum(1, keepdims=True) * joint.sum(0)
    there = joint > 0
    return max(0.0, float((joint[there] * np.log(joint[there] / free[there])).sum()))
