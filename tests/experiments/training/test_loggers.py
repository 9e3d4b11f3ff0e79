"""trainer.loggers: other programs get metric rows, the configuration and the summary's figures."""

import json
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import pytest
from lightning.pytorch.loggers.logger import DummyLogger

WORDS = ("trainer.max_steps=4", "trainer.log_every=1", "trainer.checkpoint_every=2")


def test_a_logger_has_rows_configuration_and_figures_and_ends(lab, monkeypatch):
    seen = SimpleNamespace(settings={}, numbers={}, finish=Mock())

    class Wandb(DummyLogger):
        experiment = seen

        def __init__(self, **_):
            super().__init__()

        def log_hyperparams(self, values):
            seen.settings.update(values)

        def log_metrics(self, values, step):
            seen.numbers.update({(name, step): value for name, value in values.items()})

    installed = ModuleType("wandb")
    installed.__spec__ = ModuleSpec("wandb", None, origin="wandb.py")
    monkeypatch.setitem(sys.modules, "wandb", installed)
    monkeypatch.setattr("lightning.pytorch.loggers.WandbLogger", Wandb)
    lab.done("trainer.loggers=[wandb]", *WORDS)
    run = lab.run_folder()
    summary = json.loads((run / "summary.json").read_text())
    assert {step for name, step in seen.numbers if name == "train/loss"} == {1, 2, 3, 4}
    assert seen.numbers["summary/test/loss", 4] == summary["metrics"]["test"]["loss"]
    assert seen.numbers["summary/parameters", 4] == summary["parameters"]
    identity = json.loads((run / "identity.json").read_text())
    assert seen.settings["recipe.lr"] == identity["recipe"]["lr"]
    assert (seen.settings["model.d_model"], seen.settings["text"]) == (16, "text")
    seen.finish.assert_called_once()


@pytest.mark.parametrize("server", [False, True], ids=["run folder", "MLFLOW_TRACKING_URI"])
def test_mlflow_goes_on_with_a_paused_run(lab, monkeypatch, tmp_path, server):
    tracking = pytest.importorskip("mlflow.tracking")
    if server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "server").as_uri())
    assert lab.here("trainer.loggers=[mlflow]", *WORDS, "trainer.pause_at=2").status != 0
    assert lab.here("trainer.loggers=[mlflow]", *WORDS).status == 0
    folder = lab.run_folder()
    client = tracking.MlflowClient(((tmp_path / "server") if server else folder / "mlflow").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("default").experiment_id])
    summary = json.loads((folder / "summary.json").read_text())
    assert (run.info.run_name, run.info.status) == (folder.name, "FINISHED")
    assert run.data.params["seed"] == "0"
    assert run.data.metrics["summary/test/loss"] == summary["metrics"]["test"]["loss"]
    assert [row.step for row in client.get_metric_history(run.info.run_id, "train/loss")] == [1, 2, 3, 4]


def test_tensorboard_has_them_too(lab):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert lab.here("trainer.loggers=[tensorboard]", *WORDS).status == 0
    folder = lab.run_folder()
    events = reading.EventAccumulator(str(folder / "tensorboard")).Reload()
    summary = json.loads((folder / "summary.json").read_text())
    (loss,) = events.Scalars("summary/test/loss")
    assert loss.value == pytest.approx(summary["metrics"]["test"]["loss"])
    assert "recipe.lr" in (folder / "tensorboard" / "hparams.yaml").read_text()
