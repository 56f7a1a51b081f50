"""The CUDA backend: feeder's own kernels decode on the GPU, from the bytes of a crop to the finished batch."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
import torch

from feeder.decoders.cuda.batch import PlannedImages, upload
from feeder.decoders.cuda.driver import load_kernels
from feeder.decoders.cuda.plan_stager import PlanStager
from feeder.decoders.decoder import MAX_PIXELS, check_options
from feeder.decoders.device.finisher import Finisher, Finishers
from feeder.decoders.device.rows import join_rows
from feeder.decoders.staged.staged import RowKind, Staged
from feeder.decoders.staged.trainer_decoder import LeftToCpu, StagedView, TrainerDecoder
from feeder.decoders.tensors import numbered, to_device
from feeder.errors import BackendError, DecodeError

_STARTED = 2  # batches


class CudaDecoder(TrainerDecoder):
    """Decodes with feeder's own CUDA kernels; see "The CUDA kernels" in kernels/README.md.

    Workers read the rows of a crop and plan: the restart segments of a seekable JPEG, or the lines of a packed one,
    and tables. The GPU does the rest, and its pixels are those of the CPU backend to the bit. A recipe that ends with
    the base path (crop, resize, flip, normalize) takes no further pass; other ops and padding follow as with DALI.

    Ordinary baseline JPEGs are decoded too, each by a single thread, which is slow. Images of other kinds, outliers in
    size and boxes of at most 1,024 pixels are decoded by workers, with the CPU backend, and join the batch. An image
    that a kernel finds damaged or unusual is decoded again by the CPU backend, which has the last word on it.

    ``backend="auto"`` never takes it.

    Args:
        max_pixels: Larger images are refused.
        threads: Threads of the CPU backend.
        fidelity: "fast", or "draft", which is the same here.
        device: A CUDA device ("cuda", "cuda:1").

    Attributes:
        cuda_images: Number of images that the kernels have decoded.
        cpu_images: Number of images that workers have decoded.
        redone_images: Number of images that a kernel left to the CPU.

    Raises:
        BackendError: with the remedy, if the device, the driver or the kernels are missing or too old, or for another
            fidelity.
    """

    name = "cuda"

    def __init__(
        self,
        *,
        max_pixels: int = MAX_PIXELS,
        threads: int = 1,
        fidelity: str = "fast",
        device: str | torch.device = "cpu",
    ) -> None:
        check_options(max_pixels, threads, fidelity)
        if fidelity == "exact":
            raise BackendError(
                f"backend 'cuda' has no fidelity {fidelity!r}: its kernels resize chroma from its own resolution; use "
                "fidelity='fast', or backend='cpu' or 'dali'"
            )
        self.device = checked_device(device)
        self._kernels = load_kernels(self.device.index or 0)
        self.stager = PlanStager(max_pixels=max_pixels, threads=threads)
        self.cuda_images = self.cpu_images = self.redone_images = 0
        self._started: dict[Staged, PlannedImages | None] = {}  # None: nothing in it is planned
        self._finishers = Finishers(self.name, self.device)

    def prepare(self, batch_size: int, outlier_pixels: int | None = None) -> None:
        """Prepares for the batches to come; only ``outlier_pixels`` matters."""
        if outlier_pixels is not None:
            self.stager.outlier_pixels = outlier_pixels

    def start(self, staged: Staged) -> bool:
        """Starts to decode a batch; :meth:`finish` then waits for the planes and makes the images.

        At most two batches may be unfinished.

        Args:
            staged: N samples, whose payloads must not change until they are finished or dropped.

        Returns:
            True if the batch is in flight. If not, it may be tried again or left to ``finish``.
        """
        if staged in self._started:
            return True
        if len(self._started) >= _STARTED:
            return False
        self._started[staged] = self._begin(staged)
        return True

    def drop(self, staged: Staged) -> None:
        """Forgets a batch that was started and will not be finished; waits until its payloads are no longer read."""
        _wait(self._started.pop(staged, None))

    def finish(
        self, staged: Staged, views: Sequence[StagedView], *, channels_last: bool = False
    ) -> tuple[list[torch.Tensor], list[DecodeError | None]]:
        """Decodes and augments a staged batch on this backend's device.

        Waits until the planes are decoded, to know which images are left to the CPU. All other work is queued on the
        current stream; the results belong to the caller and are never written again.

        Args:
            staged: N samples, at least one.
            views: The outputs, one for each view of the staged batch.
            channels_last: Memory format of the outputs.

        Returns:
            For each view [N, 3, H, W], and for each sample None or :class:`LeftToCpu`.
        """
        finishers = [self._finishers.of(view.recipe) for view in views]
        planned = self._started.pop(staged) if staged in self._started else self._begin(staged)

        errors: list[DecodeError | None] = [None] * len(staged)
        if planned is not None:
            try:
                faults = planned.faults()
            except BaseException:
                _wait(planned)
                raise
            for part, found in zip(planned.parts, faults, strict=True):
                left = part.rows[found != 0]
                for row in left.tolist():
                    errors[row] = LeftToCpu("a kernel left it to the CPU backend")
                self.redone_images += len(left)
                self.cuda_images += len(part.rows) - len(left)
        self.cpu_images += int(np.count_nonzero(staged.rows["kind"] == RowKind.PIXELS))

        done = []
        for number, (view, finisher) in enumerate(zip(views, finishers, strict=True)):
            done.append(self._view(staged.view(number), planned, number, view, finisher, channels_last))
        return done, errors

    def _view(
        self,
        staged: Staged,
        planned: PlannedImages | None,
        number: int,
        view: StagedView,
        finisher: Finisher,
        channels_last: bool,
    ) -> torch.Tensor:
        """Returns one view of a batch; ``staged`` has the rows of that view alone."""
        recipe = view.recipe
        is_last = recipe.is_base_path and view.padding is None  # then the kernels do all of it
        dtype, affine = (recipe.output_dtype, recipe.affine) if is_last else ("uint8", None)
        made = []
        if planned is not None:
            made = [
                (part.rows, planned.images(place, dtype, channels_last or not is_last, affine))
                for place, part in enumerate(planned.parts)
                if part.view == number
            ]

        if is_last:
            size = view.size or recipe.output_size
            assert size is not None
            here, pixels = staged.pixels()
            if len(here):
                finished = finisher(to_device(pixels, self.device), size, (), channels_last=channels_last)
                made.append((here, finished))
            memory_format = torch.channels_last if channels_last else torch.contiguous_format
            return join_rows(made, (len(staged), 3, *size), getattr(torch, dtype), self.device, memory_format)

        # uint8 [N, length]: [H, W, 3] after the base path.
        flat = [(rows, images.permute(0, 2, 3, 1).flatten(1)) for rows, images in made]
        here, pixels = staged.pixels()
        if len(here):
            flat.append((here, to_device(pixels, self.device)))
        images = join_rows(flat, (len(staged), staged.image_bytes), torch.uint8, self.device)
        return finisher.view(images, view, channels_last=channels_last)

    def close(self) -> None:
        """Drops all batches."""
        for staged in list(self._started):
            self.drop(staged)

    def _begin(self, staged: Staged) -> PlannedImages | None:
        """Queues the decode of a batch, whose payloads are read until that is done."""
        planned = np.flatnonzero(staged.rows["kind"] == RowKind.PLAN)
        if not len(planned):
            return None
        try:
            uploaded = upload(self.device, [staged.payloads[row] for row in planned.tolist()])
            return PlannedImages(self._kernels, staged, planned, uploaded)
        except BaseException as error:
            if self.device.type == "cuda":
                with contextlib.suppress(RuntimeError):  # as in _wait
                    torch.cuda.current_stream(self.device).synchronize()
            if isinstance(error, torch.OutOfMemoryError):
                raise torch.OutOfMemoryError(
                    f"backend 'cuda': {self.device} has no memory for {len(planned)} images, of which it keeps "
                    "what their crops need at 5 to 10 bytes a pixel, for two batches at a time; use a "
                    "smaller batch_size, smaller photos, or backend='cpu'"
                ) from error
            raise


def checked_device(device: str | torch.device) -> torch.device:
    """Returns a CUDA device with its number.

    Raises:
        BackendError: for another one, or if torch finds none.
    """
    found = torch.device(device)
    if found.type != "cuda":
        raise BackendError(
            f"backend 'cuda' decodes on a GPU, and batches are wanted on {str(found)!r}: set device='cuda', or use "
            "backend='cpu'"
        )
    return numbered(found, "cuda")


def _wait(planned: PlannedImages | None) -> None:
    """Waits until a batch's payloads are no longer read."""
    if planned is not None:
        # CUDA can't be asked in a forked process, nor after an error that it does not recover from.
        with contextlib.suppress(RuntimeError):
            planned.faults()
