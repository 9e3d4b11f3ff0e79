"""Training one run: model, optimiser, trainer and callbacks, in one process or several, and its summary.

execute.py            brings a planned run to completion, and starts its processes where it takes several
rank.py               one process of such a run
train.py              trains a run, scores its best weights, and writes its summary
lightning_modules.py  losses, the optimiser, learning rates, and the search for the origin of a NaN
callbacks.py          what happens at the end of a step: metric rows, validation, checkpoints
probe_training.py     probes while training
"""
