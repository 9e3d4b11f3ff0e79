"""Paths of this project: its root folder and conf/."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONF = ROOT / "conf"
