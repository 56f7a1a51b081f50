"""feeder's fused GPU ops: each a Triton kernel beside its torch reference.

Importing it needs torch; the kernels need Triton and a CUDA device, or Triton's interpreter (``TRITON_INTERPRET=1``),
which runs them on CPU tensors. Without Triton the references do the work.
"""

from __future__ import annotations

from feeder.decoders.gpu.dispatch import has_triton
from feeder.decoders.gpu.normalize import gray_mean, normalize
from feeder.decoders.gpu.parameters import BRIGHTNESS, CONTRAST, SATURATION, Color, Ragged
from feeder.decoders.gpu.resize import crop_resize

__all__ = [
    "BRIGHTNESS",
    "CONTRAST",
    "SATURATION",
    "Color",
    "Ragged",
    "crop_resize",
    "gray_mean",
    "has_triton",
    "normalize",
]
