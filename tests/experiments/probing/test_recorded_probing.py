"""Windows, buckets, averages, tables and words of probing, on models whose weights are a formula."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.recorded import check, flat
from support.steady import changed, masked, refusal, set_by_formula, tiny_config

from experiments import runs
from experiments.configuration.schema import ProbeConfig
from experiments.data import Split, TaskSet, resolve_task
from experiments.probing import held_out, per_token, probe_run
from experiments.probing.held_out import probed_sentence
from zoo import LanguageModel
from zoo.errors import UserError
from zoo.probes import Row

RECORDED = Path(__file__).parent / "recorded"
SPLIT = Split((np.arange(70) * 3 % 19).astype(np.uint16), 9, 9, 9)


def _model(**keys) -> LanguageModel:
    return set_by_formula(
        LanguageModel(changed(tiny_config().model, **keys), vocab_size=20, seq_len=16), 0.3
    ).eval()


def test_windows_and_buckets():
    def lines() -> Iterator[str]:
        for count, length in ((3, 16), (1, 16), (9, 16), (2, 200), (4, 17), (5, 1)):
            x, y = held_out.evenly_spaced_windows(SPLIT, count, length)
            yield f"{count} of {length}: {tuple(x.shape)} {x[:, 0].tolist()} {y[:, -1].tolist()}"
        for bos, length in ((0, 5), (0, 20), (3, 2), (77, 4)):
            yield f"from {bos}, {length}: {held_out.document_start(SPLIT, bos, length).tolist()}"
        for length in (16, 35, 71):
            yield f"whole {length}: {[tuple(part.shape) for part in held_out.whole_split(SPLIT, length)]}"
        for trained, length in ((16, 16), (16, 64), (16, 100), (16, 8), (8, 9)):
            yield f"buckets {trained} {length}: {held_out.position_buckets(trained, length)}"
        rows = [
            Row(0, "mixer", "a", 1, "", None, None, "m", value, count)
            for value, count in ((1.0, 1), (4.0, 3), (9.0, 0))
        ]
        rows.append(Row(1, "mixer", "a", 1, "", None, None, "m", 7.0, 0))
        yield f"{held_out.average_rows(rows)}"
        for probe in (
            {},
            {"routing_split": "test"},
            {"routing_tokens": None},
            {"routing_tokens": 17, "batch_size": 1},
        ):
            asked = changed(ProbeConfig(), **probe)
            found = per_token.batches({"validation": SPLIT, "test": SPLIT}, asked, 16)
            yield f"{probe}: {per_token.split_name(asked)} {[tuple(x.shape) for x in found]}"
        loaded = SimpleNamespace(
            tokenizer=SimpleNamespace(bos_id=0, encode=lambda words: [1] * len(words)),
            model=SimpleNamespace(seq_len=16),
        )
        for probe in (
            {},
            {"map_tokens": 3},
            {"sentence": "abc"},
            {"sentence": "x" * 15},
            {"sentence": "x" * 16},
        ):
            yield f"{probe}: {refusal(probed_sentence, loaded, SPLIT, changed(ProbeConfig(), **probe))}"

    check(RECORDED / "windows.txt", lines())


def test_what_is_measured_of_tokens():
    """Losses by position, attention maps, routes, choices not taken, and counts of choices."""

    def lines() -> Iterator[str]:
        tokens = torch.from_numpy(SPLIT.tokens[:64].astype(np.int64)).view(1, 64)
        plain, routed, experts = _model(), _model(pattern="SF"), _model(channel__name="moe")
        for row in held_out.loss_by_position(plain, tokens, tokens.roll(-1, 1), 2, "fp32"):
            yield "; ".join(flat(row._asdict()))
        sentence = tokens[:, :6]
        yield from flat([tuple(row) for row in per_token.attention_maps(plain, sentence)[:40]], "maps")
        for model in (routed, experts):
            yield from flat([tuple(row) for row in per_token.routes_of(model, sentence)], "routes")
            yield from flat(
                [tuple(row) for row in per_token.alternatives(model, sentence)[:20]], "alternatives"
            )
            yield from flat(
                per_token.assignments(model, [sentence, sentence[:, :3]], lambda token: f"<{token}>"),
                "assignments",
            )
        found = held_out.probe_windows(plain, tokens[:, :16].repeat(3, 1), tokens[:, 1:17].repeat(3, 1), 2)
        yield f"measures {sorted({(row.measure, row.axis, row.part) for row in found}, key=str)}"
        data = resolve_task(
            changed(tiny_config().data, name="mqar", tokenizer="bpe", vocab_size=4096, seq_len=128)
        )
        data.tasks.mqar.length, data.tasks.mqar.pairs, data.tasks.mqar.vocab = 16, 2, 20
        made = TaskSet(data)
        probe = changed(ProbeConfig(), windows=3, batch_size=2, routing_tokens=40)
        tables = per_token.task_tables(routed, made, probe, 7)
        yield f"{[(name, len(rows)) for name, rows in tables.items()]}"
        yield (
            f"sentence {tables['sentence'][:4]} step {tables['measures'][0][0]} "
            f"{tables['measures'][0][-1]} {tables['assignments'][0]}"
        )
        for row in tables["measures"]:
            if row[8].startswith("answer"):
                yield "; ".join(map(str, row[1:9])) + f": {row[9]:.6f} {row[10]}"
        yield refusal(per_token.task_tables, plain, made, changed(probe, sentence="x"), 1)

    check(RECORDED / "tokens.txt", lines(), relative=1e-3, absolute=1e-5)


def test_tables_and_their_records(tmp_path: Path):
    """Columns with units and meanings; rows read back; whether a run is probed as asked; ranks in words."""

    def lines() -> Iterator[str]:
        for name, schema in probe_run.SCHEMAS.items():
            for field in schema:
                about = {k.decode(): v.decode() for k, v in field.metadata.items()}
                yield f"{name}.{field.name} {field.type} [{about['unit']}] {about['meaning']}"
        rows = [(5, 0, "mixer", "a", None, "", None, None, "m", 0.5, 3, "validation")]
        probe_run.write(tmp_path, "measures", rows)
        probe_run.write(tmp_path, "samples", [])
        yield (
            f"{probe_run.read(tmp_path, 'measures')} {probe_run.read(tmp_path, 'samples')} {probe_run._LATER}"
        )
        (tmp_path / "probes" / ".x.partial").touch()
        probe_run.remove_partials(tmp_path)
        yield f"{sorted(path.name for path in (tmp_path / 'probes').iterdir())}"
        probe = ProbeConfig()
        for at in ("best", "last"):
            yield from flat({k: v for k, v in probe_run.settings(probe, at).items() if k != "measures"}, at)
        energies = [
            (5, 1, "", "", None, "rank", float(r), float(r + 1), "stream_energy", value, 9, "validation")
            for r, value in enumerate((0.7, 0.2, 0.08, 0.02))
        ]
        probe_run.write(tmp_path, "measures", energies)
        yield (
            f"{[probe_run.stream_rank(tmp_path, energy) for energy in (0.5, 0.9, 0.99)]} "
            f"{probe_run.stream_rank(tmp_path / 'no', 0.9)!r}"
        )
        (tmp_path / "config.yaml").write_text("probe: {at: last}\n")
        yield (
            f"{probe_run.weights_to_probe(tmp_path, probe)} "
            f"{probe_run.weights_to_probe(tmp_path, changed(probe, at='7'))} "
            f"{probe_run.weights_to_probe(tmp_path / 'no', probe)}"
        )
        yield f"{probe_run.is_probed(tmp_path, probe)}"

    check(RECORDED / "tables.txt", lines())


def test_finding_runs_and_weights(tmp_path: Path):
    """Which folders hold complete runs and what is said of others; weights by their steps."""

    def run(name: str, **files: str) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        for file, content in files.items():
            (folder / file.replace("__", ".")).write_text(content)
        return folder

    def lines() -> Iterator[str]:
        whole = run("study/a", summary__json='{"name": "m", "seed": 3, "steps": 9}')
        run("study/b", failure__json="{}", config__yaml="")
        run("study/c", config__yaml="")
        run("study/d", summary__json="[]")
        run("study/e", summary__json="nonsense")
        run("study/f", notes__txt="")
        run("study/_g", summary__json="{}")
        run("study/.h", summary__json="{}")
        run("study/report", summary__json="{}")
        (tmp_path / "study" / "link").symlink_to(run("elsewhere/x", summary__json="{}"))
        for keys in (
            {"runs": "study"},
            {"run": "study/a"},
            {"run": "study/b"},
            {"runs": "nothing"},
            {"results": ".", "name": "study"},
            {"runs": "study/c"},
            {"runs": "."},
        ):
            config = changed(
                tiny_config(), **{k: str(tmp_path / v) if k != "name" else v for k, v in keys.items()}
            )
            yield f"{keys}: {refusal(probe_run.find_runs, config)}".replace(str(tmp_path), "<place>")
        yield probe_run.run_title(whole)
        for step in (3, 9, 0):
            (whole / "checkpoints").mkdir(exist_ok=True)
            (whole / "checkpoints" / f"step-{step:08d}.ckpt").touch()
        for name in ("step-00000005", "step-00000006"):
            folder = run(f"study/a/weights/{name}", model__json="{}")
        (folder / "model.safetensors").touch()
        for card in ({}, {"step": 4}):
            (whole / "model.json").write_text(json.dumps(card))
            yield f"{card}: {[(step, path.name) for step, path in runs.available(whole).items()]}"
            for at in ("best", "last", "3", "5", "6", "7"):
                yield f"  {at}: {refusal(runs.find, whole, at)}".replace(str(tmp_path), "<place>")
        for at in (None, "best", "last", "1", "01", "-1", "x", "0"):
            yield f"{at}: {refusal(runs.check, at)}"
        yield f"{runs.step_folder(Path('run'), 7)}"

    check(RECORDED / "runs.txt", masked(list(lines()), {str(tmp_path): "<place>"}))


@pytest.mark.parametrize("at", ["first", "0", "-3", "1.5", "[7]", "true"])
def test_weights_that_a_run_s_configuration_names_are_checked_as_those_of_the_command(
    tmp_path: Path, at: str
):
    """A configuration may have been edited, or be of another version."""
    (tmp_path / "config.yaml").write_text(f"probe: {{at: {at}}}\n")
    with pytest.raises(UserError, match=r"probe\.at=.* must be best, last or the number of a step"):
        probe_run.weights_to_probe(tmp_path, ProbeConfig())
    assert not probe_run.is_probed(tmp_path, ProbeConfig())
