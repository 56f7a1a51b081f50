"""The helper process of the relays on a host: asks a Ray cluster for a service's servers, and tells them.

Relays connect to an abstract Unix socket, and get a JSON object whenever something has changed; see Note [Ray stays
outside]. The process ends at once if the socket is that of another one, and once all relays are gone.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import socket
import time
from typing import Any

from feeder.loader.fast.service_directory import peer_uid
from feeder.system.ray_cluster import cant_join, check_ray_address

_LOOK_S = 0.5
_ANSWER_S = 5.0
ALONE_S = 3.0


class Relays:
    """The relays of this user on this host, which connect and are told of the servers.

    Args:
        name: The name of the abstract socket.

    Raises:
        OSError: if the name is taken.
    """

    def __init__(self, name: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(f"\0{name}")
        self._listener.listen(256)
        self._listener.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._listener, select.POLLIN)
        self._connections: dict[int, socket.socket] = {}
        self._found = b""
        self._alone_since_s = time.monotonic()

    def tell(self, found: object) -> None:
        """Tells all of something that they do not know yet, also those that come later."""
        message = json.dumps(found).encode()
        if message != self._found:
            self._found = message
            for descriptor in list(self._connections):
                self._send(descriptor)

    def wait(self, wait_s: float) -> bool:
        """Adds and drops relays for some time, as they come and go; returns False once none was there for a while."""
        ends_s = time.monotonic() + wait_s
        while wait_s >= 0:
            for descriptor, _ in self._poll.poll(wait_s * 1000):
                if descriptor == self._listener.fileno():
                    self._accept()
                else:
                    self._drop(descriptor)  # a relay says nothing: it is gone
            wait_s = ends_s - time.monotonic()
        return bool(self._connections) or time.monotonic() - self._alone_since_s < ALONE_S

    def close(self) -> None:
        """Gives up the socket's name, and ends the connections."""
        for connection in (self._listener, *self._connections.values()):
            connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            if peer_uid(connection) != os.getuid():  # the token is for this user alone
                connection.close()
                return
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)  # for thousands of servers
            self._connections[connection.fileno()] = connection
            self._poll.register(connection, select.POLLIN)
            if self._found:
                self._send(connection.fileno())

    def _send(self, descriptor: int) -> None:
        try:
            self._connections[descriptor].send(self._found, socket.MSG_NOSIGNAL)
        except OSError:
            self._drop(descriptor)  # it connects again

    def _drop(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        self._connections.pop(descriptor).close()
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
    except (ModuleNotFoundError, ConnectionError, RuntimeError, ValueError) as error:
        missing = "the package ray is missing: pip install 'feeder-data[ray]'"
        relays.tell({"problem": missing if isinstance(error, ModuleNotFoundError) else cant_join(address, error)})
        relays.wait(ALONE_S)
        return
    known: dict[str, Any] = {}
    while relays.wait(_LOOK_S):
        try:
            registry = ray.get_actor(registry_name(name), NAMESPACE)
            found = ray.get(registry.directory.remote(), timeout=_ANSWER_S)
            known = {key: found[key] for key in ("token", "servers")}
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
