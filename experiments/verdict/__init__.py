"""The verdict on a block within an hour: contracts, costs, speed, and what it learns.

verdict_models.py  the models of a verdict: the plain transformer, the block in its place, its nearest relative
contracts.py       the contract tests of the block
model_sizes.py     parameters, FLOPs and decode state;  speeds.py: times in turns
verdict_stages.py  the measurements above, each done once and kept in results/NAME/verdict
"""
