"""Engines, which write the shards of a run: threads of this process, or the nodes of a cluster."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

from feeder.shard.source.source import Source
from feeder.shard.write.output_folder import OutputFolder
from feeder.shard.write.plan import ordered_ids
from feeder.shard.write.set_writer import index_path
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.shard_writer import ShardJob, Stopped, WrittenShard, record_name, write_shard
from feeder.system.cores import cores
from feeder.system.progress import Progress

_REMOTE_WORKERS = 16


# Writes shards, and returns their records by the numbers of the jobs. All engines write the same bytes. On an error or
# an interrupt those that are finished stay, and nothing half-written does. The caller begins and ends the progress.
ShardEngine = Callable[[OutputFolder, Source, Mapping[int, ShardJob], Progress], dict[int, WrittenShard]]


def write_in_threads(
    options: ShardOptions, folder: OutputFolder, source: Source, jobs: Mapping[int, ShardJob], progress: Progress
) -> dict[int, WrittenShard]:
    """Writes shards in threads of this process, one shard in each; see :data:`ShardEngine`."""
    stop = threading.Event()
    advanced: collections.deque[int] = collections.deque()

    def advance(size_bytes: int) -> None:
        if stop.is_set():
            raise Stopped
        advanced.append(size_bytes)

    def write_one(job: ShardJob) -> WrittenShard:
        ids = ordered_ids(job.positions, len(source.table), options).tolist()
        written = write_shard(job, source, ids, folder.path, folder.work, advance)
        # The record first: what a killed run leaves in a store is known by it.
        record = folder.work_file(record_name(job.name))
        folder.publish(record, index_path(folder.path, job.name), folder.file(job.name))
        return written

    def show() -> None:
        while advanced:
            progress.advance(1, advanced.popleft())

    written: dict[int, WrittenShard] = {}
    # One of them waits for the disk at any time; a store answers later.
    workers = options.workers or max(cores().usable + 1, _REMOTE_WORKERS * source.is_remote)
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
