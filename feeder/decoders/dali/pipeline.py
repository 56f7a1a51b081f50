"""The DALI pipeline: staged JPEGs in, uint8 images or crops out. Knows nothing of recipes."""

from __future__ import annotations

import atexit
import functools
import os
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from feeder.decoders.decoder import Buffer
from feeder.errors import BackendError
from feeder.system.arrays import AnyArray, Records

# Largest run, relative to a pipeline's first one.
_MOST_OF_THE_FIRST = 2
_REMEDY = "install it: pip install 'feeder-data[dali-cuda13]', or [dali-cuda12] with a driver for CUDA 12"


class PipelineError(Exception):
    """DALI failed, or its output can't be matched to a request: the runs in flight are lost.

    Only the message of DALI's own error is kept: its traceback would keep the pipeline alive.
    """


@dataclass(frozen=True)
class PipelineOptions:
    """The pipeline's options.

    Args:
        device_id: The GPU's number, or None for a pipeline without one.
        threads: DALI's CPU threads.
        batch_size: Largest number of images in a run.
        crops: True to decode what the rows call decoded, not whole images; see Note [Whole images on a GPU].
        hw_decoder_load: Share of images for the hardware JPEG engine, if there is one, 0 to 1.
        fancy_upsampling: True to interpolate chroma, as libjpeg-turbo and so Pillow do; False to repeat it, which is
            faster in a GPU's JPEG engine.
    """

    device_id: int | None = None
    threads: int = 1
    batch_size: int = 64
    crops: bool = True
    hw_decoder_load: float = 0.65
    fancy_upsampling: bool = True


class DaliPipeline:
    """Decodes JPEGs, and crops them on request.

    Note [Whole images on a GPU]
        On the CPU only the crop is decoded. GPUs decode whole images here: their JPEG engine can't crop, and
        nvImageCodec 0.9 is reported to end the process, on GPUs with such an engine, when asked for a region
        (NVIDIA/nvImageCodec#55). The resize then reads the window only. Images from seekable shards were cut before.

    DALI could resize, too, but at an image's edge it repeats the last pixel, where Pillow shortens the filter.

    Note [The first run]
        nvImageCodec (0.8 and 0.9) gives a GPU's JPEG engine as many images of every run as its share of the first one,
        see adjustBatchSizes in its image_generic_codec.h. After a small first run, such as the substitute of a bad
        image or the rest of an epoch, the CPU would decode nearly all images of the later runs.

    A pipeline that has failed is useless, so a failure rebuilds it; runs in flight are then lost and must be submitted
    again. Building takes milliseconds without a GPU.

    Args:
        options: The pipeline's options.

    Raises:
        BackendError: with the remedy, if DALI is missing or can't use this machine.
    """

    def __init__(self, options: PipelineOptions) -> None:
        self.options = options
        import_dali()
        _live.add(self)
        self._pipeline: Any = None
        # Tickets and inputs: DALI reads inputs in place, so they live until their run is collected.
        self._under_way: deque[tuple[object, list[AnyArray]]] = deque()
        self._first_count = 0

    def is_outgrown_by(self, count: int) -> bool:
        """Returns whether runs of ``count`` images need another pipeline, see Note [The first run]."""
        return self.options.device_id is not None and count > _MOST_OF_THE_FIRST * self._first_count > 0

    def submit(self, rows: Records, payloads: Sequence[Buffer], ticket: object) -> None:
        """Starts the decode of at most ``batch_size`` images.

        Args:
            rows: [N] of :data:`feeder.decoders.staged.staged.ROW`, N at least 1.
            payloads: N JPEGs; kept until collected.
            ticket: A unique object, for :meth:`collect`.

        Raises:
            PipelineError: if DALI fails; the pipeline is rebuilt then, and the runs in flight are lost.
        """
        window = rows["decoded"]
        encoded = [np.frombuffer(payload, np.uint8) for payload in payloads]
        # DALI's axes are (height, width).
        inputs: dict[str, AnyArray] = {}
        if self.options.crops:
            inputs["anchor"] = np.ascontiguousarray(window[:, 1::-1], np.int32)
            inputs["shape"] = np.ascontiguousarray((window[:, 2:] - window[:, :2])[:, ::-1], np.int32)

        if self._pipeline is None:
            self._pipeline = build_pipeline(self.options)
            self._first_count = len(encoded)

        def schedule() -> None:
            self._under_way.append((ticket, [*encoded, *inputs.values()]))
            self._pipeline.feed_input("encoded", encoded)
            for name, values in inputs.items():
                self._pipeline.feed_input(name, values)
            self._pipeline.schedule_run()

        self._attempt(schedule)

    def collect(self, ticket: object, stream: Any = None) -> Any:
        """Returns the oldest run's images.

        Args:
            ticket: The run's.
            stream: The CUDA stream that will read them, and waits for them; None without a GPU.

        Returns:
            DALI's list of N tensors uint8 [H, W, 3], dense, in DALI's memory, which is reserved while the list lives.

        Raises:
            PipelineError: if an image can't be decoded, or another run is the oldest, as after an interrupt; the
                pipeline is rebuilt then, and the runs in flight are lost.
        """
        if not self._under_way or self._under_way[0][0] is not ticket:
            self.rebuild()
            raise PipelineError("its pipeline was interrupted, or closed, as the interpreter ends")

        def share() -> Any:
            (images,) = self._pipeline.share_outputs(cuda_stream=stream)
            self._pipeline.release_outputs()
            self._under_way.popleft()
            return images

        return self._attempt(share)

    def _attempt(self, work: Callable[[], Any]) -> Any:
        """Returns what DALI's work returns; if that fails, rebuilds the pipeline.

        Raises:
            PipelineError: with DALI's message.
        """
        try:
            return work()
        except Exception as error:  # any kind that an operator raises, StopIteration among them
            failure = str(error) or type(error).__name__
        except BaseException:  # an interrupt: DALI's state is unknown
            self.rebuild()
            raise
        self.rebuild()
        raise PipelineError(failure)

    def rebuild(self) -> None:
        """Drops the pipeline, its threads and its memory, and the runs in flight; the next submit builds another."""
        if self._pipeline is not None:
            self._pipeline.feeder_inputs = self._under_way  # for as long as it lives: it may be reading them
        self._pipeline = None
        self._first_count = 0
        self._under_way = deque()


_live: weakref.WeakSet[DaliPipeline] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Ends DALI's pipelines before the interpreter tears down its modules."""
    for pipeline in list(_live):
        pipeline.rebuild()


def import_dali() -> Any:
    """Returns DALI's module.

    Raises:
        BackendError: with the remedy, if it can't be imported.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # DALI's dependencies use old idioms
            import nvidia.dali
            import nvidia.dali.fn
            import nvidia.dali.types
    except ImportError as error:
        raise BackendError(f"backend 'dali' needs NVIDIA DALI ({error}); {_REMEDY}") from None
    except Exception as error:  # its libraries don't fit this machine
        raise BackendError(f"backend 'dali': NVIDIA DALI can't be loaded here ({error}); {_REMEDY}") from None
    return nvidia.dali


_inherited: list[Any] = []


@functools.cache
def _pipeline_class() -> Any:
    """Returns DALI's pipeline class, whose end does not wait in a process that was forked off: it has no threads of the
    pipeline's, for which DALI would wait forever."""

    class Pipeline(import_dali().Pipeline):  # type: ignore[misc]
        def __init__(self, **options: Any) -> None:
            self._owner = os.getpid()
            super().__init__(**options)

        def __del__(self) -> None:
            if os.getpid() == self._owner:
                super().__del__()
            else:
                _inherited.append(self.__dict__)  # what it holds is never freed there

    return Pipeline


def build_pipeline(options: PipelineOptions) -> Any:
    dali = import_dali()
    fn, types = dali.fn, dali.types
    on_gpu = options.device_id is not None
    pipeline = _pipeline_class()(
        batch_size=options.batch_size,
        num_threads=options.threads,
        device_id=options.device_id,
        prefetch_queue_depth=1,  # for the first schedule_run; the dynamic executor queues later ones
        exec_dynamic=True,
        set_affinity=False,
    )

    def given(name: str, dtype: Any) -> Any:
        return fn.external_source(name=name, dtype=dtype, ndim=1, no_copy=True)

    decoder: dict[str, Any] = {
        "device": "mixed" if on_gpu else "cpu",
        "output_type": types.RGB,
        "adjust_orientation": False,  # the turn comes last, from the index
        "jpeg_fancy_upsampling": options.fancy_upsampling,
    }
    if on_gpu:
        decoder["hw_decoder_load"] = options.hw_decoder_load
    with pipeline:
        encoded = given("encoded", types.UINT8)
        if options.crops:
            places = given("anchor", types.INT32), given("shape", types.INT32)
            images = fn.decoders.image_slice(encoded, *places, axes=[0, 1], **decoder)
        else:
            images = fn.decoders.image(encoded, **decoder)
        pipeline.set_outputs(images)
    try:
        pipeline.build()
    except RuntimeError as error:
        raise BackendError(_unusable(error)) from None
    return pipeline


def check_device(device_id: int) -> None:
    """Runs a trivial pipeline on a GPU, as an unsuitable one shows at the first run only.

    Raises:
        BackendError: with the remedy, if it fails.
    """
    dali = import_dali()
    try:
        pipeline = _pipeline_class()(batch_size=1, num_threads=1, device_id=device_id)
        with pipeline:
            pipeline.set_outputs(dali.types.Constant(np.zeros(1, np.uint8), device="gpu"))
        pipeline.build()
        pipeline.run()
    except RuntimeError as error:
        raise BackendError(_unusable(error)) from None


def _unusable(error: RuntimeError) -> str:
    return f"backend 'dali' can't use this machine ({str(error).splitlines()[0]}); {_REMEDY}"
