"""The process that fetches one remote set into its mirror, for all its clients on this machine.

It imports no torch, and nothing is forked off it once it has used a store. See Note [Lives of fetchers] in ``link.py``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from feeder.errors import FeederError, NotFoundError, StoreError
from feeder.shard.cache.cache_folder import CacheFolder
from feeder.shard.cache.cached_file import CachedFile, Plan
from feeder.shard.cache.downloads import Downloads, Wait
from feeder.shard.cache.link import MESSAGE_BYTES, SOCKET, has_hung_up, socket_address
from feeder.shard.cache.listed_contents import LISTING, ListedContents
from feeder.shard.cache.places import MARK
from feeder.shard.cache.plans import begin_plan, extend_plan
from feeder.shard.cache.presence import blocks_of
from feeder.shard.cache.set_contents import SetContents
from feeder.shard.store.open_store import open_store
from feeder.shard.store.store import Store
from feeder.system.limit_errors import raise_file_limit

_IDLE_S = 60.0
_LOOK_S = 1.0
_BACKLOG = 256
_STACK_BYTES = 1 << 19
_INDEX_THREADS = 16

Want = Sequence[Any]


class _Client:
    """A connection, with what it has just asked for."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.leased: set[str] = set()
        self.options: tuple[int | None, float] | None = None  # budget and timeout, once it said hello
        self.plan: Plan | None = None
        self.waits: set[Wait] = set()  # the waits of the request that is being answered


class Fetcher:
    """Serves the clients of one mirror.

    Args:
        folder: The mirror's folder.
        store: The set's place.
        contents: Makes the set's contents for this fetcher.
        budget_bytes: Bytes that the cache may take until a client says so; None: what leaves 10 GiB of the disk free,
            or a tenth of a smaller one.
        identity: Digest of the credentials that it has, see :func:`feeder.shard.cache.places.identity`.
    """

    def __init__(
        self,
        folder: str,
        store: Store,
        contents: Callable[[Fetcher], SetContents | ListedContents],
        budget_bytes: int | None = None,
        identity: str = "",
    ) -> None:
        self.folder = folder
        self.store = store
        self._identity = identity
        self._listener: socket.socket | None = None
        self._is_ended = False
        self.cache = CacheFolder(folder, budget_bytes)
        store.has_answered = self.cache.used_bytes > 0  # it has answered an earlier fetcher
        self.downloads = Downloads(store, self.cache)
        self.contents = contents(self)
        self._threads = ThreadPoolExecutor(_INDEX_THREADS)
        self._served = threading.local()  # the client that a thread works for
        self._clients: set[_Client] = set()
        self._hits = self._waits = self._waited_ns = 0
        self._has_failed = False

    def need(self, wants: Sequence[Want], *, again: bool = False) -> None:
        """Returns when ranges of files are in the folder; see :meth:`feeder.shard.store.mirror.Mirror.need`."""
        if not wants:
            return
        ranges = self._blocks_of(wants)
        if again:
            for each in ranges:
                self.cache.doubt(*each)
            ranges = self._blocks_of(wants)
        client, wait = self._client, Wait()
        with self.cache.lock:
            if not self.is_wanted():
                raise StoreError(f"{self.store.url}: nobody needs it any more")
            if client is not None:
                client.waits.add(wait)
        try:
            timeout_s = client.options[1] if client is not None and client.options else self.store.timeout
            self.downloads.get(ranges, wait, timeout_s)
        finally:
            if client is not None:
                with self.cache.lock:
                    client.waits.discard(wait)

    def is_wanted(self) -> bool:
        """Returns False once the client that the calling thread works for is gone."""
        return self._client is None or self._client in self._clients

    def serve(self, listener: socket.socket) -> None:
        """Serves clients until there has been none for a while, or the last one left after an error: it may have been
        that of the credentials in this process's environment, and the next client can have others."""
        listener.settimeout(_LOOK_S)
        self._listener = listener
        idle_from = time.monotonic()
        while self._clients or time.monotonic() - idle_from < (0 if self._has_failed else _IDLE_S):
            try:
                channel, _ = listener.accept()
            except TimeoutError:
                channel = None
            if self._is_ended:
                if channel is not None:
                    channel.close()  # this client will find the next fetcher
                return
            if channel is not None:
                self.attend(channel)
            self._drop_gone()
            if self._clients:
                idle_from = time.monotonic()

    def attend(self, channel: socket.socket) -> None:
        """Starts a thread that serves a client until it closes its socket."""
        channel.settimeout(None)
        client = _Client(channel)
        with self.cache.lock:
            self._clients.add(client)
        threading.Thread(target=self._talk, args=(client,), daemon=True).start()

    def stats(self) -> dict[str, int]:
        """Returns counts since the fetcher was started, and the present size of the cache."""
        with self.cache.lock:
            counts = self.downloads.counts
            return {
                **dataclasses.asdict(counts),
                "bytes": counts.bytes + self.cache.whole_bytes,
                "retries": self.store.retries,
                "hits": self._hits,
                "waits": self._waits,
                "waited_ns": self._waited_ns,
                "cached_bytes": self.cache.used_bytes,
                "budget_bytes": self.cache.budget_bytes,
            }

    @property
    def _client(self) -> _Client | None:
        return getattr(self._served, "client", None)

    def _file(self, name: str) -> CachedFile:
        return self.cache.brought(name, self.contents.of(name))

    def _blocks_of(self, wants: Sequence[Want]) -> list[tuple[CachedFile, int, int]]:
        """Returns ranges as (file, first block, end); what has to be read for their files is fetched at once for
        all."""
        names, client = list(dict.fromkeys(name for name, _, _ in wants)), self._client

        def find(name: str) -> CachedFile:
            self._served.client = client
            return self._file(name)

        is_listed = isinstance(self.contents, ListedContents)  # then the store is not asked
        found = self._threads.map(find, names) if names[1:] and not is_listed else map(self._file, names)
        files = dict(zip(names, found, strict=True))
        return [(files[name], *blocks_of(start, min(end, files[name].record.size_bytes))) for name, start, end in wants]

    def _talk(self, client: _Client) -> None:
        self._served.client = client
        try:
            while data := client.channel.recv(MESSAGE_BYTES):
                answer: dict[str, Any] | None
                try:
                    answer = self._answer(client, json.loads(data))
                except FeederError as error:
                    self._has_failed |= client in self._clients  # else it was given up
                    answer = {"error": type(error).__name__, "text": str(error)}
                except Exception as error:
                    self._has_failed = True
                    traceback.print_exc()
                    answer = {"error": "StoreError", "text": f"{self.store.url}: the fetcher failed: {error!r}"}
                if answer is not None:
                    with contextlib.suppress(IndexError):
                        answer = answer | {"note": self.cache.notes.popleft()}
                    client.channel.send(json.dumps(answer).encode())
        except OSError:  # it is gone
            pass
        finally:
            self._drop(client)
            client.channel.close()

    def _drop_gone(self) -> None:
        """Drops clients that have closed their sockets, whatever is still fetched for them: a store may not answer for
        long, and nobody is to be kept waiting by clients that are gone."""
        for client in list(self._clients):
            if has_hung_up(client.channel):
                self._drop(client)

    def _drop(self, client: _Client) -> None:
        if client.options is not None:
            self._note_use()
        with self.cache.lock:
            self._lease(client, set())
            self._end_plan(client)
            self._clients.discard(client)
            self.downloads.give_up(client.waits)
            client.waits = set()

    def _answer(self, client: _Client, message: dict[str, Any]) -> dict[str, Any] | None:
        """Carries out a message; returns the answer, or None for a message without one."""
        self._hits += message.get("hits", 0)

        if client.leased and "need" not in message:  # it has opened what it asked for
            with self.cache.lock:
                self._lease(client, set())

        if "need" in message:
            started = time.monotonic_ns()
            with self.cache.lock:
                if client not in self._clients:  # it has just gone
                    return None
                names = {name for name, _, _ in message["need"]}
                # With those of its messages before, or what comes for one need would evict what came for it.
                self._lease(client, names | client.leased if message.get("goes_on") else names)
            self.need(message["need"], again=message["again"])
            self._waits += 1
            self._waited_ns += time.monotonic_ns() - started

        elif "sign" in message:
            if isinstance(self.contents, ListedContents):
                return self.contents.signed(message["sign"], MESSAGE_BYTES // 2)
        elif "came" in message:
            requests, size_bytes, waited_ns = message["came"]
            with self.cache.lock:
                self.downloads.counts.requests += requests
                self.downloads.counts.bytes += size_bytes
                self._waits += 1
                self._waited_ns += waited_ns
            return None

        elif "plan" in message:
            self._extend(client, **message["plan"])
        elif "begin" in message:
            with self.cache.lock:
                client.plan = begin_plan(self.cache, message["begin"])
        elif "end" in message:
            with self.cache.lock:
                self._end_plan(client)

        elif "refresh" in message:
            self.contents.forget()
            self.cache.begin_job()
            self._file(message["refresh"])
            for name in self.contents.replaced():
                with contextlib.suppress(NotFoundError):
                    self._file(name)

        elif "stats" in message:
            return self.stats()
        elif "hello" in message:
            return self._greet(client, **message["hello"])
        else:
            return None
        return {}

    def _greet(self, client: _Client, cache_bytes: int | None, timeout_s: float, identity: str) -> dict[str, Any]:
        """Notes a client's options; budget and timeout become the largest of all clients'."""
        with self.cache.lock:
            if identity != self._identity:
                answer = self._leave()
                if not answer["ended"]:
                    raise StoreError(
                        f"{self.store.url}: another job on this machine reads this set by other credentials or options "
                        "(the environment's, allow_http, allow_private), through the same cache, "
                        f"{self.folder}: name another cache_dir, or wait until that job has ended"
                    )
                return answer
            client.options = cache_bytes, timeout_s
            options = [other.options for other in self._clients if other.options is not None]
            budgets = [budget for budget, _ in options if budget is not None]
            self.cache.set_budget(max(budgets) if len(budgets) == len(options) else None)
            self.downloads.wake()  # there may be room now
            self.store.timeout = max(timeout for _, timeout in options)
        self._note_use()
        return {}

    def _note_use(self) -> None:
        """Notes the time, for whoever trims the cache."""
        with contextlib.suppress(OSError):
            os.utime(os.path.join(self.folder, MARK))

    def _leave(self) -> dict[str, Any]:
        """Ends this fetcher if it has no client; answers whether it does."""
        self._drop_gone()
        with self.cache.lock:
            is_free = all(client.options is None for client in self._clients)
            if is_free and self._listener is not None:
                self._is_ended = True
                with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as wake:
                    wake.setblocking(False)
                    wake.connect(self._listener.getsockname())
            return {"ended": is_free}

    def _extend(
        self,
        client: _Client,
        step: int,
        last_steps: Sequence[Sequence[Any]],
        ranges: Sequence[Want],
        *,
        is_first: bool = False,
    ) -> None:
        found = self._blocks_of(ranges)
        with self.cache.lock:
            if client.plan is None:  # it has just gone
                return
            extend_plan(self.cache, client.plan, step, last_steps)
            self.cache.trim()
            if is_first:
                self.downloads.begin(found)
                client.plan.first.extend(found)
            else:  # what comes as a whole is there already
                client.plan.ranges.extend(each for each in found if each[0].contents and not each[0].contents.fetch)
                self.downloads.wake()

    def _end_plan(self, client: _Client) -> None:
        if client.plan is not None:
            self.cache.plans.remove(client.plan)
            self.downloads.wake()
        client.plan = None

    def _lease(self, client: _Client, names: set[str]) -> None:
        """Keeps files in the cache that a client has asked for, until its next message: it has opened them by then."""
        leases = self.cache.leases
        leases.update(names)
        leases.subtract(client.leased)
        for name in client.leased:
            if not leases[name]:
                del leases[name]
        is_over = not client.leased <= names
        client.leased = names
        if is_over:  # there may be room now
            self.downloads.wake()


def main(folder: str, lock: int, options: dict[str, Any]) -> None:
    """The fetcher's main function.

    Args:
        folder: The mirror's folder.
        lock: Descriptor of its lock, which this process has been given.
        options: See :class:`feeder.shard.cache.cache_mirror.FetchOptions`.
    """

    def opened() -> tuple[Store, Callable[[Fetcher], SetContents | ListedContents]]:
        store = open_store(
            options["url"],
            allow_http=options["allow_http"],
            timeout=options["timeout_s"],
            allow_private=options["allow_private"],
        )
        if options["index"] == LISTING:
            return store, lambda _: ListedContents(store)
        return store, lambda fetcher: SetContents(store, fetcher.cache, options["index"], fetcher.is_wanted)

    become_fetcher(folder, lock, options, opened)


def become_fetcher(
    folder: str,
    lock: int,
    options: dict[str, Any],
    opened: Callable[[], tuple[Store, Callable[[Fetcher], SetContents | ListedContents]]],
) -> None:
    """Forks off the process that fetches, and ends this one.

    Args:
        folder: The mirror's folder.
        lock: Descriptor of its lock.
        options: The options.
        opened: Opens the set; called in that process.
    """
    if os.fork():
        os._exit(0)
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.set_inheritable(lock, False)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)  # for people
        threading.stack_size(_STACK_BYTES)
        raise_file_limit()  # each client takes one, and each download some

        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET, dir_fd=place)

        try:
            store, contents = opened()
            fetcher: Any = Fetcher(folder, store, contents, options["cache_bytes"], options["identity"])
        except FeederError as error:
            fetcher = error  # told to whoever asks first

        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(socket_address(place))
            listener.listen(_BACKLOG)
            if isinstance(fetcher, FeederError):
                _refuse(listener, fetcher)
            else:
                fetcher.serve(listener)

        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET, dir_fd=place)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(BaseException):
            sys.stderr.flush()
        os._exit(code)


def _refuse(listener: socket.socket, error: FeederError) -> None:
    """Tells the first client why there is no fetcher."""
    listener.settimeout(_IDLE_S)
    with contextlib.suppress(OSError):
        channel, _ = listener.accept()
        with channel:
            channel.recv(MESSAGE_BYTES)
            channel.send(json.dumps({"error": type(error).__name__, "text": str(error)}).encode())
