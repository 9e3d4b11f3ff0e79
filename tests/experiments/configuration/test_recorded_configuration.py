"""Every choice of conf/ as it is composed, every default, and what is said of words that cannot be composed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hydra
import pytest
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from support.recorded import check, flat
from support.steady import changed, differences, leaves, refusal, tiny_config

from experiments import engines
from experiments.configuration import explain, schema
from experiments.configuration.compose import (
    _explained,
    architectures,
    check_recipe,
    dominant_mixer,
    for_size,
    headlines,
    label,
    model_color,
    presets_to_compare,
    short_labels,
    shorten_pattern,
    to_config,
)
from experiments.configuration.explain import unused_options
from experiments.data import TASKS
from experiments.data.config import OF_TEXT
from experiments.planning.plan import at_rate, resolve_lr_min
from experiments.system.paths import CONF
from zoo.config import ModelConfig
from zoo.model import letters_of
from zoo.options import check_limits

RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture(scope="module")
def composed():
    """Composes words as the command line does, a sweep's values as text; in one process without a sweeper."""
    schema.register()
    for name, found in (
        ("architectures", lambda: ",".join(presets_to_compare())),
        ("for_size", for_size),
        ("headlines", lambda: ",".join(headlines())),
        ("describe_jobs", str),
    ):
        OmegaConf.register_new_resolver(name, found, replace=True)

    def compose(*words: str):
        found = hydra.compose("config", overrides=list(words), return_hydra_config=True)
        params = found.hydra.sweeper.params
        swept = {} if params is None else OmegaConf.to_container(params, resolve=True)
        mode = str(found.hydra.mode)
        del found._content["hydra"]
        return found, {"mode": mode, **swept}

    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        yield compose


def test_every_default():
    check(RECORDED / "defaults.txt", flat(schema.Config()))


def test_every_choice_of_conf(composed):
    """What the files say, and how choices go together: an experiment's defaults, a headline's, a recipe's, a size's."""

    def lines() -> Iterator[str]:
        for file in sorted(CONF.rglob("*.yaml")):
            yield f"{file.relative_to(CONF)}"
            values = OmegaConf.to_container(OmegaConf.load(file))
            yield from (f"  {line}" for line in flat(values) if not line.startswith("hydra.help"))
        for name in sorted(TASKS):
            yield f"data={name}: {dict(name=name, **OF_TEXT)}"
        plain, _ = composed()
        usual = leaves(OmegaConf.to_container(plain))
        yield from differences(OmegaConf.to_container(plain), leaves(schema.Config()))
        for words in (
            "+experiment=papers headline=mom_recall",
            "recipe=two_core data=regression size=smoke model=kda",
            "size=smoke +experiment=tasks",
            "+experiment=quickstart_rates",
            "+experiment=layouts",
        ):
            found, swept = composed(*words.split())
            yield f"{words}: {swept}"
            yield from differences(OmegaConf.to_container(found, resolve=True), usual)

    check(RECORDED / "choices.txt", lines())


def test_every_preset_as_a_model():
    def lines() -> Iterator[str]:
        like = ModelConfig(d_model=32, n_heads=2, depth=6, tie_embeddings=False, backend="torch")
        usual = leaves(ModelConfig())
        yield f"compared: {presets_to_compare()}"
        for name, model in architectures(like).items():
            letters = letters_of(model)
            config = changed(schema.Config(), model=model)
            yield (f"{name}: {letters}, {label(config, letters)}, {model_color(model, letters)}")
            yield f"  named after {dominant_mixer(letters).name}, {shorten_pattern(letters)}"
            yield from differences(model, usual)

    check(RECORDED / "presets.txt", lines())


def test_labels():
    """How models are called, alone and side by side."""

    def lines() -> Iterator[str]:
        config = schema.Config()
        kda = architectures(config.model)["kda"]
        shc, mom = (architectures(config.model)[name] for name in ("shc", "mom"))
        made = {
            "plain": config,
            "pattern": changed(config, model__pattern="SF"),
            "pattern and no preset": changed(config, model__pattern="KKF", model__preset=None),
            "scheme": changed(config, model__residual__name="mhc", model__residual__mhc__iters=5),
            "scheme without a gain": changed(
                config, model__residual__name="ohc", model__residual__ohc__gain=None
            ),
            "gates": changed(config, model__mixers__attention__output_gate=True),
            "preset": changed(config, model=kda),
            "preset at another pattern": changed(config, model=kda, model__pattern="late_full"),
            "preset with options": changed(config, model=kda, model__mixers__kda__neg_eigval=True),
            "preset without a part": changed(config, model=mom, model__mixers__mom__shared=False),
            "preset in another scheme": changed(config, model=shc, model__residual__name="add"),
            "channel": changed(config, model__channel__name="moe"),
            "loss": changed(config, model__pattern="SF", model__mixers__hypergraph__aux_weight=0.0),
            "task": changed(config, data__name="mqar"),
        }
        models = [(one, letters_of(one.model)) for one in made.values()]
        for name, (one, letters) in zip(made, models, strict=True):
            yield f"{name}: {label(one, letters)}; {model_color(one.model, letters)}"
        yield f"side by side: {short_labels(models)}"
        alike = [(changed(one, model__residual__name="ohc"), letters) for one, letters in models[:3]]
        yield f"what all share: {short_labels(alike)}; alone: {short_labels(alike[:1] * 2)}"

    check(RECORDED / "labels.txt", lines())


BAD_WORDS = (
    "model=transfomer",
    "+experiment=quickstrat",
    "experiment=quickstart",
    "trainer.max_stepz=3",
    "trainer.foo=1",
    "optim.lr=fast",
    "seed=null",
    "cost.lengths=5",
    "model.pattern=(SF)*4",
    "a b",
    "model=null",
    "generate.prompt=~x",
)
UNKNOWN_KEYS = (
    "model.residual.iters",
    "residual",
    "probe.window",
    "lr",
    "model.nonsense.key",
    "mqar.pairs",
    "data.tasks.mqar.pairz",
    "stride",
    "channel",
    "model.mixer.kda.decay",
    "zzz",
    "trainer.lr",
    "optim.steps",
    "sweep.slurm.gpu",
    "batch_size",
    "model.mixers.kda.iters",
)


def test_words_that_cannot_be_composed(composed, monkeypatch):
    assert explain._unusable_options() is None
    monkeypatch.setattr(explain, "_unusable_options", lambda: None)  # it takes half a second

    def said(word: str) -> str:
        try:
            to_config(composed(word)[0])
        except (HydraException, OmegaConfBaseException) as error:
            return explain.explain(error)
        except Exception as error:
            return (
                f"{type(error).__name__}: {(_explained(error) if type(error) is ValueError else '') or error}"
            )
        return "taken"

    known = explain.known_keys()
    meant = [f"{key}: {explain._similar_keys(key, known)}" for key in UNKNOWN_KEYS]
    check(RECORDED / "bad_words.txt", [*(f"{word}: {said(word)}" for word in BAD_WORDS), *meant])


def test_settings_that_are_refused():
    """Recipes, rates and sweeps that cannot work, and those just inside."""

    def lines() -> Iterator[str]:
        for recipe, data in (
            ("two_core", "pydocs"),
            ("two_core", "mqar"),
            (None, "pydocs"),
            ("nothing", "mqar"),
        ):
            yield f"recipe={recipe} data={data}: {refusal(check_recipe, recipe, data)}"
        optim = schema.OptimConfig()
        for keys in (
            {"lr_min_ratio": 0.1},
            {"lr_min_ratio": 0.0},
            {"lr_min_ratio": 1.0},
            {"lr_min_ratio": 1.01},
            {"lr_min_ratio": -0.1},
            {"lr_min_ratio": 0.1, "lr_min": 1e-4},
            {"lr_min_ratio": 1 / 3, "lr": 1e-2},
            {},
        ):
            yield f"{keys}: {refusal(resolve_lr_min, changed(optim, **keys))}"
        for keys in ({}, {"lr_min_ratio": 0.2}, {"lr_min": 1e-4, "lr_study": "x"}):
            yield f"{keys} at 0.01: {at_rate(changed(optim, **keys), 0.01)}"

        def check_sweep(config: schema.Config) -> None:
            check_limits(config)
            engines.check(config)

        for keys in SWEEPS:
            config = changed(schema.Config(), **{f"sweep__{key}": value for key, value in keys.items()})
            yield f"sweep {keys}: {refusal(check_sweep, config)}"

    check(RECORDED / "refused_settings.txt", lines())


SWEEPS = (
    {},
    {"engine": "pol"},
    {"action": "go"},
    {"slurm__cluster": "here"},
    {"action": "submit"},
    {"action": "cancel"},
    {"engine": "list", "action": "submit"},
    *(
        {"engine": "slurm", "action": a, "slurm__cluster": c}
        for a in ("submit", "cancel")
        for c in ("slurm", "local")
    ),
    *({"engine": "ray", "action": "submit", "ray__address": address} for address in ("auto", "local")),
    {"retries": -1},
    {"retries": 0},
    {"slurm__signal_s": 0},
    {"slurm__signal_s": 1},
    {"slurm__requeues": -1},
    {"slurm__requeues": 0},
    {"slurm__cpus": 0},
    {"slurm__gpus": -1},
    {"slurm__gpus": 0},
    {"slurm__jobs": 0},
    {"slurm__jobs": 1},
    {"ray__cpus": -0.5},
    {"ray__cpus": 0.0},
    {"ray__gpus": -1.0},
    {"slurm__poll_s": 0.0},
    {"ray__poll_s": float("inf")},
    {"ray__poll_s": float("nan")},
    {"slurm__memory_gb": 0.0},
    {"slurm__memory_gb": 0.5},
    {"ray__cpus": 1.5},
    {"ray__gpus": 2.5},
    {"ray__gpus": 2.0},
    {"ray__cpus": 1.0},
    {"slurm__minutes": 2.0},
    {"slurm__minutes": 2.1},
    {"slurm__more": ["constraint=a100", "hold"]},
    {"slurm__more": ["constraint=a100"]},
    {"slurm__more": ["constraint="]},
)


def test_options_that_nothing_uses():
    plain, routed = tiny_config(), tiny_config(model__pattern="SF")
    task = tiny_config(data__name="mqar")
    words = (
        "model.residual.mhc.iters=5",
        "model.mixers.kda.head_width=4",
        "data.tasks.mqar.pairs=3",
        "model.channel.moe.top_k=1",
        "+model.residual.mhc.sublayers=1",
        "model.mixers.nothing.x=1",
        "data.tasks.nothing.x=1",
        "model.depth=2",
        "optim.lr=1",
        "model.mixers.hypergraph.n_timelines=2",
        "model.residual.name=add",
        "model.residual.mhc.gain=1",
    )
    evaluated = changed(plain, job="evaluate")
    unreadable = changed(plain, model__pattern="Z?")
    check(
        RECORDED / "unused_options.txt",
        (
            f"{name}: {line}"
            for name, configs in {
                "plain": [plain],
                "routed": [routed],
                "both": [plain, routed],
                "task": [task],
                "evaluate": [evaluated],
                "unreadable": [unreadable],
            }.items()
            for line in unused_options(words, configs) or ["nothing"]
        ),
    )
