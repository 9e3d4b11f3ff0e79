"""What moving code between files may not change: how presets train, what they cost, and the public names.

Other parts are pinned elsewhere: names of published runs in tests/experiments/planning/test_published.py (that of
verdict_ema in test_documented_blocks.py), keys of identities in tests/support/identity_keys.json, keys and defaults of
the configuration in tests/experiments/configuration/recorded/defaults.txt, costs at the reference size in
tests/experiments/jobs/test_help_and_costs.py, names of kernels in tests/kernels/triton_common/test_tuning.py.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.program import Lab, steady_rows, write_text
from support.recorded import check, number

import analysis
import experiments
import kernels
import zoo
from experiments.configuration.compose import architectures, presets_to_compare
from zoo import ModelConfig

RECORDED = Path(__file__).parent / "recorded"
STEPS = 20
TRAINING = [
    "model.depth=4",
    "optim.lr=3e-4",  # at ten times that, selections and solvers turn differences of rounding into percents
    f"trainer.max_steps={STEPS}",
    "trainer.log_every=1",
    f"trainer.val_every={STEPS}",
    f"trainer.checkpoint_every={STEPS}",
    "trainer.precision=fp32",
    "evaluate.splits=[]",
]
FEWER_LAYERS = {"mesanet": ["model.depth=2"]}
"""Gradients through four layers of conjugate gradients differ by half a percent from processor to processor."""

# Ten times the largest difference that was seen between SSE, AVX2 and AVX-512: 5e-6 and 5e-5, in nsa, which selects.
# Most presets differ by 2e-7, which is one rounding.
LOSS_TOLERANCE = 5e-5
NORM_TOLERANCE = 5e-4


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "book.txt")


def trained_presets(folder: Path, text: Path) -> dict[str, list[dict[str, str]]]:
    """The rows of training steps of each of the eleven presets."""
    found = {}
    for preset in presets_to_compare():
        lab = Lab(folder / preset, text, folder / "cache")
        lab.done(f"model={preset}", *TRAINING, *FEWER_LAYERS.get(preset, []))
        found[preset] = [row for row in steady_rows(lab.run_folder()) if row["split"] == "train"]
    return found


def in_a_line(trained: dict[str, list[dict[str, str]]], column: str) -> Iterator[str]:
    for preset, rows in trained.items():
        assert [int(row["step"]) for row in rows] == list(range(1, STEPS + 1))
        yield f"{preset}: {' '.join(number(float(row[column])) for row in rows)}"


@pytest.mark.slow
def test_presets_train_to_the_same_losses_with_the_same_gradient_norms(tmp_path, text):
    trained = trained_presets(tmp_path, text)
    assert len(trained) == 11
    check(RECORDED / "training_losses.txt", in_a_line(trained, "loss"), relative=LOSS_TOLERANCE)
    check(RECORDED / "gradient_norms.txt", in_a_line(trained, "grad_norm"), relative=NORM_TOLERANCE)


@pytest.mark.long
def test_presets_cost_the_same(tmp_path, text):
    """Every preset, the variants too: parameters, FLOPs and bytes, all of them exact."""
    lab = Lab(tmp_path / "lab", text, tmp_path / "cache")

    def lines() -> Iterator[str]:
        for preset in sorted(architectures(ModelConfig())):
            done = lab.done("job=cost", "model.depth=4", "cost.lengths=[64]", f"model={preset}")
            facts, _, costs = done.out.partition("\n\n")
            yield "; ".join(line for line in facts.splitlines() if not line.startswith("vocabulary"))
            yield from costs.splitlines()[:2]  # below them: what is counted, in words

    check(RECORDED / "preset_costs.txt", lines())


def test_public_names_stay():
    def lines() -> Iterator[str]:
        for room in (zoo, kernels, experiments, analysis):
            offered = getattr(room, "__all__", None) or ["evaluate"]  # experiments: its docstring's one name
            yield f"{room.__name__.rpartition('.')[2]}: {' '.join(sorted(offered))}"
            assert all(hasattr(room, one) for one in offered)

    check(RECORDED / "public_names.txt", lines())
