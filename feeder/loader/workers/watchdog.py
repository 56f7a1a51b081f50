"""A worker's watch over its trainer: no worker outlives it, and the trainer sees every worker's end."""

from __future__ import annotations

import _thread
import os
import select
import socket
import time

from feeder.loader.workers.sockets import close_in_children

__all__ = ["end_with_trainer"]

_WATCH_MS = 1000


def end_with_trainer(connection: socket.socket, grace_s: float = 0.0) -> None:
    """Starts a thread that ends this process once the trainer is gone, even in the middle of a batch.

    Args:
        connection: To the trainer.
        grace_s: Seconds that the main thread gets to end by itself.
    """
    close_in_children(connection)
    # Not a threading.Thread: if the thread ends as it starts, for want of memory, Thread.start() waits for ever.
    _thread.start_new_thread(_watch, (connection.fileno(), os.getppid(), grace_s))


def _watch(descriptor: int, parent: int, grace_s: float) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    while not poll.poll(_WATCH_MS) and os.getppid() == parent:
        pass
    time.sleep(grace_s)
    os._exit(0)
