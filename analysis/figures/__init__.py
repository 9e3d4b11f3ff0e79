"""One file a family of figures, each drawn from one table alone.

A module has COLUMNS (of its table), ``table(results, **options)``, which makes the table from results or raises
NoData with the reason, ``draw(table, **options)``, which turns that table alone into a matplotlib Figure, and
``caption(table, **options)``, which names the seeds and the text. Which figures there are says figures.toml.
"""
