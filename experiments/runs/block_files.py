"""The files that define a model's blocks: a run is of them as they were, and its name does not tell them."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.system.paths import ROOT
from zoo import registry
from zoo.config import ModelConfig

if TYPE_CHECKING:
    from experiments.planning.plan import Plan


def block_files(model: ModelConfig, letters: str) -> dict[str, str]:
    """Hash by path of the files that define the mixers, the residual scheme and the channel mixer of a model.

    Of kernels and other modules nothing: a summary's `commit` tells them, where nothing was uncommitted.
    """
    mixers = registry.mixer_by_letter()
    blocks = [
        *(mixers[letter] for letter in sorted(set(letters))),
        registry.get("residual", model.residual.name),
        registry.get("channel", model.channel.name),
    ]
    found = ((_file(block), file_hash(block)) for block in blocks)
    return {
        str(file.relative_to(ROOT)): digest for file, digest in found if file and file.is_relative_to(ROOT)
    }


def file_hash(block: registry.Block) -> str:
    """Hash of the file that defines a block, 16 hex digits; "" where it was defined in a notebook."""
    file = _file(block)
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file else ""


def tell_changed(plans: Iterable[Plan]) -> None:
    """Print a notice for every file of a block that was changed after runs of it had begun, on the standard error."""
    runs: dict[tuple[str, bool], list[Path]] = {}
    for planned in plans:
        if not (planned.folder.complete or planned.folder.resumable):
            continue
        before = planned.folder.block_files()
        for file, now in block_files(planned.config.model, planned.letters).items():
            if before.get(file, now) != now:
                runs.setdefault((file, planned.folder.complete), []).append(planned.folder.path)
    for (file, complete), folders in runs.items():
        others = f" and {len(folders) - 1} more" if folders[1:] else ""
        since = (
            "had been trained, and their results are of the earlier file"
            if complete
            else "had begun; they go on from their checkpoints, and their results will be of both"
        )
        print(
            f"notice: {file} was changed after {folders[0]}{others} {since}; to train the new one from its start give "
            "another name=, or remove these folders",
            file=sys.stderr,
            flush=True,
        )


def _file(block: registry.Block) -> Path | None:
    try:
        source = inspect.getsourcefile(block.cls)
    except (TypeError, OSError):
        return None
    return Path(source).resolve() if source else None
