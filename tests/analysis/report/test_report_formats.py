"""The report as Markdown and LaTeX, its sections, the runs behind figures, and what the models wrote."""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from analysis import gallery, load_results
from analysis.figure_entry import SECTIONS, Entry, report_order
from analysis.gallery import ReportFigure, draw_figure, listed
from analysis.plotting.style import new_figure
from analysis.report import content as contents
from analysis.report import latex, markdown, page
from analysis.report.columns import COMPARISON, RUNS, Field, rows

HOSTILE = r"a_b & 50% $x$ #1 {y} ~^ \cmd [opt] <b>|*"
WORDS = {"backslash": "\\", "asciitilde": "~", "asciicircum": "^", "less": "<", "greater": ">", "bar": "|"}
MEANT = {rf"\text{word}{{}}": sign for word, sign in WORDS.items()}
MEANT |= {f"{{{sign}}}": sign for sign in "[]*"} | {f"\\{sign}": sign for sign in "&%$#_{}"}

FIGURES = [
    ReportFigure("losses", "Losses", "What is <drawn>.", "data:image/png;base64,AA==", section="Quality"),
    ReportFigure("sinks", "Sinks", missing="no run has sinks", section="Attention"),
    ReportFigure("gates", "Gates", "Two runs.", "data:image/png;base64,AA==", section="Attention"),
    ReportFigure("odd", "Odd", "No section.", "data:image/png;base64,AA=="),
]


def gathered(folder: Path, monkeypatch, figures=()) -> contents.Content:
    """What a report of a folder holds, without drawing: the figures are given."""
    monkeypatch.setattr(contents, "draw_figures", lambda results, place, workers: list(figures))
    return contents.gather(load_results(folder), folder / "figures")


def write_samples(run: Path, *samples: tuple[str, str]) -> None:
    (run / "probes").mkdir(exist_ok=True)
    frame = pd.DataFrame(samples, columns=["prompt", "text"])
    frame = frame.assign(temperature=0.0, sample_seed=7, tokens_per_second=123.0)
    frame.to_parquet(run / "probes" / "samples.parquet")
    (run / "probes" / "probes.json").write_text("{}")


class Reader(HTMLParser):
    """Elements in order, and the text of those of one class."""

    def __init__(self, source: str, wanted: str) -> None:
        super().__init__()
        self.tags, self.found, self.wanted, self.open = [], [], wanted, False
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.open = dict(attributes).get("class") == self.wanted
        if self.open:
            self.found.append("")

    def handle_endtag(self, tag):
        self.open = False

    def handle_data(self, data):
        if self.open:
            self.found[-1] += data


@pytest.mark.slow
def test_latex_rows_have_a_cell_a_column_and_escaped_text_reads_back(tmp_path, write_run, monkeypatch):
    write_run(tmp_path / "exp", name=HOSTILE, seed=0)
    write_run(tmp_path / "exp", name=HOSTILE, seed=1, loss=3.1)
    content = gathered(tmp_path / "exp", monkeypatch)
    for fields, frame in ((COMPARISON, content.comparison), (RUNS, content.runs)):
        text = latex.table(fields, rows(frame), "a caption\nof two lines")
        lines = [line for line in text.splitlines() if not line.startswith("%")]
        columns = re.fullmatch(r"\\begin\{tabular\}\{([lr]+)\}", lines[0])[1]
        assert lines[1] == r"\toprule"
        assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]
        assert lines.count(r"\midrule") == 1
        body = [line for line in lines[1:-1] if not line.endswith("rule")]
        assert len(body) == len(frame) + (2 if fields is COMPARISON else 1)
        for line in body:
            assert line.endswith(r" \\")
            assert len(re.findall(r"(?<!\\)&", line)) == len(columns) - 1
            assert len(re.findall(r"(?<!\\)\{", line)) == len(re.findall(r"(?<!\\)\}", line))
        assert "MFU" not in body[0]  # no run recorded it
        name = body[-1].split(" & ")[0]
        meant = re.compile("|".join(map(re.escape, sorted(MEANT, key=len, reverse=True))))
        assert meant.sub(lambda found: MEANT[found[0]], body[-1]).startswith(HOSTILE + " & ")
        assert not re.search(r"(?<!\\)[%$#_]", name)
    assert r"3.05 \ensuremath{\pm} 0.64" in latex.table(COMPARISON, rows(content.comparison), "")


def test_latex_leaves_out_the_columns_that_no_row_has():
    cells = [("a", "1", "2", "–"), ("b", "3", "–", "–")]
    fields = [
        Field(heading, lambda row, place=place: row[place], unit, kind=kind)
        for place, (heading, unit, kind) in enumerate(
            [("name", "", "name"), ("all", "s", "number"), ("some", "", "number"), ("none", "m", "text")]
        )
    ]
    lines = latex.table(fields, cells, "").splitlines()
    assert lines[2:] == [
        *(r"\begin{tabular}{lrr}", r"\toprule", r"name & all & some \\", r" & (s) &  \\", r"\midrule"),
        *(r"a & 1 & 2 \\", r"b & 3 & -- \\", r"\bottomrule", r"\end{tabular}"),
    ]


def test_latex_holds_only_what_pdflatex_knows():
    name = "β 模型 & 50\u00a0% \x07\x1b\u200b\u202e\ufeffé e\u0301 10⁻⁹ 3×4 − ± ∞ → ½ “a” \ud800"
    text = latex.escape(name)
    assert text == (
        r"\ensuremath{\beta} ?? \& 50 \% e e 10\ensuremath{^{-}}\ensuremath{^{9}} 3\ensuremath{\times}4 "
        r"\ensuremath{-} \ensuremath{\pm} \ensuremath{\infty} \ensuremath{\to} 1/2 ``a''"
    )
    assert latex.escape("ςσω Ω﹪") == (
        r"\ensuremath{\varsigma}\ensuremath{\sigma}\ensuremath{\omega} \ensuremath{\Omega}\%"
    )
    assert latex.table((), [], "a\x07b\u200b\nc").startswith("% ab c\n")


@pytest.mark.slow
def test_markdown_tables_are_whole_and_hostile_text_stays_text(tmp_path, write_run, monkeypatch):
    run = write_run(tmp_path / "exp", name="<script>x</script>|`a`")
    (run / "config.yaml").write_text("name: |\n  ```\n  </details>\n")
    write_samples(run, ("Say <b>", " a\n\n````\n# no heading"))
    text = markdown.render(gathered(tmp_path / "exp", monkeypatch, FIGURES))
    outside = re.sub(r"^(`{3,})[a-z]*\n.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert "no heading" not in outside
    assert not re.search(r"(?<!\\)<(?!/?details|/?summary|/?a\b)", outside)
    tables = re.findall(r"(?:^\|.*\n)+", outside, flags=re.MULTILINE)
    assert len(tables) == 5
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1
    assert "`````text\n a\n\n````\n# no heading\n`````" in text
    assert "](figures/losses.png)" in text
    assert "**Sinks.** No figure: no run has sinks." in text
    assert set(re.findall(r"\(#(run-\d+)\)", text)) == set(re.findall(r'<a id="(run-\d+)">', text))


@pytest.mark.slow
def test_figures_stand_by_section_and_name_their_runs(quickstart, monkeypatch):
    results = load_results(quickstart)
    two = tuple(results.runs["run"].iloc[[0, 5]])
    figures = [one if one.name != "gates" else ReportFigure(**{**vars(one), "runs": two}) for one in FIGURES]
    source = page.render(gathered(quickstart, monkeypatch, figures))
    first = source.split('<section id="comparison">')[1].split("</section>")[0]
    assert re.findall(r'<figure id="([\w-]+)"', first) == ["figure-losses"]  # stands beside the first table
    body = source.split('<section id="figures">')[1].split("</section>")[0]
    assert re.findall(r'id="((?:section|figure)-\w+)"', body) == [
        "section-quality",
        "section-attention",
        "figure-gates",
        "figure-sinks",  # what is missing comes last
        "section-more",
        "figure-odd",
    ]
    assert set(re.findall(r'href="#([^"]+)"', body)) <= set(re.findall(r'id="([^"]+)"', source))
    drawn_runs = {
        name: re.findall(r'href="#(run-\d+)".*?<code>(\w+)</code>', figure)
        for name, figure in re.findall(
            r'<figure id="figure-(\w+)">(.*?)</figure>', first + body, flags=re.DOTALL
        )
    }
    assert [run for _, run in drawn_runs["gates"]] == list(two)
    assert [anchor for anchor, _ in drawn_runs["gates"]] == ["run-1", "run-6"]
    assert sorted(run for _, run in drawn_runs["losses"]) == sorted(results.runs["run"])
    assert body.count("<figure") == 2


def test_the_list_of_figures_is_ordered_by_section():
    sections = {"a": "Length", "b": "", "c": "Quality", "d": "New", "e": "Quality"}
    entries = [Entry(name, "t", section=section) for name, section in sections.items()]
    assert [entry.name for entry in report_order(entries)] == ["c", "e", "a", "d", "b"]
    assert {entry.section for entry in listed()} <= {*SECTIONS, ""}
    assert len({entry.name for entry in listed()}) == len(listed()) >= 29


def _family(monkeypatch, draw) -> Entry:
    family = SimpleNamespace(
        table=lambda results: pd.DataFrame({"run": ["a", "b", "a"], "value": [1, 2, 3]}),
        caption=lambda table: "A caption.",
        draw=draw,
    )
    monkeypatch.setitem(sys.modules, "analysis.figures.stub", family)
    return Entry("stub", "Stub", family="analysis.figures.stub", section="Cost")


@pytest.mark.slow
def test_a_heavy_svg_gives_way_to_its_png(tmp_path, monkeypatch):
    entry = _family(monkeypatch, lambda table: new_figure(1.0)[0])
    light = draw_figure(entry, None, tmp_path)
    assert (light.svg, light.source) == ((tmp_path / "stub.svg").read_text(), "")
    assert (light.runs, light.section) == (("a", "b"), "Cost")
    monkeypatch.setattr(gallery, "HEAVY", (tmp_path / "stub.svg").stat().st_size - 1)
    heavy = draw_figure(entry, None, tmp_path)
    assert heavy.source.startswith("data:image/png;base64,iVBOR")
    assert heavy.svg == ""


def test_a_figure_that_fails_says_so_and_leaves_no_old_file(tmp_path, monkeypatch):
    for kind in ("svg", "png", "csv"):
        (tmp_path / f"stub.{kind}").write_bytes(b"old")
    failed = draw_figure(_family(monkeypatch, lambda table: table["nothing"]), None, tmp_path)
    assert failed.missing == "drawing it failed (KeyError: 'nothing')"
    assert failed.source == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_samples_stand_side_by_side_as_they_were_written(tmp_path, write_run, monkeypatch):
    experiment = tmp_path / "exp"
    text = "\n  <i>kept</i>\t&amp;\n\n"
    write_samples(write_run(experiment, name="worse", loss=3.2), ("One", "w1"), ("Two", "w2"))
    write_samples(write_run(experiment, name="best", loss=3.0, option=1), ("Two", "b2"), ("One", text))
    write_run(experiment, name="silent", loss=3.1, option=2)
    content = gathered(experiment, monkeypatch)
    by_prompt = {
        one.prompt: [(c.label, c.text) for c in one.continuations] for one in content.samples.prompts
    }
    assert by_prompt == {"One": [("best", text), ("worse", "w1")], "Two": [("best", "b2"), ("worse", "w2")]}
    assert content.samples.without == ("silent",)
    html = page.render(content)
    read = Reader(html, "written")
    assert text in read.found
    assert "i" not in read.tags
    assert re.search(r"\.written \{ white-space: pre-wrap", html)
    assert "No sample: silent." in html
