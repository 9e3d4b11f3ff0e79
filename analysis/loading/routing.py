"""Routes and assignments of routers, joined with the columns of their runs that figures need."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.errors import NoData
from analysis.loading.blocks import DEFAULT_NOUN, nouns
from analysis.loading.probe_measures import JOINED_COLUMNS
from analysis.loading.probe_tables import advice
from analysis.loading.rate_sweeps import unique_seeds
from analysis.loading.results import Results


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
    found = sorted(rows["layer"].unique())
    places = np.linspace(0, len(found) - 1, min(most, len(found))).round().astype(int)
    return rows[rows["layer"].isin([found[place] for place in places])]


def most_informative_heads(rows: pd.DataFrame) -> pd.DataFrame:
    """Select in each layer of `sentence_routes` the head whose probabilities tell the tokens apart best.

    Σ_c of h(mean_t p_tc) − mean_t h(p_tc) with h(p) = −p·ln p, in nats: the information in the token's place about a
    choice drawn from p; 0 where all tokens have the same probabilities.
    """
    tokens = rows.groupby(["layer", "head"])["position"].transform("nunique")
    spread = rows.assign(p=rows["probability"] / tokens, h=_entropy(rows["probability"]) / tokens)
    sums = spread.groupby(["layer", "head", "choice"])[["p", "h"]].sum()
    told = (_entropy(sums["p"]) - sums["h"]).groupby(["layer", "head"]).sum()
    best = pd.MultiIndex.from_tuples(told.groupby("layer").idxmax(), names=["layer", "head"])
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
