"""``feeder profile``: runs a training script as it is and shows how long it waits for data, why, and what would help.

session                          runs the script, and samples its processes and the GPU
times, analysis                  measurements of :mod:`feeder.tools.instrument` -> times of each loader, verdict, text
advice                           verdict -> advice, with the bounds of its gains
trials                           advice -> measured gains
"""

from __future__ import annotations

from feeder.tools.profile.session import profile

__all__ = ["profile"]
