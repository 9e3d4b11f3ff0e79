"""Comparisons without training."""

import pytest

from experiments.compare import select


@pytest.fixture
def pretend(monkeypatch):
    """Runs that are complete at once, with the loss that a function of the configuration gives; None: it diverges."""
    trained = []

    def give(loss):
        def train_all(plans):
            for planned in (p for p in plans if not p.done):
                trained.append((planned.config.model.preset, planned.config.optim.lr, planned.config.seed))
                value = loss(planned.config)
                planned.folder.begin(planned.yaml(), planned.identity, {})
                part = planned.config.trainer.pause_at
                if part is not None:
                    trained[-1] = (*trained[-1], part)
                    rows = f"step,split,loss\n{part},train,0.5\n{part},validation,{value}\n"
                    (planned.folder.path / "metrics.csv").write_text(rows)
                elif value is None:
                    (planned.folder.path / "failure.json").write_text('{"kind": "NonFinite"}')
                else:
                    metrics = {key: {"loss": value} for key in planned.config.evaluate.splits}
                    planned.folder.finish({"metrics": metrics})
            return [p for p in plans if not p.done]

        for module in (select, select):
            monkeypatch.setattr(module, "train_all", train_all)
        return trained

    return give
