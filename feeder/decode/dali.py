"""The DALI backend: NVIDIA DALI decodes, feeder's fused kernels do the rest; with a GPU, both there."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from feeder._gpu import Mix
from feeder.decode.base import MAX_PIXELS, Buffer, check_batch, check_options
from feeder.decode.crops import resize_crops
from feeder.decode.dali_pipeline import DaliPipeline, PipelineOptions, check_device, import_dali
from feeder.decode.device_ops import check_device_ops
from feeder.decode.finish import Finisher
from feeder.decode.redo import decode_on_cpu
from feeder.decode.staged import Kind, Staged, Stager
from feeder.errors import ArgumentError, BackendError, DecodeError
from feeder.imageinfo import image_info
from feeder.tensors import as_tensor, to_device
from feeder.transforms import Draws, Recipe
from feeder.transforms.op import Params

__all__ = ["DaliDecoder"]

_log = logging.getLogger(__name__)

# A pipeline is built for so many images at least, so that small batches of different sizes don't rebuild it.
_SMALLEST_BATCH = 64
# What a decoded pixel takes on the GPU.
_PIXEL_BYTES = 3
# Batches that may be started and not finished: one that is waited for, and the next.
_STARTED = 2


class DaliDecoder:
    """Decodes with NVIDIA DALI.

    Boxes, flips and everything else that is random come from the recipe's draws, never from DALI's random operators.
    JPEGs are cut (where seekable), decoded by one DALI pipeline, and cropped and resized by
    :func:`feeder._gpu.crop_resize`; turning, color, normalizing and erasing are one pass of
    :func:`feeder._gpu.normalize`. What that pass can't do, such as hue, blur, warps and RandAugment, runs before it as
    batched torch ops (:mod:`feeder.decode.device_ops`), and noise is written after it. Images that DALI does not decode
    as Pillow does (other formats, CMYK), and outliers in size, are decoded by the CPU backend and join the batch. A
    batch that DALI fails on is redone on the CPU, and the pipeline rebuilt for the next one.

    Args:
        max_pixels: Larger images are refused.
        threads: DALI's CPU threads.
        fidelity: "fast", or "exact", which decodes seekable images without cutting them: at a cut's edge the chroma of
            its neighbours is missing.
        device: "cpu", or a CUDA device ("cuda", "cuda:1").
        outlier_pixels: Images with more stored pixels are decoded by the CPU backend; None for the usual limit.
        gpu_memory_limit_bytes: Limit for all decoded images on the GPU at a time.
            Larger batches are done in parts, each once the one before it is resized, and nothing is started ahead.
            DALI's own pools and the images that are resized are not in it.
        hw_decoder_load: The share of images that goes to the hardware JPEG engine, 0 to 1.
        preallocate: (height, width) of an image to reserve decoding memory for: a high percentile of the index's.

    Attributes:
        dali_images: How many images DALI has decoded.
        cpu_images: How many the CPU backend has.
        redone_images: How many were decoded on the CPU because DALI had failed on their batch.

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
        hw_decoder_load: float = 0.65,
        preallocate: tuple[int, int] | None = None,
    ) -> None:
        check_options(max_pixels, threads, fidelity)
        if gpu_memory_limit_bytes is not None and gpu_memory_limit_bytes < 1:
            raise ArgumentError(f"gpu_memory_limit_bytes must be at least 1, got {gpu_memory_limit_bytes}")
        if not 0.0 <= hw_decoder_load <= 1.0:
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
            fitting = gpu_memory_limit_bytes // _PIXEL_BYTES
            outliers["outlier_pixels"] = min(fitting, outliers.get("outlier_pixels", fitting))
        self.stager = Stager(max_pixels=max_pixels, threads=threads, fidelity=fidelity, **outliers)
        self.memory_limit_bytes = gpu_memory_limit_bytes
        self.dali_images = self.cpu_images = self.redone_images = 0
        self._options: dict[str, Any] = {
            "threads": threads,
            "hw_decoder_load": hw_decoder_load,
            "preallocate": preallocate,
            "crops": self.device.type == "cpu",
        }
        self._pipeline: DaliPipeline | None = None
        self._batch_size = 1
        self._finisher: tuple[Recipe, Finisher] | None = None
        # In the order that DALI has them in.
        self._started: deque[_Started] = deque()
        # DALI's memory that a kernel may still read, with the event after that kernel.
        self._in_use: deque[tuple[Any, Any]] = deque()
        if self.device.type == "cuda":
            check_device(self.device.index)  # fails now, with the remedy

    def prepare(
        self, batch_size: int, preallocate: tuple[int, int] | None = None, outlier_pixels: int | None = None
    ) -> None:
        """Says what is to come, so that the pipeline need not be built again for it.

        Args:
            batch_size: The largest batch.
            preallocate: As in the constructor; None leaves it.
            outlier_pixels: Likewise; a memory limit may lower it.
        """
        self._batch_size = max(self._batch_size, batch_size)
        if preallocate is not None:
            self._options["preallocate"] = preallocate
        if outlier_pixels is not None:
            self.stager.outlier_pixels = outlier_pixels
            if self.memory_limit_bytes is not None:
                self.stager.outlier_pixels = min(outlier_pixels, self.memory_limit_bytes // _PIXEL_BYTES)

    def check(self, recipe: Recipe) -> None:
        """Refuses a recipe with an op that doesn't run in batches: a function, or one whose images differ in size.

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
    ) -> list[DecodeError | None]:
        """Decodes and augments N images into ``out``; see :class:`feeder.decode.base.Decoder`."""
        check_batch(buffers, orientations, recipe, draws, out)
        if len(buffers) == 0:
            return []
        wrong = np.flatnonzero((draws.output_size != out.shape[2:]).any(axis=1))
        if out.ndim != 4 or len(wrong):
            height, width = draws.output_size[wrong[0]].tolist() if len(wrong) else out.shape[-2:]
            raise ArgumentError(
                f"out must be [N, 3, {height}, {width}] for this image, got {list(out.shape)}; "
                "end the recipe with a size that doesn't depend on the image"
            )
        staged, errors = self.stager.stage(buffers, orientations, recipe, draws)
        target = as_tensor(out, recipe.output_dtype)
        rest, size = draws.ops[recipe.base_length :], (out.shape[2], out.shape[3])
        if self.device.type == "cpu":
            _, failed = self.finish(staged, recipe, rest, size=size, out=target)
        else:
            images, failed = self.finish(staged, recipe, rest, size=size)
            target.copy_(images)
        return [error or late for error, late in zip(errors, failed, strict=True)]

    def start(self, staged: Staged) -> None:
        """Starts to decode a batch; :meth:`finish` of the same batch then waits for what is left to do.

        Its payloads must stay as they are until it is finished or dropped. Under a memory limit, and when two others
        are under way, it is only started by ``finish``.

        Args:
            staged: N samples.
        """
        if len(self._started) >= _STARTED or self.memory_limit_bytes is not None:
            return
        parts = self._parts(staged, np.flatnonzero(staged.rows["kind"] == Kind.JPEG))
        if len(parts) == 1:
            try:
                self._submit(staged, parts[0])
            except RuntimeError:
                return  # finish meets it again, and redoes the batch
            assert self._pipeline is not None
            self._started.append(_Started(staged, parts[0], self._pipeline.generation))

    def drop(self, staged: Staged) -> None:
        """Forgets a batch that was started and will not be finished."""
        for each in list(self._started):
            if each.staged is staged:
                self._drain(each)
                self._started.remove(each)

    def finish(
        self,
        staged: Staged,
        recipe: Recipe,
        rest: Sequence[Params],
        *,
        size: tuple[int, int] | None = None,
        channels_last: bool = False,
        mix: Mix | None = None,
        out: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, list[DecodeError | None]]:
        """Decodes and augments a staged batch on this backend's device.

        On a GPU everything is queued on the current stream, which need not be waited for; the result is the caller's
        own memory and is never written again.

        Args:
            staged: N samples, at least one, all of one output size.
            recipe: What is done to every image.
            rest: What was drawn for the ops after the base path, N rows each.
            size: (H, W) of the output; None takes the recipe's, which must not depend on the image then.
            channels_last: Memory format of the output.
            mix: The partner of each sample; needs a float output.
            out: [N, 3, H, W] of the recipe's output dtype on this device, filled; None makes one.

        Returns:
            [N, 3, H, W], and for each image None or why it could not be decoded.
        """
        size = size or recipe.output_size
        assert size is not None
        if self._finisher is None or self._finisher[0] is not recipe:
            self.check(recipe)
            self._finisher = recipe, Finisher(recipe, self.device)
        height, width = recipe.base_size or size
        images, errors, borrowed = self._decode(staged, 3 * height * width)
        turn = staged.rows["turn"]
        result = self._finisher[1](images, size, rest, turn=turn, channels_last=channels_last, mix=mix, out=out)
        if borrowed:
            self._hold(borrowed)
        return result, errors

    def meters(self) -> dict[str, int]:
        """Images by what decoded them: dali_images, cpu_images (for DALI), redone_images."""
        return {name: getattr(self, name) for name in ("dali_images", "cpu_images", "redone_images")}

    def close(self) -> None:
        """Ends DALI's pipeline, once what it gave is no longer in use."""
        self._wait_for_kernels()
        if self._pipeline is not None:
            self._pipeline.close()
        self._started.clear()

    def _decode(self, staged: Staged, length: int) -> tuple[torch.Tensor, list[DecodeError | None], list[Any]]:
        """The resized images, uint8 [N, length] on the device; errors; and whose memory they stand on."""
        errors: list[DecodeError | None] = [None] * len(staged)
        kinds = staged.rows["kind"]
        done: list[_Done] = []
        for part in self._parts(staged, np.flatnonzero(kinds == Kind.JPEG)):
            if self.memory_limit_bytes is not None:
                self._wait_for_kernels()
            done.append(self._run(staged, part, errors))
            if self.memory_limit_bytes is not None:
                self._hold([done[-1].borrowed])
                done[-1] = done[-1]._replace(borrowed=None)
        borrowed = [group.borrowed for group in done if group.borrowed is not None]
        if len(done) == 1 and len(done[0].rows) == len(staged):
            return done[0].images, errors, borrowed
        whole = torch.zeros((len(staged), length), dtype=torch.uint8, device=self.device)
        for group in done:
            whole[self._move(group.rows)] = group.images
        here = np.flatnonzero(kinds == Kind.PIXELS)
        if len(here):
            pixels = np.stack([np.frombuffer(staged.payloads[row], np.uint8) for row in here.tolist()])
            whole[self._move(here)] = self._move(pixels)
            self.cpu_images += len(here)
        return whole, errors, borrowed

    def _parts(self, staged: Staged, rows: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """The rows in runs that fit the pipeline and the memory limit."""
        if len(rows) == 0:
            return []
        self._batch_size = max(self._batch_size, len(rows))
        if self._pipeline is None or self._pipeline.options.batch_size < self._batch_size:
            self._build()
        assert self._pipeline is not None
        most = self._pipeline.options.batch_size
        if self.memory_limit_bytes is None:
            return [rows[start : start + most] for start in range(0, len(rows), most)]
        sizes = _PIXEL_BYTES * self._decoded_pixels(staged, rows)
        parts, start, taken = [], 0, 0
        for row, size in enumerate(sizes.tolist()):
            if row > start and (taken + size > self.memory_limit_bytes or row - start == most):
                parts.append(rows[start:row])
                start, taken = row, 0
            taken += size
        return [*parts, rows[start:]]

    def _decoded_pixels(self, staged: Staged, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """What DALI makes of each row, int64 [N]."""
        assert self._pipeline is not None
        if self._pipeline.options.crops:
            window = staged.rows["window"][rows].astype(np.int64)
            return (window[:, 2] - window[:, 0]) * (window[:, 3] - window[:, 1])
        found = [image_info(bytes(staged.payloads[row])) for row in rows.tolist()]
        return np.array([each.width_px * each.height_px for each in found], np.int64)

    def _build(self) -> None:
        if self._pipeline is not None:
            self._drain()
            self._pipeline.close()
        index = self.device.index if self.device.type == "cuda" else None
        batch = max(self._batch_size, _SMALLEST_BATCH)
        self._pipeline = DaliPipeline(PipelineOptions(index, batch_size=batch, **self._options))

    def _run(self, staged: Staged, rows: npt.NDArray[np.int64], errors: list[DecodeError | None]) -> _Done:
        """Runs the pipeline, or the CPU if it fails; images that fail there, too, get their error."""
        started = next((each for each in self._started if each.staged is staged), None)
        try:
            if started is not None:
                self._drain(started)
                self._started.remove(started)
                if started.done is not None:
                    return started.done
                if started.error is not None:
                    raise started.error
            return self._submit_and_collect(staged, rows)
        except RuntimeError as error:
            _log.warning("DALI failed on a batch, its %d images are redone on the CPU: %s", len(rows), _brief(error))
        self.redone_images += len(rows)
        payloads = [staged.payloads[row] for row in rows.tolist()]
        pixels, found = decode_on_cpu(staged.rows[rows], payloads, self._options["threads"])
        for row, problem in zip(rows.tolist(), found, strict=True):
            if problem is not None:
                errors[row] = DecodeError(f"neither DALI nor the CPU can decode it: {problem}")
        return _Done(rows, self._move(pixels), None)

    def _drain(self, last: _Started | None = None) -> None:
        """Collects what is under way, up to a batch, as DALI gives it in the order that it was started in."""
        assert self._pipeline is not None
        for each in self._started:
            # A failure loses what was under way after it; that is submitted again when it is finished.
            if each.done is None and each.error is None and each.generation == self._pipeline.generation:
                try:
                    each.done = self._collect(each.staged, each.rows)
                except RuntimeError as error:
                    each.error = error
            if each is last:
                return

    def _submit_and_collect(self, staged: Staged, rows: npt.NDArray[np.int64]) -> _Done:
        self._drain()
        self._submit(staged, rows)
        return self._collect(staged, rows)

    def _collect(self, staged: Staged, rows: npt.NDArray[np.int64]) -> _Done:
        assert self._pipeline is not None
        stream = self._stream()
        borrowed = self._pipeline.collect(stream)
        cropped = self._pipeline.options.crops
        images = resize_crops(borrowed, staged.rows[rows], cropped, self.device)
        self.dali_images += len(rows)
        return _Done(rows, images, borrowed)

    def _submit(self, staged: Staged, rows: npt.NDArray[np.int64]) -> None:
        assert self._pipeline is not None
        self._pipeline.submit(staged.rows[rows], [staged.payloads[row] for row in rows.tolist()])

    def _stream(self) -> Any:
        return torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None

    def _move(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return to_device(array, self.device)

    def _wait_for_kernels(self) -> None:
        """Until DALI's memory is no longer in use."""
        while self._in_use:
            self._in_use[0][0].synchronize()
            self._in_use.popleft()

    def _hold(self, borrowed: list[Any]) -> None:
        """Keeps DALI's memory from being used again before the kernels queued so far have read it."""
        if self.device.type != "cuda":
            return
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        self._in_use.append((event, borrowed))
        while self._in_use and self._in_use[0][0].query():
            self._in_use.popleft()


class _Done(NamedTuple):
    """Rows of a batch and their images, uint8 [N, H * W * 3]; whose memory they stand on, if not their own."""

    rows: npt.NDArray[np.int64]
    images: torch.Tensor
    borrowed: Any


@dataclass(eq=False)
class _Started:
    """A batch that was started.

    Args:
        staged: The batch.
        rows: Those that are with DALI.
        generation: The pipeline's then.
        done: Its images, once collected.
        error: Why DALI failed on it.
    """

    staged: Staged
    rows: npt.NDArray[np.int64]
    generation: int
    done: _Done | None = None
    error: RuntimeError | None = None


def _check_cuda() -> None:
    """Refuses a CUDA device where torch finds none, with the remedy."""
    import torch

    if not torch.cuda.is_available():
        raise BackendError(
            f"backend 'dali' on a CUDA device: torch {torch.__version__} finds none; check `nvidia-smi`, install a "
            "torch build for CUDA, or use device='cpu'"
        )


def _brief(error: Exception) -> str:
    """The first lines of DALI's message, without its traceback of the pipeline's definition."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("File ", "which was used"))]
    return "; ".join(told[:3])
