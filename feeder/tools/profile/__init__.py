"""``feeder profile``: runs a training script as it is and shows how long it waits for data, why, and what would help.

sampler                          measures the script's processes and the GPU; :mod:`feeder.tools.instrument` the loaders
times, analysis                  measurements -> times of each loader, verdict
advice                           verdict -> advice
text_report                      verdict -> text
"""

from __future__ import annotations

from feeder.tools.profile.session import profile

__all__ = ["profile"]
