"""Caveats of a comparison: reasons why it may be incomplete or unequal, one sentence each."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pandas as pd

from analysis.comparing import equal_terms, verdicts
from analysis.comparing.tables import FINAL, NAMES, order_metric, scored, with_final_validation
from analysis.files import NoData, ResultsError, engineering, listing, number, whole
from analysis.loading import probes, tables
from analysis.loading.columns import RATES, labels
from analysis.loading.probes import probe_measures, select_axis, unique_seeds
from analysis.loading.results import FOLDER, PathLike, Results, interrupted, load_results, records
from analysis.loading.tables import by_task
from analysis.statistics import spread_of

SHOWN = 12
"""The number of problems inside runs that are listed one by one; `Results.problems` has them all."""


def caveats(results: Results) -> list[str]:
    """List every caveat of the comparison, one sentence each, the gravest first; an empty list if there is none."""
    runs = with_final_validation(results)
    return [
        *_unfinished(results.unfinished),
        *_texts(runs),
        *_tokenizers(runs),
        *_untested(runs),
        *recipe_caveats(runs),
        *_seed_counts(runs),
        *rate_caveats(runs, results.selection),
        *equal_terms.caveats(runs),
        *tables.caveats(results.selection),
        *verdicts.caveats(runs, results.table("documents")),
        *still_falling_caveats(results),
        *context_use_caveats(results),
        *_duplicates(runs),
        *_code(runs),
        *machine_caveats(runs),
        *speed_caveats(runs),
        *_probes(results),
        *probes.caveats(results),
        *_other_problems(results),
    ]


# Runs, code, texts and probes.


def _untested(runs: pd.DataFrame) -> list[str]:
    """Caveats about runs without a test loss, or without the loss that orders the models."""
    metric, unique = order_metric(runs), unique_seeds(runs)
    sentences = []
    if runs["test_loss"].isna().all():
        sentences.append(
            "no test split was scored: models are compared by the validation loss at the end of training, which "
            "may cover a part of its split. Add test to evaluate.splits."
        )
    without = unique[~unique.index.isin(scored(unique).index)]
    if len(without):
        each = (f"{row.label} seed {whole(row.seed)} ({row.run})" for row in without.itertuples())
        sentences.append(f"no {NAMES[metric]}, so not counted as a seed: {listing(each)}.")
    of_text = runs[runs["task"].isna()]
    if metric == FINAL and of_text[["tokenizer", "vocab_size"]].drop_duplicates().shape[0] > 1:
        sentences.append(
            "the order of the models means nothing: their losses are per token of different tokenizers."
        )
    return sentences


def _seed_counts(runs: pd.DataFrame) -> list[str]:
    """Caveats about the number of seeds scored by the metric that ranks the models."""
    seeds = (
        scored(unique_seeds(runs)).groupby("label")["seed"].agg(lambda values: tuple(sorted(values.dropna())))
    )
    alone = [label for label, values in seeds.items() if len(values) < 2]
    if len(alone) == len(seeds):
        return [
            "one seed: no interval. Repeat the runs with other seeds to see how far chance alone moves them."
        ]
    sentences = [f"one seed: no interval for {listing(alone)}."] if alone else []
    if any(len(values) == 2 for values in seeds):
        sentences.append("two seeds: the 95 % interval is wide (the mean ± 12.7 standard errors).")
    if not alone and seeds.nunique() > 1:
        sentences.append("the models were not trained with the same seeds.")
    return sentences


def _unfinished(unfinished: pd.DataFrame) -> list[str]:
    words = {
        "failed": "failed",
        "incomplete": "not complete",
        "broken": "cannot be read",
        "foreign": "not a run",
    }
    sentences = []
    for status, word in words.items():
        group = unfinished[unfinished["status"] == status]
        if len(group):
            each = (f"{row.experiment}/{row.run} ({row.reason})" for row in group.itertuples())
            count = "1 run" if len(group) == 1 else f"{len(group)} runs"
            count = count.replace("run", "folder") if status in ("broken", "foreign") else count
            sentences.append(f"{count} {word}: {listing(each, limit=4)}.")
    return sentences


def _code(runs: pd.DataFrame) -> list[str]:
    sentences = []
    commits = runs["commit"].str.slice(0, 10).fillna("no commit recorded")
    if commits.nunique() > 1:
        sentences.append(f"runs from different commits: {counted(commits)}.")
    elif runs["commit"].isna().all():
        sentences.append("no commit recorded: these results cannot be traced to a version of the code.")
    dirty = int(runs["dirty"].fillna(False).sum())
    if dirty:
        which = "the runs" if dirty == len(runs) else f"{dirty} of {len(runs)} runs"
        sentences.append(
            f"uncommitted changes: {which} came from a dirty working tree, which no commit describes."
        )
    if runs["versions"].nunique() > 1:
        sentences.append(
            "runs with different versions of Python or the libraries; see the table of runs' machines."
        )
    return sentences


def _texts(runs: pd.DataFrame) -> list[str]:
    """Caveats about texts; several synthetic tasks are none, as models are compared within each."""
    return within_tasks(runs, _one_text)


def _one_text(runs: pd.DataFrame) -> list[str]:
    sentences = []
    for column, what in (("training_set", "training sets"), ("test_set", "test sets")):
        if runs[column].nunique() > 1:
            sentences.append(f"mixed {what}: {counted(runs[column])}.")
    same_names = runs[["training_set", "test_set", "tokenizer", "vocab_size"]].drop_duplicates().shape[0] == 1
    if same_names and runs["data_fingerprint"].nunique() > 1:
        sentences.append("the text behind these names differs between runs (different content fingerprints).")
    return sentences


def _tokenizers(runs: pd.DataFrame) -> list[str]:
    runs = runs[runs["task"].isna()]
    tokenizer = runs["tokenizer"].astype("str") + " " + runs["vocab_size"].map(whole).astype("str")
    if tokenizer.nunique() > 1:
        return [
            f"mixed tokenizers: {counted(tokenizer)}. Loss and perplexity per token cannot be compared; "
            "bits per byte and word perplexity can."
        ]
    return []


def _duplicates(runs: pd.DataFrame) -> list[str]:
    repeated = len(runs) - len(unique_seeds(runs))
    return [f"{repeated} run(s) occur in more than one folder and are counted once."] if repeated else []


def _probes(results: Results) -> list[str]:
    """Caveats about interrupted or differing passes of job=probe."""
    sentences = []
    halves = interrupted(results)
    if halves:
        sentences.append(
            f"an interrupted pass of the probes: {FOLDER}/ of {listing(halves)} may hold tables of two "
            "passes. Run job=probe again."
        )
    if len({_settings(text) for text in records(results)} - {None}) > 1:
        sentences.append("runs were probed with different settings, listed with each run's config.")
    return sentences


def _settings(text: str | None) -> str | None:
    """The probe settings in a record, as sorted JSON; None if the record is missing or damaged."""
    try:
        return None if text is None else json.dumps(json.loads(text)["settings"], sort_keys=True)
    except (ValueError, KeyError, TypeError):
        return None


def _other_problems(results: Results) -> list[str]:
    """Problems inside complete runs; those of unfinished folders have their own notice."""
    prefixes = tuple(f"{row.experiment}/{row.run}:" for row in results.unfinished.itertuples())
    inside = [text + "." for text in results.problems if not prefixes or not text.startswith(prefixes)]
    more = len(inside) - SHOWN
    return inside[:SHOWN] + (
        [f"{more} more problems of this kind: see load_results(...).problems."] * (more > 0)
    )


# Recipes: budgets, steps, learning rates and other settings in which compared models differ.

SIZE = ("depth", "d_model")
OTHER = {
    "optimizer": "optimiser",
    "schedule": "schedule",
    "warmup_steps": "steps of warm-up",
    "weight_decay": "weight decay",
    "clip": "gradient norm limit",
    "precision": "precision",
    "seq_len": "tokens of context",
    "pack": "packing",
}
"""Settings of a recipe, beside budget, steps and rates, that compared models should share."""
BEFORE = {"optimizer": "adamw", "schedule": "cosine"}
"""What runs had that do not say."""


def recipe_caveats(runs: pd.DataFrame) -> list[str]:
    """Caveats of comparing runs with unequal recipes, one sentence each; of synthetic tasks within each task."""
    return within_tasks(runs, lambda group: [*_budgets(group), *_steps(group), *_others(group)])


def within_tasks(runs: pd.DataFrame, check: Callable[[pd.DataFrame], list[str]]) -> list[str]:
    """Return the caveats of runs on text and of the runs of each task, these with the task's name before them.

    What is said of several tasks in the same words is said once.
    """
    tasks_by_text: dict[str, list[str]] = {}
    for task, group in by_task(runs):
        for text in check(group):
            tasks_by_text.setdefault(text, []).append(task)
    several = runs["task"].nunique(dropna=False) > 1
    return [
        f"{listing(tasks, 20)}: {text}" if several and tasks != [""] else text
        for text, tasks in tasks_by_text.items()
    ]


def counted(values: pd.Series) -> str:
    """Format values with how many runs have each, the most frequent first: "5 (2 runs) and 3 (1 run)"."""
    counts = values.value_counts(sort=True)
    return listing(f"{value} ({count} run{'s' * (count > 1)})" for value, count in counts.items())


def _budgets(runs: pd.DataFrame) -> list[str]:
    sentences, budget = [], _budget(runs)
    if budget.nunique() > 1:
        alike = budget.groupby([runs[name] for name in SIZE]).nunique().le(1).all()
        same = ", equal at each size" if alike else ""
        sentences.append(f"unequal training budgets{same}: {counted(budget.map(engineering) + ' tokens')}.")
    early = runs[runs["steps"] < runs["planned_steps"]]
    if len(early):
        each = (
            f"{row.label} seed {whole(row.seed)} ({engineering(row.tokens)} tokens)"
            for row in early.itertuples()
        )
        sentences.append(f"stopped before their budget was used: {listing(each, limit=4)}.")
    return sentences


def _budget(runs: pd.DataFrame) -> pd.Series:
    return runs["planned_steps"] * runs["tokens_per_step"]


def _steps(runs: pd.DataFrame) -> list[str]:
    """Equal budgets in unequal numbers of steps."""
    if _budget(runs).nunique() > 1 or runs["planned_steps"].nunique() < 2:
        return []
    return [f"equal tokens in unequal steps: {counted(runs['planned_steps'].map(whole) + ' steps')}."]


def _others(runs: pd.DataFrame) -> list[str]:
    runs = runs.fillna(BEFORE)
    differing = [name for name in OTHER if runs[name].nunique(dropna=False) > 1]
    each = (f"{OTHER[name]} {counted(runs[name].astype('str').fillna('none'))}" for name in differing)
    return [f"unequal recipes: {'; '.join(each)}."] if differing else []


def rate_caveats(runs: pd.DataFrame, selection: pd.DataFrame) -> list[str]:
    """Caveats about one learning rate for all models, unequal ones, or a sweep of some models only.

    selection: `Results.selection`; rates that were selected for each model are as they should be, those of an earlier
    study too.
    """
    return [] if len(selection) or runs["lr_study"].notna().all() else within_tasks(runs, _rates)


def _rates(runs: pd.DataFrame) -> list[str]:
    tried = runs.groupby("sweep")["lr"].nunique()
    if len(tried) < 2 or (tried > 1).all():
        return []
    if (tried > 1).any():
        names = labels(runs, "sweep", RATES)[runs["sweep"].map(tried) == 1].unique()
        return [f"learning rates were swept for some models only: {listing(names)} had one each."]
    if runs["lr"].nunique() > 1:
        return [f"unequal learning rates: {counted(runs['lr'].map('{:g}'.format))}."]
    rate = runs["lr"].dropna()
    if rate.empty:
        return []
    return [
        f"one learning rate, {rate.iloc[0]:g}, for all models: the best rate differs between architectures, and "
        "tuning may change their order; sweep optim.lr."
    ]


# Losses that still fell at the end: longer training may change who is ahead.

LAST = 0.2
"""The share of the training steps over which a fall is looked for."""
LEAST = 0.01
"""A fall (nats/token) below this is none, however well the seeds agree."""


def still_falling_caveats(results: Results) -> list[str]:
    """Caveats about models whose validation loss fell by more, at the end, than the seeds of a model differ.

    Of synthetic tasks one a task.
    """
    text, tasks = results.of_text, results.of_tasks
    parts = [(text, "nats/token")] + [
        (tasks.part(tasks.runs["task"] == task), "nats/answer") for task in tasks.runs["task"].unique()
    ]
    return [said for part, unit in parts if len(part.runs) for said in _of_one(part, unit)]


def _of_one(results: Results, unit: str) -> list[str]:
    falls = last_falls(results)
    apart = seeds_apart(results).reindex(falls.index)
    falling = falls[falls > np.fmax(LEAST, apart)].sort_values(ascending=False)
    if falling.empty:
        return []
    each = listing((f"{label} {fall:.3f}" for label, fall in falling.items()), limit=6)
    return [
        f"still falling: in the last {LAST:.0%} of its steps the validation loss fell by, in {unit}: {each}"
        f"{_seeds(apart[falling.index].dropna())}. Longer training may change the order."
    ]


def _seeds(apart: pd.Series) -> str:
    if apart.empty:
        return ""
    least, most = f"{apart.min():.3f}", f"{apart.max():.3f}"
    differ = least if least == most else f"{least} to {most}"
    return f" (seeds of one model differ by {differ}, standard deviation)"


def last_falls(results: Results) -> pd.Series:
    """Return by label the fall (nats/token) of the validation loss over the LAST of the planned steps, mean over seeds.

    Between two validations it is interpolated; runs that were not validated before that, or that stopped early, are
    left out.
    """
    runs = unique_seeds(results.runs[results.runs["stopped"] != "early"])
    rows = results.metrics[results.metrics["split"] == "validation"].dropna(subset=["loss", "step"])
    falls = {}
    for (experiment, run), curve in rows.groupby(["experiment", "run"]):
        curve = curve.sort_values("step")
        steps, losses = (curve[name].to_numpy("float64") for name in ("step", "loss"))
        begin = (1 - LAST) * steps[-1]
        if steps[0] <= begin:
            falls[experiment, run] = np.interp(begin, steps, losses) - losses[-1]
    label_of_run = runs.set_index(["experiment", "run"])["label"]
    index = label_of_run.index
    known = pd.Series(falls, dtype="float64").reindex(index) if falls else pd.Series(np.nan, index=index)
    return known.groupby(label_of_run).mean().dropna()


def seeds_apart(results: Results) -> pd.Series:
    """Return by label the deviation between seeds of the last validation loss, shared by models that are not too noisy.

    Seeds of one setting; of several settings under one label the largest. NaN where none has two
    seeds; one noisy model has its own, and the others' stays what it is (`spread_of`).
    """
    rows = results.metrics[results.metrics["split"] == "validation"].dropna(subset=["loss"])
    last = rows.sort_values("step", kind="stable").groupby(["experiment", "run"])["loss"].last()
    runs = (
        unique_seeds(results.runs).join(last.rename("last"), on=["experiment", "run"]).dropna(subset=["last"])
    )
    groups = {key: group["last"].to_numpy("float64") for key, group in runs.groupby(["label", "setting"])}
    deviations = spread_of(list(groups.values())).deviations if groups else []
    by_label = pd.Series(deviations, index=[label for label, _ in groups], dtype="float64")
    return by_label.groupby(level=0).max()


# Models that hardly use their context: their losses say little about how they mix tokens.

EARLY, LATE = 1 / 8, 1 / 2
"""Positions of the first EARLY of the trained length are compared with those from LATE of it on."""
UNKNOWN = (
    "context use not measured: no run has its loss at early and late positions, so nothing shows that the models use "
    "their context (job=probe measures it from a trained length of 128 on)."
)


def context_use_caveats(results: Results) -> list[str]:
    """Caveats about models whose loss does not fall along the context by more than their seeds differ, or is not known.

    Synthetic tasks are left out: what they ask stands in the context.
    """
    try:
        gains = context_gains(results)
    except NoData:
        of_text = results.runs[results.runs["task"].isna()]
        return [UNKNOWN] if of_text["label"].nunique() > 1 else []
    weak = gains[gains["mean"] <= gains["spread"].fillna(0.0)]
    if weak.empty:
        return []
    each = listing((f"{row.Index} {row.mean:+.3f}" for row in weak.itertuples()), limit=6)
    return [
        f"context hardly used: from the first {EARLY:.0%} of the positions to the second half, the loss of the same "
        f"tokens falls by no more than seeds differ (nats/token: {each}). It says little about how these models mix "
        "tokens."
    ]


def context_gains(results: Results) -> pd.DataFrame:
    """Return by label the mean over seeds of the loss early in the context minus that late in it, and their spread.

    Columns: mean (nats/token, of the same tokens at both places), spread (highest minus lowest seed; missing with one
    seed). Raises NoData where no run has its loss by position.
    """
    rows = select_axis(probe_measures(results, ("loss",)), "position")
    rows = rows[rows["layer"].isna()].dropna(subset=["run"])
    early = rows[rows["end"] <= EARLY * rows["seq_len"]]
    late = rows[(rows["start"] >= LATE * rows["seq_len"]) & (rows["end"] <= rows["seq_len"])]
    gains = (_mean(early) - _mean(late)).dropna()
    if gains.empty:
        raise NoData("no run has its loss at early and late positions within the trained length")
    by_label = gains.groupby("label").agg(["mean", "min", "max", "count"])
    spread = (by_label["max"] - by_label["min"]).where(by_label["count"] > 1, np.nan)
    return pd.DataFrame({"mean": by_label["mean"], "spread": spread})


def _mean(rows: pd.DataFrame) -> pd.Series:
    """The mean loss of a run's buckets, weighted by their tokens."""
    weighted = (
        rows.assign(nats=rows["value"] * rows["count"]).groupby(["label", "run"])[["nats", "count"]].sum()
    )
    return weighted["nats"] / weighted["count"]


# Speeds: load of the machine while timing, and impossible MFU values.

PEAKS_APART = 0.1
"""Two measurements of one machine's peak that differ by more than this share mean that the machine was busy."""
MACHINE = ("cpu", "gpu", "cores", "threads", "capability")


def speed_caveats(runs: pd.DataFrame) -> list[str]:
    """Caveats of comparing speeds, one sentence each."""
    return [*_peaks(runs), *_shared_machine(runs)]


def _peaks(runs: pd.DataFrame) -> list[str]:
    sentences = []
    faster = runs[above_peak(runs)]
    if len(faster):
        sentences.append(
            f"above the peak: {_named(faster)} did more FLOP/s than the measured peak, because the machine was "
            "busy; no MFU is shown for them."
        )
    spread = runs.groupby(list(MACHINE), dropna=False)["mfu_peak_flops"].agg(["min", "max"])
    apart = spread[spread["max"] > (1 + PEAKS_APART) * spread["min"]]
    sentences += [
        f"the peak of one machine was measured as {engineering(row['min'])} to {engineering(row['max'])} FLOP/s, "
        "because other processes ran: the MFU of these runs cannot be compared."
        for _, row in apart.iterrows()
    ]
    return sentences


def above_peak(runs: pd.DataFrame) -> pd.Series:
    """Return whether each run did more FLOP/s than its assumed peak: bool by row."""
    rate = runs["tokens_per_second"] * runs["flops_training"]
    return (rate > runs["mfu_peak_flops"]).fillna(False).astype("bool")


def _shared_machine(runs: pd.DataFrame) -> list[str]:
    """Caveats about runs timed while others ran: several workers, or a load more than one core above their own."""
    sentences = []
    if (runs["workers"] > 1).any():
        sentences.append(
            f"speeds were measured while other runs trained on the machine ({conditions(runs)}): a run alone may be "
            "faster."
        )
    unknown = int(runs["workers"].isna().sum())
    if unknown:
        sentences.append(
            f"speeds of {unknown} of {len(runs)} runs may have been measured while others trained: how many trained "
            "at a time was not recorded."
        )
    own_load = runs["workers"].astype("float64") * runs["threads"].astype("float64")
    busy = runs[runs["load"] > own_load + 1]
    if len(busy):
        loads = " to ".join(dict.fromkeys(f"{load:.1f}" for load in (busy["load"].min(), busy["load"].max())))
        sentences.append(
            f"other processes also used the machine while {_named(busy)} trained (load {loads}): speeds are too low."
        )
    return sentences


def conditions(runs: pd.DataFrame) -> str:
    """Return the load while each run trained, such as "2 cells at a time on 2 cores"."""
    known = runs.dropna(subset=["workers"])
    texts = [
        _load_text(*each) for each in known[["workers", "cores"]].drop_duplicates().itertuples(index=False)
    ]
    if len(known) < len(runs):
        texts.append("how many runs at a time was not recorded" + ("" if known.empty else " for some"))
    return listing(texts)


def _load_text(workers: int, cores: int) -> str:
    one = "1 core" if cores == 1 else f"{whole(cores)} cores"
    return f"one cell at a time on {one}" if workers == 1 else f"{workers} cells at a time on {one}"


def _named(runs: pd.DataFrame) -> str:
    return listing((f"{row.label} seed {whole(row.seed)}" for row in runs.itertuples()), limit=6)


# Machines: the same runs on two machines differ by rounding. A run's id says nothing of its machine; another processor,
# or other instructions, sums in another order, and training multiplies the difference.


def machine_caveats(runs: pd.DataFrame) -> list[str]:
    """Caveats about the number of machines, and the differences between them on the same runs."""
    places = place(runs)
    if places.nunique() <= 1:
        return [
            f"numbers of one machine ({listing(places.unique())}): another processor or instruction set rounds "
            "differently, which may move a trained loss by as much as another seed does; "
            "analysis.across_machines compares the same runs on two machines."
        ]
    counts = places.value_counts()
    each = listing(f"{name} ({n} run{'s' * int(n > 1)})" for name, n in counts.items())
    sentences = [
        f"mixed machines, so speeds and memory cannot be compared, and losses differ by rounding too: {each}."
    ]
    return sentences + _repeated(runs.assign(place=places))


def _repeated(runs: pd.DataFrame) -> list[str]:
    """Caveat about runs that were trained on several machines and count once."""
    there = runs.drop_duplicates(["run", "place"])
    again = there[there.duplicated("run", keep=False)]
    if again.empty:
        return []
    metric = order_metric(runs)
    spread = again.groupby("run")[metric].agg(lambda values: values.max() - values.min())
    widest = again.loc[again["run"] == spread.idxmax()].iloc[0] if spread.notna().any() else None
    apart = (
        ""
        if widest is None
        else f" The {NAMES[metric]} differs by up to {number(spread.max())} ({widest.label} seed {whole(widest.seed)})."
    )
    return [
        f"{again['run'].nunique()} run(s) come from several machines under one id. Only the first found counts; "
        f"analysis.across_machines compares them.{apart}"
    ]


def place(runs: pd.DataFrame) -> pd.Series:
    """Return the machine of each run as text: processor or GPU, its instructions, threads."""
    instructions = runs["capability"].map(lambda known: "" if pd.isna(known) else f", {known}")
    return runs["gpu"].fillna(runs["cpu"]) + instructions + ", " + runs["threads"].map(whole) + " thread(s)"


def across_machines(a: Results | PathLike, b: Results | PathLike) -> pd.DataFrame:
    """Return a row a run that both results hold: run, label, seed, loss_a, loss_b, difference (b − a), rank_a, rank_b.

    The loss is what orders the models of a (nats/token, or bits per byte); attrs["metric"] names it. A rank is the
    model's, from 1, by its mean over the runs that both hold. Columns machine_a and machine_b say where each ran.
    Raises ResultsError where there is no common run.
    """
    first, second = (
        with_final_validation(one if isinstance(one, Results) else load_results(one)) for one in (a, b)
    )
    metric = order_metric(first)
    halves = [
        runs.assign(machine=place(runs), loss=runs[metric]).drop_duplicates("run").dropna(subset=["loss"])
        for runs in (first, second)
    ]
    columns = ["run", "loss", "machine"]
    both = halves[0][["label", "seed", *columns]].merge(halves[1][columns], on="run", suffixes=("_a", "_b"))
    if both.empty:
        raise ResultsError("no run is in both results: they share no id (content hash)")
    both["difference"] = both["loss_b"] - both["loss_a"]
    for side in ("a", "b"):
        means = both.groupby("label")[f"loss_{side}"].mean().rank(method="min").astype("int64")
        both[f"rank_{side}"] = both["label"].map(means)
    order = [
        "run",
        "label",
        "seed",
        "loss_a",
        "loss_b",
        "difference",
        "rank_a",
        "rank_b",
        "machine_a",
        "machine_b",
    ]
    table = both.sort_values(["rank_a", "label", "seed"], ignore_index=True)[order]
    table.attrs["metric"] = metric
    return table
