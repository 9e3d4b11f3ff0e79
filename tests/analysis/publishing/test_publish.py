"""Published results: small files that know no machine, tell where they come from, and read back as their runs."""

import json
import shutil

import pandas as pd
import pytest
import yaml

from analysis import ResultsError, load_results, publishing
from analysis.loading.tables import COLUMNS
from analysis.publishing import Publication, command_without_paths, missing_parts, publish, without_paths

ASKED = Publication("Does it work?", command="python run.py job=publish runs=/home/me/results/exp")


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_published_results_read_back_without_this_machines_paths(tmp_path, write_run):
    command = (
        "python run.py data.path=/home/me/text/wiki data.train_path=/home/me/a-b/t.parquet name=x/y lr=1e-3"
    )
    run = write_run(tmp_path / "results" / "exp", command=command)
    data = {"path": "/home/me/text/wiki", "cache_dir": "~/cache"}
    config = {"data": data, "lr": 1e-3, "names": ["a", "/b/c"]}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    results = load_results(tmp_path / "results" / "exp")
    shown = Publication("Does it work?", ("loss_against_tokens",), command="python run.py runs=/home/me/exp")
    folder = publish(results, tmp_path / "published", shown)
    assert folder == tmp_path / "published" / "exp"
    again = load_results(folder)
    assert again.runs["command"].tolist() == [
        "python run.py data.path=wiki data.train_path=t.parquet name=x/y lr=1e-3"
    ]
    assert again.runs["test_loss"].tolist() == results.runs["test_loss"].tolist()
    assert len(again.metrics) == len(results.metrics) > 0
    content = b"".join(contents(folder).values())
    assert str(tmp_path).encode() not in content
    assert b"/home/me" not in content
    assert "Trained on pydocs" in (folder / "loss_against_tokens.txt").read_text()
    picture, text = sorted(path.suffix for path in folder.glob("loss_against_tokens.*"))
    assert picture in (".png", ".svg")
    assert text == ".txt"
    assert f"- `loss_against_tokens{picture}`, `.txt`: a figure" in (folder / "README.md").read_text()
    configs, _ = publishing.read_configurations(folder)
    data = {"path": "wiki", "cache_dir": "cache"}
    assert configs == {run.name: {"data": data, "lr": 1e-3, "names": ["a", "c"]}}
    assert missing_parts(folder) == []


@pytest.fixture
def probed_runs(tmp_path, write_run):
    """Two seeds, one of them probed by a pass that left its record."""
    runs = [write_run(tmp_path / "results" / "exp", seed=seed, commit=str(seed) * 40) for seed in (0, 1)]
    place = runs[1] / "probes"
    place.mkdir()
    said = {"prompt": "The ", "text": "end", "temperature": 0.8, "sample_seed": 0, "tokens_per_second": 90.0}
    pd.DataFrame([said]).to_parquet(place / "samples.parquet")
    command = "python run.py job=probe runs=/x/exp"
    record = {"settings": {"windows": 7}, "command": command, "commit": "c0ffee", "dirty": True}
    (place / "probes.json").write_text(json.dumps(record))
    chosen = f"{','.join(COLUMNS)}\n,transformer,#000000,0.003,optim.lr=0.003,0,0123456789ab,3.2,complete,9.5,True,,\n"
    (tmp_path / "results" / "exp" / "selection.csv").write_text(chosen)
    return tmp_path / "results" / "exp"


@pytest.mark.slow
def test_the_readme_tells_how_everything_came_to_be(tmp_path, probed_runs):
    folder = publish(load_results(probed_runs), tmp_path / "published", ASKED)
    page = (folder / "README.md").read_text()
    for told in (
        *("# exp\n", "**Question:** Does it work?", "fingerprint f00d", "ships with every Python"),
        *(
            f"    python run.py {x}\n"
            for x in ("model=transformer", "job=probe runs=exp", "job=publish runs=exp")
        ),
        *(f"commit {40 * seed}, clean: 1 run" for seed in "01"),
        *("commit c0ffee, with uncommitted changes", "runs from different commits", "| `windows` | 7 |"),
        *("python 3.11.9, torch 2.13.0", "Example CPU, 2 cores, 8.0 GiB; 1 thread(s)"),
        "- `samples.parquet`: what the probes measured",
    ):
        assert told in page, told
    selection = pd.read_csv(folder / "selection.csv")
    assert (list(selection["model"]), list(selection["lr"])) == (["transformer"], [0.003])
    _, identities = publishing.read_configurations(folder)
    for path in probed_runs.glob("*/identity.json"):
        assert identities[path.parent.name] == json.loads(path.read_text())


FINDINGS = "## Findings\n\n### Why?\n\nIt is 3.\n<!-- check exp/comparison.csv\nIt is #. | count lr\n-->"


def test_what_people_wrote_stays_when_a_study_is_published_again(tmp_path, probed_runs):
    page = publish(load_results(probed_runs), tmp_path / "published", ASKED) / "README.md"
    first = page.read_text(encoding="utf-8")
    page.write_text(first.replace("## Commands\n", f"{FINDINGS}\n\n## Commands\n"), encoding="utf-8")
    again = load_results(tmp_path / "published" / "exp")
    for results in (load_results(probed_runs), again):
        publish(results, tmp_path / "published", ASKED)
        assert page.read_text(encoding="utf-8").replace(f"{FINDINGS}\n\n", "") == first
        assert page.read_text(encoding="utf-8").count(FINDINGS) == 1


def test_without_findings_a_page_has_no_such_section(tmp_path, probed_runs):
    page = publish(load_results(probed_runs), tmp_path / "published", ASKED) / "README.md"
    assert "## Findings" not in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_readme_names_runs_whose_command_nobody_recorded(tmp_path, write_run):
    for seed, command in enumerate(("python run.py a=1", None, "python run.py a=1")):
        write_run(tmp_path / "exp", seed=seed, command=command)
    folder = publish(load_results(tmp_path / "exp"), tmp_path / "published", ASKED)
    page = (folder / "README.md").read_text()
    assert "Training (2 runs):\n\n    python run.py a=1\n" in page
    assert "Training (1 run):\n\nNot recorded.\n" in page


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("runs=/home/me/results/exp lr=1e-3", "runs=exp lr=1e-3"),
        ("runs=/home/me/results/exp/ lr=1e-3", "runs=exp lr=1e-3"),
        ("'runs=/a/b.c' \"/d-e/f.txt\"", "'runs=b.c' \"f.txt\""),
        ("runs=[/home/me/one,two]", "runs=[one,two]"),
        ("(/home/me//one)", "(one)"),
        *((text, text) for text in ("results/exp/run", "./results/exp", "../text/a.txt", "1 / 2 /", "a/b")),
    ],
)
def test_of_absolute_paths_the_last_part_is_left_and_relative_ones_stay(text, left):
    assert without_paths(text) == left


@pytest.mark.parametrize(
    ("command", "left"),
    [
        ("/usr/bin/python /home/me/run.py lr=1", "python run.py lr=1"),
        ("python run.py 'data.path=/home/me/my texts/a b.txt'", "python run.py 'data.path=a b.txt'"),
        ("python run.py data.path=texts/secret/a.txt", "python run.py data.path=a.txt"),
        ("python run.py results=/me runs=../me/exp", "python run.py results=me runs=exp"),
        (
            "python run.py 'blocks=['\\''/me/my own'\\'',b/c]'",
            "python run.py 'blocks=['\"'\"'my own'\"'\"',c]'",
        ),
        ("python run.py data.dataset=./me/texts", "python run.py data.dataset=texts"),
        *(2 * (f"python run.py {word}",) for word in ("runs=results/exp", "data.dataset=org/name")),
        *(
            2 * (f"python run.py {word}",)
            for word in ("model=a/b", "source=https://x.org/a/b", "lr=1e-3,3e-3")
        ),
        ("an unclosed ' /home/me/x", "an unclosed ' x"),
    ],
)
def test_in_a_command_no_path_of_this_machine_is_left(command, left):
    assert command_without_paths(command) == left


@pytest.mark.slow
def test_a_study_is_published_again_from_what_was_published(tmp_path, probed_runs):
    first = publish(load_results(probed_runs), tmp_path / "published", ASKED)
    shutil.rmtree(probed_runs)
    before = contents(first)
    for name in ("sinks.png", "sinks.svg", "sinks.txt", "gone_figure.svg", "maps.parquet"):
        (first / name).write_text("of an earlier publication")
    (first / "notes.txt").write_text("somebody's own")
    told = json.loads((first / "provenance.json").read_text())
    (first / "provenance.json").write_text(json.dumps({**told, "files": [*told["files"], "gone_figure.svg"]}))
    (first / ".runs.k1ll3d.partial.parquet").write_text("half of a table")
    assert publish(load_results(first), tmp_path / "published", ASKED) == first
    after = contents(first)
    assert after.pop("notes.txt") == b"somebody's own"
    assert after == before
    elsewhere = publish(load_results(first), tmp_path / "other", ASKED)
    assert contents(elsewhere) == before


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (Publication(None), "needs the study's question"),
        (Publication("  "), "needs the study's question"),
        (Publication("Does it?", ("losses",)), "there are task_accuracy"),
        (Publication("Does it?", ("sinks",)), "job=probe"),
        (Publication("Does it?", baseline="nobody"), "no model 'nobody'"),
    ],
)
def test_what_cannot_be_published_says_why_and_writes_nothing(tmp_path, write_run, said, why):
    write_run(tmp_path / "exp")
    with pytest.raises(ResultsError, match=why):
        publish(load_results(tmp_path / "exp"), tmp_path / "published", said)
    assert not (tmp_path / "published").exists()


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"name": "text", "train": "mine"}, None),
        ({"name": "wikitext103", "train": "other-articles"}, None),
        ({"name": "wikitext103", "train": "wikitext-103-raw-v1 train"}, "Salesforce/wikitext"),
    ],
)
@pytest.mark.slow
def test_a_text_without_a_public_name_needs_a_source(tmp_path, write_run, data, told):
    write_run(tmp_path / "exp", data=data)
    results = load_results(tmp_path / "exp")
    if told is None:
        with pytest.raises(ResultsError, match=f"trained on {data['train']}.*source="):
            publish(results, tmp_path / "published", ASKED)
        told = "of my own"
    folder = publish(results, tmp_path / "published", Publication("Does it?", source=told))
    assert told in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    "damage",
    [
        lambda run: (run / "config.yaml").unlink(),
        lambda run: (run / "identity.json").write_text("[]"),
        lambda run: (run / "config.yaml").write_text("a: &a [1]\nb: [*a, *a]\n"),
        lambda run: (run / "config.yaml").write_text("{" * 5000),
        lambda run: (run / "config.yaml").write_text("a: [1"),
    ],
    ids=["no config", "no mapping", "aliases", "nested", "no YAML"],
)
def test_a_run_without_its_configuration_is_refused(tmp_path, write_run, damage):
    damage(write_run(tmp_path / "exp"))
    with pytest.raises(ResultsError, match="no configuration or identity of exp/"):
        publish(load_results(tmp_path / "exp"), tmp_path / "published", ASKED)
    assert not (tmp_path / "published").exists()


@pytest.mark.slow
def test_a_publication_that_was_killed_is_seen_to_be_none(tmp_path, probed_runs, monkeypatch):
    folder = publish(load_results(probed_runs), tmp_path / "published", ASKED)
    assert missing_parts(folder) == []

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as during:
        during.setattr(publishing, "write_configurations", killed)
        with pytest.raises(KeyboardInterrupt):
            publish(load_results(probed_runs), tmp_path / "published", ASKED)
    assert missing_parts(folder) == ["no README.md"]
    publish(load_results(folder), tmp_path / "published", ASKED)
    assert missing_parts(folder) == []


def test_tables_of_an_interrupted_pass_are_refused(tmp_path, probed_runs):
    (record,) = probed_runs.glob("*/probes/probes.json")
    record.unlink()
    with pytest.raises(ResultsError, match=r"interrupted.*job=probe"):
        publish(load_results(probed_runs), tmp_path / "published", ASKED)


@pytest.mark.slow
def test_what_a_published_folder_lacks_is_found(tmp_path, probed_runs):
    folder = publish(load_results(probed_runs), tmp_path / "published", ASKED)
    assert missing_parts(folder) == []
    runs = sorted(path.parent.name for path in probed_runs.glob("*/identity.json"))
    for name, said in (
        ("README.md", ["no README.md"]),
        ("configs.yaml", [f"configs.yaml lacks run {run}" for run in runs] + ["no configs.yaml"]),
        ("identities.json", [f"identities.json lacks run {run}" for run in runs] + ["no identities.json"]),
        ("provenance.json", ["no provenance.json"]),
        ("comparison.csv", ["no comparison.csv"]),
    ):
        text = (folder / name).read_bytes()
        (folder / name).unlink()
        assert missing_parts(folder) == said
        (folder / name).write_bytes(text)
    told = json.loads((folder / "provenance.json").read_text())
    (folder / "provenance.json").write_text(json.dumps({**told, "probing": [], "question": " "}))
    assert [text.split(" run ")[0] for text in missing_parts(folder)] == ["nothing says how", "no question"]


NESTED = [
    {"a": 1, "b": {"c": 2, "d": {"e": [1]}}, "x": {}},
    {"a": 1.0, "b": {"c": 2, "d": 3}, "x": {"y": 0}},
    {"a": True, "b": {"c": 2, "d": {"e": [1]}}, "x": {}, "only": None},
]


def test_shared_and_own_parts_of_configurations_make_them_whole():
    shared = publishing.common(NESTED)
    assert shared == {"b": {"c": 2}, "x": {}}
    for tree in NESTED:
        own = publishing.difference(shared, tree)
        again = publishing.joined(shared, own)
        assert json.dumps(again, sort_keys=True) == json.dumps(tree, sort_keys=True)
    assert publishing.common([NESTED[0]]) == NESTED[0]
    assert publishing.difference(NESTED[0], NESTED[0]) == {}


def test_sections_that_runs_share_stand_once_and_are_read_back(tmp_path):
    shared = {"data": {"name": "x"}, "name": "model-1"}
    configs = {
        "a": {"model": {"width": 1, "mixer": {"heads": 2}}, **shared, "seed": 0},
        "b": {
            "model": {"width": 1, "mixer": {"heads": 2}},
            "data": {"name": "y"},
            "name": "other",
            "seed": 1,
        },
        "c": {"model": {"width": 1.0, "mixer": {"heads": 4}}, **shared, "seed": 2},
    }
    publishing.write_configurations(tmp_path, configs, configs)
    for read in publishing.read_configurations(tmp_path):
        assert json.dumps(read, sort_keys=True) == json.dumps(configs, sort_keys=True)
    for name in (publishing.CONFIGS, publishing.IDENTITIES):
        text = (tmp_path / name).read_text()
        assert (text.count("data-1"), text.count("data-2")) == (3, 0)  # one run's section stays in its place
    old = {run: {"seed": config["seed"]} for run, config in configs.items()}
    (tmp_path / publishing.IDENTITIES).write_text(json.dumps(old))  # as it was before sections were shared
    assert publishing.read_configurations(tmp_path)[1] == old
