"""One part of a batch: read, draw, decode. The same in a worker process and in the caller's own. Needs no torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feeder.decode.registry import get_decoder
from feeder.errors import DecodeError
from feeder.meter import Meter
from feeder.order import substitute
from feeder.read import Encoded, Reader

if TYPE_CHECKING:
    from feeder.decode.base import Buffer, Decoder
    from feeder.transforms import Draws, Recipe

__all__ = ["Report", "Substitution", "Work"]

_SUBSTITUTES = 16


class Substitution(NamedTuple):
    """A bad sample that another took the place of.

    Attributes:
        position: Its position in the epoch.
        key: Its key.
        shard: The shard's file name; None for an unsharded image.
        offset_bytes: Where its image starts in the shard.
        reason: What is wrong with it.
        substitute: Id of the sample in its place.
    """

    position: int
    key: str | None
    shard: str | None
    offset_bytes: int | None
    reason: str
    substitute: int


@dataclass
class Report:
    """What making a part took and gave, besides pixels and labels.

    Attributes:
        fields: The further fields, each a list of one value a sample.
        substitutions: Bad samples and what stands in their place.
        read_ns: Time in reading, nanoseconds.
        decode_ns: Time in drawing, decoding and augmenting, nanoseconds.
        encoded_bytes: Size of the encoded images.
    """

    fields: list[list[Any]] = field(default_factory=list)
    substitutions: list[Substitution] = field(default_factory=list)
    read_ns: int = 0
    decode_ns: int = 0
    encoded_bytes: int = 0


@dataclass
class Work:
    """How to make samples; cheap to pickle.

    Args:
        reader: Where the encoded images come from.
        recipe: What is done to every image.
        backend: The decode backend's name; never "auto".
        fields: Names of the further fields.
        seed: Of the augmentation, 0 to 2**64-1.
        skip: Whether bad samples are replaced by substitutes, or raised.
        threads: Threads that the backend may use in this process.
        fidelity: "fast", or "exact" for pixels within a level of Pillow's.
    """

    reader: Reader
    recipe: Recipe
    backend: str
    fields: tuple[str, ...] = ()
    seed: int = 0
    skip: bool = False
    threads: int = 1
    fidelity: str = "fast"
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

    def run(
        self,
        epoch: int,
        positions: npt.NDArray[np.int64],
        ids: npt.NDArray[np.int64],
        images: npt.NDArray[Any],
        labels: npt.NDArray[np.int64],
        beat: Callable[[], None] = lambda: None,
    ) -> Report:
        """Makes N samples.

        Args:
            epoch: The epoch that the augmentation is drawn for.
            positions: int64 [N], positions in the epoch; they choose the substitutes of bad samples.
            ids: int64 [N], sample ids; they key the augmentation.
            images: [N, C, H, W] of the recipe's storage dtype; filled.
            labels: int64 [N]; filled.
            beat: Called between the steps, as a sign of life.

        Raises:
            DecodeError: for a bad sample, unless bad samples are skipped.
        """
        report = Report()
        errors = self._make(epoch, ids, images, labels, report, beat)
        if any(errors):
            ids = ids.copy()
            for row, error in enumerate(errors):
                if error is not None:
                    ids[row] = self._replace(error, epoch, int(positions[row]), row, images, labels, report, beat)
        report.fields = [[self.reader.field(i, name) for i in ids.tolist()] for name in self.fields]
        return report

    def samples(
        self, seed: int, ids: npt.NDArray[np.int64]
    ) -> tuple[list[npt.NDArray[Any]], npt.NDArray[np.int64], list[list[Any]]]:
        """Samples of whatever sizes, each [C, H, W] in memory of its own, with their labels and fields.

        Args:
            seed: Of the augmentation of this call; any integer.
            ids: int64 [N].

        Raises:
            DecodeError: for a bad sample.
        """
        encoded = self.reader.read(ids)
        images = []
        for row, i in enumerate(ids.tolist()):
            problem = _problem(encoded, row)
            if problem is None:
                one = slice(row, row + 1)
                draws = self.recipe.draw(seed % (1 << 64), 0, np.array([row]), encoded.sizes[one])
                image = np.empty((1, 3, *draws.output_size[0].tolist()), self.recipe.storage_dtype)
                found = self.decoder.decode(encoded.buffers[one], encoded.orientations[one], self.recipe, draws, image)
                problem = found[0]
                images.append(image[0])
            if problem is not None:
                raise self.reader.at(problem, i)
        return images, encoded.labels, [[self.reader.field(i, name) for i in ids.tolist()] for name in self.fields]

    def _make(
        self,
        epoch: int,
        ids: npt.NDArray[np.int64],
        images: npt.NDArray[Any],
        labels: npt.NDArray[np.int64],
        report: Report,
        beat: Callable[[], None],
    ) -> list[DecodeError | None]:
        started = time.perf_counter_ns()
        encoded = self.reader.read(ids)
        labels[:] = encoded.labels
        report.encoded_bytes += sum(map(len, encoded.buffers))
        read = time.perf_counter_ns()
        self.meter.add("read", read - started, sum(map(len, encoded.buffers)))
        beat()
        errors = [_problem(encoded, row) for row in range(len(ids))]
        good = [row for row, error in enumerate(errors) if error is None]
        if len(good) == len(ids):
            draws = self._drawn(epoch, ids, encoded.sizes)
            errors = self._decoded(encoded.buffers, encoded.orientations, draws, images)
        elif good:
            rows = np.array(good)
            part = np.empty((len(good), *images.shape[1:]), images.dtype)
            draws = self._drawn(epoch, ids[rows], encoded.sizes[rows])
            buffers = [encoded.buffers[row] for row in good]
            found = self._decoded(buffers, encoded.orientations[rows], draws, part)
            images[rows] = part
            for row, error in zip(good, found, strict=True):
                errors[row] = error
        report.read_ns += read - started
        report.decode_ns += time.perf_counter_ns() - read
        return [None if e is None else self.reader.at(e, int(i)) for e, i in zip(errors, ids, strict=True)]

    def _drawn(self, epoch: int, ids: npt.NDArray[np.int64], sizes: npt.NDArray[np.int32]) -> Draws:
        started = time.perf_counter_ns()
        draws = self.recipe.draw(self.seed, epoch, ids, sizes)
        self.meter.add("draw", time.perf_counter_ns() - started)
        return draws

    def _decoded(
        self,
        buffers: Sequence[Buffer],
        orientations: npt.NDArray[np.uint8],
        draws: Draws,
        images: npt.NDArray[Any],
    ) -> list[DecodeError | None]:
        started = time.perf_counter_ns()
        errors = self.decoder.decode(buffers, orientations, self.recipe, draws, images)
        self.meter.add_images(time.perf_counter_ns() - started, len(buffers), images.nbytes, self.decoder)
        return errors

    def _replace(
        self,
        error: DecodeError,
        epoch: int,
        position: int,
        row: int,
        images: npt.NDArray[Any],
        labels: npt.NDArray[np.int64],
        report: Report,
        beat: Callable[[], None],
    ) -> int:
        if not self.skip:
            raise error
        here = slice(row, row + 1)
        for attempt in range(_SUBSTITUTES):
            i = substitute(position, attempt, len(self.reader), self.seed, epoch)
            problem = self._make(epoch, np.array([i]), images[here], labels[here], report, beat)[0]
            if problem is None:
                where = error.key, error.shard, error.offset_bytes
                report.substitutions.append(Substitution(position, *where, error.reason, i))
                return i
        raise DecodeError(
            f"{error.reason}; {_SUBSTITUTES} substitutes could not be decoded either: check the dataset with "
            "`feeder inspect --verify`",
            key=error.key,
            shard=error.shard,
            offset_bytes=error.offset_bytes,
        )


def _problem(encoded: Encoded, row: int) -> DecodeError | None:
    if encoded.errors[row] is None and encoded.sizes[row].min() < 1:
        height, width = encoded.sizes[row].tolist()
        return DecodeError(f"the index gives its size as {width}x{height}; rebuild it with `feeder index`")
    return encoded.errors[row]
