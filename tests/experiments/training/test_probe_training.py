"""Probing while training writes the measures of every so many steps, and changes nothing of the run."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from support.program import Lab, assert_same_run

import zoo
from experiments import data
from experiments.probing import probe_run
from experiments.training.callbacks import ProbeTraining, Validation
from zoo.probes import Measure, Row
from zoo.probes.measure import row

pytestmark = pytest.mark.slow

EVERY = ["trainer.probe_every=8", "probe.windows=3", "probe.batch_size=2"]


class Greedy(Measure):
    """Uses all that a measure may: gradients, random numbers, every stream."""

    name, kinds, needs_gradient = "greedy", ("streams",), True

    def update(self, event):
        torch.rand(3)
        streams = event.values["streams"].detach()
        yield row(event, "size", streams.abs().mean(), count=len(streams))

    def finish(self, model, loss):
        gradient = torch.autograd.grad(loss, model.embedding.weight, retain_graph=True)[0]
        yield row_of_model("gradient", gradient.detach().norm())
        yield row_of_model("loss", loss.detach())


def row_of_model(name, value):
    return Row(None, "", "", None, "", None, None, name, float(value), 1)


@pytest.fixture(autouse=True)
def one_measure(monkeypatch):
    monkeypatch.setattr("zoo.probes.measure._MEASURES", {"greedy": Greedy})


def test_probing_changes_no_row_and_no_weight(lab: Lab, finished: Lab):
    lab.done(*EVERY)
    assert_same_run(finished.run_folder(), lab.run_folder(), "with and without probing")
    assert finished.run_folder().name == lab.run_folder().name, "not a part of the identity"
    rows = probe_run.read(lab.run_folder(), "training")
    assert sorted({row[0] for row in rows}) == [8, 16, 20], "and at the last step"
    assert not (finished.run_folder() / "probes" / "training.parquet").exists()

    # The last rows again, from the last checkpoint, by hand.
    (config,) = lab.compose()
    config.data.cache_dir = str(lab.cache)
    text = data.prepare(config.data, progress=False).splits["validation"].tokens
    starts = [0, (len(text) - 33) // 2, len(text) - 33]
    windows = torch.stack([torch.as_tensor(text[s : s + 33].astype("int64")) for s in starts])
    model = zoo.load(max((lab.run_folder() / "checkpoints").glob("*.ckpt")))
    (size,) = (r[9] for r in rows if (r[0], r[1], r[2], r[8]) == (20, 0, "mixer", "size"))
    assert size == pytest.approx(float(model.embedding(windows[:, :-1]).detach().abs().mean()), rel=1e-5)
    losses = []
    for batch in (windows[:2], windows[2:]):
        logits = model(batch[:, :-1])[0].detach().log_softmax(-1)
        picked = [-float(logits[b, t, batch[b, t + 1]]) for b in range(len(batch)) for t in range(32)]
        losses.append(sum(picked) / len(picked))
    (loss,) = (r[9] for r in rows if (r[0], r[8]) == (20, "loss"))
    assert loss == pytest.approx(sum(losses) / 2, rel=1e-5)


def test_rows_after_the_checkpoint_are_taken_back(tmp_path: Path, lab: Lab, finished: Lab, monkeypatch):
    whole = Lab(tmp_path / "whole", lab.text, lab.cache)
    every = [*EVERY, "trainer.probe_every=5"]
    assert whole.here(*every).status == 0
    probe = ProbeTraining.after_step

    def killed_after_15(self, trainer, task):
        probe(self, trainer, task)
        if trainer.global_step == 15:
            raise RuntimeError("as if it were killed here")

    with monkeypatch.context() as patch:
        patch.setattr(ProbeTraining, "after_step", killed_after_15)
        assert lab.here(*every).status == 1
    folder = lab.run_folder()
    stopped = probe_run.read(folder, "training")
    assert sorted({row[0] for row in stopped}) == [5, 10, 15]
    last = max((folder / "checkpoints").glob("*.ckpt"))
    assert last.stem.endswith("10"), "the test needs a row of its step, and one after it"
    # What a killed process leaves, and rows that no longer hold.
    probe_run.write(folder, "training", [(*r[:9], -1.0, *r[10:]) if r[0] > 10 else r for r in stopped])
    (folder / "probes" / ".training.parquet.1.partial").touch()
    assert lab.here(*every).status == 0
    assert probe_run.read(folder, "training") == probe_run.read(whole.run_folder(), "training")
    assert_same_run(finished.run_folder(), folder, "without probing; stopped and resumed with it")
    assert not list(folder.rglob("*.partial"))


def test_a_run_that_patience_ends_is_probed_at_its_last_step(lab: Lab, monkeypatch):
    def worse(self, model, trainer):
        return {"loss": float(trainer.global_step), "perplexity": 1.0}

    monkeypatch.setattr(Validation, "scores", worse)
    lab.done(*EVERY, "trainer.val_every=2", "trainer.patience=1")
    assert {row[0] for row in probe_run.read(lab.run_folder(), "training")} == {4}


def test_a_damaged_table_is_named_and_training_goes_on(lab: Lab):
    assert lab.here("trainer.max_steps=4", "trainer.max_minutes=1e-9").status == 1  # paused at its first step
    path = probe_run.file(lab.run_folder(), "training")
    path.parent.mkdir()
    path.write_text("not parquet")
    outcome = lab.done("trainer.max_steps=4", *EVERY)
    assert f"warning: cannot read {path}" in outcome.out
    assert {row[0] for row in probe_run.read(lab.run_folder(), "training")} == {4}


def test_a_table_that_is_none_is_an_error_that_resuming_expects(tmp_path: Path):
    probe_run.write(tmp_path, "training", [])
    place, names = probe_run.file(tmp_path, "training"), probe_run.SCHEMAS["training"].names
    whole = place.read_bytes()
    tables = [
        pa.table({"x": [1]}),
        pa.table({name: ["x"] for name in names}),
        pa.table({"step": pa.array([[1]])}),
    ]
    for content in (b"", whole[:-9], *tables):
        pq.write_table(content, place) if isinstance(content, pa.Table) else place.write_bytes(content)
        with pytest.raises((OSError, ValueError, KeyError)):
            probe_run.read(tmp_path, "training")
