"""Training one run: model, optimiser, trainer, callbacks, one process or several, and its summary."""
