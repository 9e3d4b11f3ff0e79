"""What probes measure: from what blocks show to rows of a tidy table.

    rows = measure(model, tokens)          # list[Row]; one pass, in evaluation mode

A measure is a class in one of this package's files, registered by `@register`; every one sees the sights of its kinds
and returns rows. Adding one is adding a file; the columns of `Row` are the table's.
"""

from zoo.probes.measure import Measure, conclude, measure, register, registered
from zoo.probes.rows import Row
from zoo.registry import discover

discover(__name__)

__all__ = ["Measure", "Row", "conclude", "measure", "register", "registered"]
