"""The page of a study of synthetic tasks: models x tasks, sentences by task, nothing that is of text alone."""

import pytest
from support.task_runs import write_study, write_task_run

from analysis import comparison_text, load_results
from analysis.plotting.style import series_key
from analysis.report import content, markdown, page
from analysis.report.columns import task_page

OF_TEXT = ("nats/token", "perplexity", "word ppl", "bits per byte", "tokenizer", "What the models write")


@pytest.fixture(scope="module")
def study(tmp_path_factory, write_run):
    return load_results(write_study(write_run, tmp_path_factory.mktemp("tasks") / "exp"))


@pytest.fixture
def undrawn(monkeypatch):
    """Gather a report's content without its figures, which take seconds."""
    monkeypatch.setattr(content, "draw_figures", lambda *_: [])
    return content.gather


def cells(results, baseline=None):
    """The cells of models x tasks by model and heading."""
    made = task_page(results, baseline)
    return {
        (row.label, field.heading): field.show(row)
        for row in made.rows.itertuples(index=False)
        for field in made.fields
    }


@pytest.mark.slow
def test_a_cell_has_accuracy_interval_places_and_what_is_shown(study):
    found = cells(study)
    assert found["transformer", "mqar"] == "0.970 ± 0.020 (1–2)"
    assert found["kda", "mqar"] == "0.965 ± 0.020 (1–2)"
    assert found["mesanet", "mqar"] == "0.700 ± 0.020 (3) behind, a lead"
    assert found["kda", "parity"] == "0.990 ± 0.020 (1) ahead, a lead"
    assert found["kda", "against the baseline"] == "ahead (a lead) on 1, not shown to differ on 1"
    assert found["transformer", "against the baseline"] == "baseline"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("most", "shown"), [(1.05, ("worse", "better")), (1.04, ("behind, a lead", "ahead, a lead"))]
)
def test_better_stands_only_where_it_is_a_verdict(tmp_path, write_run, most: float, shown: tuple):
    """Rates selected on validation, equal sizes, three seeds, one has learned it: then, and not else, it is better."""
    for model, right in (("transformer", 0.6), ("kda", most)):
        for rate, loss in ((1e-3, 0.1), (3e-3, 0.2), (1e-4, 0.3)):
            for seed in range(3):
                more = {"recipe": {"lr": rate}, "parameters_non_embedding": 1000}
                accuracy = right - loss + 0.005 * seed
                write_task_run(write_run, tmp_path / "exp", model, "mqar", seed, accuracy, **more)
    assert cells(load_results(tmp_path / "exp"))["kda", "mqar"].endswith(shown[1])
    assert cells(load_results(tmp_path / "exp"), "kda")["transformer", "mqar"].endswith(shown[0])
    for path in sorted((tmp_path / "exp").iterdir()):
        if '"seed": 2' in (path / "identity.json").read_text():
            (path / "summary.json").unlink(missing_ok=True)
    assert cells(load_results(tmp_path / "exp"))["kda", "mqar"].endswith("ahead, a lead")


@pytest.mark.slow
def test_the_page_of_tasks_has_nothing_of_text(study, undrawn, tmp_path):
    content = undrawn(study, tmp_path)
    for text in (page.render(content), markdown.render(content)):
        assert "Models and tasks" in text
        assert [words for words in OF_TEXT if words in text] == []
        for task in ("mqar", "parity"):
            assert f"2 layers, {task}" in text
        assert "sequences all right" in text
        assert "0.970 ± 0.020 (1–2)" in text
    assert content.summary.startswith("kda, transformer and mesanet, compared over 18 runs")
    dots = content.comparison.set_index("label")["dot"]
    assert dots["kda mqar"] == dots["kda parity"] == content.tasks.rows.set_index("label")["dot"]["kda"]
    assert page.render(content).count(f'data-model="{series_key("kda")}"') == 1 + 2 * 2
    assert "test accuracy" in [field.heading for field in content.run_fields]
    assert content.tasks.note.count("never averaged") == 1


@pytest.mark.slow
def test_the_comparison_as_text_says_accuracies(study):
    text = comparison_text(study)
    assert "accuracy" in text.splitlines()[0]
    assert "test loss (nats/answer)" in text.splitlines()[0]
    assert "−0.270" in text
    assert "0.031" in text
    assert [words for words in OF_TEXT if words in text] == []
