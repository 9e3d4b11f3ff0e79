"""The terms of a comparison: which settings and sizes were equal for its models, and which were not."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pandas as pd

from analysis.files import deviation, engineering, listing, whole
from analysis.loading.tables import series_names

# Sizes: parameters beside the embedding, FLOPs a token and decode state, compared with those of a reference.
#
# Models are compared within an experiment and a synthetic task, at one depth and width. The reference is the plain
# transformer (attention, plain residual, SwiGLU in every layer); without one, the only model with attention in every
# layer; else the model whose number of parameters most others share.

MATCHED = 0.01
"""Models whose numbers differ by no more than this share are matched."""

MARKS = {"parameters_off": "†", "flops_off": "‡", "state_off": "§"}
WHAT = {
    "parameters_off": "parameters beside the embedding",
    "flops_off": "FLOPs of a token's forward pass",
    "state_off": "decode state at 1,024 to 131,072 tokens",
}
STATES = ("state_bytes_1024", "state_bytes_8192", "state_bytes_131072")
STATE_OF_TASK = ("state_bytes_context",)
_SIZE = ("depth", "d_model")
# No summary says which model is the reference, so its blocks are named here. Masks, families and numbers of streams
# would not do: other blocks share them. Variants of these blocks (QK-norm) count, whatever they are called.
_PLAIN_LETTER = "F"
_PLAIN = {"residual": "add", "channel": "swiglu"}


def deviations(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a table by label: matched_with, the label that a model is compared with; relative differences; marks.

    The relative differences have the names in MARKS (of the three states the largest, of a task the one at its length;
    empty where unknown); marks are the signs of those above MATCHED. All is empty where nothing can be compared with.
    """
    models = runs.drop_duplicates("label").set_index("label")
    sizes = models[["parameters_non_embedding", "flops_forward", *STATES, *STATE_OF_TASK]].astype("float64")
    groups = []
    for _, group in models.groupby(["experiment", "task", *_SIZE], dropna=False):
        reference = _reference(group)
        off = sizes.loc[group.index] / sizes.loc[reference] - 1
        states = off[list(STATES if group["task"].isna().all() else STATE_OF_TASK)]
        farthest = states.abs().fillna(-1).to_numpy().argmax(axis=1)
        rows = pd.DataFrame(
            {
                "matched_with": reference if len(group) > 1 else None,
                "parameters_off": off["parameters_non_embedding"],
                "flops_off": off["flops_forward"],
                "state_off": states.to_numpy()[range(len(states)), farthest],
            },
            index=group.index,
        )
        groups.append(rows)
    table = pd.concat(groups)
    marks = [
        "".join(mark for name, mark in MARKS.items() if abs(row[name]) > MATCHED)
        for _, row in table.iterrows()
    ]
    return table.assign(marks=marks)


def _reference(group: pd.DataFrame) -> str:
    """Return the label that the others of a group are compared with."""
    parameters = group["parameters_non_embedding"].astype("float64")
    plain, dense = plain_transformers(group), _attention_alone(group)
    if plain.any() or dense.sum() == 1:
        return parameters[plain if plain.any() else dense].fillna(float("inf")).idxmin()
    shared = pd.Series([(abs(parameters / mine - 1) <= MATCHED).sum() for mine in parameters], group.index)
    best = parameters[shared == shared.max()]
    return best.fillna(float("inf")).idxmin()


def plain_transformers(models: pd.DataFrame) -> pd.Series:
    """Return which models are plain transformers: attention, the plain residual and SwiGLU in every layer."""
    same = [models[column] == value for column, value in _PLAIN.items()]
    return _attention_alone(models) & pd.concat(same, axis=1).all(axis=1)


def _attention_alone(models: pd.DataFrame) -> pd.Series:
    return models["pattern"].str.fullmatch(f"{_PLAIN_LETTER}+")


def marked(label: str, marks: str) -> str:
    """Append the marks of a label, as tables and legends show it: "hc †‡"."""
    return f"{label} {marks}" if marks else label


def without_marks(label: str) -> str:
    """Remove the marks from a label."""
    return label.rstrip("".join(MARKS.values())).rstrip()


def explanation(off_models: pd.DataFrame, runs: pd.DataFrame) -> str:
    """Explain the marks of models (rows of `deviations`), with the largest deviations; "" without any.

    Models that differ in depth, width or task alone share one entry. runs: Results.runs.
    """
    off_models = off_models[off_models["marks"] != ""]
    if off_models.empty:
        return ""
    models = runs.drop_duplicates("label").set_index("label")
    apart = {"depth": "depth", "d_model": "width", "task": "task"}
    several = [word for name, word in apart.items() if models[name].nunique() > 1]
    state = {"state_off": "decode state at the task's length"} if models["task"].notna().all() else {}
    names = series_names(models).where(
        ~models.duplicated(["experiment", "name", *_SIZE], keep=False), models.index
    )
    differences = []
    for column, mark in MARKS.items():
        off = off_models.loc[off_models["marks"].str.contains(mark), column]
        spread = off.groupby(names).agg(["min", "max"])
        spread = spread.loc[spread.abs().max(axis=1).sort_values(ascending=False, kind="stable").index]
        if len(spread):
            each = (f"{name} {_deviation_range(low, high)}" for name, low, high in spread.itertuples())
            differences.append(f"{mark} {(WHAT | state)[column]} ({listing(each, limit=5)})")
    references = listing(off_models["matched_with"].map(names).drop_duplicates())
    same = f" of the same {listing(several)}" if several else ""
    return f"Not matched, more than {MATCHED:.0%} from {references}{same}: {'; '.join(differences)}."


def legend(runs: pd.DataFrame) -> str:
    """Say in a line what the marks of these models mean; "" where none has one. runs: Results.runs."""
    differing = deviations(runs)
    differing = differing[differing["marks"] != ""]
    if differing.empty:
        return ""
    used = {
        WHAT[column]: mark for column, mark in MARKS.items() if differing["marks"].str.contains(mark).any()
    }
    each = "; ".join(f"{mark} {what.partition(' at ')[0]}" for what, mark in used.items())
    return f"{each}: more than {MATCHED:.0%} from {listing(differing['matched_with'].unique(), 3)}."


def _deviation_range(low: float, high: float) -> str:
    shown = dict.fromkeys((deviation(low), deviation(high)))
    return " to ".join(shown)


def with_marks(table: pd.DataFrame, runs: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return a figure's table with marks appended to label, series and model, and their explanation.

    Of a series of several models (one scheme at all depths) all marks count. Models of a group (a table with this
    column) are compared with one of its own. runs: Results.runs.
    """
    if "group" not in table:
        return _with_marks(table, deviations(runs), runs)
    each = [
        _with_marks(rows, deviations(runs[runs["run"].isin(rows["run"])]), runs)
        for _, rows in table.groupby("group", sort=False)
    ]
    return pd.concat([rows for rows, _ in each]), " ".join(filter(None, (text for _, text in each)))


def _with_marks(table: pd.DataFrame, differing: pd.DataFrame, runs: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    labels = runs.drop_duplicates("run").set_index("run")["label"]
    owners = table["run"].map(labels)
    if "label" in table:
        owners = owners.fillna(table["label"])
    marks = owners.map(differing["marks"]).fillna("")
    shown = {
        name: [marked(each, order(all_marks)) for each, all_marks in zip(table[name], joined, strict=True)]
        for name in ("label", "series", "model")
        if name in table
        for joined in [marks.groupby(table[name]).transform("sum")]
    }
    return table.assign(**shown), explanation(differing.loc[differing.index.isin(owners)], runs)


def order(marks: str) -> str:
    """Return each mark once, in the order of MARKS."""
    return "".join(mark for mark in MARKS.values() if mark in marks)


def caveats(runs: pd.DataFrame) -> list[str]:
    """Caveats about models that are not matched in size, and what their widths were solved for."""
    text = explanation(deviations(runs), runs)
    return [f"{match_text(runs)}{text[0].lower()}{text[1:]}"] if text else []


def match_text(runs: pd.DataFrame) -> str:
    """Name what the runs' widths were solved for: "widths solved for equal params (match=params); "; "" if unknown."""
    known = runs[["match", "match_length"]].drop_duplicates()
    if known["match"].isna().all():
        return ""
    each = (
        "nothing" if pd.isna(match) else f"equal {match}{'' if pd.isna(length) else f' at {length:,} tokens'}"
        for match, length in known.itertuples(index=False)
    )
    return f"widths were solved for {listing(each)} (match); "


# Terms in words: what was equal, what was not, and where the learning rates come from.


class Equality(NamedTuple):
    """Parts of a sentence: what was equal, and what was not; rates: a sentence on learning rates."""

    equal: list[str]
    unequal: list[str]
    rates: str


class _Term(NamedTuple):
    """A term that must agree: its name in a sentence, the columns, and how one column's values are shown."""

    name: str
    columns: list[str]
    show: Callable[[object], str] | None = None


SCORED = ("test_tokens", "test_stride")
"""Columns that tell which part of a test text was scored, and with how much context."""
_TEXT = (
    _Term("text", ["training_set", "test_set", "data_fingerprint"]),
    _Term("tokenizer", ["tokenizer", "vocab_size"]),
    _Term("context", ["seq_len", "pack"]),
)
_TASK = (_Term("task and its options", ["training_set", "test_set", "data_fingerprint"]),)
_TERMS = (
    _Term("tokens of training", ["tokens"], engineering),
    _Term("tokens a step", ["tokens_per_step"], whole),
    _Term("width", ["d_model"], whole),
    _Term("machine", ["cpu", "gpu", "capability", "threads"]),
)
_SIZES = {
    "parameters_non_embedding": "parameters beside the embedding",
    "flops_forward": "FLOPs a token",
}
_STATE = {"state_bytes_8192": "decode state at 8,192 tokens"}
_STATE_OF_TASK = {"state_bytes_context": "decode state at the task's length"}


def equality(runs: pd.DataFrame, baseline: str | None) -> Equality:
    """Return what was equal for the models and what was not.

    runs: `analysis.loading.probes.at_best_rates`, several models. baseline: the label whose sizes the others are
    compared with; None: the smallest.
    """
    equal, unequal = [], []
    of_task = runs["task"].notna().all()
    for term in (*(_TASK if of_task else _TEXT), *_TERMS):
        values = runs[term.columns].drop_duplicates()
        if len(values) == 1:
            equal.append(term.name)
        else:
            shown = sorted(values[term.columns[0]].dropna().unique())
            unequal.append(f"{term.name} ({listing(map(term.show, shown), 4)})" if term.show else term.name)
    if not of_task and any(runs[column].nunique() > 1 for column in SCORED):
        tokens = sorted(runs["test_tokens"].dropna().unique())
        unequal.append(f"part of the test text that was scored ({listing(map(whole, tokens), 4)} tokens)")
    seeds = runs.groupby("label")["seed"].agg(lambda each: tuple(sorted(each.dropna())))
    (equal if seeds.nunique() == 1 else unequal).append("seeds")
    sizes = _SIZES | (_STATE_OF_TASK if of_task else _STATE)
    for name, agrees in _sizes(runs.drop_duplicates("label").set_index("label"), sizes, baseline):
        (equal if agrees else unequal).append(name)
    return Equality(equal, unequal, _rates(runs))


def _sizes(models: pd.DataFrame, sizes: dict[str, str], baseline: str | None) -> list[tuple[str, bool]]:
    """Sizes with their range over the baseline's, and whether they agree within MATCHED; unknown ones are left out."""
    agreement = []
    for column, name in sizes.items():
        values = models[column].astype("float64")
        ratios = values / (values.min() if baseline is None else values[baseline])
        low, high = ratios.min(), ratios.max()
        if values.isna().any() or not low > 0:
            continue
        agrees = max(high - 1, 1 - low) <= MATCHED
        agreement.append(
            (f"{name} (within {MATCHED:.0%})" if agrees else f"{name} ({_ratio_range(low, high)})", agrees)
        )
    return agreement


def _ratio_range(low: float, high: float) -> str:
    """Ratios as "0.031 to 2.4 times"."""
    ends = " to ".join(dict.fromkeys(f"{end:.3g}" for end in (low, high)))
    return f"{ends} times"


def _rates(runs: pd.DataFrame) -> str:
    """A sentence on how the learning rates came about."""
    models = runs.drop_duplicates("label")
    rates = listing((f"{rate:g}" for rate in sorted(models["lr"].dropna().unique())), 6)
    if (models["rates"] > 1).all():
        tried = listing(sorted(models["rates"].unique()))
        edge = models.loc[models["edge"], "model"]
        where = f"; at the edge of those tried: {listing(edge, 20)}" if len(edge) else ""
        apart = "selected_among" in runs and runs["selected_among"].notna().all()
        by = f"by other runs{_selecting_seeds(models)}" if apart else "by these runs themselves"
        return f"Learning rates: each model's own, chosen on validation among {tried} {by}{where}."
    if (models["rates"] > 1).any():
        fixed = listing(models.loc[models["rates"] < 2, "model"], 20)
        return f"Learning rates: chosen on validation, but only one was tried for {fixed}."
    studies = models["lr_study"].dropna().unique()
    if len(studies) and models["lr_study"].notna().all():
        return f"Learning rates: each model's own, {rates}, selected on validation in the study {listing(studies, 3)}."
    if models["lr"].nunique() == 1:
        return f"Learning rate: one for all, {rates}, which may suit some models better than others."
    return f"Learning rates: {rates}, none chosen in these runs."


def _selecting_seeds(models: pd.DataFrame) -> str:
    """Return the number of seeds that selected the rates, in brackets; nothing for one."""
    counts = sorted(models["selected_by_seeds"].unique())
    return f" (the two best with {listing(counts)} seeds)" if counts[-1] > 1 else ""
