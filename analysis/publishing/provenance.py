"""Provenance of a study: its question, commands, code, texts and probe passes.

provenance.json in a published folder holds the facts that are neither in runs.parquet nor in configs.yaml; README.md
lists them all.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from analysis.errors import ResultsError
from analysis.files import write_text
from analysis.loading.probe_tables import interrupted, records
from analysis.loading.results import Results
from analysis.loading.safe_read import read_text
from analysis.units import listing

FILE = "provenance.json"
ABSOLUTE = re.compile(r"(?<![\w.])(?<!:/)/(?:[^\s'\"/]+/+)+([^\s'\"/]+)/*")

PUBLIC = {
    "pydocs": "ships with every Python: `data=pydocs` takes the documentation, docstrings and comments of the one it "
    "runs on; the same version gives the same text",
    "wikitext103": "`data=wikitext103` reads it from the hub: Salesforce/wikitext, wikitext-103-raw-v1 (CC BY-SA 3.0)",
    "wikitext2": "`data=wikitext2` reads it from the hub: Salesforce/wikitext, wikitext-2-raw-v1 (CC BY-SA 3.0)",
}
"""Where the text of a data configuration can be had by everybody."""


@dataclass(frozen=True)
class Pass:
    """One pass of job=probe over some runs.

    settings: the settings of the pass; known_from: the source of these, if the pass itself did not record them.
    """

    runs: list[str]
    command: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    commit: str | None = None
    dirty: bool | None = None
    known_from: str | None = None


@dataclass(frozen=True)
class Provenance:
    """Facts about a published study that are in no table.

    question: what the study asks; command, commit, dirty: of its publication; source: where to get texts that
    have no public name; probing: the passes that made the tables; notes: what else a reader has to know; files: names
    of the files that this publication wrote."""

    question: str
    command: str
    commit: str | None = None
    dirty: bool | None = None
    source: str = ""
    probing: list[Pass] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


def without_paths(text: str) -> str:
    """Replace every absolute path in a text by its last part."""
    return ABSOLUTE.sub(r"\1", text)


def write(folder: Path, provenance: Provenance) -> Path:
    """Write provenance.json atomically."""
    text = json.dumps(asdict(provenance), indent=1, ensure_ascii=False)
    return write_text(folder / FILE, text + "\n")


def read(folder: Path) -> Provenance | None:
    """Read provenance.json of a published folder, None without one. Raises ResultsError if it is damaged."""
    try:
        values = json.loads(read_text(folder, FILE))
        passes = [Pass(**one) for one in values.pop("probing", [])]
        found = Provenance(probing=passes, **values)
        texts = [
            found.question,
            found.command,
            *found.notes,
            *found.files,
            *(x for p in passes for x in p.runs),
        ]
        if not all(isinstance(x, str) for x in texts) or not all(
            isinstance(p.settings, dict) for p in passes
        ):
            raise ValueError("a text is no text")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ResultsError(
            f"{folder}: {FILE} cannot be read ({error}); publish the study from its runs"
        ) from error
    return found


def probing(results: Results, earlier: list[Provenance]) -> list[Pass]:
    """Return the probe passes of the runs, from their records or from a published folder.

    Raises ResultsError for tables of an interrupted pass.
    """
    if halves := interrupted(results):
        raise ResultsError(
            f"the tables of {listing(halves)} are of an interrupted pass, and so perhaps of two; "
            "python run.py job=probe makes them anew"
        )
    found: dict[str, Pass] = {}
    for row, text in zip(results.runs.itertuples(), records(results), strict=True):
        if text is None:
            continue
        try:
            one = _pass(row.run, json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ResultsError(f"{row.experiment}/{row.run}: probes.json cannot be read ({error})") from error
        key = json.dumps({**asdict(one), "runs": None}, sort_keys=True)
        found.setdefault(key, Pass(**{**asdict(one), "runs": []})).runs.extend(one.runs)
    kept = {run for (_, run) in results.exported}
    for published in earlier:
        for one in published.probing:
            if runs := [run for run in one.runs if run in kept]:
                found[f"{len(found)}"] = Pass(**{**asdict(one), "runs": runs})
    return list(found.values())


def _pass(run: str, record: dict[str, Any]) -> Pass:
    command = record.get("command")
    return Pass(
        [run],
        None if command is None else without_paths(str(command)),
        dict(record["settings"]),
        record.get("commit"),
        record.get("dirty"),
    )


def origins(results: Results, source: str) -> list[str]:
    """Return the origin of each text, one sentence each. Raises ResultsError where it is not known."""
    drawn = results.of_tasks.runs["training_set"].unique()
    sets = ["data", "training_set", "validation_set", "test_set"]
    texts = results.of_text.runs[sets].drop_duplicates().itertuples(index=False)
    found, unknown = [], []
    for name, training, *scored in texts:
        public = PUBLIC.get(name)
        wikitext = name.startswith("wikitext")
        own = name not in PUBLIC or (wikitext and not training.endswith("-raw-v1 train"))
        others = [text for text in scored if wikitext and not text.startswith("wikitext-")]
        if public and (own or others):
            parts = ["training"] * (not own) + ["validation and test"] * (not others)
            public = f"{parts[0]}: {public}" if parts else None
        found += [f"{name}: {public}"] if public else []
        unknown += [(f"{name} trained on", training)] if own else []
        unknown += [(f"{name} scored on", text) for text in others]
    if unknown and not source:
        raise ResultsError(
            f"where can its text be had ({', '.join(map(' '.join, unknown))})? Say so: "
            "'source=\"what it is, where it comes from, its licence\"'"
        )
    found += [f"{text}: drawn by this program, as often as a run asks for" for text in drawn]
    return found + [f"{text}: {source}" for text in dict.fromkeys(text for _, text in unknown)]
