"""The one DALI pipeline of a process: staged JPEGs in, resized uint8 images out. Knows nothing of recipes."""

from __future__ import annotations

import atexit
import io
import warnings
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from feeder.decode.base import Buffer
from feeder.errors import BackendError, DecodeError

__all__ = ["DaliPipeline", "PipelineOptions", "import_dali", "resize_with_pillow"]

_REMEDY = "install it: pip install 'feeder-data[dali-cuda13]', or [dali-cuda12] with a driver for CUDA 12"


@dataclass(frozen=True)
class PipelineOptions:
    """How the pipeline is built.

    Args:
        device_id: The GPU's number, or None for a pipeline without one.
        threads: DALI's CPU threads.
        batch_size: Most images of one run.
        resizes: Whether DALI resizes too; else it gives the cropped images. (At an image's edge DALI repeats the last
            pixel where Pillow leaves out what is not there; the difference is within feeder's usual bounds.)
        hw_decoder_load: The share of images that goes to the hardware JPEG engine, where there is one, 0 to 1.
        preallocate: (height, width) of the largest image to reserve decoding memory for, or None.
    """

    device_id: int | None = None
    threads: int = 1
    batch_size: int = 64
    resizes: bool = True
    hw_decoder_load: float = 0.65
    preallocate: tuple[int, int] | None = None


class DaliPipeline:
    """Decodes, crops and resizes JPEGs.

    A pipeline that has failed is of no more use, so a failure rebuilds it; what was under way is then lost and is to be
    submitted again. Building takes milliseconds without a GPU.

    Args:
        options: How to build it.

    Attributes:
        generation: Counts up whenever what was under way is lost.

    Raises:
        BackendError: with the remedy, if DALI is missing or can't use this machine.
    """

    def __init__(self, options: PipelineOptions) -> None:
        self.options = options
        self.generation = 0
        import_dali()
        _live.add(self)
        self._pipeline: Any = None
        # DALI reads the buffers where they are, so they live until their run is collected.
        self._under_way: deque[list[npt.NDArray[Any]]] = deque()

    def submit(self, rows: npt.NDArray[np.void], payloads: Sequence[Buffer]) -> None:
        """Starts the decode of at most ``batch_size`` images.

        Args:
            rows: [N] of :data:`feeder.decode.staged.ROW`, N at least 1.
            payloads: N JPEGs; kept until collected.

        Raises:
            RuntimeError: if DALI fails; the pipeline is rebuilt then.
        """
        window, source = rows["window"], rows["source"]
        encoded = [np.frombuffer(payload, np.uint8) for payload in payloads]
        # DALI's axes are (height, width), its region of interest is counted from the slice's corner.
        corner = np.tile(window[:, 1::-1], 2)
        region = (source[:, [1, 0, 3, 2]] - corner).astype(np.float32)
        inputs: dict[str, npt.NDArray[Any]] = {
            "anchor": np.ascontiguousarray(window[:, 1::-1], np.int32),
            "shape": np.ascontiguousarray((window[:, 2:] - window[:, :2])[:, ::-1], np.int32),
        }
        if self.options.resizes:
            inputs["roi_start"] = np.ascontiguousarray(region[:, :2])
            inputs["roi_end"] = np.ascontiguousarray(region[:, 2:])
            inputs["size"] = np.ascontiguousarray(rows["size"], np.float32)
        try:
            pipeline = self._built()
            pipeline.feed_input("encoded", encoded)
            for name, values in inputs.items():
                pipeline.feed_input(name, values)
            pipeline.schedule_run()
        except RuntimeError:
            self.rebuild()
            raise
        self._under_way.append([*encoded, *inputs.values()])

    def collect(self, stream: Any = None) -> Any:
        """The oldest run's images.

        Args:
            stream: The CUDA stream that will read them; None without a GPU.

        Returns:
            DALI's list of N tensors uint8 [L], dense: the resized image, or the crop and zeros up to the longest. The
            memory is DALI's, and ours as long as the list lives.

        Raises:
            RuntimeError: if an image can't be decoded; the pipeline is rebuilt then.
        """
        try:
            (images,) = self._built().share_outputs(cuda_stream=stream)
            self._built().release_outputs()
        except RuntimeError:
            self.rebuild()
            raise
        self._under_way.popleft()
        return images

    def rebuild(self) -> None:
        """Forgets the pipeline and what is under way; the next submit builds another."""
        self._pipeline = None
        self._under_way.clear()
        self.generation += 1

    def close(self) -> None:
        """Ends DALI's threads and frees its memory; the next submit builds another pipeline."""
        self.rebuild()

    def _built(self) -> Any:
        if self._pipeline is None:
            self._pipeline = _build(self.options)
        return self._pipeline


_live: weakref.WeakSet[DaliPipeline] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """DALI's pipelines have to end before the interpreter takes its modules apart."""
    for pipeline in list(_live):
        pipeline.close()


def import_dali() -> Any:
    """DALI's module.

    Raises:
        BackendError: with the remedy, if it can't be imported.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its dependencies' old idioms
            import nvidia.dali
            import nvidia.dali.fn
            import nvidia.dali.types
    except ImportError as error:
        raise BackendError(f"backend 'dali' needs NVIDIA DALI ({error}); {_REMEDY}") from None
    except Exception as error:  # its libraries don't fit this machine
        raise BackendError(f"backend 'dali': NVIDIA DALI can't be loaded here ({error}); {_REMEDY}") from None
    return nvidia.dali


def _build(options: PipelineOptions) -> Any:
    dali = import_dali()
    fn, types = dali.fn, dali.types
    on_gpu = options.device_id is not None
    pipeline = dali.Pipeline(
        batch_size=options.batch_size,
        num_threads=options.threads,
        device_id=options.device_id,
        prefetch_queue_depth=1,  # the first schedule_run runs so many; the dynamic executor queues what comes after
        exec_dynamic=True,
        set_affinity=False,
    )

    def given(name: str, dtype: Any) -> Any:
        return fn.external_source(name=name, dtype=dtype, ndim=1, no_copy=True)

    decoder: dict[str, Any] = {}
    if on_gpu:
        decoder["hw_decoder_load"] = options.hw_decoder_load
        if options.preallocate is not None:
            decoder["preallocate_height_hint"], decoder["preallocate_width_hint"] = options.preallocate
    with pipeline:
        images = fn.decoders.image_slice(
            given("encoded", types.UINT8),
            given("anchor", types.INT32),
            given("shape", types.INT32),
            axes=[0, 1],
            device="mixed" if on_gpu else "cpu",
            output_type=types.RGB,
            adjust_orientation=False,  # the turn comes last, from the index
            jpeg_fancy_upsampling=True,  # as libjpeg-turbo, and so Pillow, does it
            **decoder,
        )
        if options.resizes:
            images = fn.resize(
                images,
                size=given("size", types.FLOAT),
                roi_start=given("roi_start", types.FLOAT),
                roi_end=given("roi_end", types.FLOAT),
                interp_type=types.INTERP_LINEAR,
                antialias=True,
            )
        # Images that are still to be turned are as high as others are wide; flat, all are of one shape.
        flat = fn.reshape(images, shape=[-1])
        pipeline.set_outputs(flat if options.resizes else fn.pad(flat))
    try:
        pipeline.build()
    except RuntimeError as error:
        raise BackendError(f"backend 'dali' can't use this machine ({str(error).splitlines()[0]}); {_REMEDY}") from None
    return pipeline


def resize_with_pillow(row: np.void, payload: Buffer) -> npt.NDArray[np.uint8]:
    """What the pipeline does, for one image that DALI can't decode: uint8 [H * W * 3].

    Raises:
        DecodeError: if Pillow can't decode it either.
    """
    from PIL import Image

    left, top, right, bottom = row["window"].tolist()
    height, width = row["size"].tolist()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(payload), formats=["JPEG"]) as stored:
                window = stored.convert("RGB").crop((left, top, right, bottom))
            box = (row["source"] - (left, top, left, top)).tolist()
            resized = window.resize((width, height), Image.Resampling.BILINEAR, box=box)
    except Exception as error:  # Pillow raises nearly every kind on damaged files
        raise DecodeError(f"neither DALI nor Pillow can decode it: {str(error) or type(error).__name__}") from None
    return np.asarray(resized).reshape(-1)
