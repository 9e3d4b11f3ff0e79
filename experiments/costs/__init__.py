"""Costs of a model, known before it is trained.

model_costs.py    FLOPs a token, bytes of decode state, and whether they fit into memory
device_memory.py  memory that training takes on each device, and whether a machine has it
peak_flops.py     the peak rate of a machine, which MFU is a share of
"""
