"""Engines, which write the shards of a run: threads of this process, or the nodes of a cluster."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Protocol

from feeder.errors import ArgumentError
from feeder.shard.source.source import Source
from feeder.shard.write.options import ShardOptions
from feeder.shard.write.output_folder import OutputFolder
from feeder.shard.write.plan import ordered_ids
from feeder.shard.write.set_writer import index_path
from feeder.shard.write.shard_writer import ShardJob, WrittenShard, record_name, write_shard
from feeder.system.cores import cores
from feeder.system.progress import Progress
from feeder.system.quiet_ray import quiet_ray

__all__ = ["Engine", "LocalEngine", "open_engine"]

_REMOTE_WORKERS = 16


class Engine(Protocol):
    """Writes the shards of a run. All engines write the same bytes."""

    def write(
        self, folder: OutputFolder, source: Source, jobs: Mapping[int, ShardJob], progress: Progress
    ) -> dict[int, WrittenShard]:
        """Writes shards, and returns their records by the jobs' numbers.

        On an error or an interrupt those that are finished stay, and nothing half-written does.

        Args:
            folder: The folder.
            source: The source.
            jobs: The shards.
            progress: Is told of each sample; the caller begins and ends it.
        """


@contextlib.contextmanager
def open_engine(options: ShardOptions) -> Iterator[Engine]:
    """Opens the engine that the options name.

    Raises:
        ArgumentError: if its package is not installed.
        ShardError: if its cluster can't be reached.
    """
    if options.engine == "local":
        yield LocalEngine(options)
        return
    try:
        with quiet_ray():
            from feeder.shard.write.ray_engine import open_ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ArgumentError("engine 'ray' needs the package ray: pip install 'feeder-data[ray]'") from None
    with open_ray(options) as engine:
        yield engine


class _Stopped(Exception):
    """The run was interrupted, so an unfinished shard is dropped."""


class LocalEngine:
    """Threads of this process, each of which writes one shard.

    Args:
        options: Options for sharding.
    """

    def __init__(self, options: ShardOptions) -> None:
        self._options = options

    def write(
        self, folder: OutputFolder, source: Source, jobs: Mapping[int, ShardJob], progress: Progress
    ) -> dict[int, WrittenShard]:
        stop = threading.Event()
        advanced: collections.deque[int] = collections.deque()

        def advance(size_bytes: int) -> None:
            if stop.is_set():
                raise _Stopped
            advanced.append(size_bytes)

        def write_one(job: ShardJob) -> WrittenShard:
            ids = ordered_ids(job.positions, len(source.table), self._options)
            written = write_shard(job, source, ids, folder.path, folder.work, advance)
            # The record first: what a killed run leaves in a store is known by it.
            record = folder.part(record_name(job.name))
            folder.publish(record, index_path(folder.path, job.name), folder.file(job.name))
            return written

        def show() -> None:
            while advanced:
                progress.advance(1, advanced.popleft())

        written: dict[int, WrittenShard] = {}
        # One of them waits for the disk at any time; a store answers later.
        workers = self._options.workers or max(cores().usable + 1, _REMOTE_WORKERS * source.is_remote)
        pool = ThreadPoolExecutor(workers, thread_name_prefix="feeder-shard")
        try:
            todo = {pool.submit(write_one, job): number for number, job in jobs.items()}
            while todo:
                finished, _ = wait(todo, timeout=0.1, return_when=FIRST_COMPLETED)
                show()
                for future in finished:
                    written[todo.pop(future)] = future.result()
            show()
        finally:  # on an error or Ctrl-C the others drop their shards; nothing half-written stays
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
        return written
