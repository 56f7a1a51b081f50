"""The meters that the stages of a pipeline write: counts, bytes, times, histograms. Needs no torch.

Note [Meters]
    A meter is a row of int64 words that one process writes; it is in shared memory where another process reads it. For
    each stage it has the number of runs, the bytes, the total and the longest time, and a histogram of the times with
    four buckets per octave, so that percentiles are right within an eighth. Sums over parts of batches follow. Words
    are read and written whole; a reader may see a count without its time, which does no harm. A worker's successor goes
    on with the same row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from feeder.system.arrays import Float64s, Int64s

# docs/loading.md explains the names, under "Statistics".
STAGES = (
    "read",
    "draw",
    "cut",
    "decode",
    "transform",
    "fetch",
    "collate",
    "write",
    "wait_slot",
    "wait_batch",
    "copy",
    "consumer",
)

_SMALLEST_BITS = 10  # times below 1 us share a bucket
_LARGEST_BITS = 38  # and so do those above 137 s
_BUCKETS = 2 + 4 * (_LARGEST_BITS - _SMALLEST_BITS)
_COUNT, _BYTES, _TOTAL, LONGEST, _FIRST_BUCKET = range(5)
STAGE_WORDS = _FIRST_BUCKET + _BUCKETS
_ALL_STAGES = len(STAGES) * STAGE_WORDS
METER_WORDS = _ALL_STAGES + 2  # the sums over parts: their number, and the time that they took in all
_DECODING = ("draw", "cut", "decode", "transform")
_BESIDE = ("read", "fetch", "collate", "write")  # the other stages of a part
_AT = {name: k * STAGE_WORDS for k, name in enumerate(STAGES)}


def stage_at(stage: str) -> int:
    """Returns the number of a stage's first word in a meter."""
    return _AT[stage]


def stage_rows(words: Int64s) -> Int64s:
    """Returns the stages of meters, int64 [..., METER_WORDS]: int64 [K, stages, STAGE_WORDS]."""
    return words.reshape(-1, METER_WORDS)[:, :_ALL_STAGES].reshape(-1, len(STAGES), STAGE_WORDS)


def part_sums(words: Int64s) -> dict[str, int]:
    """Returns the sums over parts of workers' meters, int64 [..., METER_WORDS], by name."""
    sums = words.reshape(-1, METER_WORDS).sum(axis=0)
    parts, busy_ns = sums[_ALL_STAGES:].tolist()
    stages = dict(zip(STAGES, stage_rows(sums)[0].tolist(), strict=True))
    read, decode_ns = stages["read"], sum(stages[name][_TOTAL] for name in _DECODING)
    others_ns = sum(stages[name][_TOTAL] for name in _BESIDE)
    return {
        "parts": parts,
        "read_ns": read[_TOTAL],
        "decode_ns": max(0, min(decode_ns, busy_ns - others_ns)),  # several threads may decode at a time
        "busy_ns": busy_ns,
        "encoded_bytes": read[_BYTES],
    }


def bucket_of(time_ns: int) -> int:
    """Returns the histogram's bucket for a time."""
    bits = time_ns.bit_length()
    if bits <= _SMALLEST_BITS:
        return 0
    if bits > _LARGEST_BITS:
        return _BUCKETS - 1
    return 1 + 4 * (bits - 1 - _SMALLEST_BITS) + ((time_ns >> (bits - 3)) & 3)


def bucket_ns() -> Float64s:
    """Returns the time in the middle of each bucket: float64 [buckets], nanoseconds."""
    octave, quarter = np.divmod(np.arange(_BUCKETS - 2), 4)
    middles = 2.0 ** (octave + _SMALLEST_BITS) * (1.125 + 0.25 * quarter)
    return np.concatenate([[2.0 ** (_SMALLEST_BITS - 1)], middles, [2.0**_LARGEST_BITS]])


class Meter:
    """The meter of one writer; see Note [Meters].

    Args:
        words: int64 [METER_WORDS], zeros at first; None: ordinary memory.
    """

    def __init__(self, words: Int64s | None = None) -> None:
        self.words: Int64s = np.zeros(METER_WORDS, np.int64) if words is None else words
        self._numbers: Any = memoryview(self.words)  # type: ignore[arg-type]  # an access takes a third of numpy's time

    def add(self, stage: str, time_ns: int, size_bytes: int = 0) -> None:
        """Adds one run of a stage, in about a microsecond."""
        numbers, at = self._numbers, _AT[stage]
        numbers[at] += 1
        numbers[at + _BYTES] += size_bytes
        numbers[at + _TOTAL] += time_ns
        if time_ns > numbers[at + LONGEST]:
            numbers[at + LONGEST] = time_ns
        numbers[at + _FIRST_BUCKET + bucket_of(time_ns)] += 1

    def runs(self, stage: str) -> Int64s:
        """Returns a copy of a stage's words, for :meth:`lengthen`."""
        found: Int64s = self.words[_AT[stage] :][:STAGE_WORDS].copy()
        return found

    def lengthen(self, stage: str, before: Int64s, time_ns: int) -> None:
        """Adds time to the runs of a stage since ``before``; each of them gets the same time in all."""
        row = self.words[_AT[stage] :][:STAGE_WORDS]
        count = int(row[_COUNT] - before[_COUNT])
        row[_TOTAL] += time_ns
        each_ns = int(row[_TOTAL] - before[_TOTAL]) // max(count, 1)
        row[LONGEST] = max(int(before[LONGEST]), each_ns)
        row[_FIRST_BUCKET:] = before[_FIRST_BUCKET:]
        row[_FIRST_BUCKET + bucket_of(each_ns)] += count

    def add_part(self, busy_ns: int) -> None:
        """Adds a part of a batch, which took that time in all, to the sums."""
        self._numbers[_ALL_STAGES] += 1
        self._numbers[_ALL_STAGES + 1] += busy_ns

    def add_each(self, stage: str, times_ns: Int64s, size_bytes: int = 0) -> None:
        """Adds many runs of a stage.

        Args:
            stage: The stage's name.
            times_ns: int64 [N]; 0 for one that did not run.
            size_bytes: Bytes of all runs.
        """
        for time_ns in times_ns.tolist():
            if time_ns:
                self.add(stage, time_ns)
        self._numbers[_AT[stage] + _BYTES] += size_bytes

    def add_images(self, time_ns: int, images: int, size_bytes: int, spent_ns: Int64s | None) -> None:
        """Adds a call of a decoder, image by image if the decoder times each.

        Args:
            time_ns: Time of the call.
            images: Number of images.
            size_bytes: Bytes of the pixels.
            spent_ns: int64 [N, 3], see :class:`feeder.decoders.decoder.DecodeResult`.
        """
        if not images:
            return
        if spent_ns is None:
            spent_ns = np.zeros((images, 3), np.int64)
            spent_ns[:, 0] = max(1, time_ns // images)
        last = int(np.flatnonzero(spent_ns.any(axis=0))[-1]) if spent_ns.any() else 0  # the stage that has the pixels
        for column, stage in enumerate(("decode", "transform", "write")):
            self.add_each(stage, spent_ns[:, column], size_bytes if column == last else 0)
