"""Numbers of a headline: a model's right answers, and how many more they are than another's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import pandas as pd

from analysis.comparing.tables import with_final_validation
from analysis.comparing.verdicts import LEARNED, UNLEARNED, any_learned, families
from analysis.evidence.ledger.entries import Evidence, Missing, origin, seeds_check
from analysis.evidence.ledger.rules import INCONCLUSIVE, Check, Lack, Needed, at_least, at_most
from analysis.loading.probes import at_best_rates
from analysis.loading.results import Results
from analysis.loading.tables import architectures

GAP = 0.05
"""A gap: a twentieth of the answers, which the whole interval has to reach, or to stay below."""

Judge = Callable[[Evidence], Iterator[Check | Lack]]


def beats(
    config: str, winner: str, *losers: str, beside: Sequence[str] = (), longer: Sequence[int] = ()
) -> Judge:
    """Make the judge of a headline by which a model has more right answers than others, by a GAP at least.

    config: of the headline. The differences decide; accuracies are shown, also those of the models beside, and those
    on longer sequences.
    """

    def judge(evidence: Evidence) -> Iterator[Check | Lack]:
        study = study_of(evidence, config)
        for loser in losers:
            yield from ahead(study, winner, loser)
        yield from (accuracy(study, model) for model in (winner, *losers, *beside))
        yield from (accuracy_at(study, model, tokens) for tokens in longer for model in (winner, *losers))

    return judge


def study_of(evidence: Evidence, config: str) -> Results:
    """Return the runs of a headline. Raises Missing where there are none."""
    return evidence.study(f"papers_{config}", f"python run.py +experiment=papers headline={config}")


@lru_cache(maxsize=16)
def at_length(study: Results, tokens: int) -> Results:
    """Return the runs with their test accuracies on sequences of so many tokens. Raises Missing where none was."""
    lengths = study.table("lengths")
    rows = lengths[lengths["length"] == tokens].set_index("run")
    if rows.empty:
        raise Missing(f"no run was scored on sequences of {tokens} tokens", "")
    right = rows["right"] / rows["answers"]
    return replace(study, runs=study.runs.assign(test_accuracy=study.runs["run"].map(right)))


def ahead(study: Results, one: str, other: str, trained: Results | None = None) -> Iterator[Check | Lack]:
    """Yield the accuracy of one model less that of another, which is to be a GAP or more.

    Where both have learned the task it tells nothing of them: then the difference is shown and judges nothing.
    trained: the study at the trained length, where `study` is one `at_length`.
    """
    reasons = _unlearned(trained or study, one, other)
    if min(of_model(study, model)["test_accuracy"].mean() for model in (one, other)) >= LEARNED:
        reasons.append(
            f"both have {LEARNED:.0%} of the answers right, so that only a harder task can tell them apart"
        )
    yield from _difference(study, one, other, at_least(GAP), reasons)


def level(study: Results, one: str, other: str) -> Iterator[Check | Lack]:
    """Yield the accuracy of one model less that of another, which is to be a GAP at most."""
    yield from _difference(study, one, other, at_most(GAP), _unlearned(study, one, other))


def _unlearned(study: Results, one: str, other: str) -> list[str]:
    """Why a difference does not count: no model has learned the task, or neither of the two."""
    if not any_learned(_tested(study)):
        return [f"no model has {LEARNED:.0%} of the answers right, so that the setting does not count"]
    best = max(of_model(study, model)["test_accuracy"].mean() for model in (one, other))
    return [UNLEARNED] * bool(best < LEARNED)


def _difference(
    study: Results, one: str, other: str, needed: Needed, reasons: list[str]
) -> Iterator[Check | Lack]:
    """Yield a difference of accuracies on the test split with the interval of the comparison from `other`.

    Intervals of a study hold together (`analysis.comparing.verdicts`). With reasons, or where the difference is a lead,
    it judges nothing: the number is shown, and what it lacks is yielded.
    """
    winner, base = (of_model(study, model)["label"].iloc[0] for model in (one, other))
    (family,) = families(_tested(study), "test_loss", base)
    row, seeds = family.table.loc[winner], family.table.loc[[winner, base], "n_seeds"]
    reasons = [*reasons, *family.terms(base, winner)]
    value, half = -float(row["difference"]), float(row["difference_ci"])
    yield Check(
        f"accuracy of {one} less that of {other}",
        value,
        value - half,
        value + half,
        "of the answers",
        None if reasons else needed,
        int(seeds.min()),
        **origin(study),
    )
    if reasons:
        yield Lack(INCONCLUSIVE, f"{one} beside {other}: {'; '.join(reasons)}")


def accuracy(study: Results, model: str) -> Check:
    """Return the accuracy of a model on the test split: the mean over seeds with its t interval. Raises Missing."""
    values = of_model(study, model)["test_accuracy"]
    return seeds_check(f"accuracy of {model}", values, None, study, "of the answers")


def accuracy_at(study: Results, model: str, tokens: int) -> Check:
    """Return the accuracy of a model on sequences of so many tokens, as `accuracy`. Raises Missing."""
    mean = accuracy(at_length(study, tokens), model)
    return replace(mean, name=f"{mean.name} at {tokens} tokens")


def of_model(study: Results, model: str) -> pd.DataFrame:
    """Return the tested runs of a model, by its name without the task. Raises Missing where there are none."""
    runs = _tested(study)
    names = architectures(runs)
    names = names.where(
        names != model.removeprefix("gated_conv "), model
    )  # runs since labels begin with the pattern
    if model not in set(names):
        raise Missing(f"no model '{model}' in the study, only {', '.join(sorted(set(names)))}", "")
    return runs[names == model]


@lru_cache(maxsize=16)
def _tested(study: Results) -> pd.DataFrame:
    """The runs of a study with a test accuracy, each model's at its best rate; every number asks for them."""
    runs = with_final_validation(study.of_tasks)
    return at_best_rates(runs[runs["test_accuracy"].notna()])
