"""What a publication writes, file by file."""

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml
from support import recorded

from analysis import load_results, publishing
from analysis.publishing import Publication, missing_parts, portable, publish, without_paths

RECORDED = Path(__file__).with_name("recorded")
SHOWN = ("README.md", "configs.yaml", "identities.json", "provenance.json", "comparison.csv", "selection.csv")


@pytest.fixture
def drawn_alone(monkeypatch):
    """Figures are not rendered; their files are there."""

    def save(figure, stem: Path) -> list[Path]:
        files = [stem.with_name(f"{stem.name}{suffix}") for suffix in (".svg", ".png")]
        files[0].write_text("drawn")
        return files

    monkeypatch.setattr(publishing, "save", save)
    monkeypatch.setattr(publishing, "keep_lighter", lambda svg, png: svg)


@pytest.fixture
def study(tmp_path, write_run) -> Path:
    """Two models, two seeds, of two commits and machines, one of them probed, with a record of the selection."""
    folder = tmp_path / "results" / "study"
    for name, preset, loss in (("transformer", "transformer", 3.0), ("kda <wide>", "kda", 2.9)):
        for seed in (0, 1):
            machine = {"gpu": "Some GPU", "memory_bytes": None} if seed and preset == "kda" else {}
            run = write_run(
                folder,
                name,
                seed,
                loss + 0.003 * seed,
                model={"preset": preset, "pattern": "FFFF" if preset == "transformer" else "KKKK"},
                run=f"{preset}{seed}",
                commit=f"{seed}" * 40,
                dirty=bool(seed) if preset == "kda" else None,
                machine=machine,
                command=f"python run.py data.path=/home/me/text/wiki out=~/x model={preset}",
                data={
                    "name": "mine" if preset == "kda" else "pydocs",
                    "train": "my text" if preset == "kda" else "docs",
                },
            )
            config = {
                "data": {"path": "/home/me/wiki", "cache_dir": "~/cache/", "name": preset},
                "seed": seed,
                "lr": 1e-3,
            }
            config |= {"names": ["a", "/b/c", {"deep": "/d/e/f"}], "width": 1 if seed else 1.0, "none": None}
            (run / "config.yaml").write_text(yaml.safe_dump(config))
            if preset == "transformer":
                probed = run / "probes"  # of the second seed, in the end
    probed.mkdir()
    said = {"prompt": "The ", "text": "end", "temperature": 0.8, "sample_seed": 0, "tokens_per_second": 90.0}
    pd.DataFrame([said]).to_parquet(probed / "samples.parquet")
    record = {
        "settings": {"windows": 7, "text": "a|b"},
        "command": "python run.py job=probe runs=/x/exp",
        "commit": "c0ffee",
    }
    (probed / "probes.json").write_text(json.dumps({**record, "dirty": True}))
    tried = [
        ("kda", 1e-3, "a=1", 1, "r1", 3.0, "done", True, "highest", "kda0 kda1"),
        ("kda", 3e-4, "a=1", 1, "r2", 3.1, "done", False, "", ""),
    ]
    names = [
        *("model", "lr", "settings", "seed", "run", "validation_loss", "status", "chosen", "edge"),
        "confirmed_by",
    ]
    pd.DataFrame(tried, columns=names).assign(color="#112233").to_csv(folder / "selection.csv", index=False)
    return folder


ASKED = Publication(
    "Does  it\nwork?",
    ("loss_against_tokens", "learning_rates"),
    "a book, free",
    command="python run.py job=publish runs=/home/me/results/exp",
    commit="f" * 40,
    dirty=False,
)


def files(folder: Path) -> list[str]:
    """The names of the files, and the texts of those that are text."""
    found = []
    for path in sorted(folder.iterdir()):
        found.append(f"# {path.name}")
        if path.name in SHOWN or path.suffix == ".txt":
            found += path.read_text(encoding="utf-8").splitlines()
    return found


def test_what_a_publication_writes(study, tmp_path, drawn_alone):
    folder = publish(load_results(study), tmp_path / "published", ASKED)
    lines = [*files(folder), *map(str, missing_parts(folder))]
    again = Publication("Again?", (), "a book, free", ("samples",), baseline="kda <wide>")
    lines += [
        "# published again, from what was published",
        *files(publish(load_results(folder), tmp_path / "published", again)),
    ]
    for name in ("README.md", "identities.json", "provenance.json", "configs.yaml"):
        (folder / name).unlink()
        lines += [f"without {name}: {part}" for part in missing_parts(folder)]
    runs = portable(load_results(study), ()).runs
    lines += [f"{row.folder} {row.command}" for row in runs.itertuples()]
    assert str(tmp_path) not in "\n".join(lines)
    recorded.check(RECORDED / "publication.txt", lines, absolute=1e-9)


TREES = (
    [{"a": 1, "b": {"c": 2, "d": 3}}, {"a": 1.0, "b": {"c": 2, "e": [1]}}],
    [{"a": {"b": 1}}, {"a": 2}],
    [{"a": True, "b": None}, {"b": None, "a": 1}, {"a": True}],
    [{"z": 1, "a": {}}],
)


def test_what_configurations_share():
    lines = []
    for trees in TREES:
        shared = publishing.common(trees)
        rest = [publishing.difference(shared, tree) for tree in trees]
        assert [publishing.joined(shared, one) for one in rest] == trees
        lines.append(f"{shared} and {rest}")
    paths = (
        *("/a/b/c.txt", "x=/a/b d", "a/b/c", "./a/b", "'/a/b c'", "/a", "/a/b/", "~/a/b", "k=/a/b,/c/d"),
        "http://a/b/c",
    )
    recorded.check(RECORDED / "shared.txt", [*lines, *(f"{path} -> {without_paths(path)}" for path in paths)])
