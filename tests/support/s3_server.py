"""An S3 server on 127.0.0.1: Ceph's own gateway over one in-memory OSD or, where Ceph is not installed, moto's.

``python -m tests.support.s3_server`` runs one for several runners of tests: see :class:`SharedS3Server`.
"""

from __future__ import annotations

import fcntl
import functools
import json
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support import ROOT
from tests.support.daemons import Daemon, answers, free_port

__all__ = ["ACCESS_KEY", "REGION", "SECRET_KEY", "S3Server", "SharedS3Server", "ceph_is_installed"]

ACCESS_KEY, SECRET_KEY, REGION = "TESTKEY", "TESTSECRET", "us-east-1"
_PROGRAMS = ("ceph", "ceph-authtool", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin", "setpriv")

_CONF = """
[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{mon}
mon initial members = a
public addr = 127.0.0.1
# radosgw does not start without authentication.
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
auth allow insecure global id reclaim = true
keyring = {folder}/keyring
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd crush chooseleaf type = 0
mon allow pool size one = true
mon max pg per osd = 2000
mon data avail crit = 1
paxos propose interval = 0.05
run dir = {folder}
log file = {folder}/$name.log
mon cluster log file = {folder}/cluster.log
admin socket = {folder}/$name.asok
[mon.a]
mon data = {folder}/mon
[osd.0]
osd data = {folder}/osd
osd objectstore = memstore
memstore device bytes = {memory_bytes}
osd memory target = 939524096
[client.rgw.a]
rgw frontends = beast endpoint=127.0.0.1:{port}
rgw data = {folder}/rgw
# What is deleted leaves the memory soon.
rgw gc obj min wait = 1
rgw gc processor period = 5
"""


def ceph_is_installed() -> bool:
    """True if there is all that a gateway of Ceph's needs."""
    return all(map(shutil.which, _PROGRAMS))


class S3Server:
    """An S3 server with one user, on plain HTTP.

    Args:
        folder: An empty folder, for what the server writes.
        memory_bytes: Most that its objects may take.
        ceph: False takes moto's server, which starts sooner.

    Attributes:
        is_real: True for Ceph's gateway, False for moto's server.
        endpoint: Its URL, "http://127.0.0.1:PORT".
        port: Its TCP port.
        admin: The command by which the gateway is administered, of Ceph's alone.
    """

    admin: Sequence[str] = ()

    def __init__(self, folder: Path, *, memory_bytes: int = 2 << 30, ceph: bool = True) -> None:
        self._daemons: list[Daemon] = []
        self.is_real = ceph and ceph_is_installed()
        self.port = free_port(3)
        self.endpoint = f"http://127.0.0.1:{self.port}"
        try:
            if self.is_real:
                self._start_ceph(folder, memory_bytes)
            else:
                command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
                self._start(command, folder / "moto.out").wait_until(lambda: answers(self.port))
        except BaseException:
            self.close()
            raise

    def _start(self, command: list[str], log: Path) -> Daemon:
        self._daemons.append(Daemon(command, log))
        return self._daemons[-1]

    def _start_ceph(self, folder: Path, memory_bytes: int) -> None:
        for name in ("mon", "osd", "rgw"):
            (folder / name).mkdir()
        fsid, osd = str(uuid.uuid4()), str(uuid.uuid4())
        values = {"fsid": fsid, "folder": folder, "port": self.port, "mon": self.port + 1, "memory_bytes": memory_bytes}
        (folder / "ceph.conf").write_text(_CONF.format(**values))
        conf, keyring = ["-c", str(folder / "ceph.conf")], str(folder / "keyring")

        rights = {
            "mon.": ["mon", "allow *"],
            "client.admin": ["mon", "allow *", "osd", "allow *", "mgr", "allow *"],
            "osd.0": ["mon", "allow profile osd", "osd", "allow *"],
            "client.rgw.a": ["mon", "allow rw", "osd", "allow rwx"],
        }
        for name, given in rights.items():
            caps = [word for kind, what in zip(given[::2], given[1::2], strict=True) for word in ("--cap", kind, what)]
            create = ["--create-keyring"] if name == "mon." else []
            _run("ceph-authtool", *create, keyring, "--gen-key", "-n", name, *caps)
        places = f"[v2:127.0.0.1:{self.port + 1},v1:127.0.0.1:{self.port + 2}]"
        monmap = str(folder / "monmap")
        _run("monmaptool", "--create", "--addv", "a", places, "--fsid", fsid, monmap)
        _run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring, *conf)
        self._start(["ceph-mon", "-f", "-i", "a", *conf], folder / "mon.out").wait_until(lambda: answers(self.port + 1))
        _run("ceph", *conf, "auth", "import", "-i", keyring)
        _run("ceph", *conf, "osd", "new", osd)
        _run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd, *conf)
        _run("ceph", *conf, "osd", "crush", "add", "osd.0", "1.0", "root=default", "host=localhost")
        self._start(["ceph-osd", "-f", "-i", "0", *conf], folder / "osd.out")
        gateway = ["-n", "client.rgw.a", *conf]
        server = self._start(["radosgw", "-f", *gateway], folder / "rgw.out")
        server.wait_until(lambda: answers(self.port))
        self.admin = ["radosgw-admin", *gateway]
        _run(*self.admin, "user", "create", "--uid=test", "--display-name=test", *_keys(ACCESS_KEY, SECRET_KEY))

    def add_keys(self, access_key: str, secret_key: str) -> None:
        """Gives the user further keys; moto's server takes any."""
        if self.is_real:
            _run(*self.admin, "key", "create", "--uid=test", "--key-type=s3", *_keys(access_key, secret_key))

    @functools.cached_property
    def client(self) -> Any:
        """A client of boto3."""
        return self.client_of(self.endpoint)

    def client_of(self, endpoint: str) -> Any:
        """Returns a client of boto3 for a proxy before the server."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name=REGION,
            config=Config(s3={"addressing_style": "path"}),
        )

    def upload(self, folder: Path, bucket: str, prefix: str) -> int:
        """Writes the files of a folder below a prefix of a bucket, made if need be; returns their size, in bytes."""
        self.client.create_bucket(Bucket=bucket)
        paths = sorted(folder.iterdir())
        for path in paths:
            self.client.upload_file(str(path), bucket, f"{prefix}/{path.name}")
        return sum(path.stat().st_size for path in paths)

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """Returns the environment variables of clients.

        Args:
            endpoint: URL of a proxy before the server; None: the server itself.
        """
        return {
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
            "AWS_ALLOW_HTTP": "true",
        }

    def pids(self) -> list[int]:
        """Returns the ids of the server's processes."""
        return [daemon.pid for daemon in self._daemons]

    def close(self) -> None:
        """Ends the server's processes."""
        if "client" in self.__dict__:
            self.client.close()
        for daemon in reversed(self._daemons):
            daemon.close()


class SharedS3Server(S3Server):
    """The server of all runners that share a folder: the first one starts it, and it ends when the last one has.

    A server of its own would cost each runner a cluster that works all the time.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self._daemons: list[Daemon] = []
        with open(folder / "s3.lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                self._connection = socket.socket(socket.AF_UNIX)
                self._connection.connect(_name(folder))
                told = self._connection.recv(_TOLD_BYTES)
            except OSError:
                told = b""
            if not told:  # none has been started, or the last one has just ended
                self._connection.close()
                self._connection, its = socket.socketpair()
                command = ["setsid", "--fork", sys.executable, "-m", __name__, str(folder), str(its.fileno())]
                with its:  # not this process's child, which may end sooner
                    subprocess.run(command, check=True, cwd=ROOT, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)
                told = self._connection.recv(_TOLD_BYTES)
        self.port, self.is_real, self.admin = json.loads(told)
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Ends the server if no other runner has it."""
        super().close()
        self._connection.close()


_TOLD_BYTES = 4096


def _name(folder: Path) -> str:
    """Returns the server's address, a socket without a file."""
    return "\0" + f"feeder-tests-s3-{folder}"[-90:]


def _serve(folder: Path, first: int) -> None:
    """Runs a server until all runners that have connected are gone; the first one is already."""
    server = S3Server(Path(tempfile.mkdtemp(prefix="s3-", dir=folder)), memory_bytes=4 << 30)
    told = json.dumps([server.port, server.is_real, list(server.admin)]).encode()
    runners = [socket.socket(fileno=first)]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(_name(folder))
        listener.listen()
        runners[0].send(told)
        while runners:
            for ready in select.select([listener, *runners], [], [])[0]:
                if ready is listener:
                    runners.append(listener.accept()[0])
                    runners[-1].send(told)
                else:
                    runners.remove(ready)
                    ready.close()
    server.close()


def _run(*command: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr}")


def _keys(access_key: str, secret_key: str) -> list[str]:
    return [f"--access-key={access_key}", f"--secret-key={secret_key}"]


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), int(sys.argv[2]))
