"""Figures of the probes name the step whose weights they show, and mixed steps are told."""

import pytest
from support.probe_tables import measure, write_table

from analysis import load_results
from analysis.caveats import caveats
from analysis.gallery import draw
from analysis.loading.probes import probed_steps, steps_text


@pytest.fixture
def probed_at(tmp_path, write_run):
    """Results of one model a step, each probed at it."""

    def make(*steps: int):
        for seed, step in enumerate(steps):
            run = write_run(tmp_path / "exp", f"model{seed}", seed, model={"residual": f"r{seed}"})
            rows = [
                measure("stream_gradient", 1.0 + layer, step=step, layer=layer, part=part)
                for layer in range(5)
                for part in (("mixer", "channel") if layer < 4 else ("head",))
            ]
            rows += [measure("parameter_gradient", 1.0, step=step, layer=0)]
            write_table(run, "measures", rows)
        return load_results(tmp_path / "exp")

    return make


def heading(figure) -> str:
    return "" if figure._suptitle is None else figure._suptitle.get_text()


@pytest.mark.slow
def test_one_step_is_named_in_the_figure_and_is_no_notice(probed_at):
    results = probed_at(1000, 1000)
    figure, _, _ = draw("gradient_depth", results)
    assert heading(figure) == "weights of step 1,000"
    assert not any("different steps" in text for text in caveats(results))


@pytest.mark.slow
def test_mixed_steps_are_named_with_their_models(probed_at):
    results = probed_at(250, 1000, 1000)
    figure, _, _ = draw("gradient_depth", results)
    assert heading(figure) == "weights of different steps: 250 (1 run) and 1,000 (2 runs)"
    (told,) = [text for text in caveats(results) if "different steps" in text]
    assert "250 of model0 and 1,000 of model1 and model2" in told
    assert "probe.at=last" in told


def test_a_figure_names_the_steps_of_its_own_runs_only(probed_at):
    steps = probed_steps(probed_at(250, 1000))
    (experiment, run) = steps.index[steps == 250][0]
    assert experiment == "exp"
    assert steps_text(steps[steps.index.isin([run], level="run")]) == "weights of step 250"


def test_other_figures_name_no_step(probed_at):
    figure, caption, _ = draw("loss_against_tokens", probed_at(250, 1000))
    assert heading(figure) == ""
    assert "eights of" not in caption


def test_runs_that_nobody_looked_into_have_none(tmp_path, write_run):
    write_run(tmp_path / "exp")
    assert steps_text(probed_steps(load_results(tmp_path / "exp"))) == ""
