"""Data and helpers that tests share, the repository's root, and the PYTHONPATH of processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["PYTHON_PATH", "ROOT"]

ROOT = Path(__file__).resolve().parents[2]
PYTHON_PATH = os.pathsep.join([str(ROOT / "tests/support/python_path"), str(ROOT)])
