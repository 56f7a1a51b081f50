"""Options of a loader's input service. Needs no torch, and nothing of Ray."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

__all__ = ["DEFAULT_TIMEOUT_S", "RELAY_ROWS", "ServiceOptions", "job_name"]

RELAY_ROWS = 512  # parts that a relay has under way at most
_FILE = "file:"
DEFAULT_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class ServiceOptions:
    """Options of a loader's input service.

    Args:
        place: Name of the service; ``NAME@HOST:PORT`` for that of another Ray cluster than the one that Ray finds;
            ``file:PATH`` for servers that a JSON file names.
        only: True if no part may be made by this machine.
        timeout_s: With ``only``, longest wait for a server.
        local_workers: Number of the loader's own workers.
        job: Name of the job, which all of its loaders share.
    """

    place: str
    only: bool = False
    timeout_s: float = DEFAULT_TIMEOUT_S
    local_workers: int = 0
    job: str = ""

    @property
    def file(self) -> str | None:
        """Path of the file that names the servers; None for a service of Ray."""
        return self.place.removeprefix(_FILE) if self.place.startswith(_FILE) else None

    @property
    def name_and_address(self) -> tuple[str, str]:
        """Name of the service, and the Ray cluster's address."""
        name, _, address = self.place.partition("@")
        return name, address or "auto"


def job_name() -> str:
    """Returns a name for this process's job: one for all ranks, where torchrun or the like has started them, and
    another one for jobs of other machines."""
    run, host, port = (os.environ.get(name) for name in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"))
    if not host or not port:
        return f"{socket.gethostname()}:{os.getpid()}"
    if host in ("localhost", "::1") or host.startswith("127."):
        host = socket.gethostname()
    return f"{run or '-'}:{host}:{port}"
