"""The work of a server: which parts are made next, and who gets them."""

from __future__ import annotations

import hashlib
import selectors
from collections import OrderedDict
from typing import Any

from feeder.errors import ArgumentError
from feeder.loader.fast.work_json import check_work, size_from_json
from feeder.service.connection import Client
from feeder.service.frames import Kind, ProtocolError, whole
from feeder.service.makers import NUMBER_BYTES, KnownWork, Makers
from feeder.service.part_memory import PartMemory, Result, ResultWindow, WorkSize, memory_bytes
from feeder.service.part_queue import PartQueue, Task
from feeder.service.server_options import ServerOptions

_KNOWN_WORKS, _WORK_BYTES = 256, 256 << 20  # works that are kept while nobody uses them, and their bytes
_MOST_WORK_BYTES = 1 << 30  # the most bytes of all works
_EARLIER_JOBS = "(earlier jobs)"  # the name under which their counts are added up
_MOST_JOBS = 256  # jobs that are counted by name: in months a service has many
_COUNTED = ("parts", "images", "failed")


class Scheduler:
    """The tasks of all clients, and the processes that do them.

    Args:
        options: Options of the server.
        selector: Has the processes' sockets, with their numbers as data.

    Attributes:
        changed: Clients that there is something to send to.
    """

    def __init__(self, options: ServerOptions, selector: selectors.BaseSelector) -> None:
        # Twice a client's largest credit, as it may take some parts back.
        self._most_owed = 2 * (options.cores + max(2, options.cores // 2)) + 16
        self._job_cores = min(options.cores, options.job_cores or options.cores)
        self.memory = PartMemory(memory_bytes(options.window_bytes, options.cores))
        self._window = ResultWindow(options.window_bytes, self.memory)
        self._works: OrderedDict[str, KnownWork] = OrderedDict()
        self._queue = PartQueue(options.job_cores)
        self._tasks: dict[Any, Task] = {}
        here = {"roots": options.roots, "cache_dir": options.cache_dir, "modules": options.modules}
        self.makers = Makers(options.cores, here, self.memory, selector, self._end)
        self._counts: dict[str, dict[str, int]] = {}
        self._clients: dict[Client, None] = {}
        self.changed: set[Client] = set()

    def status(self) -> dict[str, Any]:
        """Returns counts as JSON takes them; for any thread. See :meth:`feeder.service.server.Server.status`."""
        queue = self._queue
        running = dict(queue.running)
        jobs = {
            name: counts | {"queue": queue.waiting(name), "busy": running.get(name, 0)}
            for name, counts in list(self._counts.items())
        }
        return {
            "busy": sum(running.values()),
            "queue": len(queue),
            "lost": self.makers.lost,
            "shared": self._window.hits,
            "jobs": jobs,
        }

    # Clients.

    def add(self, client: Client) -> None:
        """Adds a client, which has sent the token."""
        self._clients[client] = None

    def drop(self, client: Client) -> None:
        """Removes a client, whose connection has ended."""
        self._clients.pop(client, None)
        self.changed.discard(client)
        for number in list(client.parts):
            self.forget(client, number)

    def take_work(self, client: Client, data: bytes) -> None:
        """Accepts the work of a client, or refuses the client.

        Raises:
            ProtocolError: if it has some.
        """
        if client.wanted:
            raise ProtocolError("WORK a second time")
        digest = client.wanted = hashlib.blake2b(data, digest_size=32).hexdigest()
        work = self._works.get(digest)
        if work is None:
            try:
                check_work(data)
            except ArgumentError as error:
                self.refuse(client, str(error))
                return
            if sum(len(each.data) for each in self._works.values()) + len(data) > _MOST_WORK_BYTES:
                self.refuse(client, "it has no memory left for the work of other jobs; start another service")
                return
            work = self._works[digest] = KnownWork(data)
        self._works.move_to_end(digest)
        if work.size is not None:
            self._accept(client, digest)
            return
        task = Task(Kind.WORK, client.job, digest)
        task = self._tasks.setdefault(task.key, task)
        if not task.waiters:
            self._queue.add(task)
        task.waiters.append((client, -1))

    def refuse(self, client: Client, reason: str) -> None:
        """Tells a client why it is not served; its connection ends then."""
        client.sender.add(Kind.REFUSED, {"reason": reason[:2000]})
        client.is_refused = True
        self.changed.add(client)

    def _accept(self, client: Client, digest: str) -> None:
        client.digest = digest
        self._count(client.job)
        client.sender.add(Kind.ACCEPTED, self.credit(client))
        self.changed.add(client)

    def credit(self, client: Client) -> dict[str, int]:
        """Returns what a client may have unanswered: its share of the cores, and some for the way.

        Jobs of the same work have one share, as each part is made for all of them.
        """
        share = -(-self._job_cores // len({task.digest for task in self._tasks.values()} | {client.digest}))
        return {"credit": share + max(2, share // 2)}

    # Parts.

    def take_part(self, client: Client, message: dict[str, Any], numbers: bytes) -> None:
        """Queues the part that a client requests, or answers it at once.

        Raises:
            ArgumentError, ProtocolError: for one that is none.
        """
        number, epoch = whole(message["number"]), whole(message["epoch"])
        work = self._works.get(client.digest)
        if work is None or work.size is None or not numbers or len(numbers) % NUMBER_BYTES or epoch >= 1 << 32:
            raise ProtocolError("a part that can't be made")
        if client.is_known(number) or client.owed >= self._most_owed:
            raise ProtocolError("more parts than it has credit for")

        size = None if message.get("size") is None else size_from_json(message["size"])
        if (size is None) != (work.size.pixel_bytes == 0):
            raise ProtocolError("a part with a size that is none of its work")
        size_bytes = work.size.part_bytes(len(numbers) // NUMBER_BYTES, size)
        task = Task(Kind.PART, client.job, client.digest, epoch, numbers, size, size_bytes)

        if size_bytes > self.memory.size_bytes:
            reason = (
                f"a part takes {size_bytes >> 20} MiB, and this server has {self.memory.size_bytes >> 20} MiB for all: "
                "make batches or images smaller, or start the service with a larger --window"
            )
            self._fail(task, [(client, number)], {"error": reason})
            return

        task = self._tasks.setdefault(task.key, task)
        if any(waiter is client for waiter, _ in task.waiters):
            raise ProtocolError("a part that it has asked for already")

        if not task.waiters and not task.is_started:
            found = self._window.get(task.key)
            if found is not None and self._may_hold(task):
                del self._tasks[task.key]
                self._answer(client, number, found)
                return
            self._queue.add(task)

        task.waiters.append((client, number))
        client.parts[number] = task

    def forget(self, client: Client, number: int) -> None:
        """Removes a client from the part with this number, which it does not want any more."""
        task = client.parts.pop(number, None)
        if task is None:
            return
        task.waiters.remove((client, number))
        if not task.waiters and not task.is_started:
            self._queue.remove(task)
            del self._tasks[task.key]

    def give_out(self) -> None:
        """Gives idle processes the next tasks."""
        for number in self.makers.idle():
            while (task := self._queue.take(self._fits)) is not None:
                found = self._window.get(task.key)
                if found is not None:
                    self._finish(task, found)
                elif task.kind == Kind.PART and task.memory is None:
                    self._ended(task)
                    self._fail(task, task.waiters, {"error": "its machine has no memory left"})
                else:
                    self.makers.give(number, task, self._works[task.digest])
                    break
            else:
                return

    def tick(self) -> None:
        """Ends processes that hang, and forgets what nobody uses."""
        self.makers.kill_hung()
        self.memory.give_back()
        used = {client.wanted for client in self._clients} | {task.digest for task in self._tasks.values()}
        for digest in [digest for digest in self._works if digest not in used]:
            if len(self._works) > _KNOWN_WORKS or sum(len(each.data) for each in self._works.values()) > _WORK_BYTES:
                del self._works[digest]

    def close(self) -> None:
        """Ends the processes."""
        self.makers.end_all(0.0)
        self.memory.close()

    def _may_hold(self, task: Task) -> bool:
        """Returns True if a job may have another result on the way: the first, and those that fit its share of the
        memory, as if there were another job, which may come."""
        held = sum(client.held_bytes for client in self._clients if client.job == task.job)
        jobs = max(2, len({client.job for client in self._clients}))
        return not held or held + task.size_bytes <= self.memory.size_bytes // jobs

    def _fits(self, task: Task) -> bool:
        """Returns True if there is memory for a task, which it has then; and if there never will be, as it fails."""
        if task.kind == Kind.WORK:
            return True
        if not self._may_hold(task):
            return False
        while True:
            try:
                task.memory = self.memory.take(task.size_bytes)
            except OSError:
                self.memory.give_back(kept_s=0.0)
                if not self._window.drop_oldest():
                    return True
                continue
            if task.memory is not None or not self._window.drop_oldest():
                return task.memory is not None

    def _end(self, task: Task, kind: Kind, message: dict[str, Any], data: bytes) -> None:
        """Answers the clients that wait for a task, which a process has ended."""
        if task.kind == Kind.WORK:
            self._end_of_work(task, kind, message)
        elif kind == Kind.RESULT:
            assert task.memory is not None
            rows = len(task.numbers) // NUMBER_BYTES
            result = Result(data, task.memory, message["places"], rows)
            self._window.add(task.key, result)
            self._finish(task, result)
        else:
            self._ended(task)
            self._fail(task, task.waiters, message)

    def _finish(self, task: Task, result: Result) -> None:
        """Sends the result of a task to those who wait for it."""
        self._ended(task)
        for client, number in task.waiters:
            self._answer(client, number, result)
        self._release(task)

    def _ended(self, task: Task) -> None:
        self._queue.ended(task)
        del self._tasks[task.key]

    def _end_of_work(self, task: Task, kind: Kind, message: dict[str, Any]) -> None:
        self._ended(task)
        waiters = [client for client, _ in task.waiters if not client.is_closed]
        if kind == Kind.ACCEPTED:
            self._works[task.digest].size = WorkSize(*message["size"])
            for client in waiters:
                self._accept(client, task.digest)
        else:
            self._works.pop(task.digest, None)
            for client in waiters:
                self.refuse(client, str(message["error"]))

    def _answer(self, client: Client, number: int, result: Result) -> None:
        self._count(client.job, parts=1, images=result.rows)
        client.answer(number, result)
        self.changed.add(client)

    def _fail(self, task: Task, waiters: list[tuple[Client, int]], message: dict[str, Any]) -> None:
        """Tells clients that a part can't be made here."""
        self._release(task)
        for client, number in waiters:
            client.parts.pop(number, None)
            self._count(client.job, failed=1)
            client.sender.add(Kind.FAILED, message | {"number": number})
            self.changed.add(client)

    def _count(self, job: str, **numbers: int) -> None:
        """Adds to the counts of a job; those of the oldest are added up once there are many."""
        counts = self._counts.setdefault(job, dict.fromkeys(_COUNTED, 0))
        for name, number in numbers.items():
            counts[name] += number
        if len(self._counts) > _MOST_JOBS:
            oldest = next(name for name in self._counts if name != _EARLIER_JOBS)
            self._count(_EARLIER_JOBS, **self._counts.pop(oldest))

    def _release(self, task: Task) -> None:
        if task.memory is not None:
            self.memory.release(task.memory)
            task.memory = None
