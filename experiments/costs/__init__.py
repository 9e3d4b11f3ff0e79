"""Costs of a model, known before it is trained: FLOPs, decode state, memory of devices, the peak rate of a machine."""
