"""The driver's side of ``feeder shard --engine ray``: one task for each shard, which Ray tries again elsewhere."""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from feeder.errors import ArgumentError, FeederError, ShardError, StoreError
from feeder.shard.source.source import Source
from feeder.shard.write.attempt import pickled_job, writer_versions
from feeder.shard.write.output_folder import OutputFolder
from feeder.shard.write.plan import ordered_ids
from feeder.shard.write.shard_engine import ShardEngine
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.shard_writer import ShardJob, WrittenShard
from feeder.system.progress import Progress
from feeder.system.ray_cluster import joined_cluster

_REMOTE_CPUS = 0.25  # a task that mostly waits for a store takes so much of a core
_QUEUED = 2  # tasks for each that can run
_RETRIES = 20  # tries of a shard whose node is lost, or can't read or write a file
_MOST_SENT_BYTES = 1 << 30  # in tasks that have not ended


@contextlib.contextmanager
def open_ray(options: ShardOptions) -> Iterator[ShardEngine]:
    """Joins a cluster, unless this process has done so, and leaves it in the end.

    Args:
        options: Options for sharding, with the cluster's address.

    Raises:
        ArgumentError: for an address of Ray's client.
        ShardError: if the cluster can't be joined.
    """
    address = options.address or "auto"
    if address.startswith("ray://") and not ray.is_initialized():
        raise ArgumentError(
            f"{address}: is for Ray's client, which can't run this; start feeder on a node of the cluster, or with "
            "`ray job submit`"
        )
    with joined_cluster(address, ShardError):
        yield functools.partial(_write_on_nodes, options)


def _write_on_nodes(
    options: ShardOptions, folder: OutputFolder, source: Source, jobs: Mapping[int, ShardJob], progress: Progress
) -> dict[int, WrittenShard]:
    """Writes shards on the nodes of the cluster; see :data:`ShardEngine`. Tasks that are left by a run that has ended
    write nothing that is seen: Note [Attempts]."""
    cpus = _REMOTE_CPUS if source.is_remote else 1.0
    # A file that one node can't read or write may be that node's fault.
    tries: Any = {"max_retries": _RETRIES, "retry_exceptions": [OSError, StoreError]}
    task = ray.remote(num_cpus=cpus, **tries)(_node_task())
    todo = collections.deque(jobs.items())
    running: dict[Any, tuple[int, int, int]] = {}  # number of the shard, and bytes of its job and of its samples
    written: dict[int, WrittenShard] = {}

    with folder.shared() as output, _as_the_nodes_own():
        while todo or running:
            most = options.workers or max(2, int(ray.cluster_resources().get("CPU", 0.0) / cpus) * _QUEUED)
            while todo and len(running) < most:
                if running and sum(sent_bytes for _, sent_bytes, _ in running.values()) >= _MOST_SENT_BYTES:
                    break
                number, job = todo.popleft()
                ids = ordered_ids(job.positions, len(source.table), options)
                pickled = pickled_job(job, source, ids, folder, output)
                size_bytes = int(source.table.sizes()[ids].sum())
                running[task.remote(writer_versions(), pickled)] = number, len(pickled), size_bytes

            (done, *_), _ = ray.wait(list(running), num_returns=1)
            number, _, size_bytes = running.pop(done)
            written[number], files = ray.get(done)
            folder.adopt(written[number], files)
            progress.advance(len(jobs[number].positions), size_bytes)
    return written


@contextlib.contextmanager
def _as_the_nodes_own() -> Iterator[None]:
    """Raises errors that nodes have met as they were raised there."""
    try:
        yield
    except RayTaskError as failed:
        if isinstance(failed.cause, ImportError):
            raise ShardError(
                f"a node of the Ray cluster does not have this version of feeder ({failed.cause}); install it there"
            ) from None
        if not isinstance(failed.cause, FeederError | OSError):  # a mistake of feeder's own, with the node's traceback
            raise
        raise failed.cause from None
    except RayError as error:
        raise ShardError(f"the Ray cluster failed: {error}; nothing is lost: run the same command again") from error


def _node_task() -> Callable[[Mapping[str, str], bytes], Any]:
    """Returns the function that runs on the nodes. It is sent as code, as theirs may lack this feeder's modules."""

    def attempt(expected, pickled):  # type: ignore[no-untyped-def]
        import ray

        from feeder.shard.write.attempt import attempt_shard, with_node

        try:
            return attempt_shard(expected, pickled)
        except Exception as error:
            raise with_node(error, ray.util.get_node_ip_address()) from None

    return attempt
