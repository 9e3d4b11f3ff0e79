"""Made-up runs of synthetic tasks, in the format that runs are written in."""

import math
from pathlib import Path

import numpy as np

MODELS = {"transformer": ("FF", "#4d4d4d"), "kda": ("KK", "#009e73"), "mesanet": ("MM", "#cc79a7")}
TASKS = {"mqar": {"length": 32, "pairs": 4}, "parity": {"length": 24}}
CHANCE = {"mqar": 1 / 32, "parity": 0.5}
SHORTCUT = {"mqar": {"way": "place", "accuracy": 0.25}, "parity": None}
MEMORISED = {"mqar": 0.03, "parity": 0.55}
HARDNESS = {"mqar": "tokens between a key and its question", "parity": "bits so far"}
VOCABULARY = {"mqar": 64, "parity": 2}
DIFFICULTIES, ANSWERS = range(2, 24, 2), 100


def write_task_run(
    write_run, folder: Path, preset: str, task: str, seed: int = 0, accuracy: float = 0.9, **changes
) -> Path:
    """Write a run of a model on a task, right in this share of answers; the easiest are all right.

    write_run: the fixture. options: of the task, in place of those of TASKS; size: bytes of its state.
    """
    options = TASKS[task] | changes.pop("options", {})
    pattern, color = MODELS[preset]
    text = f"{task} ({', '.join(f'{key} {value}' for key, value in options.items())})"
    data = {"name": task, "train": text, "validation": text, "test": text, "tokenizer": "none", "pack": None}
    data |= {"vocab_size": VOCABULARY[task], "seq_len": options["length"], "fingerprint": text}
    data |= {"chance": CHANCE[task], "shortcut": SHORTCUT[task], "hardness": HARDNESS[task]}
    data |= {"memorised": MEMORISED[task], "unigram_entropy": None}
    data |= {"splits": {"train": {"tokens": None, "bytes": None}}}
    scores = {"loss": -math.log(max(accuracy, 1e-9)), "accuracy": accuracy, "sequence_accuracy": accuracy**4}
    scores |= {"chance": CHANCE[task], "answers": 1100, "sequences": 275}
    state = {str(options["length"]): changes.pop("size", 4096 if preset == "kda" else 8192)}
    model = {"preset": preset, "pattern": pattern, "color": color, "depth": 2} | changes.pop("model", {})
    about = {"model": model, "data": data, "state_bytes": state, **changes}
    about |= {"metrics": {"validation": scores, "test": scores}}
    run = write_run(folder, f"{preset} {task}", seed, scores["loss"], **about)
    (run / "metrics.csv").write_text(_curve(accuracy))
    (run / "answers.csv").write_text(_answers(accuracy))
    return run


def _curve(accuracy: float, steps: int = 300, every: int = 50) -> str:
    lines = ["step,tokens,split,loss,accuracy,sequence_accuracy,seconds"]
    for step in range(every, steps + 1, every):
        right = accuracy * step / steps
        lines += [
            f"{step},{step * 1024},{split},{1 - right},{right},{right**4},{step * 0.1}"
            for split in ("train", "validation")
        ]
    return "\n".join(lines) + "\n"


def _answers(accuracy: float) -> str:
    """100 answers of each difficulty, of which ever fewer are right; all together as many as the accuracy says."""
    steps = np.arange(len(DIFFICULTIES))
    shares = 1 - (1 - accuracy) * 2 * steps / steps[-1]
    lines = ["split,axis,value,answers,right,nats"]
    for split in ("validation", "test"):
        for axis in ("position", "difficulty"):
            for value, share in zip(DIFFICULTIES, shares, strict=True):
                right = round(ANSWERS * max(0.0, share))
                lines.append(f"{split},{axis},{value},{ANSWERS},{right},{ANSWERS - right}")
    return "\n".join(lines) + "\n"


def write_study(write_run, folder: Path) -> Path:
    """Two tasks, three models and three seeds: mesanet is worse at mqar, kda better at parity, all else is alike."""
    levels = {
        "mqar": {"transformer": 0.97, "kda": 0.965, "mesanet": 0.7},
        "parity": {"transformer": 0.6, "kda": 0.99, "mesanet": 0.61},
    }
    for task, accuracies in levels.items():
        for model, accuracy in accuracies.items():
            for seed, off in enumerate((-0.008, 0.0, 0.008)):
                write_task_run(write_run, folder, model, task, seed, accuracy + off)
    return folder
