"""One attempt at writing a shard, in a process that may be on another machine."""

from __future__ import annotations

import functools
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import numpy as np

import feeder
from feeder.errors import FeederError
from feeder.shard.source.source import Source
from feeder.shard.write.output_folder import OutputFolder
from feeder.shard.write.shard_writer import ShardJob, Stopped, write_shard
from feeder.shard.write.shared_output import FinishedAttempt, SharedOutput
from feeder.system.versions import pillow_info

__all__ = ["attempt_shard", "pickled_order", "writer_versions"]

_REPORT_S = 1.0


class _Order(NamedTuple):
    """All that an attempt needs.

    Attributes:
        job: The shard.
        source: The source of its samples alone, in their order.
        contents: Containers of the source that others can't read, see :meth:`Source.take_out`.
        output: The place to write to.
        raises_unreadable: True to raise the error of a file that can't be read instead of rejecting its sample.
    """

    job: ShardJob
    source: Source
    contents: Mapping[int, bytes]
    output: SharedOutput
    raises_unreadable: bool


def pickled_order(
    job: ShardJob,
    source: Source,
    ids: Iterable[int],
    folder: OutputFolder,
    output: SharedOutput,
    *,
    raises_unreadable: bool,
) -> bytes:
    """Returns the order for an attempt at a shard, with the rows of its samples alone.

    Args:
        job: The shard.
        source: The source of all samples.
        ids: The shard's samples, in the order of its positions.
        folder: The output.
        output: The output as others see it.
        raises_unreadable: True to raise the error of a file that can't be read instead of rejecting its sample.
    """
    rows = source.rows(np.fromiter(ids, np.int64, len(job.positions)))
    contents = rows.take_out(folder.path) if folder.is_copy else {}
    return pickle.dumps(_Order(job, rows, contents, output, raises_unreadable), pickle.HIGHEST_PROTOCOL)


@functools.cache
def writer_versions() -> dict[str, str]:
    """Returns the versions that the bytes of a shard may depend on, by name."""
    pillow = pillow_info()
    try:
        from feeder._native import libjpeg_turbo

        kernels = f"libjpeg-turbo {libjpeg_turbo()[0]}"
    except ImportError:
        kernels = "none"
    return {
        "feeder": feeder.__version__,
        "Pillow": "none" if pillow is None else f"{pillow.distribution} {pillow.version}",
        "Pillow's libjpeg": "none" if pillow is None else pillow.libjpeg or "none",
        "the kernels' libjpeg": kernels,
    }


def attempt_shard(expected: Mapping[str, str], pickled: bytes) -> Iterator[tuple[str, Any]]:
    """Writes a shard.

    Args:
        expected: The driver's :func:`writer_versions`.
        pickled: The order, see :func:`pickled_order`. It is only read if the versions are the same.

    Yields:
        ("advanced", (samples, bytes)) again and again, with what is done so far; and at the end one of ("written",
        FinishedAttempt), ("failed", error) and ("refused", reason), if this machine can't take part.
    """
    found = writer_versions()
    differing = [
        f"{name} {version} (the driver has {expected[name]})"
        for name, version in found.items()
        if version != expected[name]
    ]
    if differing:
        yield "refused", f"it has {', '.join(differing)}; install the same versions there"
        return
    order: _Order = pickle.loads(pickled)
    missing = order.output.missing_path() or order.source.missing_path()
    if missing is not None:
        yield "refused", f"it does not have {missing}; all nodes must see source and output at the same paths"
        return
    stop = threading.Event()
    done = [0, 0]

    def advance(size_bytes: int) -> None:
        if stop.is_set():
            raise Stopped
        done[0] += 1
        done[1] += size_bytes

    with ThreadPoolExecutor(1) as pool:
        try:
            written = pool.submit(_write, order, advance)
            while not wait([written], timeout=_REPORT_S).done:
                yield "advanced", tuple(done)
        finally:
            stop.set()
    try:
        finished = written.result()
        yield "advanced", tuple(done)
        yield "written", finished
    except (FeederError, OSError) as error:
        yield "failed", error


def _write(order: _Order, advance: Callable[[int], None]) -> FinishedAttempt:
    source, count = order.source, len(order.job.positions)
    try:
        with order.output.attempt() as folder:
            source.put_back(order.contents, folder)
            written = write_shard(
                order.job, source, range(count), folder, folder, advance, raises_unreadable=order.raises_unreadable
            )
            return order.output.finish(folder, written)
    finally:
        source.close()
