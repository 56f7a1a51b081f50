"""The DALI backend: NVIDIA DALI decodes, and feeder's fused kernels do the rest, both on the GPU if there is one."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch

from feeder.decoders.dali.pipeline import PipelineError, PipelineOptions, check_device, import_dali
from feeder.decoders.dali.queue import PIXEL_BYTES, DaliQueue
from feeder.decoders.decoder import MAX_PIXELS, check_options
from feeder.decoders.device.finisher import Finishers
from feeder.decoders.device.rows import join_rows
from feeder.decoders.registry import Dali
from feeder.decoders.staged.staged import RowKind, Staged
from feeder.decoders.staged.stager import Stager
from feeder.decoders.staged.trainer_decoder import LeftToCpu, StagedView, TrainerDecoder
from feeder.decoders.tensors import numbered, to_device
from feeder.errors import ArgumentError, DecodeError

_log = logging.getLogger(__name__)


class DaliDecoder(TrainerDecoder):
    """Decodes with NVIDIA DALI.

    Boxes, flips and everything else that is random come from the recipe's draws, never from DALI's random operators.
    JPEGs are cut (where seekable), decoded by one DALI pipeline, and cropped and resized by
    :func:`feeder.decoders.gpu.crop_resize`; turning, color and normalizing are one pass of
    :func:`feeder.decoders.gpu.normalize`. Ops that this pass lacks, such as hue, blur, warps and RandAugment, run
    before it as batched torch ops (:mod:`feeder.decoders.device.device_ops`), and rectangles are erased after it.

    Images that DALI does not decode as Pillow does (other formats, CMYK), outliers in size, and files with a damaged
    header or markers are decoded by the CPU backend and join the batch. A batch on which DALI fails is left to
    the CPU backend, and the pipeline is rebuilt for the next one, so a sample is bad only if that finds it bad too.
    Damage inside the compressed data that DALI conceals is not noticed.

    Args:
        max_pixels: Larger images are refused.
        threads: DALI's CPU threads.
        fidelity: "fast", or "exact", which decodes seekable images without cutting them: at a cut's edge the chroma of
            its neighbours is missing. "draft" is "fast", but on a GPU chroma is repeated and not interpolated, as is
            DALI's default: its JPEG engine is faster then.
        device: "cpu", or a CUDA device ("cuda", "cuda:1").
        options: Load of the JPEG engine, and the limit for all decoded images on the GPU at a time, from their start in
            DALI until they are resized; None for the defaults.

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
        options: Dali | None = None,
    ) -> None:
        check_options(max_pixels, threads, fidelity)
        options = Dali() if options is None else options
        is_draft = fidelity == "draft"
        fidelity = "fast" if is_draft else fidelity

        self.device = torch.device(device)
        import_dali()
        if self.device.type == "cuda":
            self.device = numbered(self.device, self.name)
        elif self.device.type != "cpu":
            raise ArgumentError(f"device must be 'cpu' or a CUDA device, got {str(device)!r}")

        # A GPU's decoder reserves memory for each image of a batch, which has each sample's image once.
        apart = self.device.type == "cpu"
        self.stager = Stager(max_pixels=max_pixels, threads=threads, fidelity=fidelity, apart=apart)

        self.memory_limit_bytes = options.memory_limit_bytes
        self._limit_outliers(self.stager.outlier_pixels)
        self.dali_images = self.cpu_images = self.redone_images = 0
        self._queue = DaliQueue(
            PipelineOptions(
                device_id=self.device.index if self.device.type == "cuda" else None,
                threads=threads,
                crops=self.device.type == "cpu",
                hw_decoder_load=PipelineOptions.hw_decoder_load
                if options.hw_decoder_load is None
                else options.hw_decoder_load,
                fancy_upsampling=not (is_draft and self.device.type == "cuda"),
            ),
            options.memory_limit_bytes,
        )

        self._finishers = Finishers(self.name, self.device)
        if self.device.type == "cuda":
            check_device(self.device.index)  # fails now, with the remedy

    def prepare(self, batch_size: int, outlier_pixels: int | None = None) -> None:
        """Prepares for the batches to come, so that the pipeline need not be rebuilt for them.

        Args:
            batch_size: The largest batch.
            outlier_pixels: Images with more stored pixels are decoded by the CPU backend; a memory limit may lower it,
                None changes nothing.
        """
        self._queue.prepare(batch_size)
        if outlier_pixels is not None:
            self._limit_outliers(outlier_pixels)

    def _limit_outliers(self, outlier_pixels: int) -> None:
        if self.memory_limit_bytes is not None:
            outlier_pixels = min(outlier_pixels, self.memory_limit_bytes // PIXEL_BYTES)
        self.stager.outlier_pixels = outlier_pixels

    def start(self, staged: Staged) -> bool:
        """Starts to decode a batch if there is memory for it; :meth:`finish` then waits for the remaining work.

        At most two batches may be unfinished, within the memory limit.

        Args:
            staged: N samples, whose payloads must not change until they are finished or dropped.

        Returns:
            True if the batch is in flight or has nothing for DALI. If not, it may be tried again or left to ``finish``.
        """
        return self._queue.start(staged)

    def drop(self, staged: Staged) -> None:
        """Forgets a batch that was started and will not be finished."""
        self._queue.drop(staged)

    def finish(
        self, staged: Staged, views: Sequence[StagedView], *, channels_last: bool = False
    ) -> tuple[list[torch.Tensor], list[DecodeError | None]]:
        """Decodes and augments a staged batch on this backend's device.

        On a GPU all work is queued on the current stream, which need not be waited for; the results belong to the
        caller and are never written again.

        Args:
            staged: N samples, at least one.
            views: The outputs, one for each view of the staged batch.
            channels_last: Memory format of the outputs.

        Returns:
            For each view [N, 3, H, W] of its recipe's output dtype, and for each sample None or :class:`LeftToCpu`.
        """
        finishers = [self._finishers.of(view.recipe) for view in views]
        pixels, errors = self._decode(staged)
        done = []
        for number, (view, finisher) in enumerate(zip(views, finishers, strict=True)):
            turn = staged.rows["turn"][number :: staged.views]
            done.append(finisher.view(pixels[number], view, turn=turn, channels_last=channels_last))
        return done, errors

    def close(self) -> None:
        """Ends DALI's pipeline, once its images are no longer in use."""
        self._queue.close()

    def _decode(self, staged: Staged) -> tuple[list[torch.Tensor], list[DecodeError | None]]:
        """Returns each view's resized images, uint8 [N, bytes] on the device, and the errors of N samples. A smaller
        image takes the first bytes of its row."""
        errors: list[DecodeError | None] = [None] * len(staged)
        done = []
        for run in self._queue.runs(staged):
            try:
                done.append((run, self._queue.images(staged, run)))
                self.dali_images += len(run.jpegs)
            except PipelineError as error:
                count = len(run.jpegs)
                _log.warning("DALI failed on a batch, its %d images are redone on the CPU: %s", count, _brief(error))
                self.redone_images += count
                for sample in np.unique(run.rows // staged.views).tolist():
                    errors[sample] = LeftToCpu("DALI failed on its batch")

        whole = []
        for number in range(staged.views):
            pieces = []
            for run, images in done:
                samples, views = np.divmod(run.rows, staged.views)
                if (views == number).any():
                    pieces.append((samples[views == number], images[number]))
            view = staged.view(number)
            here, pixels = view.pixels()
            if len(here):
                pieces.append((here, to_device(pixels, self.device)))
            whole.append(join_rows(pieces, (len(staged), view.image_bytes), torch.uint8, self.device))

        self.cpu_images += int(np.count_nonzero(staged.rows["kind"][:: staged.views] == RowKind.PIXELS))
        return whole, errors


def _brief(error: Exception) -> str:
    """Returns the first lines of DALI's message, without its traceback of the pipeline's definition."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("File ", "which was used"))]
    return "; ".join(told[:3])
