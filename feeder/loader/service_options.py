"""Options of a loader's input service. Needs no torch, and nothing of Ray."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from feeder.errors import ArgumentError

RELAY_ROWS = 512  # parts that a relay has in flight at most
_FILE = "file:"
DEFAULT_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Service:
    """An input service, whose servers on other nodes make parts of batches: see :mod:`feeder.service`.

    Args:
        name: Its name. ``NAME@HOST:PORT`` names another Ray cluster than the one that Ray finds by itself;
            ``file:PATH`` takes the servers from the file that ``feeder serve --file`` keeps.
        only: True leaves all work to the service. The loader's ``timeout`` is then the longest wait for a server, by
            default 120 s, after which a :class:`feeder.ServiceError` follows.

    Raises:
        ArgumentError: for a name that is none.
    """

    name: str
    only: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or self.name in ("", _FILE):
            raise ArgumentError(f"service must be the name of an input service or a feeder.Service, got {self.name!r}")

    @property
    def file(self) -> str | None:
        """Path of the file that names the servers; None for a service of Ray."""
        return self.name.removeprefix(_FILE) if self.name.startswith(_FILE) else None

    @property
    def name_and_address(self) -> tuple[str, str]:
        """Name of the service, and the Ray cluster's address."""
        name, _, address = self.name.partition("@")
        return name, address or "auto"


@dataclass(frozen=True)
class ServiceOptions(Service):
    """An input service, with what a relay has to know of its loader.

    Args:
        timeout_s: With ``only``, longest wait for a server.
        local_workers: Number of the loader's own workers.
        job: Name of the job, which all of its loaders share.
    """

    timeout_s: float = DEFAULT_TIMEOUT_S
    local_workers: int = 0
    job: str = ""


def job_name() -> str:
    """Returns a name for this process's job: one for all ranks, where torchrun or the like has started them, and
    another one for jobs of other machines."""
    run, host, port = (os.environ.get(name) for name in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"))
    if not host or not port:
        return f"{socket.gethostname()}:{os.getpid()}"
    if host in ("localhost", "::1") or host.startswith("127."):
        host = socket.gethostname()
    return f"{run or '-'}:{host}:{port}"
