"""The helper process of the relays on a host: asks a Ray cluster for a service's servers, and tells them.

Relays connect to an abstract Unix socket, and get a JSON object a line, one whenever something has changed; see Note
[Ray stays outside]. The process ends at once if the socket is that of another one, and once all relays are gone.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import socket
import threading
import time
from typing import Any

from feeder.loader.fast.service_directory import peer_uid
from feeder.system.ray_address import cant_join, check_ray_address

__all__ = ["ALONE_S", "Relays", "find", "main"]

_LOOK_S = 0.5
_ANSWER_S = 5.0
ALONE_S = 3.0


class Relays:
    """The relays of this user on this host, which connect and are told of the servers.

    Args:
        name: The name of the abstract socket.

    Attributes:
        are_told: Set once one was told something.
        are_gone: Set once all have been gone for a while.

    Raises:
        OSError: if the name is taken.
    """

    def __init__(self, name: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"\0{name}")
        self._listener.listen(256)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._connections: set[socket.socket] = set()
        self._line = b""
        self._lock = threading.Lock()
        self._alone_since_s = time.monotonic()
        self.are_told = threading.Event()
        self.are_gone = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def tell(self, found: object) -> None:
        """Tells all of something that they do not know yet, also those that come later."""
        line = json.dumps(found).encode() + b"\n"
        with self._lock:
            if line != self._line:
                self._line = line
                for connection in list(self._connections):
                    self._send(connection)

    def _serve(self) -> None:
        while not self.are_gone.is_set():
            for key, _ in self._selector.select(_LOOK_S):
                with self._lock:
                    if key.fileobj is self._listener:
                        self._accept()
                    else:
                        assert isinstance(key.fileobj, socket.socket)
                        self._drop(key.fileobj)  # a relay says nothing: it is gone
            if not self._connections and time.monotonic() - self._alone_since_s > ALONE_S:
                self._listener.close()
                self._selector.close()
                self.are_gone.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            if peer_uid(connection) != os.getuid():  # the token is for this user alone
                connection.close()
                return
            connection.setblocking(False)
            self._connections.add(connection)
            self._selector.register(connection, selectors.EVENT_READ)
            if self._line:
                self._send(connection)

    def _send(self, connection: socket.socket) -> None:
        try:
            if connection.send(self._line, socket.MSG_NOSIGNAL) == len(self._line):
                self.are_told.set()
                return
        except OSError:
            pass
        self._drop(connection)  # it connects again, and gets the whole line

    def _drop(self, connection: socket.socket) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._selector.unregister(connection)
            connection.close()
            self._alone_since_s = time.monotonic()


def find(name: str, address: str, relays: Relays) -> None:
    """Tells relays of the servers of a service, until they are gone or the cluster can't be joined.

    Args:
        name: Its name.
        address: The Ray cluster.
        relays: The relays.
    """
    try:
        import ray

        from feeder.service.actors import NAMESPACE, registry_name

        check_ray_address(address)
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except ModuleNotFoundError:
        relays.tell({"problem": "the package ray is missing: pip install 'feeder-data[ray]'"})
        relays.are_told.wait(ALONE_S)
        return
    except (ConnectionError, RuntimeError, ValueError) as error:
        relays.tell({"problem": cant_join(address, error)})
        relays.are_told.wait(ALONE_S)
        return
    known: Any = {}
    while not relays.are_gone.wait(_LOOK_S):
        try:
            registry = ray.get_actor(registry_name(name), NAMESPACE)
            known = ray.get(registry.directory.remote(), timeout=_ANSWER_S)
            relays.tell(known)
        except ValueError:
            relays.tell({"problem": f"there is no service {name!r} in the Ray cluster {address!r}"})
        except Exception as error:  # the registry or the head is gone for now
            relays.tell({**known, "problem": f"its registry does not answer: {type(error).__name__}"})


def main(name: str, address: str, place: str) -> None:
    """The process's main function, which never returns; ``place`` is the socket's name."""
    try:
        relays = Relays(place)
    except OSError:  # another helper has it
        os._exit(0)
    find(name, address, relays)
    os._exit(0)
