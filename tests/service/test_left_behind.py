"""A process of the input service that is killed leaves nothing behind: no process, memory, descriptor or file."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import feeder
from feeder import transforms as T
from feeder.system.process_usage import process_tree
from tests.support import ROOT
from tests.support.processes import all_ended, wait_until
from tests.support.ray_cluster import RayCluster
from tests.support.service import ServiceServer
from tests.support.warm_python import WarmPython

_MARK = "FEEDER_TEST_LEFT_BEHIND"


class Held(NamedTuple):
    """Memory, sockets and descriptors of processes.

    Attributes:
        memory: Inodes of their shared memory.
        named: Paths of shared memory and of Unix sockets that would stay when they are killed.
        descriptors: Their number, by process.
    """

    memory: set[int]
    named: set[str]
    descriptors: dict[int, int]


class Marked:
    """Processes that were started with a mark in their environment, which those that they start have, too.

    Args:
        folder: A folder for the files that they make without being told where.

    Attributes:
        environment: Variables for the first ones.
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.environment = {_MARK: str(folder), "TMPDIR": str(folder), "XDG_RUNTIME_DIR": str(folder)}

    def pids(self) -> set[int]:
        """Those that run."""
        mark, found = f"{_MARK}={self.folder}".encode(), set()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    found.add(int(path.parts[2]))
        return found

    def held(self) -> Held:
        """Returns all that they have."""
        held = Held(set(), set(), {})
        paths = dict(line.split()[6:8] for line in Path("/proc/net/unix").read_text().splitlines() if " /" in line)
        for pid in self.pids():
            with contextlib.suppress(OSError):  # it has just ended
                for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                    _, _, _, _, number, *words = line.split()
                    if words and words[0].startswith("/memfd:feeder"):
                        held.memory.add(int(number))
                    elif len(words) == 1 and words[0].startswith("/dev/shm/"):  # else it is unlinked
                        held.named.add(words[0])
                count = 0
                for path in Path(f"/proc/{pid}/fd").iterdir():
                    name, inode = os.readlink(path), path.stat().st_ino
                    count += 1
                    if name.startswith("/memfd:feeder"):
                        held.memory.add(inode)
                    elif str(inode) in paths:
                        held.named.add(paths[str(inode)])
                held.descriptors[pid] = count
        return held


class Job:
    """A training process that runs an epoch whenever it is told to.

    Args:
        root: Folder of the sets.
        service: Its service.
        marked: Has its mark.

    Attributes:
        process: The process.
        relay: Id of its relay.
    """

    CODE = """
import hashlib, sys, feeder
from feeder import transforms as T
dataset = feeder.ShardDataset(sys.argv[1], transform=T.Compose([T.RandomResizedCrop(16)]))
loader = feeder.DataLoader(dataset, batch_size=8, shuffle=True, seed=0, service=feeder.Service(sys.argv[2], only=True))
for line in sys.stdin:
    digest = hashlib.sha256()
    loader.set_epoch(0)
    for images, labels in loader:
        digest.update(images.numpy())
        digest.update(labels.numpy())
    del images, labels
    print(digest.hexdigest(), loader.worker_pids()[-1], flush=True)
loader.close()
"""

    def __init__(self, root: Path, service: str, marked: Marked) -> None:
        self._root, self.relay = root, 0
        self.process = WarmPython(
            ["-c", self.CODE, root / "set", service],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **marked.environment},
        )

    def epoch(self) -> str:
        """Runs an epoch; returns its digest."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        digest, relay = self.process.stdout.readline().split()
        self.relay = int(relay)
        return digest

    def close(self) -> None:
        """Ends it, as scripts do."""
        with self.process:  # which closes its pipes, and waits for it
            pass


def kill(*pids: int) -> None:
    """Kills processes, and returns once they have ended."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert all_ended(list(pids))


@pytest.fixture(scope="module")
def expected(root: Path) -> str:
    """Digest of an epoch of this process."""
    dataset = feeder.ShardDataset(root / "set", transform=T.Compose([T.RandomResizedCrop(16)]))
    digest = hashlib.sha256()
    for images, labels in feeder.DataLoader(dataset, batch_size=8, shuffle=True):
        digest.update(images.numpy())
        digest.update(labels.numpy())
    return digest.hexdigest()


@pytest.fixture
def marked(tmp_path: Path) -> Iterator[Marked]:
    """Fails unless all is gone in the end."""
    made = Marked(tmp_path / "temporary")
    yield made
    wait_until(lambda: not made.pids())
    assert not list(made.folder.rglob("*"))


def has_no_more(now: Held, before: Held) -> bool:
    """True if there is as much memory as before, nothing has a name, and no process has more descriptors."""
    assert not now.named, now.named
    return len(now.memory) == len(before.memory) and all(
        count <= before.descriptors.get(pid, count) for pid, count in now.descriptors.items()
    )


@pytest.fixture
def server(root: Path, tmp_path: Path, marked: Marked) -> Iterator[ServiceServer]:
    folder = tmp_path / "service"
    folder.mkdir()
    made = ServiceServer(folder, root, environment=marked.environment, is_warm=False)
    yield made
    made.close()


@pytest.fixture
def job(root: Path, server: ServiceServer, marked: Marked, expected: str) -> Iterator[Job]:
    """A training process that has run an epoch."""
    made = Job(root, server.service, marked)
    assert made.epoch() == expected
    yield made
    made.close()


PARTS: dict[str, Callable[[ServiceServer, Job], int]] = {
    "relay": lambda server, job: job.relay,
    "relay's parent": lambda server, job: process_tree(job.process.pid)[1],
    "process that makes parts": lambda server, job: process_tree(server.process.pid)[2],
}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_a_service_that_is_killed_and_replaced(
    server: ServiceServer, job: Job, marked: Marked, expected: str, part: str
) -> None:
    before, pids = marked.held(), marked.pids()
    killed = PARTS[part](server, job)
    descendants = process_tree(killed)
    kill(killed)
    assert all_ended(descendants)
    assert job.epoch() == expected
    wait_until(lambda: server.status()["connections"] == 2)  # the relay's, and that which asks
    wait_until(lambda: len(marked.pids()) == len(pids) and has_no_more(marked.held(), before))


def test_a_server_that_is_killed(root: Path, server: ServiceServer, job: Job, marked: Marked, expected: str) -> None:
    before = marked.held()
    its = process_tree(server.process.pid)
    server.kill()
    assert all_ended(its)
    next_one = ServiceServer(server.path.parent, root, environment=marked.environment, is_warm=False)
    with contextlib.closing(next_one):
        os.replace(next_one.path, server.path)
        assert job.epoch() == expected
        wait_until(lambda: has_no_more(marked.held(), before))
    assert [path.name for path in server.path.parent.iterdir()] == [server.path.name]  # as others may have it by now


def test_a_trainer_that_is_killed(root: Path, server: ServiceServer, job: Job, marked: Marked, expected: str) -> None:
    job.close()
    wait_until(lambda: server.status()["connections"] == 1)  # that which asks
    before, pids = marked.held(), marked.pids()
    assert pids == set(process_tree(server.process.pid))
    other = Job(root, server.service, marked)
    assert other.epoch() == expected
    its = process_tree(other.process.pid)
    kill(other.process.pid)
    other.close()
    assert all_ended(its)
    wait_until(lambda: server.status()["connections"] == 1)
    wait_until(lambda: marked.pids() == pids and has_no_more(marked.held(), before))


@pytest.fixture
def cluster(root: Path, marked: Marked) -> Iterator[RayCluster]:
    """A cluster of a node with a mark, on which a service runs."""
    made = RayCluster()
    made.add_node(marked.environment)
    command = [sys.executable, "-m", "feeder", "serve", "--address", made.address, "--root", str(root), "--cpus", "1"]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    yield made
    made.close()


def running(marked: Marked, name: str) -> set[int]:
    """The processes with a mark that run a module, or an actor of Ray."""
    found = set()
    for pid in marked.pids():
        with contextlib.suppress(OSError):  # it has just ended
            if name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(pid)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["feeder.service.finder", "ray::NodeServer"])
def test_a_helper_or_a_server_of_ray_that_is_killed(
    root: Path, cluster: RayCluster, marked: Marked, expected: str, name: str
) -> None:
    """Ray's own processes come and go as they like."""
    job = Job(root, f"feeder@{cluster.address}", marked)
    assert job.epoch() == expected
    before = marked.held()
    (killed,) = running(marked, name)
    its = process_tree(killed)
    kill(killed)
    assert all_ended(its)
    assert job.epoch() == expected
    wait_until(lambda: running(marked, name))
    assert job.epoch() == expected
    wait_until(lambda: len(marked.held().memory) == len(before.memory))
    job.close()
    wait_until(lambda: not running(marked, "feeder.service.finder"))
    assert not list(marked.folder.rglob("*"))
