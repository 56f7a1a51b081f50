"""``feeder profile``: runs a training script as it is and says how long it waits for data, why, and what would help.

launch      runs the script as ``python`` would
hooks       meters its loaders and steps, in this process; ``children`` in those that it starts
fetch       meters torch's data set and collate in worker processes
sampler     the CPU of all of them, and the GPU
record      what was measured
analysis    record -> verdict and advice
page, trace record -> HTML, Chrome trace
"""

from __future__ import annotations

from feeder.tools.profile.session import ProfileOptions, profile

__all__ = ["ProfileOptions", "profile"]
