"""Measures, a file for each kind of event; importing zoo.probes registers them all."""
