#!/usr/bin/env bash
# Guess:      A run of Lightning that goes on from a checkpoint within an epoch sees the batches, and draws
#             the random numbers, that it would have seen and drawn without the pause.
# Seen with:  lightning 2.6.6, torch 2.13.0
# Behaviour:  It counts on from batch 3, but reads the loader from its start: the first batches are trained on
#             twice and the last ones not at all. PyTorch's generator is not part of the checkpoint.
# Output:     whole 0 1 2 3 4 5 6 7; resumed from step 3: batches 3 4 5 6 7 of the data 0 1 2 3 4; its random
#             numbers are the whole run's from the beginning
# Matters:    A resumed run would be another run: batches and noise of ours are functions of seed and step,
#             and a test kills runs and compares every bit.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --disable-pip-version-check -q torch==2.13.0 lightning==2.6.6 numpy==2.4.6
export OMP_NUM_THREADS=1

cat > resume.py <<'PY'
import logging
import warnings

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.counted, self.data, self.drawn = [], [], []

    def training_step(self, batch, index):
        self.counted.append(index)
        self.data.append(batch.item())
        self.drawn.append(torch.rand(()).item())
        return (self.weight - batch).square().sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def fit(folder, resume=None):
    lightning.seed_everything(0, verbose=False)
    model = Model()
    keep = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=3, save_top_k=-1)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    options = {"accelerator": "cpu", "max_steps": 8, "callbacks": [keep], "default_root_dir": folder, **quiet}
    trainer = lightning.Trainer(**options)
    trainer.fit(model, torch.utils.data.DataLoader(torch.arange(8.0)), ckpt_path=resume)
    return model


whole, resumed = fit("whole"), fit("resumed", "whole/step=3.ckpt")
print("whole:", whole.data)
print("resumed: batches", resumed.counted, "of the data", resumed.data)
print("random numbers from the beginning:", resumed.drawn == whole.drawn[:5])
assert whole.data == [0, 1, 2, 3, 4, 5, 6, 7]
assert resumed.counted == [3, 4, 5, 6, 7]
assert resumed.data == [0, 1, 2, 3, 4]
assert resumed.drawn == whole.drawn[:5] != whole.drawn[3:]
assert resumed.weight != whole.weight
PY
venv/bin/python resume.py
