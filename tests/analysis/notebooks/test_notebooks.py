"""Every notebook runs top to bottom, from any working directory, on small stored results."""

import ast
import json
import re
from pathlib import Path

import pandas as pd
import pytest

from analysis import load_results
from analysis.comparing.verdicts import difference_text, rank_text
from analysis.report import content

PUBLISHED = Path(__file__).parents[3] / "results" / "published"
NOTEBOOKS = sorted((Path(__file__).parents[3] / "analysis" / "notebooks").glob("*.ipynb"))
LONGEST = 40

stored = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def run(name: str, results: Path, monkeypatch) -> str:
    """The text of all outputs; an error in a cell is raised here with its traceback."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    elsewhere = results.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("ARCHZOO_RESULTS", str(results))
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(variable, str(elsewhere))
    (path,) = [path for path in NOTEBOOKS if path.stem == name]
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(elsewhere)}})
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    text = [output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs]
    images = sum("image/png" in output.get("data", {}) for output in outputs)
    return "\n".join([*text, f"{images} images"])


@stored
def test_notebooks_are_stored_without_outputs_in_small_cells(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    sources = ["".join(cell["source"]) for cell in code]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert notebook["cells"][0] == code[0]
    assert 'os.environ.get("ARCHZOO_RESULTS", "results/quickstart")' in sources[0]
    for source in sources:
        ast.parse(re.sub(r"^%.*$", "", source, flags=re.MULTILINE))
        assert len(source.splitlines()) <= LONGEST
        assert max(map(len, source.splitlines())) <= 120


@pytest.mark.long
def test_compare_runs(quickstart, monkeypatch):
    text = run("compare_runs", quickstart, monkeypatch)
    assert "2 images" in text
    # late_full lies 0.0665 above the transformer; the interval is of means and of the deviation of all four models.
    assert re.search(r"late_full\s+\+0\.0665 ± 0\.0084\s+3\s+2", text)
    assert "Pairing by seed would pay above" in text
    assert r"\begin{tabular}" in text
    assert (quickstart / "report" / "runs.parquet").is_file()


STUDIES = ("quickstart", "sinks", "papers_recall")
LONG = ("quickstart_rates", "comparison", "tasks", "residuals", "verdict_kda")
"""Of text and of tasks; rates that a record selected, that were swept, and that nobody chose."""


@pytest.mark.parametrize(
    "study", [*STUDIES, *(pytest.param(study, marks=pytest.mark.long) for study in LONG)]
)
def test_compare_runs_says_what_the_report_says(study, monkeypatch, capsys):
    """It said of one study that no rate had been chosen: it did not read the record of the selection."""
    (path,) = [path for path in NOTEBOOKS if path.stem == "compare_runs"]
    monkeypatch.setattr(content, "draw_figures", lambda *_: [])
    results = load_results(PUBLISHED / study)
    reported = content.gather(results, path)
    names = {"results": results}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if "compare(" in source or "answers(" in source:
            code = ast.parse(source).body
            exec(compile(ast.Module(code[:-1], []), study, "exec"), names)
            shown = eval(compile(ast.Expression(code[-1].value), study, "eval"), names)
    said = capsys.readouterr().out.splitlines()
    assert said == [line for one in reported.answers for line in (one.title, *one.sentences)]
    rows = list(reported.comparison.itertuples())
    assert list(shown.index) == list(reported.comparison["label"])
    for name, text in (("difference", difference_text), ("places", rank_text)):
        assert list(shown[name]) == [text(row) for row in rows]


@pytest.mark.long
def test_inspect_model_without_a_model_makes_one(tmp_path, monkeypatch):
    (tmp_path / "results").mkdir()
    text = run("inspect_model", tmp_path / "results", monkeypatch)
    assert "no model in RESULTS; a fresh one: FSKF" in text
    assert "sigma_max" in text


@pytest.mark.long
def test_inspect_model_of_a_run(tmp_path, monkeypatch):
    import zoo

    config = zoo.ModelConfig(preset="tiny", pattern="FF", depth=None, d_model=16, n_heads=2)
    zoo.export(zoo.LanguageModel(config, vocab_size=256, seq_len=32), tmp_path / "results" / "exp" / "run")
    text = run("inspect_model", tmp_path / "results", monkeypatch)
    assert "trained: FF" in text
    assert "tiny" in text
    assert "one stream: a fresh model with mhc instead" in text


@pytest.mark.long
def test_new_block(tmp_path, monkeypatch):
    (tmp_path / "results").mkdir()
    text = run("new_block", tmp_path / "results", monkeypatch)
    for said in ("causal", "step repeated is forward", "packing and gradients", "no complete run"):
        assert said in text
    unigram = float(re.search(r"costs ([\d.]+) nats/byte", text)[1])
    learned = {
        name: float(value) for name, value in re.findall(r"^(RR|RF|FF)\s+(\d\.\d+)$", text, re.MULTILINE)
    }
    assert len(learned) == 3
    assert max(learned.values()) < unigram - 0.1


PLACE = {"layer": 0, "part": "mixer", "block": "hypergraph", "head": 0}


def write_probes(run: Path) -> None:
    """Three tokens; half of query 1 and a quarter of query 2 on the first; a token always takes the same route."""
    weights = {(0, 0): 1.0, (1, 0): 0.5, (1, 1): 0.5, (2, 0): 0.25, (2, 1): 0.25, (2, 2): 0.5}
    maps = [
        {"layer": 0, "block": "hypergraph", "head": 0, "kind": "attention", "query": t, "key": s, "weight": w}
        for (t, s), w in weights.items()
    ]
    tokens = [{"position": t, "token": t % 2, "text": "ab"[t % 2]} for t in range(3)]
    routes = [{**PLACE, "position": t, "rank": 0, "choice": t % 2, "probability": 0.9} for t in range(3)]
    assigned = [{**PLACE, "choice": c, "token": c, "text": "ab"[c], "count": 50} for c in (0, 1)]
    tables = {"maps": maps, "sentence": tokens, "routes": routes, "assignments": assigned}
    (run / "probes").mkdir()
    for name, rows in tables.items():
        pd.DataFrame(rows).to_parquet(run / "probes" / f"{name}.parquet")


@pytest.mark.long
def test_routing_and_sinks(tmp_path, write_run, monkeypatch):
    write_probes(write_run(tmp_path / "exp"))
    text = run("routing_and_sinks", tmp_path / "exp", monkeypatch)
    assert "even attention over 3 tokens: 0.417" in text  # (1/2 + 1/3) / 2
    assert re.search(r"transformer\s+0\.375\s+0\.375", text)  # (1/2 + 1/4) / 2
    assert "choice 1: 'b' 50" in text
    # Information and the entropy of the choice are both ln 2; dealt at random, the tokens say next to nothing.
    assert text.count("0.6931") == 2
    control = float(re.search(r"mixer\s+0\s+0\.6931\s+(\d\.\d+)", text)[1])
    assert control < 0.1
    assert "1 images" in text


@pytest.mark.long
def test_routing_without_probes_says_what_to_run(tmp_path, write_run, monkeypatch):
    write_run(tmp_path / "exp")
    assert "python run.py job=probe runs=" in run("routing_and_sinks", tmp_path / "exp", monkeypatch)
