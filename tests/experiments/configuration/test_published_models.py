"""Published models as configurations: their parameters to the unit, and their vocabularies."""

import time

import pytest
from support.program import Lab

from experiments.configuration.compose import differences_from_preset
from experiments.system.paths import CONF
from zoo import cost
from zoo.config import architecture_of
from zoo.model import meta_model

PARAMETERS = {
    "qwen3_0_6b": 596_049_920,
    "qwen3_1_7b": 1_720_574_976,
    "qwen3_4b": 4_022_468_096,
    "qwen3_8b": 8_190_735_360,
    "qwen3_14b": 14_768_307_200,
    "qwen3_32b": 32_762_123_264,
    "lfm2_350m": 354_483_968,
    "lfm2_700m": 742_489_344,
    "lfm2_1_2b": 1_170_340_608,
    "lfm2_2_6b": 2_569_272_320,
    "llama3_2_1b": 1_235_814_400,
    "llama3_1_8b": 8_030_261_248,
    "qwen2_5_0_5b": 494_032_768,
    "smollm2_135m": 134_515_008,
    "deepseek_v2_lite": 15_706_484_224,
    "deepseek_v3": 671_026_404_352,
    "kimi_linear_48b": 49_122_675_072,
}
"""As of the published weights; routing biases are buffers and not counted."""


@pytest.fixture
def plain(lab: Lab) -> Lab:
    """Commands without the small sizes of other tests."""
    lab.arguments = lambda *words: list(words)
    return lab


@pytest.mark.slow
def test_a_published_model_has_its_parameters_to_the_unit(plain: Lab):
    """Each as the command composes it, built without storage; and nothing of it but what its preset says."""
    assert {path.stem for path in (CONF / "model" / "published").glob("*.yaml")} == set(PARAMETERS)
    configs = plain.compose("--multirun", f"model={','.join(f'published/{name}' for name in PARAMETERS)}")
    found = {}
    for config in configs:
        found[config.model.preset] = cost.parameters(meta_model(config.model, **config.sizes))
        assert differences_from_preset(config.model, architecture_of(config.model)) == []
    assert found == {f"published/{name}": number for name, number in PARAMETERS.items()}


@pytest.mark.long
def test_the_cost_of_48_billion_parameters_is_counted_in_half_a_minute(plain: Lab):
    """At the default lengths up to 131,072 tokens; processor time, which other programs do not lengthen."""
    began = time.process_time()
    done = plain.done("job=cost", "model=published/kimi_linear_48b")
    assert f"parameters: {PARAMETERS['kimi_linear_48b']}\n" in done.out
    assert "vocabulary: 163840\n" in done.out
    assert time.process_time() - began < 30


@pytest.mark.parametrize("size", ["reference", "small"])
def test_a_size_beside_a_published_model_is_refused(plain: Lab, size):
    done = plain.here("job=cost", "model=published/smollm2_135m", f"size={size}")
    assert done.status != 0
    assert "model=published/smollm2_135m sets its own size; leave size= out" in done.err
