"""The entry by which a module in analysis/figures registers a figure of the report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SECTIONS = ("Tasks", "Quality", "Cost", "Attention", "Residual streams", "Routing", "Recurrences", "Length")
"""Sections in the order of a report; figures of other sections, and those without one, come last."""

TEXT, TASKS = "text", "tasks"
"""What runs were trained on."""


@dataclass(frozen=True)
class Entry:
    """Registration of one figure of the report, listed in ``FIGURES`` of the module that draws it.

    needs: data the figure requires; where some is missing, the report names it instead: "runs.COLUMN" and
    "metrics.COLUMN" (not empty in at least one run), "measures.NAME" (a measure of the probes), "table.NAME" (a table
    of the probes), "bench.FILE" (a table of job=bench), "answers.AXIS" (answers of synthetic tasks by position or
    difficulty). of: TEXT or TASKS, the runs that it draws, "" for both; it is left out of results without any.
    options: keywords of the module's table, draw and caption. section: one of SECTIONS or a new one; place: its order
    inside the section. compares: models that are not matched in size (`analysis.comparing.equal_terms`) are marked.
    family: the module's full name, set when it is found.
    """

    name: str
    title: str
    needs: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    section: str = ""
    place: int = 100
    compares: bool = False
    of: str = ""
    family: str = ""

    @property
    def probed(self) -> bool:
        """Return whether the figure draws tables of probes, and so the weights of some training step."""
        return any(need.partition(".")[0] in ("measures", "table") for need in self.needs)


def report_order(entries: list[Entry]) -> list[Entry]:
    """Sort entries by section, and inside a section by place and name."""
    known = dict.fromkeys((*SECTIONS, *(entry.section for entry in entries if entry.section)))
    order = {section: number for number, section in enumerate(known)}
    return sorted(entries, key=lambda entry: (order.get(entry.section, len(order)), entry.place, entry.name))
