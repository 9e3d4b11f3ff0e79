"""job=papers: headlines that compose and build, models with options of their own, costs before anything is trained."""

import csv
from dataclasses import replace

import pytest
from support.program import Lab

from experiments.compare.length_generalization import longer_tasks
from experiments.compare.select import named_models
from experiments.configuration.compose import label
from experiments.configuration.schema import Config
from experiments.data import TaskSet
from experiments.data.tasks.mqar import MQARConfig
from experiments.jobs import compare, papers
from zoo.config import architecture_of
from zoo.errors import UserError

TINY = ["headline=parity", "model.depth=1", "model.d_model=16", "trainer.max_steps=8", "trainer.val_every=2"]


@pytest.fixture
def config() -> Config:
    """A comparison of two pairs in 16 tokens."""
    made = Config(job="compare")
    made.data.name, made.data.tasks.mqar = "mqar", MQARConfig(length=16, pairs=2, vocab=24)
    return made


def with_entries(config: Config, *entries: str) -> Config:
    return replace(config, compare=replace(config.compare, models=list(entries)))


def test_models_are_named_with_options_of_their_own_a_model_for_each_value(config: Config):
    assert named_models(config) == [config]
    found = named_models(
        with_entries(config, "transformer", "kda_pure mixers.kda.head_width=2,4 mixers.kda.neg_eigval=true")
    )
    assert [label(one, architecture_of(one.model)) for one in found] == ["transformer mqar"] + [
        f"kda_pure neg_eigval head_width={width} mqar" for width in (2, 4)
    ]
    assert {(one.model.d_model, one.model.depth) for one in found} == {
        (config.model.d_model, config.model.depth)
    }


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("kda_pur", "unknown preset in compare.models 'kda_pur'; did you mean 'kda_pure'"),
        ("", "unknown preset in compare.models ''"),
        ("kda_pure mixers.kda.neg_eigvals=true", "did you mean 'model.mixers.kda.neg_eigval'?"),
        ("kda_pure mixers.kda.n_heads=many", "model.mixers.kda.n_heads=many cannot be set"),
        ("kda_pure mixers.kda.decay", "cannot read 'model.mixers.kda.decay'"),
    ],
)
def test_a_model_that_cannot_be_is_refused_with_its_entry(config: Config, entry: str, said: str):
    with pytest.raises(UserError) as refused:
        named_models(with_entries(config, "transformer", entry))
    assert said in str(refused.value)
    assert "compare.models" in str(refused.value)
    assert "compare.grid" not in str(refused.value)


@pytest.mark.parametrize(
    ("longer", "said"),
    [
        ("pears=4", "names no option of mqar"),
        ("vocab=64", "changes the vocabulary"),
        ("length=8", "mqar.length=8 has no room for"),
        ("length", "compare.longer: cannot read 'length'"),
    ],
)
def test_longer_sequences_that_cannot_be_scored_are_refused(config: Config, longer: str, said: str):
    asked = replace(config, compare=replace(config.compare, longer=longer))
    if longer == "length=8":
        asked.data.tasks.mqar.pairs = 4
    with pytest.raises(UserError, match=said):
        longer_tasks(asked)


def test_longer_sequences_are_the_task_with_another_option(config: Config):
    assert longer_tasks(config) == []
    asked = replace(config, compare=replace(config.compare, longer="length=32,64"))
    assert [TaskSet(one).task.seq_len for one in longer_tasks(asked)] == [32, 64]
    assert [one.tasks.mqar.pairs for one in longer_tasks(asked)] == [2, 2]
    text = replace(asked, data=replace(asked.data, name="pydocs"))
    with pytest.raises(UserError, match="data=pydocs is text"):
        longer_tasks(text)


@pytest.mark.slow
def test_costs_are_said_and_nothing_is_trained_where_dry(lab: Lab):
    lab.arguments = lambda *words: [*words, f"results={lab.results}"]
    outcome = lab.done("+experiment=papers", "dry=true", *TINY)
    assert "papers_parity: 2 models, 8 steps a run, about 0." in outcome.out
    assert "in all: about" in outcome.out
    assert not lab.results.exists()


def test_headlines_keep_their_experiments_apart(lab: Lab):
    lab.arguments = lambda *words: list(words)
    (config,) = lab.compose("+experiment=papers", "headline=parity")
    with pytest.raises(UserError, match=r"leave name=\.\.\. out"):
        papers.run_sweep([config, config])
    config.compare.models = []
    with pytest.raises(UserError, match="headline=NAME"):
        papers.run(config)


@pytest.mark.long
def test_every_headline_is_compared_by_itself(config: Config, monkeypatch):
    compared: list[list[Config]] = []
    monkeypatch.setattr(compare, "compare", compared.append)
    monkeypatch.setattr(papers, "_cost", lambda config: (60.0, 120.0, config.name))
    both = [replace(with_entries(config, "transformer"), name=name) for name in ("one", "two")]
    papers.run_sweep(both)
    assert compared == [[both[0]], [both[1]]]


@pytest.mark.long
def test_a_headline_is_trained_scored_beyond_its_length_and_judged(lab: Lab):
    """Twelve runs of eight steps: nothing is learned, and the verdict says so; the same command trains nothing more."""
    lab.arguments = lambda *words: [*words, f"results={lab.results}"]
    words = [
        "+experiment=papers",
        *TINY,
        "optim.warmup_steps=2",
        "trainer.log_every=2",
        "compare.rates=[1e-3,3e-3]",
        "compare.extend=0",
    ]
    words += [
        'compare.longer="length=32,48"',
        "evaluate.windows=64",
        "sweep.workers=1",
        "trainer.progress=false",
    ]
    outcome = lab.run(*words)
    assert outcome.status == 0, outcome.err
    assert "papers_parity: 2 models" in outcome.out
    assert "  1  inconclusive  Does a delta rule need negative eigenvalues for parity?" in outcome.out
    rows = list(csv.DictReader((lab.results / "papers_parity" / "selection.csv").open()))
    assert len(rows) == 4
    assert all(float(row["seconds"]) > 0 for row in rows)
    scored = sorted((lab.results / "papers_parity").glob("*/lengths.csv"))
    assert len(scored) == 6
    assert [row["length"] for row in csv.DictReader(scored[0].open())] == ["32", "48"]
    assert [row["answers"] for row in csv.DictReader(scored[0].open())] == [str(64 * 31), str(64 * 47)]
    again = lab.run(*words)
    assert "6 cells: 6 complete, 0 to train" in again.out
