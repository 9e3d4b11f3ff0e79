"""Every choice of conf/ as it is composed, every default, and settings that are refused."""

from collections.abc import Iterator
from pathlib import Path

import hydra
import pytest
from omegaconf import OmegaConf
from support.recorded import check, flat
from support.steady import changed, differences, each, leaves, refusal
from test_unused_options import KEYS

from experiments import engines
from experiments.configuration import schema
from experiments.configuration.compose import (
    architectures,
    check_recipe,
    for_size,
    headlines,
    label,
    presets_to_compare,
    shorten_pattern,
)
from experiments.data import TASKS
from experiments.data.config import OF_TEXT
from experiments.planning.plan import at_rate, resolve_lr_min
from experiments.system.paths import CONF
from zoo.config import ModelConfig, architecture_of
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


def test_every_limit():
    """What a value may be; that each is kept is tested key by key (test_unused_options)."""
    names = ("least", "most", "above", "below", "choices")

    def lines() -> Iterator[str]:
        for key, field in KEYS.items():
            limits = [(name, field.metadata[name]) for name in names if name in field.metadata]
            yield f"{key}: " + ", ".join(f"{n} {'open' if callable(x) else x}" for n, x in limits)

    check(RECORDED / "limits.txt", lines())


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
            layers = architecture_of(model)
            config = changed(schema.Config(), model=model)
            yield (f"{name}: {layers.letters}, {label(config, layers)}, {layers.color}")
            yield f"  named after {layers.named_after.name}, {shorten_pattern(layers.letters)}"
            yield from differences(model, usual)

    check(RECORDED / "presets.txt", lines())


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
    *each(engine="pol", action="go", slurm__cluster="here"),
    *each(action=("submit", "cancel")),
    {"engine": "list", "action": "submit"},
    *(
        {"engine": "slurm", "action": a, "slurm__cluster": c}
        for a in ("submit", "cancel")
        for c in ("slurm", "local")
    ),
    *({"engine": "ray", "action": "submit", "ray__address": address} for address in ("auto", "local")),
    *each(ray__cpus=(1.5, 1.0), ray__gpus=(2.5, 2.0), slurm__minutes=(2.0, 2.1)),
    *each(slurm__more=(["constraint=a100", "hold"], ["constraint=a100"], ["constraint="])),
)
