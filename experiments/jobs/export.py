"""job=export: a finished run as a folder in Hugging Face's layout, with its tokenizer and a model card."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

from experiments.configuration.schema import Config
from experiments.jobs import Job
from experiments.parallel.group import pick_device
from experiments.runs import RunFolder, load_run
from experiments.scoring.text import COLUMNS, FILE
from experiments.system import machine, paths
from zoo.errors import UserError
from zoo.pretrained.families import FAMILIES
from zoo.pretrained.writing import write_folder


def run(config: Config) -> None:
    """Write the folder out= and say as what. Raises UserError where it is there, and for a family that cannot."""
    if config.out is None:
        raise UserError("job=export needs out=FOLDER, a new folder")
    if config.family not in (None, "archzoo", *FAMILIES):
        raise UserError(f"family={config.family} must be one of archzoo, {', '.join(FAMILIES)}")
    if config.push is not None and importlib.util.find_spec("huggingface_hub") is None:
        raise UserError("push= needs the package huggingface_hub; pip install -e '.[hf]', or leave it out")
    paths.check_writable(Path(config.out).expanduser().parent, "out")
    loaded = load_run(config.run, pick_device("cpu"), ())
    folder = RunFolder(loaded.folder)
    card = _card(folder.summary() if folder.complete else {}, loaded.folder, config)
    kind, why = write_folder(
        loaded.model, config.out, tokenizer=loaded.tokenizer, readme=card, family=config.family
    )
    if kind == "archzoo":
        how = "AutoModelForCausalLM.from_pretrained(FOLDER) after `import zoo.hf`, or with trust_remote_code=True"
        because = f", as no published family computes this model ({why})" if why else ""
        print(f"{config.out}: model_type=archzoo{because}\nload it: {how}")
    else:
        print(f"{config.out}: model_type={kind}, a class of transformers itself")
    if config.push is not None:
        print(f"uploaded: {_upload(config.out, config.push)}")


def _upload(folder: str, name: str) -> str:
    """Upload the folder to a repository of the hub, made where it is not there; returns its address."""
    from huggingface_hub import HfApi

    try:
        api = HfApi()
        address = api.create_repo(name, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder)
    except (OSError, ValueError) as error:  # no network, no right to write there, no such name
        line = " ".join(str(error).split())[:200]
        raise UserError(
            f"{folder} is written, and cannot be uploaded to {name} ({line}); log in with `hf auth login`, then "
            f"`hf upload {name} {folder}`"
        ) from error
    return str(address)


def _card(summary: dict[str, Any], folder: Path, config: Config) -> str:
    """The model card: what it is, how it was trained, on what, how good it is, and how to load it."""
    head = ["---", "library_name: transformers", "pipeline_tag: text-generation", "tags: [archzoo]"]
    head += [f"license: {config.licence}"] if config.licence else []
    model, data = summary.get("model", {}), summary.get("data", {})
    facts = {
        "Layers": f"{model.get('pattern')}, residual {model.get('residual')}, channel mixer {model.get('channel')}",
        "Parameters": f"{summary.get('parameters', 0):,}",
        "Trained on": f"{data.get('train')} ({data.get('name')}), {summary.get('tokens') or 0:,} tokens",
        "Tokenizer": f"{data.get('tokenizer')}, {data.get('vocab_size')} tokens",
        "Context": f"{data.get('seq_len')} tokens",
        "Recipe": ", ".join(
            f"{key} {value}" for key, value in summary.get("recipe", {}).items() if value is not None
        ),
        "Seed": str(summary.get("seed")),
        "Source": ", ".join(f"{key} {value}" for key, value in summary.get("source", {}).items()),
        "Licence": config.licence or "not stated",
        "Commit": str(summary.get("commit")),
        "Trained by": f"`{summary.get('command')}`",
        "Exported by": f"`{machine.command()}`",
    }
    lines = [*head, "---", "", f"# {summary.get('name', folder.name)}", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items() if value]
    if metrics := summary.get("metrics"):
        lines += [
            "",
            "| split | loss, nats/token | 95 % interval over documents | perplexity | bits/byte | tokens |",
        ]
        lines += ["|---|---|---|---|---|---|"]
        for split, scores in metrics.items():
            interval = " to ".join(f"{x:.4f}" for x in _interval(folder, split)) or "one document"
            numbers = [f"{scores[key]:.4f}" for key in ("loss",)] + [interval]
            numbers += [f"{scores[key]:.4f}" for key in ("perplexity", "bits_per_byte")] + [
                f"{scores['tokens']:,}"
            ]
            lines.append(f"| {split} | {' | '.join(numbers)} |")
    lines += [
        "",
        "```python",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        'model = AutoModelForCausalLM.from_pretrained("FOLDER", trust_remote_code=True)',
        'tokenizer = AutoTokenizer.from_pretrained("FOLDER")',
        "```",
        "",
        "Without `trust_remote_code` where `import zoo.hf` ran before, or where model_type is not archzoo.",
        "",
    ]
    return "\n".join(lines)


def _interval(folder: Path, split: str) -> tuple[float, ...]:
    """The interval of a split's loss if its documents were others; () where it has fewer than two.

    Raises UserError for a table that is damaged.
    """
    import numpy as np
    import pandas as pd

    from analysis.statistics import over_documents

    if not (folder / FILE).is_file():
        return ()
    kinds = dict(zip(COLUMNS, ("str", "int64", "int64", "float64"), strict=True))
    try:
        rows = pd.read_csv(folder / FILE, usecols=list(COLUMNS), dtype=kinds)
    except ValueError as error:
        line = f"{folder / FILE} is damaged ({machine.one_line(error)}); without this file, the card has no intervals"
        raise UserError(line) from error
    rows = rows[rows["split"] == split]
    nats, tokens = rows["nats"].to_numpy(), rows["tokens"].to_numpy()
    estimate = over_documents(nats, np.zeros_like(nats), tokens)
    return () if math.isnan(estimate.low) else (estimate.low, estimate.high)


JOB = Job(
    "export",
    "write a finished run as a folder that transformers loads, with tokenizer and model card",
    run,
    reads=("run",),
    needs="run=results/NAME/RUN out=FOLDER",
    place=lambda config: config.out,
)
