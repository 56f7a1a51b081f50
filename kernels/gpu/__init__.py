"""feeder's fused GPU ops: each a Triton kernel beside its torch reference. Installed as ``feeder._gpu``.

Importing it needs torch; the kernels need Triton and a CUDA device, or Triton's interpreter (``TRITON_INTERPRET=1``),
which runs them on CPU tensors. Without Triton the references do the work.
"""

from __future__ import annotations

from feeder._gpu.dispatch import has_triton
from feeder._gpu.normalize import gray_mean, normalize
from feeder._gpu.parameters import BRIGHTNESS, CONTRAST, SATURATION, Color, Erase, Mix
from feeder._gpu.resize import Ragged, crop_resize

__all__ = [
    "BRIGHTNESS",
    "CONTRAST",
    "SATURATION",
    "Color",
    "Erase",
    "Mix",
    "Ragged",
    "crop_resize",
    "gray_mean",
    "has_triton",
    "normalize",
]
