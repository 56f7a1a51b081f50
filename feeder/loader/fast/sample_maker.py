"""One part of a batch: read, draw, decode or stage. The same in a worker process and in the caller's own.

Needs no torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from feeder.dataset.reader import Encoded, Reader
from feeder.decoders.registry import get_decoder
from feeder.decoders.stored_boxes import stored_rows
from feeder.errors import DecodeError
from feeder.loader.fast.part_output import PixelSink, Sink, StagedSink
from feeder.loader.fast.part_report import PartReport
from feeder.loader.fast.substitution import SUBSTITUTES, Substitution, no_substitute
from feeder.loader.observe.meter import Meter
from feeder.loader.slots.image_slots import Samples
from feeder.order.sample_order import substitute
from feeder.system.warning import warn

if TYPE_CHECKING:
    from feeder.decoders.decoder import Decoder
    from feeder.decoders.device.fused import DeviceSplit
    from feeder.decoders.staged.stager import Stager
    from feeder.transforms import Draws, Recipe

__all__ = ["Work"]

_WRONG_ROWS = (
    "the index has wrong places for the rows of an image, so the image was read a second time; "
    "`feeder inspect --verify` names all such images"
)


@dataclass
class Work:
    """The work of making samples; cheap to pickle.

    Args:
        reader: Reads the encoded images.
        recipe: The ops on every image.
        backend: The decode backend's name; never "auto".
        fields: Names of the further fields.
        seed: Of the augmentation, 0 to 2**64-1.
        skip: True replaces bad samples by substitutes; False raises.
        threads: Threads that the backend may use in this process.
        fidelity: "fast", or "exact" for pixels within a level of Pillow's.
        stager: Stages images for a decoder in the trainer, instead of decoding them.
        share_bytes: Bytes of the slot for each staged image; a multiple of 64.
        split: The recipe's split; only the CPU's side is done.
    """

    reader: Reader
    recipe: Recipe
    backend: str
    fields: tuple[str, ...] = ()
    seed: int = 0
    skip: bool = False
    threads: int = 1
    fidelity: str = "fast"
    stager: Stager | None = None
    share_bytes: int = 0
    split: DeviceSplit | None = None
    meter: Meter = field(default_factory=Meter, init=False, repr=False, compare=False)
    _decoder: Decoder | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "meter"} | {"_decoder": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, meter=Meter())

    @property
    def decoder(self) -> Decoder:
        """The backend, made on first use in each process."""
        if self._decoder is None:
            self._decoder = get_decoder(self.backend, self.recipe, threads=self.threads, fidelity=self.fidelity)
        return self._decoder

    def prepare(self) -> None:
        """Makes the decoder, for which the first part would wait; an unusable backend fails here."""
        if self.stager is None:
            self.decoder  # noqa: B018
        else:
            self.stager.prepare()

    @property
    def makes_batches(self) -> bool:
        """True if a part must be a whole batch."""
        return False

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of a sample in a slot: (C, H, W) of pixels, or (bytes,) of a staged image."""
        if self.stager is not None:
            return (self.share_bytes,)
        assert self.recipe.output_size is not None
        return (3, *self.recipe.output_size)

    @property
    def sample_dtype(self) -> np.dtype[Any]:
        """numpy dtype of a sample in a slot."""
        is_bytes = self.stager is not None or self.split is not None
        return np.dtype(np.uint8) if is_bytes else self.recipe.storage_dtype

    def run(
        self,
        epoch: int,
        samples: Samples,
        images: npt.NDArray[Any],
        labels: npt.NDArray[Any],
        beat: Callable[[], None] = lambda: None,
    ) -> PartReport:
        """Makes N samples.

        Args:
            epoch: The epoch that the augmentation is drawn for.
            samples: The samples.
            images: [N, *sample_shape] of the sample dtype; filled.
            labels: [N] of the reader's label dtype; filled.
            beat: Called between the steps, as a sign of life.

        Raises:
            DecodeError: for a bad sample, unless bad samples are skipped.
        """
        report = PartReport()
        ids = samples.ids.copy()
        sink = self._sink(images)
        errors = self._make(epoch, np.arange(len(ids)), ids, self.keys(samples), sink, labels, report, beat)
        if any(errors):
            for row, error in enumerate(errors):
                if error is not None:
                    position = int(samples.positions[row])
                    ids[row] = self._replace(error, epoch, position, row, sink, labels, report, beat)
        report.clipped, report.slow = sink.clipped, sink.slow
        report.left_over = {row: bytes(payload) for row, payload in sink.close().items()}
        report.fields = [[self.reader.field(i, name) for i in ids.tolist()] for name in self.fields]
        return report

    def _sink(self, images: Any) -> Sink:
        if self.stager is None:
            return PixelSink(self.decoder, self.recipe, self.split, images, self.meter)
        return StagedSink(self.stager, self.recipe, images, self.meter)

    def substitutes(self, epoch: int, position: int) -> Iterator[int]:
        """Yields the samples to try, one after the other, in place of a bad one at a position in the epoch."""
        for attempt in range(SUBSTITUTES):
            yield substitute(position, attempt, len(self.reader), self.seed, epoch)

    def keys(self, samples: Samples) -> npt.NDArray[np.int64]:
        """Returns the keys of the augmentation's draws, int64 [N]: others for each repeat of a sample."""
        return samples.ids + samples.repeats * len(self.reader)

    def _make(
        self,
        epoch: int,
        rows: npt.NDArray[np.int64],
        ids: npt.NDArray[np.int64],
        keys: npt.NDArray[np.int64],
        sink: Sink,
        labels: npt.NDArray[Any],
        report: PartReport,
        beat: Callable[[], None],
    ) -> list[DecodeError | None]:
        """Makes samples for some rows of the part; returns an error or None for each."""
        started, already_ns = time.perf_counter_ns(), report.read_ns
        drawing = _Drawing(self, epoch, keys)
        encoded = self._read(ids, report, drawing if sink.takes_rows else None)
        labels[rows] = encoded.labels
        beat()
        draws = drawing.draw(encoded.sizes) if drawing.draws is None else drawing.draws
        errors = _add(sink, encoded, rows, draws)
        if encoded.first_rows is not None:
            # Rows alone don't say what is wrong with a file, or that the index is.
            again = [row for row in np.flatnonzero(encoded.first_rows >= 0).tolist() if errors[row] is not None]
            if again:
                beat()
                encoded = self._read(ids[again], report)
                for row, error in zip(again, _add(sink, encoded, rows[again], draws.take(again)), strict=True):
                    if error is None:
                        warn(_WRONG_ROWS, RuntimeWarning)
                    errors[row] = error
        report.decode_ns += time.perf_counter_ns() - started - (report.read_ns - already_ns)
        return [None if e is None else self.reader.at(e, int(i)) for e, i in zip(errors, ids, strict=True)]

    def _read(self, ids: npt.NDArray[np.int64], report: PartReport, drawing: _Drawing | None = None) -> Encoded:
        started = time.perf_counter_ns()
        encoded = self.reader.read(ids, None if drawing is None else drawing.rows)
        size_bytes = sum(map(len, encoded.buffers))
        spent_ns = time.perf_counter_ns() - started - (0 if drawing is None else drawing.spent_ns)
        report.encoded_bytes += size_bytes
        report.read_ns += spent_ns
        self.meter.add("read", spent_ns, size_bytes)
        return encoded

    def _replace(
        self,
        error: DecodeError,
        epoch: int,
        position: int,
        row: int,
        sink: Sink,
        labels: npt.NDArray[Any],
        report: PartReport,
        beat: Callable[[], None],
    ) -> int:
        if not self.skip:
            raise error
        here = np.array([row])
        for i in self.substitutes(epoch, position):
            one = np.array([i])
            problem = self._make(epoch, here, one, one, sink, labels, report, beat)[0]
            if problem is None:
                report.substitutions.append(Substitution.of(position, error, i))
                return i
        raise no_substitute(error)


@dataclass
class _Drawing:
    """Draws the augmentation of some samples, once their sizes are known.

    Args:
        work: The work on them.
        epoch: The epoch of the draws.
        keys: int64 [N], keys of the draws.

    Attributes:
        draws: The draws.
        spent_ns: Time that they took, nanoseconds.
    """

    work: Work
    epoch: int
    keys: npt.NDArray[np.int64]
    draws: Draws | None = field(default=None, init=False)
    spent_ns: int = field(default=0, init=False)

    def draw(self, sizes: npt.NDArray[np.int32]) -> Draws:
        """Draws for images of these upright sizes, int32 [N, 2]."""
        started = time.perf_counter_ns()
        self.draws = self.work.recipe.draw(self.work.seed, self.epoch, self.keys, sizes)
        self.spent_ns = time.perf_counter_ns() - started
        self.work.meter.add("draw", self.spent_ns)
        return self.draws

    def rows(self, orientations: npt.NDArray[np.uint8], sizes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Returns the rows that the crops need; see :data:`feeder.dataset.reader.Wanted`."""
        return stored_rows(self.draw(sizes), orientations)


def _add(sink: Sink, encoded: Encoded, rows: npt.NDArray[np.int64], draws: Draws) -> list[DecodeError | None]:
    """Gives samples that were read to the sink; returns an error or None for each."""
    errors = list(encoded.errors)
    if not any(errors):
        return sink.add(rows, encoded, draws)
    good = [row for row, error in enumerate(errors) if error is None]
    if good:
        for row, error in zip(good, sink.add(rows[good], encoded.take(good), draws.take(good)), strict=True):
            errors[row] = error
    return errors
