"""Probes of a model: blocks record events, measures turn them into rows of a tidy table.

    rows = probe_model(model, tokens)      # list[Row]; one pass, in evaluation mode

events.py  what blocks record;  measure.py: what a measure is, and its rows;  run.py: one pass with measures
measures/  a file for each kind of event

A measure is a class in a file of zoo/probes/measures/, or in the file of the block that it is about, registered by
`@register_measure`; it takes the events of its kinds and returns rows. The columns of `Row` are the table's.
"""

from zoo.probes import events  # noqa: F401 (registers them)
from zoo.probes.events import Probe, ProbeEvent, event_kinds, register_event
from zoo.probes.measure import Measure, Row, all_measures, by_head, correct_averages, register_measure, row
from zoo.probes.run import evaluation_mode, probe_model
from zoo.registry import discover

discover("zoo.probes.measures")

__all__ = [
    "Measure",
    "Probe",
    "ProbeEvent",
    "Row",
    "all_measures",
    "by_head",
    "correct_averages",
    "evaluation_mode",
    "event_kinds",
    "probe_model",
    "register_event",
    "register_measure",
    "row",
]
