"""Constants of several suites."""

import torch

CPU = torch.device("cpu")

LATE_STEP = 10**6
"""An optimiser step past every warm-up: models are timed as they are for most of their training."""

SHORT_LENGTHS = [512, 1024, 2048, 4096]
GPU_LENGTHS = [512 * 2**i for i in range(9)]
"""Sequence lengths of the suites that measure one length after the other, unless bench.lengths gives some."""
