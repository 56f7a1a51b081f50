"""The DALI backend: NVIDIA DALI decodes and resizes, feeder's fused kernels do the rest; with a GPU, both there."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feeder.decode.base import MAX_PIXELS, Buffer, check_batch, check_options
from feeder.decode.dali_pipeline import DaliPipeline, PipelineOptions, import_dali, resize_with_pillow
from feeder.decode.fused import check_fused, fused_parameters
from feeder.decode.staged import Kind, Staged, Stager
from feeder.errors import ArgumentError, BackendError, DecodeError
from feeder.transforms import Draws, Recipe

if TYPE_CHECKING:
    import torch

__all__ = ["DaliDecoder"]

_log = logging.getLogger(__name__)

# How many images one run of a pipeline without a GPU takes. Pixels don't depend on it.
_CPU_BATCH = 64


class DaliDecoder:
    """Decodes with NVIDIA DALI.

    Boxes, flips and everything else that is random come from the recipe's draws, never from DALI's random operators.
    JPEGs are cut (where seekable), decoded, cropped and resized by one DALI pipeline; turning, color, normalizing and
    erasing are one pass of :func:`feeder._gpu.normalize`. Images that DALI does not decode as Pillow does (other
    formats, CMYK), and outliers in size, are decoded by the CPU backend and join the batch. An image on which DALI
    fails does not spoil its batch: the pipeline is rebuilt and takes the images one by one, and Pillow takes the one
    that fails alone, so the others' pixels are as ever.

    Args:
        max_pixels: Larger images are refused.
        threads: DALI's CPU threads.
        fidelity: "fast", or "exact", which decodes seekable images without cutting them and resizes with
            :func:`feeder._gpu.crop_resize` instead of DALI: Pillow's pixels to about one level.
        device: "cpu", or a CUDA device ("cuda", "cuda:1").
        outlier_pixels: Images with more stored pixels are decoded by the CPU backend; None for the usual limit.
        gpu_memory_limit_bytes: Limit for decoded images on the GPU; larger batches are done in parts.
        hw_decoder_load: The share of images that goes to the hardware JPEG engine, 0 to 1.
        preallocate: (height, width) of an image to reserve decoding memory for: a high percentile of the index's.

    Attributes:
        dali_images: How many images DALI has decoded.
        cpu_images: How many the CPU backend has.
        redone_images: How many images were decoded alone because their batch had failed.

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
        import torch

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
            # An image is decoded whole by GPU decoders that can't crop, so one image has to fit.
            fitting = gpu_memory_limit_bytes // 3
            outliers["outlier_pixels"] = min(fitting, outliers.get("outlier_pixels", fitting))
        self.stager = Stager(max_pixels=max_pixels, threads=threads, fidelity=fidelity, **outliers)
        self.memory_limit_bytes = gpu_memory_limit_bytes
        self.dali_images = self.cpu_images = self.redone_images = 0
        self._options: dict[str, Any] = {
            "threads": threads,
            "hw_decoder_load": hw_decoder_load,
            "preallocate": preallocate,
            "resizes": fidelity == "fast",
        }
        self._pipeline: DaliPipeline | None = None
        self._started: Staged | None = None
        # DALI's memory that a kernel may still read, with the event after that kernel.
        self._in_use: deque[tuple[Any, Any]] = deque()
        if self.device.type == "cuda":
            self._build(1)  # fails now, with the remedy, where DALI can't use the GPU

    def check(self, recipe: Recipe) -> None:
        """Refuses a recipe with an op that the fused kernels don't run.

        Raises:
            BackendError: naming the op and the backend that can run it.
        """
        check_fused(recipe, self.name)

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
        wrong = np.flatnonzero((draws.base_size != out.shape[2:]).any(axis=1))
        if out.ndim != 4 or len(wrong):
            height, width = draws.base_size[wrong[0]].tolist() if len(wrong) else out.shape[-2:]
            raise ArgumentError(
                f"out must be [N, 3, {height}, {width}] for this image, got {list(out.shape)}; "
                "end the recipe with a size that doesn't depend on the image"
            )
        staged, errors = self.stager.stage(buffers, orientations, recipe, draws)
        from feeder.tensors import as_tensor

        target = as_tensor(out, recipe.output_dtype)
        if self.device.type == "cpu":
            _, failed = self.finish(staged, recipe, draws, out=target)
        else:
            images, failed = self.finish(staged, recipe, draws)
            target.copy_(images)
        return [error or late for error, late in zip(errors, failed, strict=True)]

    def start(self, staged: Staged) -> None:
        """Starts to decode a batch; :meth:`finish` of the same batch then waits for what is left to do.

        Meanwhile the batch before it can be used, which is the caller's own. Its payloads must stay as they are until
        it is finished. A batch that the memory limit cuts in parts is only started by ``finish``.

        Args:
            staged: N samples.

        Raises:
            ArgumentError: if another batch was started and is not finished.
        """
        if self._started is not None:
            raise ArgumentError("a batch is started already; finish it before the next is started")
        parts = self._parts(staged, np.flatnonzero(staged.rows["kind"] == Kind.JPEG))
        if len(parts) == 1:
            try:
                self._submit(staged, parts[0])
            except RuntimeError:
                return  # finish meets it again, and takes the images one by one
            self._started = staged

    def finish(
        self,
        staged: Staged,
        recipe: Recipe,
        draws: Draws,
        *,
        channels_last: bool = False,
        out: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, list[DecodeError | None]]:
        """Decodes and augments a staged batch on this backend's device.

        On a GPU everything is queued on the current stream, which need not be waited for; the result is the caller's
        own memory and is never written again.

        Args:
            staged: N samples, at least one, all of one output size.
            recipe: What is done to every image.
            draws: What was drawn for them; where ops follow the base path, their parameters are taken from here.
            channels_last: Memory format of the output.
            out: [N, 3, H, W] of the recipe's output dtype on this device, filled; None makes one.

        Returns:
            [N, 3, H, W], and for each image None or why it could not be decoded.
        """
        import torch

        from feeder import _gpu

        if self._started is not None and self._started is not staged:
            raise ArgumentError("another batch is started; finish that one first")
        size = (int(draws.base_size[0, 0]), int(draws.base_size[0, 1]))
        images, errors, borrowed = self._decode(staged, 3 * size[0] * size[1])
        fused = fused_parameters(recipe, draws)
        # Mirroring what has been swapped is mirroring the other axis before.
        codes = staged.rows["turn"].copy()
        codes ^= np.where(fused.flip != 0, np.where(codes & 4, 2, 1), 0).astype(np.uint8)
        affine: dict[str, Any] = {}
        if recipe.affine is not None:
            scale, bias = recipe.affine
            affine = {"scale": self._move(scale), "bias": self._move(bias)}
        result = _gpu.normalize(
            images,
            size,
            dtype=getattr(torch, recipe.output_dtype),
            channels_last=channels_last,
            turn=self._move(codes) if codes.any() else None,
            out=out,
            **affine,
            **fused.tensors(self.device),  # type: ignore[arg-type]
        )
        if borrowed:
            self._hold(borrowed)
        return result, errors

    def close(self) -> None:
        """Ends DALI's pipeline, once what it gave is no longer in use."""
        for event, _ in self._in_use:
            event.synchronize()
        self._in_use.clear()
        if self._pipeline is not None:
            self._pipeline.close()
        self._started = None

    def _decode(self, staged: Staged, length: int) -> tuple[torch.Tensor, list[DecodeError | None], list[Any]]:
        """The resized images, uint8 [N, length] on the device; errors; and whose memory they stand on."""
        import torch

        errors: list[DecodeError | None] = [None] * len(staged)
        kinds = staged.rows["kind"]
        done: list[_Done] = []
        for part in self._parts(staged, np.flatnonzero(kinds == Kind.JPEG)):
            done += self._run(staged, part, errors)
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
        if self._pipeline is None or self._pipeline.options.batch_size < len(rows):
            self._build(len(rows))
        assert self._pipeline is not None
        most = self._pipeline.options.batch_size
        if self.memory_limit_bytes is None:
            return [rows[start : start + most] for start in range(0, len(rows), most)]
        window = staged.rows["window"][rows].astype(np.int64)
        sizes = 3 * (window[:, 2] - window[:, 0]) * (window[:, 3] - window[:, 1])
        parts, start, taken = [], 0, 0
        for row, size in enumerate(sizes.tolist()):
            if row > start and (taken + size > self.memory_limit_bytes or row - start == most):
                parts.append(rows[start:row])
                start, taken = row, 0
            taken += size
        return [*parts, rows[start:]]

    def _build(self, count: int) -> None:
        if self._pipeline is not None:
            self.close()
        on_gpu = self.device.type == "cuda"
        batch = count if on_gpu else _CPU_BATCH
        index = self.device.index if on_gpu else None
        self._pipeline = DaliPipeline(PipelineOptions(index, batch_size=batch, **self._options))

    def _run(self, staged: Staged, rows: npt.NDArray[np.int64], errors: list[DecodeError | None]) -> list[_Done]:
        """Runs the pipeline, for each image alone if it fails for all; images that fail get their error."""
        try:
            return [self._submit_and_collect(staged, rows)]
        except RuntimeError as error:
            _log.warning("DALI failed on a batch, its %d images are decoded one by one: %s", len(rows), _brief(error))
        done: list[_Done] = []
        for row in rows:
            one = np.array([row])
            self.redone_images += 1
            try:
                done.append(self._submit_and_collect(staged, one))
            except RuntimeError:
                try:
                    pixels = resize_with_pillow(staged.rows[row], staged.payloads[row])
                    done.append(_Done(one, self._move(pixels[None]), None))
                except DecodeError as error:
                    errors[row] = error
        return done

    def _submit_and_collect(self, staged: Staged, rows: npt.NDArray[np.int64]) -> _Done:
        if self._started is None:
            self._submit(staged, rows)
        self._started = None
        assert self._pipeline is not None
        borrowed = self._pipeline.collect(self._stream())
        images = self._tensor(borrowed)
        if not self._pipeline.options.resizes:
            images = self._resize(images, staged.rows[rows])
        self.dali_images += len(rows)
        return _Done(rows, images, borrowed)

    def _submit(self, staged: Staged, rows: npt.NDArray[np.int64]) -> None:
        assert self._pipeline is not None
        self._pipeline.submit(staged.rows[rows], [staged.payloads[row] for row in rows.tolist()])

    def _resize(self, images: torch.Tensor, rows: npt.NDArray[np.void]) -> torch.Tensor:
        """Crops, uint8 [N, L], to stored images of the output's size, uint8 [N, H * W * 3]."""
        import torch

        from feeder import _gpu

        corner = np.tile(rows["window"][:, :2], 2)
        support, source = rows["window"] - corner, rows["source"] - corner
        resized = torch.empty((len(rows), 3 * int(rows["size"][0].prod())), dtype=torch.uint8, device=self.device)
        offsets = np.arange(len(rows), dtype=np.int64) * images.shape[1]
        for size in sorted({(int(height), int(width)) for height, width in rows["size"]}):
            here = np.flatnonzero((rows["size"] == size).all(axis=1))
            ragged = _gpu.Ragged(images.reshape(-1), self._move(offsets[here]), self._move(support[here][:, [3, 2]]))
            boxes = self._move(source[here]), self._move(support[here])
            pixels = _gpu.crop_resize(ragged, *boxes, size, dtype=torch.uint8, channels_last=True)
            resized[self._move(here)] = pixels.permute(0, 2, 3, 1).reshape(len(here), -1)
        return resized

    def _stream(self) -> Any:
        import torch

        return torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None

    def _tensor(self, images: Any) -> torch.Tensor:
        """DALI's dense list as a tensor [N, length] on its memory."""
        import torch

        if self.device.type == "cpu":
            return torch.from_numpy(images.as_array())
        return torch.utils.dlpack.from_dlpack(images.as_tensor())

    def _move(self, array: npt.NDArray[Any]) -> torch.Tensor:
        import torch

        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else tensor

    def _hold(self, borrowed: list[Any]) -> None:
        """Keeps DALI's memory from being used again before the kernels queued so far have read it."""
        import torch

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
