"""The driver's side of ``feeder shard --engine ray``: one task for each shard."""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, NoReturn

import ray
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)

from feeder.errors import ArgumentError, FeederError, ShardError, StoreError
from feeder.shard.source.source import Source
from feeder.shard.write.attempt import pickled_order, writer_versions
from feeder.shard.write.output_folder import OutputFolder
from feeder.shard.write.plan import ordered_ids
from feeder.shard.write.shard_engine import ShardEngine
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.shard_writer import ShardJob, WrittenShard
from feeder.shard.write.shared_output import FinishedAttempt, SharedOutput
from feeder.system.files import DISK_FULL
from feeder.system.progress import Progress
from feeder.system.ray_address import cant_join, check_ray_address

__all__ = ["open_ray"]

_TURN_S = 0.1
_NODES_S = 1.0  # between two looks at the cluster
_CANCEL_S = 5.0
_PATIENCE_S = 15.0  # without a free core, before that is noted
_REMOTE_CPUS = 0.25  # of a task that mostly waits for a store
_QUEUED = 2  # tasks for each that can run
_STRAGGLER = 2.0  # times the usual time
_MOST_CRASHES = 3  # of one shard
_MOST_FAILURES = 3
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
    if ray.is_initialized():
        yield functools.partial(_write_on_nodes, options)
        return

    address = options.address or "auto"
    if address.startswith("ray://"):
        raise ArgumentError(
            f"{address}: is for Ray's client, which can't run this; start feeder on a node of the cluster, or with "
            "`ray job submit`"
        )
    try:
        check_ray_address(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ShardError(
            f"{cant_join(address, error)}; start one with `ray start --head`, or give --address HOST:PORT"
        ) from None
    try:
        yield functools.partial(_write_on_nodes, options)
    finally:
        ray.shutdown()


def _write_on_nodes(
    options: ShardOptions, folder: OutputFolder, source: Source, jobs: Mapping[int, ShardJob], progress: Progress
) -> dict[int, WrittenShard]:
    """Writes shards on the nodes of the cluster; see :data:`ShardEngine`."""
    with folder.shared() as output:
        run = _Run(folder, output, source, jobs, progress, options)
        try:
            return run.run()
        except RayTaskError:  # a mistake of feeder's own, with the node's traceback
            raise
        except RayError as error:
            raise ShardError(f"the Ray cluster failed: {error}; nothing is lost: run the same command again") from error
        finally:
            run.cancel()


@dataclass
class _Shard:
    """A shard that is to be written.

    Attributes:
        number, job: The shard.
        shown: Samples and bytes, as told to the progress.
        crashed_nodes, failed_nodes: Ids of the nodes where attempts have ended.
    """

    number: int
    job: ShardJob
    shown: tuple[int, int] = (0, 0)
    crashed_nodes: list[str] = field(default_factory=list)
    failed_nodes: list[str] = field(default_factory=list)


@dataclass
class _Attempt:
    """A task that writes a shard.

    Attributes:
        shard: The shard.
        sent_bytes: Size of the order that it was sent.
        excluded: Ids of the nodes that it must not run on.
        node, address: Id and address of its node, once it runs.
        started_s: Time at which it was started there, by the monotonic clock.
    """

    shard: _Shard
    sent_bytes: int
    excluded: Set[str]
    node: str = ""
    address: str = ""
    started_s: float = 0.0


class _Run:
    """The tasks of one run."""

    def __init__(
        self,
        folder: OutputFolder,
        output: SharedOutput,
        source: Source,
        jobs: Mapping[int, ShardJob],
        progress: Progress,
        options: ShardOptions,
    ) -> None:
        self._folder = folder
        self._output = output
        self._source = source
        self._progress = progress
        self._options = options
        self._todo = collections.deque(_Shard(number, job) for number, job in jobs.items())
        self._written: dict[int, WrittenShard] = {}
        self._running: dict[Any, _Attempt] = {}  # by the generator of its messages
        self._cancelled: list[Any] = []
        self._refused: dict[str, str] = {}  # reason by node
        self._seconds: list[float] = []  # of finished shards
        self._nodes: dict[str, float] = {}  # cores by node
        self._looked_s = -_NODES_S
        self._began_s: float | None = time.monotonic()  # None once a task has started
        self._cpus = _REMOTE_CPUS if source.is_remote else 1.0
        self._expected = writer_versions()
        self._task = ray.remote(num_cpus=self._cpus, max_retries=0, num_returns="streaming")(_node_task())

    def run(self) -> dict[int, WrittenShard]:
        """Writes all shards, and returns their records.

        Raises:
            FeederError, OSError: for an error that other nodes would have, too.
        """
        while self._todo or self._running:
            self._look()
            while self._todo and self._has_room(_QUEUED):
                self._start(self._todo.popleft())
            self._double_stragglers()
            running = list(self._running)
            ray.wait(running, num_returns=1, timeout=_TURN_S)
            for generator in ray.wait(running, num_returns=len(running), timeout=0)[0]:
                if generator in self._running:  # else another attempt at the same shard has just come to its end
                    self._take(generator)
        return self._written

    def cancel(self) -> None:
        """Cancels what still runs. What a node does not end in time writes nothing that is seen: Note [Attempts]."""
        for generator in list(self._running):
            self._end(generator)
        if self._cancelled:
            ends = [generator.completed() for generator in self._cancelled]
            ray.wait(ends, num_returns=len(ends), timeout=_CANCEL_S)

    def _look(self) -> None:
        """Looks which nodes there are, if that was a while ago."""
        now = time.monotonic()
        if now - self._looked_s >= _NODES_S:
            self._looked_s = now
            self._nodes = self._nodes_now()
            if self._refused and self._nodes and not self._nodes.keys() - self._refused.keys():
                reasons = "; ".join(dict.fromkeys(self._refused.values()))
                raise ShardError(f"no node of the Ray cluster can write shards: {reasons}")
            self._free_stranded()
        if self._began_s is not None and now - self._began_s > _PATIENCE_S:
            self._began_s = None
            self._progress.note("no node of the Ray cluster has a free core yet; the run waits for one")

    def _nodes_now(self) -> dict[str, float]:
        """Returns the cores of the nodes that there are, by id."""
        return {
            node["NodeID"]: node["Resources"].get("CPU", 0.0)
            for node in ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU", 0.0) >= self._cpus
        }

    def _free_stranded(self) -> None:
        """Starts those tasks again that wait for a node, while all that they may run on are gone."""
        for generator, attempt in list(self._running.items()):
            if not attempt.node and self._nodes and not self._nodes.keys() - attempt.excluded:
                self._drop(generator)

    def _has_room(self, queued: int) -> bool:
        """Returns whether another task may start, with so many for each that can run at a time."""
        cores = sum(cores for node, cores in self._nodes.items() if node not in self._refused)
        most = self._options.workers or max(2, int(cores / self._cpus) * queued)
        sent_bytes = sum(attempt.sent_bytes for attempt in self._running.values())
        return len(self._running) < most and (sent_bytes < _MOST_SENT_BYTES or not self._running)

    def _start(self, shard: _Shard, *, without: str | None = None) -> None:
        """Starts an attempt at a shard.

        Args:
            shard: The shard.
            without: A node that it must not run on.
        """
        order = pickled_order(
            shard.job,
            self._source,
            ordered_ids(shard.job.positions, len(self._source.table), self._options),
            self._folder,
            self._output,
            raises_unreadable=not shard.failed_nodes,
        )
        excluded = {*self._refused, *shard.failed_nodes, *([without] if without else [])}
        if not self._nodes.keys() - excluded:  # there is none that it has not failed on
            excluded = {*self._refused}
        selector = {"ray.io/node-id": f"!in({','.join(sorted(excluded))})"} if excluded else {}
        task = self._task.options(label_selector=selector) if selector else self._task
        generator = task.remote(self._expected, order)
        self._running[generator] = _Attempt(shard, len(order), excluded)

    def _double_stragglers(self) -> None:
        """Has other nodes try the last shards, too, if they take much longer than the others did."""
        if self._todo or not self._seconds:
            return
        limit_s = _STRAGGLER * statistics.median(self._seconds)
        now = time.monotonic()
        for attempt in list(self._running.values()):
            is_late = attempt.started_s and now - attempt.started_s > limit_s
            is_alone = len(self._attempts(attempt.shard)) == 1
            others = self._nodes.keys() - {*self._refused, *attempt.shard.failed_nodes, attempt.node}
            if is_late and is_alone and others and self._has_room(1):
                self._start(attempt.shard, without=attempt.node)

    def _take(self, generator: Any) -> None:
        """Takes the next message of a task."""
        attempt = self._running[generator]
        shard = attempt.shard
        try:
            kind, content = ray.get(next(generator))
        except RayTaskError:
            raise
        except (RayError, StopIteration) as error:  # its node, its process or its result is lost
            self._lose(generator, error)
            return
        if kind == "started":
            attempt.node = content[0]
            attempt.address = content[1]
            attempt.started_s = time.monotonic()
            self._began_s = None
        elif kind == "advanced":
            self._show(shard, *content)
        elif kind == "written":
            self._finish(generator, content)
        elif kind == "refused":
            if attempt.node not in self._refused:
                self._refused[attempt.node] = f"node {attempt.address} is refused: {content}"
                self._progress.note(self._refused[attempt.node])
                self._source.notes.append(self._refused[attempt.node])
                self._looked_s = -_NODES_S
            self._drop(generator)
        else:
            self._fail(generator, content)

    def _finish(self, generator: Any, finished: FinishedAttempt) -> None:
        """Takes a finished shard, and ends the other attempt at it."""
        attempt = self._running.pop(generator)
        shard = attempt.shard
        self._seconds.append(time.monotonic() - attempt.started_s)
        self._folder.adopt(finished)
        self._written[shard.number] = finished.written
        for other in self._attempts(shard):
            self._end(other)

    def _lose(self, generator: Any, error: Exception) -> None:
        """Starts a lost task again: always, if its node is lost, and some times after anything else. The processes of a
        node may die before it does: those of nodes that are gone by now do not count."""
        attempt = self._running[generator]
        shard = attempt.shard
        if not isinstance(error, NodeDiedError | ObjectLostError):
            # The results of a process that dies after the first ones just end.
            is_crash = isinstance(error, WorkerCrashedError | OutOfMemoryError | StopIteration)
            what = "process that writes it has died" if is_crash else "task that writes it has failed"
            shard.crashed_nodes.append(attempt.node)
            self._nodes = self._nodes_now()
            crashes = sum(not node or node in self._nodes for node in shard.crashed_nodes)
            if crashes >= _MOST_CRASHES:
                raise ShardError(
                    f"{shard.job.name}: the {what} {crashes} times, the last time on node {attempt.address or '?'}: "
                    f"{str(error) or 'its results ended'}; nothing is lost: find the cause and run the same command "
                    "again"
                )
        self._drop(generator)

    def _fail(self, generator: Any, error: Exception) -> None:
        """Has another node try a shard after an error that may be its node's own; else raises the error."""
        attempt = self._running[generator]
        shard = attempt.shard
        may_pass = isinstance(error, StoreError) or (isinstance(error, OSError) and error.errno not in DISK_FULL)
        if may_pass:
            shard.failed_nodes.append(attempt.node)
            if len(shard.failed_nodes) < _MOST_FAILURES:
                self._drop(generator)
                return
        _raise_of(error, attempt.address)

    def _drop(self, generator: Any) -> None:
        """Forgets a task that has ended, and starts its shard again unless another one writes it."""
        shard = self._running.pop(generator).shard
        if not self._attempts(shard):
            self._todo.appendleft(shard)

    def _attempts(self, shard: _Shard) -> list[Any]:
        """Returns the tasks that write a shard."""
        return [generator for generator, attempt in self._running.items() if attempt.shard is shard]

    def _end(self, generator: Any) -> None:
        """Cancels a task, once it runs: Ray 2.60 ends the driver ("Tried to complete task that was not pending") if one
        is cancelled while it is sent to its node. Others write nothing that is seen: Note [Attempts]."""
        has_started = self._running.pop(generator).node or ray.wait([generator], timeout=0)[0]
        if has_started:
            ray.cancel(generator)
            self._cancelled.append(generator)

    def _show(self, shard: _Shard, samples: int, size_bytes: int) -> None:
        """Tells the progress what is new, as several attempts write the same samples."""
        before = shard.shown
        if samples > before[0]:
            shard.shown = (samples, size_bytes)
            self._progress.advance(samples - before[0], size_bytes - before[1])


def _raise_of(error: Exception, address: str) -> NoReturn:
    """Raises an error that a node has met, with the node's name."""
    if isinstance(error, OSError):
        raise OSError(error.errno, f"{error.strerror} (on node {address})", error.filename)
    assert isinstance(error, FeederError)
    raise type(error)(f"{error.args[0]} (on node {address})")


def _node_task() -> Callable[[Mapping[str, str], bytes], Iterator[tuple[str, Any]]]:
    """Returns the function that runs on the nodes. It is sent as code, as theirs may lack this feeder's modules."""

    def attempt(expected, pickled):  # type: ignore[no-untyped-def]
        import ray

        yield "started", (ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address())
        try:
            from feeder.shard.write.attempt import attempt_shard
        except ImportError as error:
            yield "refused", f"it does not have this version of feeder ({error})"
            return
        yield from attempt_shard(expected, pickled)

    return attempt
