"""One file a family of figures, each drawn from one table alone.

A module has TITLE, the table's COLUMNS, ``table(...)`` which makes the table from results (or raises NoData
with the reason), a function of the module's name that turns the table into a matplotlib Figure, and
``caption(table)``, which names the seeds and the text.
"""
