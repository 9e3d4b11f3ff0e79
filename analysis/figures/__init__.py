"""One file a family of figures, each drawn from one table alone.

A module has FIGURES (`analysis.figure_entry.Entry`: name, title, section, what it needs),
``table(results, **options)``, which makes the table from results or raises NoData with the reason,
``draw(table, **options)``, which turns that table alone into a matplotlib Figure, and ``caption(table, **options)``,
which names the seeds and the text. Every file here is found by `analysis.gallery.listed`: adding one is all.
"""
