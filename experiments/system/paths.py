"""Paths of this project: its root folder, conf/, the published studies, and the record of a selection in one."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
PUBLISHED = ROOT / "results" / "published"
SELECTION = "selection.csv"
