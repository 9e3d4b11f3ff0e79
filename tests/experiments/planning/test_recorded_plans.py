"""Identities and names of runs over a table of changes, and every refusal of a plan."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.recorded import check, flat
from support.steady import changed, differences, each, leaves, refusal, said, tiny_config

from experiments.configuration.compose import architectures
from experiments.planning.identity import as_format_1, block_files, identify, run_name, tell_earlier
from experiments.planning.plan import check_config, check_writable, plan
from zoo.config import architecture_of
from zoo.errors import UserError

RECORDED = Path(__file__).parent / "recorded"


DECIDING = (
    *each(seed=1, optim__lr=1e-2, optim__lr_min=1e-5, optim__warmup_steps=7, optim__weight_decay=0.0),
    *each(optim__clip=2.0, optim__beta1=0.8, optim__beta2=0.9, optim__eps=1e-6, optim__lr_study="x"),
    *each(trainer__max_steps=7, trainer__accumulate=2, trainer__precision="fp32", trainer__val_every=7),
    *each(trainer__val_tokens=None, trainer__patience=3, data__pack="document", data__seq_len=16),
    *each(data__batch_size=3, evaluate__stride=8, evaluate__windows=5, model__depth=3),
    *each(model__tie_embeddings=False, model__pattern="K", model__mixers__attention__output_gate=True),
    *each(model__mixers__attention__window=4, model__residual__name="mhc", model__channel__name="moe"),
)
WITHOUT_EFFECT = (
    *each(device="auto", results="elsewhere", trainer__log_every=3, trainer__checkpoint_every=3),
    *each(trainer__threads=2, trainer__probe_every=5, trainer__devices=2, trainer__recompute="full"),
    *each(trainer__loggers=["wandb"], trainer__keep_steps=[3], evaluate__splits=["test"]),
    *each(evaluate__batch_size=3, model__mixers__kda__neg_eigval=True, model__residual__mhc__iters=3),
    *each(model__preset=None, name="other", probe__windows=9, model__backend="torch"),
)


def _identity(config) -> dict:
    return identify(config, architecture_of(config.model), "0" * 32)


def test_identities():
    def lines() -> Iterator[str]:
        config = tiny_config()
        identity = _identity(config)
        yield from flat(identity)
        yield f"name: {run_name(identity)}, in format 1: {run_name(as_format_1(identity, ['test']))}"
        yield from differences(as_format_1(identity, ["test"]), leaves(identity))
        for keys in (*DECIDING, *WITHOUT_EFFECT):
            own = _identity(changed(config, **keys))
            yield f"{keys}: {run_name(own)}"
            yield from differences(own, leaves(identity))
        for name, model in architectures(config.model).items():
            yield f"{name}: {run_name(_identity(changed(config, model=model)))}"

    check(RECORDED / "identities.txt", lines())


TWO = {"trainer__devices": 2, "trainer__accumulate": 2}
SLURM, RAY = ({**TWO, "sweep__engine": engine} for engine in ("slurm", "ray"))
BPE, STUDY = {"data__tokenizer": "bpe"}, {"optim__lr_study": "quickstart_rates"}
REFUSED = (
    *each(trainer__max_steps=0, trainer__keep_steps=([5, 301], [0], [1, 300])),
    *each(optim__lr=(1e-4, 3e-4), evaluate__stride=(33, 32), evaluate__splits=["train"]),
    *each(name=("", "a/b", ".a", "a\\b", "report", "published", "verdict"), results=""),
    *each(evaluate__carry=True, model__residual__name="nothing", model__channel__name="nothing"),
    *each(model__n_heads=3, model__pattern="Z", model__depth=0),
    {"trainer__compile": True, "trainer__recompute": "full"},
    {"trainer__compile": True, "trainer__recompute": "selective"},
    {"trainer__compile": True},
    {"trainer__devices": 2, "trainer__accumulate": 3},
    {"trainer__devices": 2, "trainer__accumulate": 4},
    {"trainer__nodes": 2},
    {"trainer__devices": 4, "trainer__context": 2, "trainer__accumulate": 3},
    {**TWO, "trainer__strategy": "fsdp", "trainer__compile": True},
    {**TWO, "trainer__strategy": "fsdp", "trainer__probe_every": 3},
    {**TWO, "trainer__strategy": "ddp", "trainer__probe_every": 3},
    {"trainer__context": 2},
    {"trainer__devices": 3, "trainer__context": 3},
    {"trainer__devices": 2, "trainer__context": 2},
    {"trainer__devices": 2, "trainer__context": 2, "trainer__compile": True},
    {"trainer__nodes": 2, "trainer__accumulate": 2, "sweep__engine": "slurm"},
    {**SLURM, "sweep__slurm__gpus": 1, "device": "auto"},
    {**RAY, "sweep__ray__gpus": 0.5, "device": "cuda"},
    {**RAY, "sweep__ray__gpus": 0.0, "device": "auto"},
    {**SLURM, "sweep__slurm__gpus": 2, "device": "cuda"},
    {**TWO, "sweep__engine": "list", "device": "cuda"},
    *each(data__name="nothing", data__tokenizer="words"),
    {**BPE, "data__vocab_size": 256},
    {"data__vocab_size": 2**21, "data__tokenizer": "bpe"},
    {**BPE, "data__vocab_size": 257},
    *each(data__seq_len=10**7, data__path=None, data__revision="abc", data__train_path="x"),
    {"data__gpt2_path": "nowhere", "data__tokenizer": "gpt2"},
    *each(probe__sentence=" ", probe__at=("first", "0", "10", "last"), match=("params", "size")),
    {"match_length": 64, "match": "params"},
    {"match_length": 64},
    {"match": "state", "match_length": 64},
    *each(trainer__tokens_per_parameter=20.0),
    {"trainer__tokens_per_parameter": 20.0, "trainer__max_steps": 7},
    *each(optim__lr_study=("nothing", "quickstart_rates")),
    {**STUDY, "optim__lr": 0.5},
)
OF_A_TASK = (
    {},
    {"trainer__probe_every": 3},
    {"evaluate__stride": 3},
    {"trainer__devices": 2, "trainer__context": 2},
    {"data__pack": "document"},
    {"data__path": "x"},
    {"data__tasks__mqar__pairs": 9},
    {"data__tasks__mqar__pairs": 8, "data__tasks__mqar__vocab": 16},
    {"data__tokenizer": "bytes"},
    {"data__vocab_size": 99},
    {"data__seq_len": 64},
)


def test_what_plans_refuse(place: Path):
    """Each change of a configuration alone: the refusal, or the planned run's differences from the usual one."""
    text = tiny_config(data__name="text", data__path="book.txt", results="results")
    task = tiny_config(
        data__name="mqar", data__tokenizer="bpe", data__vocab_size=4096, data__seq_len=128, results="results"
    )

    def lines() -> Iterator[str]:
        for name, base, table in (("text", text, REFUSED), ("task", task, OF_A_TASK)):
            usual = leaves(plan(base).config)
            for keys in table:
                config = changed(base, **keys)
                try:
                    planned = plan(config)
                except Exception as error:
                    yield f"{name} {keys}: {type(error).__name__}: {error}".replace(str(place), "<place>")
                    continue
                yield f"{name} {keys}: {planned.title}"
                yield from differences(planned.config, usual)
        for results in ("book.txt", "book.txt/inside", "new/inside"):
            yield f"{results}: {refusal(check_writable, results, 'results')}".replace(str(place), "<place>")

    check(RECORDED / "refused.txt", lines())


def test_a_model_is_checked_at_the_length_and_the_vocabulary_that_it_is_trained_with(place: Path):
    """GSA's k_base is an eighth of the length: 8 at 64 tokens, where a vocabulary of 257 would make it 32."""
    text = tiny_config(data__name="text", data__path="book.txt", data__seq_len=64, model__pattern="G")
    fits = changed(text, model__mixers__gsa__k_max=10)
    check_config(fits)
    with pytest.raises(UserError, match="k_min ≤ k_base ≤ k_max, not 9, 8, 16"):
        check_config(changed(text, model__mixers__gsa__k_min=9))
    with pytest.raises(UserError, match="k_min ≤ k_base ≤ k_max, not 4, 32, 10"):
        check_config(changed(fits, data__seq_len=256))


def test_a_run_that_has_no_checkpoint_starts_anew_and_nothing_is_told_of_its_blocks(place: Path):
    planned = plan(tiny_config(data__name="text", data__path="book.txt", results="results"))
    before = dict.fromkeys(block_files(planned.layers), "0" * 16)
    planned.folder.begin(planned.yaml(), planned.identity, before)
    with said() as printed:
        tell_earlier([planned])
    assert printed == []
