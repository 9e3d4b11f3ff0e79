"""Rows of a verdict: contracts as pytest tells them, sizes, speeds from pretended times, records that do not match."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from support.recorded import check
from support.steady import (
    cells,
    changed,
    differences,
    leaves,
    masked,
    pretended_machine,
    pretended_times,
    refusal,
    tiny_config,
)

from experiments.verdict import contracts, measurements, verdict_stages
from zoo import registry

RECORDED = Path(__file__).parent / "recorded"


def test_outcomes_of_contracts():
    tree = ElementTree.ElementTree(
        ElementTree.fromstring(
            "<t><testcase name='test_no_leak[mixer-kda-F]'/>"
            "<testcase name='test_decodes[a]'><failure message='x is\n3'/></testcase>"
            "<testcase name='test_no_leak[mixer-kda-K]'><skipped message='no'/></testcase>"
            "<testcase name='test_decodes[b]'><error>bad\nline</error></testcase>"
            "<testcase name='test_plain'/></t>"
        )
    )

    def lines() -> Iterator[str]:
        found = list(contracts._cases(tree))
        yield from map(str, found)
        yield from map(str, contracts.summarise(found))
        command = contracts._command(registry.get("mixer", "kda"), Path("out.xml"))
        yield " ".join(word for word in command[1:] if "test_contract" not in word)
        yield f"{sorted(Path(word).name for word in command if 'test_contract' in word)}"

    check(RECORDED / "contracts.txt", lines())


def test_contracts_that_cannot_be_run(tmp_path: Path, monkeypatch):
    """Without pytest, without the tests, where they do not start, where none is about the block."""
    block = registry.get("mixer", "kda")
    report = {"words": None}

    def run(command, cwd, stdout, stderr, check):
        stdout.write("collecting\nERROR: it broke\n")
        if report["words"] is not None:
            Path(command[-1].partition("=")[2]).write_text(report["words"])

    monkeypatch.setattr(contracts.subprocess, "run", run)

    def lines() -> Iterator[str]:
        yield refusal(contracts.run_contracts, block)
        for words in ("<t/>", "<t><testcase name='test_a[b]'/></t>"):
            report["words"] = words
            yield f"{words}: {refusal(contracts.run_contracts, block)}"
        with monkeypatch.context() as without:
            without.setattr(contracts.importlib.util, "find_spec", lambda name: None)
            yield f"no pytest: {refusal(contracts.run_contracts, block)}"
        monkeypatch.setattr(contracts, "TESTS", tmp_path / "none")
        yield f"no tests: {refusal(contracts.run_contracts, block)}"

    check(RECORDED / "contracts_refused.txt", lines())


def test_models_and_relatives():
    def lines() -> Iterator[str]:
        base = changed(
            tiny_config().model, preset="kda", pattern="K", residual__name="ohc", tie_embeddings=False
        )
        for kind in registry.KINDS:
            for name, block in registry.blocks(kind).items():
                if name in measurements.PLAIN.values():
                    continue
                relative = measurements.nearest_relative(block, None)
                yield f"{kind} {name}: beside {relative and relative.name}"
                for title, model in list(measurements.models(base, block, relative).items())[:2]:
                    yield f" {title}"
                    yield from differences(model, leaves(tiny_config().model))
        yield (
            f"{measurements.nearest_relative(registry.get('mixer', 'kda'), 'none')} "
            f"{measurements.nearest_relative(registry.get('mixer', 'kda'), 'mla').name}"
        )

    check(RECORDED / "models.txt", lines())


def test_sizes_and_speeds(tmp_path: Path):
    config = tiny_config(
        data__tokenizer="none",
        data__vocab_size=50,
        results=str(tmp_path),
        name="v",
        verdict__lengths=[8, 16],
        model__d_model=64,
        model__backend="torch",
    )
    found = measurements.models(config.model, registry.get("mixer", "kda"), registry.get("mixer", "mesanet"))
    few = {name: found[name] for name in ("transformer", "kda")}

    def lines() -> Iterator[str]:
        yield from cells(measurements.size_rows(config, found, 16))
        yield from cells(measurements.size_rows(changed(config, match="params"), few, 16))
        with pretended_times():
            for mode, chosen in (("training step", found), ("prefill", few), ("decode", few)):
                yield from cells(measurements.speed_rows(config, chosen, 8, mode))
        with pretended_machine(None):
            folder = verdict_stages.open_verdict(config, registry.get("mixer", "kda"), found)
            yield f"{folder} {folder == verdict_stages.open_verdict(config, registry.get('mixer', 'kda'), found)}"
            yield f"commit {json.loads((folder / 'verdict.json').read_text())['commit']}"
            for keys in ({"verdict__lengths": [8]}, {"match": "params"}):
                yield refusal(
                    verdict_stages.open_verdict, changed(config, **keys), registry.get("mixer", "kda"), found
                )
            yield refusal(verdict_stages.open_verdict, config, registry.get("mixer", "mla"), few)
        (folder / "verdict.json").write_text("nonsense")
        yield refusal(verdict_stages.open_verdict, config, registry.get("mixer", "kda"), found)
        asked: list[str] = []
        rows = verdict_stages._once(
            folder / "x.csv",
            ("a", "b"),
            lambda: (asked.append("measured"), [{"a": 1, "c": 3}, {"b": 2.5}])[1],
        )
        yield f"{rows} {verdict_stages._once(folder / 'x.csv', ('a', 'b'), lambda: 1 / 0)} {asked}"
        yield f"{measurements.SPEED_COLUMNS} {measurements.COLUMNS} {contracts.COLUMNS}"

    check(RECORDED / "sizes_and_speeds.txt", masked(list(lines()), {str(tmp_path): "<results>"}))
