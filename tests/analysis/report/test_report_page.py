"""The page: self-contained, complete, and honest about what is missing."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from support.pretended_runs import model, pretended

from analysis import ResultsError, gallery, load_results, report, write_report
from analysis.caveats import caveats
from analysis.loading.results import Results
from analysis.report.content import differences

pytestmark = pytest.mark.slow

SHOWN = ("comparison", "loss_against_tokens")
"""The figures that the small stored results support, of those drawn here (test_every_figure.py draws them all)."""


@pytest.fixture(autouse=True)
def few_figures(monkeypatch):
    """Three figures are enough to test the page, and all are a minute's work."""
    every = gallery.listed()
    drawn = [entry for entry in every if entry.name in (*SHOWN, "crossover", "sinks")]
    monkeypatch.setattr(gallery, "listed", lambda: drawn)


class Page(HTMLParser):
    """Collects links, elements and the text of ``pre`` and of everything else."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links, self.tags, self.pre, self.text, self.inside = [], [], [], [], []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.words = " ".join(" ".join(self.text).split())

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [
            value for name, value in attributes if name in ("src", "href", "srcset", "action", "data")
        ]
        if tag not in ("meta", "link", "img", "br"):
            self.inside.append(tag)
        if tag == "pre":
            self.pre.append("")

    def handle_endtag(self, tag):
        if tag in self.inside:
            while self.inside.pop() != tag:
                pass

    def handle_data(self, data):
        if "pre" in self.inside:
            self.pre[-1] += data
        elif not {"style", "script"} & set(self.inside):
            self.text.append(data)


def test_the_page_compares_with_the_baseline_that_is_asked_for(tmp_path, monkeypatch):
    class Asked(Exception):
        """Stops before anything is drawn."""

    def gather(*given):
        raise Asked(*given[1:])

    results = pretended(model("transformer", [3.0, 3.1]), model("kda", [2.9, 3.0]))
    monkeypatch.setattr(report, "gather", gather)
    with pytest.raises(Asked) as asked:
        report.write_report(results, tmp_path, workers=2, baseline="kda")
    assert asked.value.args == (tmp_path / "figures", 2, "kda")


def test_the_page_stands_alone_and_its_files_lie_beside_it(quickstart):
    path = write_report(quickstart)
    assert path == quickstart / "report" / "index.html"
    page = Page(path)
    assert all(link.startswith(("data:", "#")) for link in page.links)
    assert page.source.count("<svg viewBox=") == len(SHOWN)
    assert page.source.count("url(") == page.source.count("url(#") > 0
    assert "@import" not in page.source
    assert "://" not in page.source
    beside = sorted(str(item.relative_to(path.parent)) for item in path.parent.rglob("*") if item.is_file())
    assert beside == [
        *(f"figures/{figure}.{kind}" for figure in SHOWN for kind in ("csv", "png", "svg")),
        "index.html",
        "metrics.parquet",
        "report.md",
        "runs.parquet",
        *(f"tables/{table}.{kind}" for table in ("comparison", "quality", "runs") for kind in ("csv", "tex")),
    ]
    table = pd.read_csv(path.parent / "tables" / "comparison.csv")
    assert table["label"].iloc[0] == "transformer"
    assert table["test_loss"].iloc[0] == pytest.approx(3.002)
    assert len(pd.read_parquet(path.parent / "runs.parquet")) == 8


def test_every_config_command_and_run_is_in_the_page(quickstart):
    page = Page(write_report(quickstart))
    runs = load_results(quickstart).runs
    shown = [text.strip() for text in page.pre]
    for row in runs.itertuples():
        assert Path(row.folder, "config.yaml").read_text().strip() in shown
        assert row.run in page.words
    assert shown.count("python run.py model=transformer") == 8
    assert len(re.findall(r'<details id="run-\d+"', page.source)) == 8
    assert "3.002 ± 0.025" in page.words
    assert "SFSF" in page.words
    assert "0123456789abcdef" in page.words
    assert "torch 2.13.0" in page.words
    assert "Example CPU" in page.words
    assert "trained on pydocs (1.20M tokens" in page.words


def test_hostile_names_stay_text(tmp_path, write_run):
    name = '<script>alert(1)</script>"><img src=x onerror=alert(2)>'
    folder = write_run(
        tmp_path / "exp", name=name, model={"color": '"/><script>'}, command="a && b > c </pre><b>"
    )
    (folder / "config.yaml").write_text("name: </pre><script>alert(3)</script>\n")
    plain = Page(write_report(write_run(tmp_path / "plain")))
    page = Page(write_report(tmp_path / "exp"))
    assert page.tags.count("script") == plain.tags.count("script") == 1
    assert page.tags.count("img") == plain.tags.count("img")
    assert "b" not in page.tags
    assert name in page.words
    assert "name: </pre><script>alert(3)</script>" in [text.strip() for text in page.pre]


def test_nothing_complete_leaves_nothing_behind(tmp_path):
    (tmp_path / "exp" / "0123456789ab").mkdir(parents=True)
    with pytest.raises(ResultsError, match="no complete run"):
        write_report(tmp_path / "exp")
    assert not (tmp_path / "exp" / "report").exists()


def test_notices_name_what_spoils_a_comparison(tmp_path, write_run, layout_changes):
    experiment = tmp_path / "exp"
    write_run(experiment, commit="a" * 40, dirty=True)
    write_run(experiment, commit="b" * 40, seed=1, machine={"threads": 2})
    write_run(
        experiment,
        **{**layout_changes("bookend"), "parameters_non_embedding": 250_000},
        data={"train": "stand-in"},
    )
    write_run(experiment, name="long", recipe={"steps": 600}, data={"tokenizer": "bytes", "vocab_size": 256})
    (experiment / "dead").mkdir()
    (experiment / "dead" / "failure.json").write_text(
        json.dumps({"kind": "Killed", "message": "gone", "step": 3})
    )
    said = caveats(load_results(experiment))

    def one(start: str) -> str:
        (found,) = [text for text in said if text.startswith(start)]
        return found

    assert one("one seed: no interval for") == "one seed: no interval for hypergraph bookend and long."
    assert "two seeds: the 95 % interval is wide" in one("two seeds")
    assert one("1 run failed") == "1 run failed: exp/dead (Killed at step 3: gone)."
    assert "aaaaaaaaaa (1 run)" in one("runs from different commits")
    assert "1 of 4 runs" in one("uncommitted changes")
    assert "2 thread(s) (1 run)" in one("mixed machines")
    assert "stand-in (1 run)" in one("mixed training sets")
    assert "bits per byte" in one("mixed tokenizers")
    assert "614k tokens (1 run)" in one("unequal training budgets")
    assert "† parameters beside the embedding (hypergraph bookend +25.0%)" in one("not matched")


def test_a_run_without_a_test_split_is_reported_and_its_figure_says_why(tmp_path, write_run):
    score = {"loss": 3.0, "perplexity": 20.1, "word_perplexity": 30.0, "bits_per_byte": 1.2}
    score |= {"tokens": 100, "words": 70, "bytes": 400, "stride": 64}
    write_run(tmp_path / "exp", metrics={"validation": score})
    results = load_results(tmp_path / "exp")
    assert len(results.runs) == 1
    assert results.problems == []
    words = Page(write_report(tmp_path / "exp")).words
    assert "no run recorded test_loss" in words
    assert "Best final validation loss first" in words
    assert "Tested on" not in words


@pytest.mark.parametrize(
    ("loss", "first"), [(6.4, "With one seed per model"), (6.6, "No model beats the unigram baseline, 6.500")]
)
def test_the_first_screen_answers_in_five_sentences_and_says_first_where_nothing_was_learned(
    tmp_path, write_run, loss, first
):
    for place, name in enumerate(("transformer", "kda")):
        write_run(tmp_path / "exp", name=name, option=name, loss=loss + place)
    source = write_report(tmp_path / "exp").read_text()
    answer = source.split('<section id="answer"')[1].split("<details")[0]
    sentences = re.findall(r"<li>(.*)</li>", answer)
    assert 1 <= len(sentences) <= 5
    assert sentences[0].startswith(first)
    notices = source.split('<details class="notices">')[1].split("</details>")[0]
    assert f"<strong>{notices.count('<li>')} notices.</strong> One seed" in notices


def test_of_many_configs_one_is_whole_and_others_are_what_differs():
    first = "seed: 0\noptim:\n  lr: 0.003\n  betas:\n  - 0.9\nmodel:\n  pattern: F\n"
    other = first.replace("0.003", "0.001").replace("seed: 0", "seed: 4")
    assert differences([first, None, first, other]) == [
        first,
        None,
        "# as the first on this page",
        "# as the first on this page, but for\nseed: 4\noptim.lr: 0.001",
    ]
    record = '{\n  "seconds": 3.5,\n  "probe": {\n    "at": "best"\n  }\n}'
    assert differences([record, record.replace("best", "last")])[1].splitlines()[1:] == ["probe.at: last"]


def test_a_report_of_many_settings_shows_a_selection_and_is_small(tmp_path, monkeypatch):
    """A thousand runs gave 42 MB, a legend of 336 names and rows for every setting."""
    monkeypatch.setattr(Results, "texts", lambda self, _: ["seed: 1\n"] * len(self.runs))
    rates = {"lr": [1e-3, 3e-3], "lr_min": [1e-4, 3e-4]}
    swept = [model(f"kda {n}", [3 + n / 100, 4 + n / 100], **rates) for n in range(gallery.MOST)]
    path = write_report(pretended(model("transformer", [5.0, 5.1], **rates), *swept), tmp_path)
    page, runs = Page(path), pd.read_csv(tmp_path / "tables" / "runs.csv.gz")
    assert f"{gallery.DRAWN} of {gallery.MOST + 1} models" in page.words
    assert len(re.findall(r'<details id="run-\d+"', page.source)) == gallery.DRAWN
    assert f"all {len(runs)} settings in tables/comparison.csv" in page.words
    assert len(runs) == len(pd.read_csv(tmp_path / "tables" / "comparison.csv")) == 2 * gallery.MOST + 2
    assert {place.suffix for place in (tmp_path / "figures").iterdir()} == {".svg", ".gz"}
    rows = re.findall(r'scope="row"[^>]*>.*?</svg>(kda 39.*?)<', page.source)
    assert rows == ["kda 39 (lr=0.001)"] * 2, "the best rate, first and with all columns"
    assert sum(place.stat().st_size for place in tmp_path.rglob("*") if place.is_file()) < 800_000
