"""The recipe: parameter groups, what decays, the learning rate, clipping, accumulation, early stopping."""

import copy
import dataclasses
import itertools
import math

import pytest
import torch
from support.program import Lab, last_checkpoint, steady_rows
from torch import nn

from experiments import data
from experiments.compare.trials import with_settings
from experiments.configuration.schema import Config, OptimConfig
from experiments.optimisation import lr_factor, make_optimizer, parameter_groups
from experiments.planning.plan import plan, resolve_lr_min
from experiments.runs import RunFolder
from experiments.scoring.text import score_split
from experiments.training.lightning_modules import clip_gradients
from zoo import LanguageModel, ModelConfig, load
from zoo.interfaces import MAIN, ParameterGroup, grouped_parameters


def test_only_projections_and_embeddings_decay():
    model = LanguageModel(ModelConfig(pattern="SF", depth=2, tie_embeddings=False), vocab_size=50, seq_len=16)
    decaying, rest = parameter_groups(model, OptimConfig(weight_decay=0.1))
    names = {id(p): name for name, p in model.named_parameters()}
    assert (decaying["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)
    assert len(decaying["params"]) + len(rest["params"]) == len(names)
    assert all(p.dim() == 2 for p in decaying["params"])
    assert all("norm" in names[id(p)] for p in rest["params"])
    assert {"embedding.weight", "head.weight"} <= {names[id(p)] for p in decaying["params"]}


def orthogonal(update: torch.Tensor) -> torch.Tensor:
    """Five steps of Newton and Schulz in bf16, as Muon's authors take them."""
    x = update.bfloat16()
    x = x.T if len(update) > len(update.T) else x
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=-4.775, alpha=2.0315), x, beta=3.4445)
    return x.T if len(update) > len(update.T) else x


def test_muon_takes_the_matrices_of_layers_and_adamw_the_rest():
    config = OptimConfig(name="muon", lr=0.02, weight_decay=0.1, momentum=0.9)
    torch.manual_seed(0)
    model = LanguageModel(
        ModelConfig(pattern="CF", depth=2, d_model=32, n_heads=2), vocab_size=50, seq_len=16
    )
    alone = copy.deepcopy(model)
    adamw = make_optimizer(alone, dataclasses.replace(config, name="adamw"))
    inside = ("proj", "gate.weight", "up.weight", "down.weight")
    matrices = [n for n, p in model.named_parameters() if p.dim() == 2 and any(part in n for part in inside)]
    wanted = {n: p.detach().clone() for n, p in model.named_parameters() if n in matrices}
    assert len(matrices) > 8
    moments = {n: torch.zeros_like(p) for n, p in wanted.items()}
    optimizer = make_optimizer(model, config)
    for _ in range(3):
        for (name, p), q in zip(model.named_parameters(), alone.parameters(), strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
            if name in wanted:
                moment = moments[name].lerp_(p.grad, 1 - 0.9)
                scale = 0.02 * 0.2 * math.sqrt(max(p.shape))
                update = orthogonal(p.grad.lerp(moment, 0.9)).float()
                wanted[name] = wanted[name] * (1 - 0.02 * 0.1) - scale * update
        optimizer.step()
        adamw.step()
    for (name, p), q in zip(model.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p.detach(), wanted.get(name, q.detach()), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_an_optimiser_goes_on_from_its_checkpoint_bit_for_bit(name: str, tmp_path):
    config = OptimConfig(name=name)

    def made() -> tuple[LanguageModel, torch.optim.Optimizer]:
        model = LanguageModel(ModelConfig(pattern="F", depth=1), vocab_size=50, seq_len=16)
        return model, make_optimizer(model, config)

    def steps(model: LanguageModel, optimizer: torch.optim.Optimizer, numbers: range) -> None:
        for number in numbers:
            for p in model.parameters():
                p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(number))
            optimizer.step()

    whole, first, second = made(), made(), made()
    steps(*whole, range(6))
    steps(*first, range(3))
    torch.save([part.state_dict() for part in first], tmp_path / "point")
    for part, state in zip(second, torch.load(tmp_path / "point", weights_only=True), strict=True):
        part.load_state_dict(state)
    steps(*second, range(3, 6))
    for p, q in zip(whole[0].parameters(), second[0].parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize(
    ("schedule", "middle", "late"),
    [("cosine", 0.55, None), ("linear", 0.55, 0.19), ("wsd", 1.0, 0.55), ("constant", 1.0, 1.0)],
)
def test_schedules_fall_from_the_warm_up_to_the_lowest_rate(schedule: str, middle: float, late: float | None):
    config = OptimConfig(lr=1e-2, lr_min=1e-3, warmup_steps=10, schedule=schedule)
    rates = [lr_factor(step, config, 110) for step in range(111)]
    assert rates[4] == 0.5
    assert rates[10] == 1.0
    assert rates[60] == pytest.approx(middle)
    assert late is None or rates[100] == pytest.approx(late)
    assert rates[110] == pytest.approx(1.0 if schedule == "constant" else 0.1)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["optim.name=muno"], "adamw, muon"),
        (["optim.momentum=0.8"], "has no effect with optim.name=adamw"),
        (["optim.decay_share=0.5"], "only with optim.schedule=wsd"),
        (["optim.name=muon", "trainer.strategy=fsdp"], "take trainer.strategy=ddp"),
    ],
)
def test_an_optimiser_that_cannot_be_or_an_option_without_effect_is_refused(lab, words, says):
    assert says in lab.refused(*words)


def test_learning_rate_schedule_against_the_closed_form():
    config, steps = OptimConfig(lr=2e-3, lr_min=5e-4, warmup_steps=10), 110
    rates = [config.lr * lr_factor(step, config, steps) for step in range(steps + 1)]
    assert rates[:10] == pytest.approx([2e-3 * k / 10 for k in range(1, 11)])
    for step in (10, 35, 60, 110):
        cosine = 5e-4 + 1.5e-3 * (1 + math.cos(math.pi * (step - 10) / 100)) / 2
        assert rates[step] == pytest.approx(cosine, rel=1e-12)
    assert rates[60] == pytest.approx(1.25e-3)
    assert rates[110] == pytest.approx(5e-4)
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates[9:]))


def test_a_ratio_gives_every_rate_of_a_sweep_the_same_shape():
    shapes = []
    for rate in (3e-4, 3e-3, 3e-2):
        config = resolve_lr_min(OptimConfig(lr=rate, lr_min_ratio=0.1, warmup_steps=10))
        shapes.append([lr_factor(step, config, 50) for step in range(51)])
        assert (config.lr_min, config.lr_min_ratio) == (float(f"{rate / 10:g}"), None)
    assert shapes[0] == pytest.approx(shapes[1], rel=1e-12)
    assert shapes[0] == pytest.approx(shapes[2], rel=1e-12)
    assert shapes[0][-1] == pytest.approx(0.1)
    assert resolve_lr_min(OptimConfig(lr=2e-3, lr_min_ratio=0)).lr_min == 0
    assert resolve_lr_min(OptimConfig(lr=2e-3)) == OptimConfig(lr=2e-3)


@pytest.mark.slow
def test_a_ratio_names_and_records_the_run_by_its_lowest_rate(lab: Lab):
    recipe = ["optim.lr=1e-4", "name=ratio"]  # below the default of lr_min
    (by_ratio,), (by_rate,) = (
        lab.compose(*recipe, word) for word in ("optim.lr_min_ratio=0.1", "optim.lr_min=1e-5")
    )
    first, second = plan(by_ratio), plan(by_rate)
    assert first.folder == second.folder
    assert first.yaml() == second.yaml()
    assert first.config.optim.lr_min == 1e-5


def test_a_selection_of_rates_leaves_the_ratio_to_the_plan():
    config = Config()
    for ratio, lowest in ((None, 3e-3), (0.2, OptimConfig.lr_min)):
        config.optim.lr_min_ratio = ratio
        changed = with_settings(config, {"optim.lr": 3e-2}).optim
        assert (changed.lr, changed.lr_min) == (3e-2, lowest)
        assert resolve_lr_min(changed).lr_min == (lowest if ratio is None else 6e-3)


def test_each_clipping_group_is_clipped_by_its_own_norm():
    small, large = (torch.nn.Parameter(torch.zeros(4)) for _ in range(2))
    small.grad, large.grad = torch.full((4,), 0.25), torch.full((4,), 5.0)
    groups = [{"params": [p], "clip_group": name} for name, p in (("main", small), ("other", large))]
    norm = clip_gradients(torch.optim.AdamW(groups), 1.0)
    assert float(norm) == pytest.approx(math.hypot(0.5, 10.0))
    assert small.grad.norm() == pytest.approx(0.5)
    assert large.grad.norm() == pytest.approx(1.0, rel=1e-5)


def test_a_step_sees_the_tokens_of_all_its_micro_batches():
    config = Config()
    config.data.batch_size, config.data.seq_len, config.trainer.accumulate = 3, 50, 4
    assert config.tokens_per_step == 600


@pytest.mark.slow
def test_accumulation_equals_the_large_batch(lab: Lab):
    states = []
    for name, batch_size, accumulate in (("large", 8, 1), ("small", 2, 4)):
        words = [f"name={name}", f"data.batch_size={batch_size}", f"trainer.accumulate={accumulate}"]
        assert lab.here(*words, "trainer.log_every=1").status == 0
        (folder,) = (lab.results / name).iterdir()
        assert [int(r["step"]) for r in steady_rows(folder) if r["split"] == "train"] == list(range(1, 21))
        states.append((last_checkpoint(folder)["state_dict"], steady_rows(folder)))
    (large, large_rows), (small, small_rows) = states
    for name, weight in large.items():
        torch.testing.assert_close(small[name], weight, rtol=0, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    for a, b in zip(large_rows, small_rows, strict=True):
        assert (a["step"], a["tokens"]) == (b["step"], b["tokens"])
        assert float(a["loss"]) == pytest.approx(float(b["loss"]), abs=1e-5)


@pytest.mark.slow
def test_early_stopping_scores_the_best_weights(lab: Lab):
    recipe = ["trainer.max_steps=200", "trainer.val_every=4", "trainer.val_tokens=null", "trainer.patience=3"]
    recipe += ["optim.lr=0.3", "optim.warmup_steps=20", "optim.lr_min=0.3"]  # soon too fast to improve
    recipe += ["evaluate.stride=32", "evaluate.splits=[validation]"]
    assert lab.here(*recipe).status == 0
    run = RunFolder(lab.run_folder())
    summary = run.summary()
    losses = {int(r["step"]): float(r["loss"]) for r in steady_rows(run.path) if r["split"] == "validation"}
    best, worse, expected = math.inf, 0, None
    for step, loss in losses.items():
        best, worse = (loss, 0) if loss < best else (best, worse + 1)
        if worse == 3:
            expected = step
            break
    assert expected is not None, "the recipe never got worse: this test shows nothing"
    assert max(losses) == summary["steps"] == expected
    assert summary["stopped"] == "early"
    assert losses[summary["best_step"]] == best
    assert summary["best_step"] == expected - 12
    assert summary["metrics"]["validation"]["loss"] == pytest.approx(best, rel=1e-6)
    assert summary["tokens"] == expected * 4 * 32

    corpus = data.prepare(lab.compose(*recipe)[0].data)
    again = score_split(load(run.path), corpus.splits["validation"], stride=32, batch_size=7)
    assert again.metrics()["loss"] == pytest.approx(best, rel=1e-6)

    (run.path / "summary.json").unlink()  # killed between the last checkpoint and the summary
    assert lab.here(*recipe).status == 0
    resumed = run.summary()
    for key in ("steps", "best_step", "stopped", "metrics"):
        assert resumed[key] == summary[key], key


CONFIG = OptimConfig(lr=1e-3, weight_decay=0.1, clip=1.0)


def model(residual: str = "ohc", channel: str = "moe", **options) -> LanguageModel:
    config = ModelConfig(pattern="SF", depth=2, d_model=32, n_heads=4)
    config.residual.name, config.channel.name = residual, channel
    for key, value in options.items():
        setattr(getattr(config.residual, residual), key, value)
    return LanguageModel(config, vocab_size=29, seq_len=16)


def treatment(m: nn.Module) -> dict[str, tuple[float, float, str]]:
    """Parameter name -> (learning rate, weight decay, clipping group)."""
    names = {id(parameter): name for name, parameter in m.named_parameters()}
    found = {}
    for group in parameter_groups(m, CONFIG):
        for parameter in group["params"]:
            assert names[id(parameter)] not in found, "a parameter may be in one group only"
            found[names[id(parameter)]] = (group["lr"], group["weight_decay"], group["clip_group"])
    assert found.keys() == set(names.values())
    return found


def test_a_plain_model_has_two_groups():
    groups = parameter_groups(model("add", "swiglu"), CONFIG)
    assert [(g["lr"], g["weight_decay"], g["clip_group"]) for g in groups] == [
        (1e-3, 0.1, "main"),
        (1e-3, 0.0, "main"),
    ]


@pytest.mark.parametrize("residual", ["hc", "identity", "mhc", "ohc", "shc"])
@pytest.mark.parametrize("lr_scale", [1.0, 3.0])
def test_coefficients_learn_at_their_own_rate_and_only_phi_decays(residual, lr_scale):
    for name, (lr, decay, clip) in treatment(model(residual, lr_scale=lr_scale)).items():
        ours = "_residual." in name
        assert lr == pytest.approx(1e-3 * lr_scale if ours else 1e-3), name
        assert clip == ("coefficients" if ours else "main"), name
        if ours:
            assert decay == (0.1 if ".phi_" in name else 0.0), name


def test_clipping_each_sub_block_bounds_the_norm_of_each():
    m = model("ohc", clip="each", readout="learned")
    steps = make_optimizer(m, CONFIG)
    for parameter in m.parameters():
        parameter.grad = torch.ones_like(parameter)
    clip_gradients(steps, 0.5)
    parts = {f"layers.{i}.{part}_residual" for i in range(2) for part in ("mixer", "channel")} | {"streams"}
    for part in parts:
        norms = torch.stack([p.grad.norm() for p in m.get_submodule(part).parameters()])
        assert norms.norm().item() == pytest.approx(0.5, rel=1e-4), part
    assert {group["clip_group"] for group in steps.param_groups} == {
        "main",
        *(f"coefficients of {part}" for part in parts),
    }


def test_a_part_may_leave_the_group_of_its_whole():
    class Part(nn.Module):
        parameter_group = ParameterGroup("part", lr_scale=3.0)
        decays = ("kept",)

        def __init__(self) -> None:
            super().__init__()
            self.kept, self.free = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
            self.inner = nn.Linear(2, 2)

    whole = nn.Sequential(nn.Linear(2, 2), Part())
    found = [(group, decays) for _, group, decays in grouped_parameters(whole)]
    part = Part.parameter_group
    assert found == [(MAIN, True), (MAIN, False), (part, True), (part, False), (part, True), (part, False)]


def test_the_schedule_keeps_the_ratio_of_learning_rates():
    adam = make_optimizer(model(lr_scale=10.0), CONFIG)
    schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: lr_factor(step, CONFIG, 100))
    for _ in range(50):
        adam.step()
        schedule.step()
    rates = {group["clip_group"]: group["lr"] for group in adam.param_groups}
    assert rates["coefficients"] == pytest.approx(10 * rates["main"])
    assert rates["main"] == pytest.approx(CONFIG.lr * lr_factor(50, CONFIG, 100))
