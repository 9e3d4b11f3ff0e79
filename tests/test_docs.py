"""The pages that are written from the code, and the links of the README."""

import dataclasses
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.tree_copy import ROOT

import kernels
from analysis.plotting.sketches import path
from experiments.configuration import schema
from experiments.data import TASKS
from zoo import registry


@pytest.fixture
def reference(monkeypatch):
    """docs/reference.py, which stands in no package."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    yield __import__("reference")
    for name in ("reference", "docstrings"):
        sys.modules.pop(name, None)


def test_every_link_of_the_readme_leads_somewhere():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_key_has_its_default_and_meaning(reference):
    page = reference.keys_page()
    assert "| `trainer.max_steps` | `300` | optimiser steps |" in page
    assert "| `data.vocab_size` | `4096` |" in page
    assert "| `data.path` | `null` |" in page
    assert "| `sweep.slurm.requeues` | `20` |" in page
    assert "| `dry` | `false` |" in page
    assert "| `model.residual.name` | `add` | the scheme around every mixer" in page
    assert "| `model.channel.name` | `swiglu` | the channel mixer of every layer" in page
    for kind in registry.KINDS:
        page += reference.blocks_page(kind, kind)
    assert "| `model.mixers.gsa.beta` | `1.0` |" in page
    for kind, node in (
        ("mixer", "model.mixers"),
        ("residual", "model.residual"),
        ("channel", "model.channel"),
    ):
        for block in registry.blocks(kind).values():
            for field in dataclasses.fields(block.config):
                assert f"| `{node}.{block.name}.{field.name}` |" in page
    tasks = reference.tasks_page()
    for name, task in TASKS.items():
        for field in dataclasses.fields(task.config):
            assert f"| `data.tasks.{name}.{field.name}` |" in tasks


def test_no_two_keys_of_a_node_share_a_meaning(reference):
    nodes = [
        schema.Config,
        *dict(reference._nodes(schema.Config)).values(),
        *(task.config for task in TASKS.values()),
    ]
    for node in nodes:
        meanings = sys.modules["docstrings"].key_meanings(node)
        assert len(set(meanings.values())) == len(meanings), node


def test_a_key_without_a_meaning_is_refused(reference):
    @dataclasses.dataclass
    class Options:
        """width: of the layer; others are not explained."""

        width: int = 1
        depth: int = 2

    with pytest.raises(ValueError, match="Options does not say what depth is"):
        reference._keys_table(Options, "options")


def test_meanings_are_read_by_line_by_semicolon_and_for_several_keys(reference):
    @dataclasses.dataclass
    class Options:
        """Options of a layer; None scales.

        a: the first: one, two
            and more.
        b, c (γ): two at once; d: the last; e, f (None: D/12, at least 1): sizes.
        """

        a: int = 0
        b: int = 0
        c: int = 0
        d: int = 0
        e: int = 0
        f: int | None = None

    meanings = sys.modules["docstrings"].key_meanings(Options)
    assert meanings == {
        "a": "the first: one, two and more",
        "b": "two at once",
        "c": "two at once (γ)",
        "d": "the last",
        "e": "sizes",
        "f": "sizes (None: D/12, at least 1)",
    }


def test_the_equations_that_residual_schemes_share_stand_before_them(reference):
    page = reference.blocks_page("residual", "Residual schemes")
    assert "x ← H_res·x + H_postᵀ·z" in page[: page.index("(residual-")]


def test_every_operation_stands_with_its_arguments(reference):
    page = reference.operations_page()
    for name in kernels.__all__:
        assert f"\n## {name}\n\n```python\nkernels.{name}(" in page
    assert "    initial_state: Tensor | None = None,\n" in page


def test_prose_is_no_markup_and_equations_stay_as_they_are(reference):
    markdown = sys.modules["docstrings"].markdown
    text = "x_t and y_t [B, T] are `a*b`.\n\n    y_t = W_o·x_t\n\nMore."
    assert markdown(text) == "x\\_t and y\\_t \\[B, T\\] are `a*b`.\n\n```text\ny_t = W_o·x_t\n```\n\nMore."


def test_a_mixers_own_sketch_is_drawn_and_not_that_of_its_mask():
    sketches = {block.name: block.describe()["sketch"] for block in registry.blocks("mixer").values()}
    assert sketches["kda"]
    for name, sketch in sketches.items():
        if sketch:
            rows = path(registry.get("mixer", name).mask, sketch)
            assert [[tuple(box) for box in row] for row in rows] == [
                [tuple(box) for box in row] for row in sketch
            ], name


def test_every_figure_of_the_report_is_listed(reference):
    assert "| `loss_against_tokens` | Loss while training | Quality | `metrics.tokens`, `metrics.loss` |" in (
        reference.figures_page()
    )


WHOLE = ("model.", "data.", "optim.", "trainer.", "evaluate.")


def options_of_the_departures() -> Iterator[tuple[str, str]]:
    """Every option in the last column of the blocks' pages, as a whole key, and the default that the page names."""
    prefix = None
    pages = sorted((ROOT / "docs" / "blocks").glob("*.md"))
    for line in "\n".join(page.read_text(encoding="utf-8") for page in pages).splitlines():
        if line.startswith("#"):
            prefix = None
        elif line.startswith("Keys "):
            prefix = line.split("`")[1] if "`" in line else ""
        elif line.startswith("|") and prefix is not None:
            for key, default in re.findall(
                r"`([a-z_0-9.]+)(?:=[^` ]+)?`(?: \[`(.+?)`\])?", line.split("|")[-2]
            ):
                if key != "model":  # a preset
                    yield key if key.startswith(WHOLE) else prefix + key, default


def test_every_option_of_the_departures_exists_and_has_the_default_that_the_page_names():
    found = list(options_of_the_departures())
    assert len(found) > 50
    for key, default in found:
        value = functools.reduce(getattr, key.split("."), schema.Config())
        assert not default or value == yaml.safe_load(default), key


def prose(path: Path) -> str:
    """The text of a page without comments and rules of tables."""
    text = re.sub(r"<!--.*?-->", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"^\|[-:|]+$", "", text, flags=re.MULTILINE).replace("|", " ")


def test_every_page_of_a_block_is_linked_from_the_index():
    index = (ROOT / "docs" / "departures.md").read_text(encoding="utf-8")
    pages = {page.stem for page in (ROOT / "docs" / "blocks").glob("*.md")}
    assert set(re.findall(r"\(blocks/(\w+)\.md\)", index)) == pages
    assert set(re.findall(r"^blocks/(\w+)$", index, re.MULTILINE)) == pages


@pytest.mark.parametrize(("name", "most"), [("decisions", 3000), ("departures", 300)])
def test_pages_to_look_things_up_stay_short(name, most):
    assert len(prose(ROOT / "docs" / f"{name}.md").split()) <= most


def test_an_entry_of_findings_has_at_most_150_words():
    pages = [ROOT / "results" / "README.md", *(ROOT / "results" / "published").glob("*/README.md")]
    entries = [
        (page.parent.name, entry)
        for page in pages
        for section in re.findall(r"^## Findings$(.*?)(?=^## |\Z)", prose(page), re.MULTILINE | re.DOTALL)
        for entry in re.split(r"^### ", section, flags=re.MULTILINE)[1:]
    ]
    assert len(entries) > 20
    assert [(name, entry.splitlines()[0]) for name, entry in entries if len(entry.split()) > 150] == []
