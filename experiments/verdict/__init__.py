"""The verdict on a block within an hour: its contracts, costs and speed, and what it learns.

contracts.py       the contract tests of the block
measurements.py    the models that are compared; their parameters, FLOPs and decode state; their times
verdict_stages.py  the measurements, each done once and kept in results/NAME/verdict
"""
