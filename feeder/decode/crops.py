"""DALI's images to stored images of the output's size: by kernel 2 on a GPU, else by feeder's CPU kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from feeder import _gpu
from feeder.decode.dali_pipeline import DaliPipeline
from feeder.tensors import to_device

__all__ = ["resize_crops"]


def resize_crops(
    images: Any, rows: npt.NDArray[np.void], cropped: bool, device: torch.device, stream: Any = None
) -> torch.Tensor:
    """Crops and resizes what :meth:`feeder.decode.dali_pipeline.DaliPipeline.collect` gave, without a wait for a GPU.

    Args:
        images: DALI's list of N images.
        rows: [N] of :data:`feeder.decode.staged.ROW`, whose sizes have one area.
        cropped: Whether the images are the rows' windows already.
        device: Where the images are.
        stream: The CUDA stream that they are bound to, the current one; None without a GPU.

    Returns:
        uint8 [N, H * W * 3], as stored (not turned), in memory of its own.

    Raises:
        RuntimeError: if the images don't hold the rows' windows.
    """
    corner = np.tile(rows["window"][:, :2], 2) if cropped else np.zeros((len(rows), 4), np.int32)
    support, source = rows["window"] - corner, rows["source"] - corner
    shapes = np.array(images.shape(), np.int64)
    sizes, ends_at = shapes[:, :2], support[:, [3, 2]]
    fits = sizes == ends_at if cropped else sizes >= ends_at
    if not (fits.all() and (shapes[:, 2] == 3).all() and (support >= 0).all()):
        raise RuntimeError("DALI's images are not of the size that was asked for")
    if device.type == "cpu":
        pixels = _on_cpu([images.at(row) for row in range(len(rows))], source, support, rows["size"])
        if pixels is not None:
            return torch.from_numpy(pixels)
    ends = np.cumsum(3 * sizes.prod(axis=1))
    data = torch.empty(_rounded(int(ends[-1])), dtype=torch.uint8, device=device)
    DaliPipeline.copy(images, data.data_ptr(), stream)
    starts = np.concatenate([[0], ends[:-1]])
    resized = torch.empty((len(rows), 3 * int(rows["size"][0].prod())), dtype=torch.uint8, device=device)
    # Images that are still to be turned may be as high as others are wide.
    outputs = sorted({(int(height), int(width)) for height, width in rows["size"]})
    for size in outputs:
        here = np.flatnonzero((rows["size"] == size).all(axis=1))
        crops = _gpu.Ragged(data, torch.from_numpy(starts[here]), torch.from_numpy(sizes[here]))
        boxes = torch.from_numpy(source[here]), torch.from_numpy(support[here])
        done = _gpu.crop_resize(crops, *boxes, size, dtype=torch.uint8, channels_last=True)
        flat = done.permute(0, 2, 3, 1).reshape(len(here), -1)
        if len(outputs) == 1:
            return flat
        resized[to_device(here, device)] = flat
    return resized


def _rounded(size_bytes: int) -> int:
    """Up to a quarter more, in few steps: batches of nearly one size use the same memory again and again.

    Of their exact sizes torch's allocator would keep one more block for each that is larger than all before it.
    """
    step = max(1 << 20, 1 << max(0, size_bytes.bit_length() - 3))
    return -(-size_bytes // step) * step


def _on_cpu(
    images: list[npt.NDArray[np.uint8]],
    sources: npt.NDArray[np.float64],
    supports: npt.NDArray[np.int32],
    sizes: npt.NDArray[np.int32],
) -> npt.NDArray[np.uint8] | None:
    """By feeder's CPU kernels, many times as fast as kernel 2's reference; None where they are not built."""
    try:
        from feeder import _native
    except ImportError:
        return None
    pixels = np.empty((len(images), 3 * int(sizes[0].prod())), np.uint8)
    boxes = zip(sources.tolist(), supports.tolist(), sizes.tolist(), strict=True)
    for image, out, (source, support, size) in zip(images, pixels, boxes, strict=True):
        height, width = image.shape[:2]
        _native.resample_planes(
            [image[:, :, channel] for channel in range(3)],
            "rgb",
            source,
            support,
            out.reshape(*size, 3),
            sampling=[(1, 1)] * 3,
            most=(1, 1),
            window=(0, 0, width, height),
            image_size=(width, height),
            layout="nhwc",
        )
    return pixels
