"""Smallest differences worth reporting, shared by every tool that compares or predicts rates."""

from __future__ import annotations

# Share of a rate. A smaller gain does not justify another setting, however certain it is.
NOTICEABLE_GAIN = 0.03
# Share of the time. A shorter wait does not matter.
NOTICEABLE_WAIT = 0.05
