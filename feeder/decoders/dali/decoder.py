"""The DALI backend: NVIDIA DALI decodes, and feeder's fused kernels do the rest, both on the GPU if there is one."""

from __future__ import annotations

import collections
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from feeder._gpu import Mix
from feeder._gpu.tensors import as_tensor, to_device
from feeder.decoders.dali.pipeline import PipelineError, PipelineOptions, check_device, import_dali
from feeder.decoders.dali.queue import PIXEL_BYTES, DaliQueue, PipelineRows
from feeder.decoders.decoder import (
    MAX_PIXELS,
    Buffer,
    Padding,
    TrainerDecoder,
    check_batch,
    check_options,
    check_output_size,
)
from feeder.decoders.device.finisher import Finisher, finish_padded
from feeder.decoders.device.ops import check_device_ops
from feeder.decoders.staged.redo import decode_on_cpu
from feeder.decoders.staged.staged import Kind, Staged
from feeder.decoders.staged.stager import Stager
from feeder.errors import ArgumentError, BackendError, DecodeError
from feeder.transforms import Draws, Recipe
from feeder.transforms.op import Params

__all__ = ["DaliDecoder"]

_log = logging.getLogger(__name__)

_FINISHERS = 256  # kept: of the recipes of an image's views, and of batches' sizes


class DaliDecoder(TrainerDecoder):
    """Decodes with NVIDIA DALI.

    Boxes, flips and everything else that is random come from the recipe's draws, never from DALI's random operators.
    JPEGs are cut (where seekable), decoded by one DALI pipeline, and cropped and resized by
    :func:`feeder._gpu.crop_resize`; turning, color, normalizing and erasing are one pass of
    :func:`feeder._gpu.normalize`. Ops that this pass lacks, such as hue, blur, warps and RandAugment, run before it as
    batched torch ops (:mod:`feeder.decoders.device.ops`), and noise is written after it. Images that DALI does not
    decode as Pillow does (other formats, CMYK), outliers in size, and files with a damaged header or markers are
    decoded by the CPU backend and join the batch. A batch on which DALI fails is redone on the CPU, and the pipeline is
    rebuilt for the next one, so a sample is bad only if the CPU backend finds it bad too. Damage inside the compressed
    data that DALI conceals is not noticed.

    Args:
        max_pixels: Larger images are refused.
        threads: DALI's CPU threads.
        fidelity: "fast", or "exact", which decodes seekable images without cutting them: at a cut's edge the chroma of
            its neighbours is missing.
        device: "cpu", or a CUDA device ("cuda", "cuda:1").
        outlier_pixels: Images with more stored pixels are decoded by the CPU backend; None for the default limit.
        gpu_memory_limit_bytes: Limit for all decoded images on the GPU at a time, from their start in DALI until they
            are resized. Larger batches are split, and a batch is started ahead of its turn only if it fits beside the
            others. DALI's own pools and the resized images do not count.
        hw_decoder_load: Share of images for the hardware JPEG engine, 0 to 1; None for DALI's default, 0.65.
        preallocate: (height, width) of an image to reserve decoding memory for: a high percentile of the index's.

    Attributes:
        dali_images: Number of images that DALI has decoded.
        cpu_images: Number of images that the CPU backend has decoded.
        redone_images: Number of images decoded on the CPU because DALI had failed on their batch.

    Raises:
        BackendError: with the remedy, if DALI, or CUDA for it, is missing.
    """

    name = "dali"

    def __init__(
        self,
        *,
        max_pixels: int = MAX_PIXELS,
        threads: int = 1,
        fidelity: str = "fast",
        device: str | torch.device = "cpu",
        outlier_pixels: int | None = None,
        gpu_memory_limit_bytes: int | None = None,
        hw_decoder_load: float | None = None,
        preallocate: tuple[int, int] | None = None,
    ) -> None:
        check_options(max_pixels, threads, fidelity)
        if gpu_memory_limit_bytes is not None and gpu_memory_limit_bytes < 1:
            raise ArgumentError(f"gpu_memory_limit_bytes must be at least 1, got {gpu_memory_limit_bytes}")
        if hw_decoder_load is not None and not 0.0 <= hw_decoder_load <= 1.0:
            raise ArgumentError(f"hw_decoder_load must be 0 to 1, got {hw_decoder_load}")
        self.device = torch.device(device)
        import_dali()
        if self.device.type == "cuda":
            _check_cuda()
            if str(self.device) == "cuda":
                self.device = torch.device("cuda", torch.cuda.current_device())
        elif self.device.type != "cpu":
            raise ArgumentError(f"device must be 'cpu' or a CUDA device, got {str(device)!r}")
        outliers = {} if outlier_pixels is None else {"outlier_pixels": outlier_pixels}
        if gpu_memory_limit_bytes is not None:
            fitting = gpu_memory_limit_bytes // PIXEL_BYTES
            outliers["outlier_pixels"] = min(fitting, outliers.get("outlier_pixels", fitting))
        self.stager = Stager(max_pixels=max_pixels, threads=threads, fidelity=fidelity, **outliers)
        self.memory_limit_bytes = gpu_memory_limit_bytes
        self.dali_images = self.cpu_images = self.redone_images = 0
        self._threads, self._fidelity = threads, fidelity
        self._queue = DaliQueue(
            PipelineOptions(
                device_id=self.device.index if self.device.type == "cuda" else None,
                threads=threads,
                crops=self.device.type == "cpu",
                hw_decoder_load=PipelineOptions.hw_decoder_load if hw_decoder_load is None else hw_decoder_load,
                preallocate=preallocate,
            ),
            gpu_memory_limit_bytes,
        )
        self._finishers: collections.deque[tuple[Recipe, Finisher]] = collections.deque(maxlen=_FINISHERS)
        if self.device.type == "cuda":
            check_device(self.device.index)  # fails now, with the remedy

    def prepare(
        self, batch_size: int, preallocate: tuple[int, int] | None = None, outlier_pixels: int | None = None
    ) -> None:
        """Prepares for the batches to come, so that the pipeline need not be rebuilt for them.

        Args:
            batch_size: The largest batch.
            preallocate: As in the constructor; None changes nothing.
            outlier_pixels: Likewise; a memory limit may lower it.
        """
        self._queue.prepare(batch_size, preallocate)
        if outlier_pixels is not None:
            self.stager.outlier_pixels = outlier_pixels
            if self.memory_limit_bytes is not None:
                self.stager.outlier_pixels = min(outlier_pixels, self.memory_limit_bytes // PIXEL_BYTES)

    def check(self, recipe: Recipe) -> None:
        """Refuses a recipe with an op that can't run in batches: a function, or an op whose images differ in size.

        Raises:
            BackendError: naming the op and the backend that can run it.
        """
        check_device_ops(recipe, self.name)

    def decode(
        self,
        buffers: Sequence[Buffer],
        orientations: npt.NDArray[np.uint8],
        recipe: Recipe,
        draws: Draws,
        out: npt.NDArray[np.generic],
        first_rows: npt.NDArray[np.int32] | None = None,
    ) -> list[DecodeError | None]:
        """Decodes and augments N images into ``out``; see :class:`feeder.decoders.decoder.Decoder`."""
        check_batch(buffers, orientations, recipe, draws, out)
        if len(buffers) == 0:
            return []
        check_output_size(out, draws.output_size)
        staged, errors = self.stager.stage(buffers, orientations, recipe, draws)
        target = as_tensor(out, recipe.output_dtype)
        rest, size = draws.ops[recipe.base_length :], (out.shape[2], out.shape[3])
        if self.device.type == "cpu":
            _, failed = self.finish(staged, recipe, rest, size=size, out=target)
        else:
            images, failed = self.finish(staged, recipe, rest, size=size)
            target.copy_(images)
        return [error or late for error, late in zip(errors, failed, strict=True)]

    def start(self, staged: Staged) -> bool:
        """Starts to decode a batch if there is memory for it; :meth:`finish` then waits for the remaining work.

        At most two batches may be unfinished, within the memory limit.

        Args:
            staged: N samples, whose payloads must not change until they are finished or dropped.

        Returns:
            True if the batch is under way or has nothing for DALI. If not, it may be tried again or left to ``finish``.
        """
        return self._queue.start(staged)

    def drop(self, staged: Staged) -> None:
        """Forgets a batch that was started and will not be finished."""
        self._queue.drop(staged)

    def finish(
        self,
        staged: Staged,
        recipe: Recipe,
        rest: Sequence[Params],
        *,
        size: tuple[int, int] | None = None,
        channels_last: bool = False,
        mix: Mix | None = None,
        padding: Padding | None = None,
        out: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, list[DecodeError | None]]:
        """Decodes and augments a staged batch on this backend's device.

        On a GPU all work is queued on the current stream, which need not be waited for; the result belongs to the
        caller and is never written again.

        Args:
            staged: N samples, at least one, without ``padding`` all of one output size.
            recipe: The ops for every image.
            rest: Drawn parameters of the ops after the base path, N rows each.
            size: (H, W) of the output; None for the recipe's, which must not depend on the image.
            channels_last: Memory format of the output.
            mix: The partner of each sample; needs a float output. If any image can't be decoded, none is mixed.
            padding: Pads images of different sizes to one; not together with ``mix`` or ``out``.
            out: [N, 3, H, W] of the recipe's output dtype on this device, filled; None makes one.

        Returns:
            [N, 3, H, W], and for each image None or why it could not be decoded.
        """
        finisher = next((known for of, known in self._finishers if of is recipe), None)
        if finisher is None:
            self.check(recipe)
            finisher = Finisher(recipe, self.device)
            self._finishers.append((recipe, finisher))
        if padding is not None:
            return self._padded(staged, recipe, finisher, rest, padding, channels_last)
        size = size or recipe.output_size
        assert size is not None
        height, width = recipe.base_size or size
        images, errors = self._decode(staged, 3 * height * width)
        turn, mix = staged.rows["turn"], None if any(errors) else mix
        result = finisher(images, size, rest, turn=turn, channels_last=channels_last, mix=mix, out=out)
        return result, errors

    def _padded(
        self,
        staged: Staged,
        recipe: Recipe,
        finisher: Finisher,
        rest: Sequence[Params],
        padding: Padding,
        channels_last: bool,
    ) -> tuple[torch.Tensor, list[DecodeError | None]]:
        """Decodes a batch together, and finishes the images of each size."""
        sizes = padding.sizes if recipe.base_size is None else np.array([recipe.base_size])
        images, errors = self._decode(staged, 3 * int(sizes.prod(axis=1).max()))
        turn = staged.rows["turn"]
        done = finish_padded(finisher, images, recipe, rest, padding, turn=turn, channels_last=channels_last)
        return done, errors

    def meters(self) -> dict[str, int]:
        """Returns the number of images by decoder: dali_images, cpu_images (for DALI), redone_images."""
        return {name: getattr(self, name) for name in ("dali_images", "cpu_images", "redone_images")}

    def close(self) -> None:
        """Ends DALI's pipeline, once its images are no longer in use."""
        self._queue.close()

    def _decode(self, staged: Staged, length: int) -> tuple[torch.Tensor, list[DecodeError | None]]:
        """Returns the resized images, uint8 [N, length] on the device, and errors. A smaller image takes the first
        bytes of its row."""
        errors: list[DecodeError | None] = [None] * len(staged)
        done = [(part, self._images(staged, part, errors)) for part in self._queue.parts(staged)]
        if len(done) == 1 and len(done[0][0].rows) == len(staged):
            return done[0][1], errors
        whole = torch.zeros((len(staged), length), dtype=torch.uint8, device=self.device)
        for part, images in done:
            whole[self._move(part.rows), : images.shape[1]] = images
        here = np.flatnonzero(staged.rows["kind"] == Kind.PIXELS)
        if len(here):
            pixels = np.zeros((len(here), length), np.uint8)
            for row, out in zip(here.tolist(), pixels, strict=True):
                payload = np.frombuffer(staged.payloads[row], np.uint8)
                out[: len(payload)] = payload
            whole[self._move(here)] = self._move(pixels)
            self.cpu_images += len(here)
        return whole, errors

    def _images(self, staged: Staged, part: PipelineRows, errors: list[DecodeError | None]) -> torch.Tensor:
        """Returns a part's resized images, by DALI or, if it fails, by the CPU, whose failures go to ``errors``."""
        try:
            images = self._queue.images(staged, part)
        except PipelineError as error:
            count = len(part.rows)
            _log.warning("DALI failed on a batch, its %d images are redone on the CPU: %s", count, _brief(error))
        else:
            self.dali_images += len(part.rows)
            return images
        self.redone_images += len(part.rows)
        payloads = [staged.payloads[row] for row in part.rows.tolist()]
        pixels, found = decode_on_cpu(staged.rows[part.rows], payloads, self._threads, self._fidelity)
        for row, problem in zip(part.rows.tolist(), found, strict=True):
            if problem is not None:
                errors[row] = DecodeError(f"neither DALI nor the CPU can decode it: {problem}")
        return self._move(pixels)

    def _move(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return to_device(array, self.device)


def _check_cuda() -> None:
    """Refuses a CUDA device where torch finds none, with the remedy."""
    import torch

    if not torch.cuda.is_available():
        raise BackendError(
            f"backend 'dali' on a CUDA device: torch {torch.__version__} finds none; check `nvidia-smi`, install a "
            "torch build for CUDA, or use device='cpu'"
        )


def _brief(error: Exception) -> str:
    """Returns the first lines of DALI's message, without its traceback of the pipeline's definition."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("File ", "which was used"))]
    return "; ".join(told[:3])
