"""A server on this machine, without Ray, for loaders that are given its file."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
from typing import Any

from feeder.errors import ArgumentError, ServiceError
from feeder.service.server import Server
from feeder.service.server_options import ServerOptions, is_any_address
from feeder.system.files import TEMPORARY_SUFFIX, open_regular

_MOST_BYTES = 1 << 20


def serve_file(path: str, options: ServerOptions, metrics_port: int | None) -> None:
    """Runs a server until the process is told to end by SIGTERM or SIGINT.

    Args:
        path: File that the server's address and token are written to, for its owner alone. ``service="file:PATH"`` is
            the service then. It is removed in the end.
        options: Options of the server.
        metrics_port: TCP port for Prometheus; None: none.

    Raises:
        ArgumentError: for a root that is none, or a host that stands for all addresses, or a file that is
            somebody else's.
        ServiceError: if the address can't be had, or the file can't be written.
    """
    host = options.host
    if is_any_address(host):
        raise ArgumentError(f"--host {host}: give the one address at which others reach this machine")
    _check_free(path)
    try:
        server = Server(options)
        for number in (signal.SIGTERM, signal.SIGINT):  # before anybody is told of the server, by the file
            signal.signal(number, lambda *_: server.stop())
        _write(path, {"token": options.token, "servers": [list(server.address)]})
    except OSError as error:
        raise ServiceError(f"can't serve on {host}, or write {path}: {error.strerror or error}") from None
    try:
        if metrics_port is not None:
            from feeder.service.metrics import serve_metrics

            serve_metrics(server.status, host, metrics_port)
        server.run()
    finally:
        with contextlib.suppress(OSError, ValueError):
            if _read(path)["token"] == options.token:  # else another server has taken its place
                os.unlink(path)


def directory_of(path: str) -> dict[str, Any]:
    """Returns the servers and the token that a server's file names.

    Raises:
        ServiceError: if it names none.
    """
    try:
        return _read(path)
    except (OSError, ValueError) as error:
        raise ServiceError(f"{path}: names no service: {error}") from None


def _check_free(path: str) -> None:
    """Raises ArgumentError if a file is there that no server has written."""
    try:
        _read(path)
    except FileNotFoundError:
        pass
    except (OSError, ValueError):
        raise ArgumentError(f"{path}: is no file of an input service; give another --file, or remove it") from None


def _read(path: str) -> dict[str, Any]:
    """Returns a server's file; raises ValueError for any other one."""
    with open(path, "rb", opener=open_regular) as file:
        found = json.loads(file.read(_MOST_BYTES))
    if not isinstance(found, dict) or found.keys() != {"token", "servers"}:
        raise ValueError("no file of an input service")
    return found


def _write(path: str, content: object) -> None:
    """Writes the file at once and whole, so that no loader reads a part of it."""
    temporary = f"{path}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(content, file)
    os.replace(temporary, path)
