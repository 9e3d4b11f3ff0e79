"""job=evaluate: score a finished run or a checkpoint on the splits of its own text."""

from __future__ import annotations

from experiments import machine
from experiments.carried_scoring import score_carried
from experiments.data import Corpus
from experiments.jobs import Job
from experiments.load_run import LoadedRun, load_corpus, load_run
from experiments.progress import Bar
from experiments.schema import Config, EvaluateConfig
from experiments.scoring import Score, count_scored, format_metrics, score_model
from zoo.errors import UserError, unknown


def run(config: Config) -> None:
    """Print all four metrics of every split in evaluate.splits, at evaluate.stride (default: half a window).

    With evaluate.carry every token has its whole history instead of a window.
    """
    _check(config.evaluate)
    device = machine.pick(config.device)
    loaded = load_run(config.run, device)
    corpus = load_corpus(loaded, config.data)
    for name in config.evaluate.splits:
        if name not in corpus.splits:
            raise unknown("split in evaluate.splits", name, corpus.splits)
    length = loaded.model.seq_len
    if not 1 <= (config.evaluate.stride or 1) <= length:
        raise UserError(
            f"evaluate.stride={config.evaluate.stride} must be from 1 to the model's length {length}"
        )
    bar = Bar("evaluate", config.trainer.progress)
    for name in config.evaluate.splits:
        score = _score(loaded, config, corpus, name, bar)
        bar.close()
        print(format_metrics(name, score.metrics(), corpus.describe()[name]))


def _check(evaluate: EvaluateConfig) -> None:
    """Refuse what makes no sense, before a model is loaded. Raises UserError."""
    if evaluate.batch_size < 1:
        raise UserError(f"evaluate.batch_size={evaluate.batch_size} must be at least 1")
    if not evaluate.splits:
        raise UserError("evaluate.splits names nothing to score; give evaluate.splits=[validation,test]")
    if evaluate.carry and evaluate.stride is not None:
        raise UserError(
            f"evaluate.stride={evaluate.stride} moves a window, and with evaluate.carry=true there is none; "
            "leave one of them out"
        )


def _score(loaded: LoadedRun, config: Config, corpus: Corpus, name: str, bar: Bar) -> Score:
    device = loaded.model.embedding.weight.device
    if not config.evaluate.carry:
        return score_model(loaded.model, config, corpus, name, device, bar)
    split = corpus.splits[name]
    return score_carried(
        loaded.model,
        split,
        batch_size=config.evaluate.batch_size,
        document_bos=corpus.document_bos,
        precision=machine.precision(config.trainer.precision, device),
        progress=count_scored(bar, name, len(split.tokens) - 1),
    )


JOB = Job(
    "evaluate", "score a finished run or checkpoint on held-out text", run, needs="run=results/NAME/RUN"
)
