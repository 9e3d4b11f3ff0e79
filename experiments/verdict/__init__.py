"""The verdict on a block within an hour: contracts, costs, speed, and what it learns.

models.py     the models of a verdict: the plain transformer, the block in its place, its nearest relative
contracts.py  the contract tests of the block;  sizes.py: parameters, FLOPs, state;  speeds.py: times in turns
stages.py     the measurements above, each done once and kept in results/NAME/verdict
"""
