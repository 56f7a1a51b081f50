"""A server refuses by name what it may not do, and survives peers that break its protocol."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import re
import resource
import selectors
import shutil
import socket
import urllib.request
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feeder
from feeder import fields as F
from feeder import transforms as T
from feeder.loader.fast import work_json
from feeder.loader.fast.sample_maker import Work
from feeder.loader.fast.work_json import set_to_json, work_to_json
from feeder.service.connection import Client
from feeder.service.frames import (
    CLIENT_LIMITS,
    HEAD,
    SERVER_LIMITS,
    Kind,
    ProtocolError,
    Receiver,
    pack_frame,
    peer_versions,
)
from feeder.service.part_memory import PartMemory
from feeder.service.scheduler import Scheduler
from feeder.service.server_options import ServerOptions
from feeder.tools.cli import main
from feeder.transforms.recipe_json import recipe_to_json
from tests.support.daemons import free_port
from tests.support.field_sets import members_set
from tests.support.loader_data import write_shards, write_tree
from tests.support.processes import wait_until
from tests.support.service import Peer, ServiceServer

RECIPE = T.Compose([T.RandomResizedCrop(16)])
LARGER = T.Compose([T.RandomResizedCrop(32)])
LARGE = recipe_to_json(T.Recipe.of(T.Compose([T.RandomResizedCrop(2048)])))


def work_of(path: Path, recipe: T.Compose = RECIPE) -> dict[str, Any]:
    dataset = feeder.ShardDataset(path, transform=recipe)
    return work_to_json(Work(dataset.reader, dataset.recipe, "cpu"))


def refusal(server: ServiceServer, work: Any) -> str:
    """The reason for which a server refuses some work."""
    peer = Peer(server)
    peer.hello()
    welcome = peer.next()
    assert welcome is not None
    assert welcome.kind == Kind.WELCOME
    peer.work(work)
    answer = peer.next()
    peer.close()
    assert answer is not None
    assert answer.kind == Kind.REFUSED, answer
    return str(answer.message["reason"])


def check_serves(server: ServiceServer, work: Any, numbers: bytes) -> bytes:
    """Fails unless a server makes a part; returns its arrays."""
    peer = Peer(server)
    peer.hello()
    peer.next()
    peer.work(work)
    answer = peer.next()
    assert answer is not None
    assert answer.kind == Kind.ACCEPTED, answer
    peer.send(Kind.PART, {"number": 7, "epoch": 0}, numbers)
    answer = peer.next()
    peer.close()
    assert answer is not None
    assert (answer.kind, answer.message["number"]) == (Kind.RESULT, 7)
    return b"".join(answer.payload)[answer.message["report"] :]


def numbers_of(count: int) -> bytes:
    return np.stack([np.arange(count), np.arange(count), np.zeros(count, int)]).astype(np.int64).tobytes()


def test_a_wrong_token_is_refused(server: ServiceServer) -> None:
    for token in ("", "0" * len(server.token), server.token + "0"):
        peer = Peer(server)
        peer.hello(token=token)
        answer = peer.next()
        assert answer is not None
        assert (answer.kind, answer.message) == (
            Kind.REFUSED,
            {"reason": "the token is not that of this service"},
        )
        assert peer.next() is None


@pytest.mark.parametrize("name", peer_versions())
def test_another_version_is_refused_by_name(server: ServiceServer, name: str) -> None:
    ours = peer_versions()
    peer = Peer(server)
    peer.hello(versions={**ours, name: "0.0.9"})
    answer = peer.next()
    assert answer is not None
    assert answer.kind == Kind.REFUSED
    assert answer.message["reason"].startswith(f"it has {name} {ours[name]} (the job has 0.0.9); install the same")


def test_nothing_is_done_before_the_token(server: ServiceServer) -> None:
    for kind in (Kind.WORK, Kind.PART, Kind.STATUS, Kind.HEARTBEAT):
        peer = Peer(server)
        peer.send(kind, {"work": {}, "number": 1, "epoch": 0})
        assert peer.next() is None


@pytest.mark.parametrize("kind", [Kind.WORK, Kind.PART, Kind.STATUS])
def test_the_head_of_what_may_not_come_before_the_token_ends_a_connection_at_once(kind: Kind) -> None:
    here, there = socket.socketpair()
    with contextlib.closing(PartMemory(1 << 20)) as memory, there:
        there.sendall(HEAD.pack(b"fd", kind, 2, CLIENT_LIMITS[kind][1]))
        unauthenticated = Client(here, "a peer", memory, is_local=True)
        with contextlib.closing(unauthenticated), pytest.raises(ProtocolError, match=f"a frame of kind {kind:d}"):
            list(unauthenticated.receiver.frames())


def test_work_may_follow_the_token_without_a_wait(server: ServiceServer, root: Path) -> None:
    peer = Peer(server)
    work = json.dumps(work_of(root / "set")).encode()
    hello = {"token": server.token, "versions": peer_versions(), "job": "test"}
    peer.connection.sendall(pack_frame(Kind.HELLO, hello) + pack_frame(Kind.WORK, {}, len(work)) + work)
    assert [answer.kind for answer in (peer.next(), peer.next()) if answer] == [Kind.WELCOME, Kind.ACCEPTED]
    peer.close()


def test_sets_outside_of_the_roots_are_refused(server: ServiceServer, root: Path, tmp_path: Path) -> None:
    write_shards(tmp_path / "outside", 16)
    os.symlink(tmp_path / "outside", root / "link")
    work = work_of(tmp_path / "outside")
    for path in (tmp_path / "outside", root / "link", root / ".." / ".." / "outside", Path("/")):
        work["set"]["path"] = str(path)
        assert "lies below no folder that the service was started for (--root)" in refusal(server, work)
    work["set"]["path"] = "s3://bucket/set"
    assert "lies below no URL" in refusal(server, work)


def test_a_folder_that_only_begins_like_a_root_is_outside(root: Path, tmp_path: Path) -> None:
    (tmp_path / "sets").mkdir()
    write_shards(tmp_path / "sets-of-others", 16)
    narrow = ServiceServer(tmp_path, tmp_path / "sets")
    assert "lies below no folder" in refusal(narrow, work_of(tmp_path / "sets-of-others"))
    narrow.close()


def test_a_set_that_differs_is_refused_by_name(server: ServiceServer, root: Path, tmp_path: Path) -> None:
    write_shards(tmp_path / "other", 16)
    work = work_of(tmp_path / "other")
    shutil.copytree(root / "bad", root / "other", dirs_exist_ok=True)
    work["set"]["path"] = str(root / "other" / "index.bin")
    assert "the set here is not the client's" in refusal(server, work)


def test_a_folder_with_other_files_under_the_same_names_is_refused_by_name(
    server: ServiceServer, root: Path, tmp_path: Path
) -> None:
    ours = write_tree(root / "files", 20)
    theirs = shutil.copytree(ours, tmp_path / "files")
    for path in sorted(theirs.rglob("*.png")):
        path.write_bytes(path.read_bytes() + b"more")
    dataset = feeder.FolderDataset(theirs, transform=RECIPE)
    work = work_to_json(Work(dataset.reader, dataset.recipe, "cpu"))
    work["set"]["path"] = str(ours)
    assert "the set here is not the client's" in refusal(server, work)
    shutil.copytree(theirs, ours, dirs_exist_ok=True)
    check_serves(server, work, numbers_of(4))


def test_the_sizes_of_some_files_stand_for_those_of_a_large_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_json, "SIZED_FILES", 5)
    folder = write_tree(tmp_path / "files", 9)
    reader: Any = feeder.FolderDataset(folder, transform=RECIPE).reader
    before, changed = set_to_json(reader), []
    for i in range(9):
        path = folder / reader.path(i)
        data = path.read_bytes()
        path.write_bytes(data + b"more")
        changed.append(set_to_json(reader) != before)
        path.write_bytes(data)
    assert changed == [True, False] * 4 + [True]
    (folder / reader.path(4)).unlink()
    assert set_to_json(reader) != before


def nested(depth: int) -> list[Any]:
    """A recipe with an op inside of so many others, as JSON."""
    op: Any = {"RandomHorizontalFlip": {"p": 0.5}}
    for _ in range(depth):
        op = {"RandomApply": {"transforms": [op], "p": 0.5}}
    return [op]


FLIP, ZOOM = nested(0)[0], {"RandomZoomOut": {"fill": [0, 0, 0], "side_range": [1.0, 4.0], "p": 0.5}}
HUGE: dict[str, tuple[Any, str]] = {
    "kernel": (
        [{"GaussianBlur": {"kernel_size": [999999999] * 2, "sigma": [0.1, 2.0]}}],
        "kernel_size of more than 511",
    ),
    "no number": ([{"GaussianBlur": {"kernel_size": [math.nan] * 2}}], "kernel_size of more than 511"),
    "ops": ([FLIP] * 257, "more than 256 ops"),
    "ops of an op": ([{"RandAugment": {"num_ops": 999}}], "more than 256 ops"),
    "ops of branches": ([{"AugMix": {"mixture_width": 20, "chain_depth": 20}}], "more than 256 ops"),
    "ops of views": ({"Views": [[FLIP] * 100] * 3}, "more than 256 ops"),
    "values": ([FLIP] * 100_000, "more than 65,536 values"),
    "depth": (nested(200), "ops more than 8 deep"),
    "size": ([{"Resize": {"size": [16385, 1]}}], "more than 16,384 pixels a side"),
    "size of an epoch": ([{"CenterCrop": {"size": {"ByEpoch": [[0, 9], [1, 1 << 40]]}}}], "more than 16,384 pixels"),
    "padding": ([{"Pad": {"padding": [5000, 0, 0, 0]}}] * 4, "more than 16,384 pixels a side"),
    "factors": ([ZOOM] * 3, "more than 16,384 pixels a side"),
}


@pytest.mark.parametrize(("recipe", "bound"), HUGE.values(), ids=HUGE)
def test_a_recipe_that_would_take_a_core_for_long_is_refused_before_it_has_one(
    root: Path, recipe: Any, bound: str
) -> None:
    work = work_of(root / "set")
    extras = work["extras"] | {"targets": [["mask.png", {"Image": {"draws": "own", "transform": recipe}}]]}
    with contextlib.closing(Scheduler(ServerOptions((str(root),), 1, ""), selectors.DefaultSelector())) as scheduler:
        for change in ({"recipe": recipe}, {"extras": extras}, {"sources": [["a", recipe]]}):
            mine, its = socket.socketpair()
            with mine, contextlib.closing(Client(its, "here", scheduler.memory, is_local=True)) as client:
                scheduler.take_work(client, json.dumps(work | change).encode())
                client.sender.flush()
                (frame,) = Receiver(mine, SERVER_LIMITS).frames(1)
                assert (frame.kind, scheduler.status()["queue"]) == (Kind.REFUSED, 0)
                assert bound in frame.message["reason"]


def test_functions_are_refused(server: ServiceServer, root: Path) -> None:
    work = work_of(root / "set")
    recipes: list[Any] = [[{"Lambda": {"function": "os:system"}}], [{"__import__": {}}], "os.system", [[]], None]
    for recipe in recipes:
        assert refusal(server, work | {"recipe": recipe})


@pytest.mark.parametrize(
    "change",
    [
        {"seed": -1},
        {"seed": "0"},
        {"left_out": base64.b64encode(np.arange(-1, 2).tobytes()).decode()},
        {"left_out": base64.b64encode(np.array([3, 3]).tobytes()).decode()},
        {"backend": "dali"},
        {"uint8": []},
        {"extras": {"sizes": False, "targets": [], "fields": [["pickle.pkl", None]]}},
        {"extras": []},
        {"largest": [0, 1]},
        {"pad": {}},
        {"set": []},
    ],
)
def test_damaged_work_is_refused(server: ServiceServer, root: Path, change: dict[str, Any]) -> None:
    assert refusal(server, work_of(root / "set") | change)


@pytest.mark.parametrize(
    "ids", [[64], [-1], [3, 1 << 62], np.zeros((1 << 22) + 1, np.int64)], ids=["end", "before", "far", "many"]
)
def test_a_subset_of_samples_that_there_are_not_is_refused(server: ServiceServer, root: Path, ids: Any) -> None:
    work = work_of(root / "set")
    packed = zlib.compress(np.diff(np.array(ids, np.int64), prepend=0).tobytes())
    for data in (packed, packed[:-5], b"none", zlib.compress(b"123")):
        sent = {"kind": "subset", "of": work["set"], "ids": base64.b64encode(data).decode()}
        assert "subset" in refusal(server, work | {"set": sent})


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        HEAD.pack(b"fd", Kind.HELLO, 1 << 31, 0),
        HEAD.pack(b"fd", Kind.HELLO, 2, 1 << 40),
        HEAD.pack(b"fd", 99, 2, 0) + b"{}",
        HEAD.pack(b"fd", Kind.RESULT, 2, 0) + b"{}",
        HEAD.pack(b"fd", Kind.HELLO, 2, 0) + b"[]",
        HEAD.pack(b"fd", Kind.HELLO, 2, 0) + b"}{",
        HEAD.pack(b"fd", Kind.HELLO, 4000, 0) + b"[" * 4000,
        HEAD.pack(b"fd", Kind.HELLO, 0, 0),
        HEAD.pack(b"fd", Kind.WORK, 2, 32 << 20) + b"{}",
    ],
)
def test_a_malformed_frame_costs_its_connection(server: ServiceServer, root: Path, data: bytes) -> None:
    peer = Peer(server)
    peer.connection.sendall(data)
    assert peer.next() is None
    assert len(check_serves(server, work_of(root / "set"), numbers_of(4))) == 4 * (8 + 3 * 16 * 16)


@pytest.mark.parametrize("job", ["", None, 1, ["a"], "\ud800", "a job \udcff"])
def test_a_name_of_a_job_that_is_none_costs_its_connection(server: ServiceServer, root: Path, job: Any) -> None:
    peer = Peer(server)
    peer.hello(job=job)
    assert peer.next() is None
    check_serves(server, work_of(root / "set"), numbers_of(4))


@pytest.mark.parametrize(
    ("message", "numbers"),
    [
        ({"number": 1, "epoch": 0}, b""),
        ({"number": 1, "epoch": 0}, b"x" * 25),
        ({"number": -1, "epoch": 0}, numbers_of(1)),
        ({"number": 1, "epoch": 1 << 33}, numbers_of(1)),
        ({"number": True, "epoch": 0}, numbers_of(1)),
        ({"epoch": 0}, numbers_of(1)),
    ],
)
def test_a_part_that_is_none_costs_its_connection(
    server: ServiceServer, root: Path, message: dict[str, Any], numbers: bytes
) -> None:
    peer = Peer(server)
    peer.hello()
    peer.next()
    peer.work(work_of(root / "set"))
    peer.next()
    peer.send(Kind.PART, message, numbers)
    assert peer.next() is None


def test_samples_that_there_are_not_fail_alone(server: ServiceServer, root: Path) -> None:
    peer = Peer(server)
    peer.hello()
    peer.next()
    peer.work(work_of(root / "set"))
    peer.next()
    for k, i in enumerate((-1, 64, 1 << 62, -(1 << 63))):
        numbers = np.array([0, i, 0], np.int64).tobytes()
        peer.send(Kind.PART, {"number": k, "epoch": 0}, numbers)
        answer = peer.next()
        assert answer is not None
        assert (answer.kind, answer.message["number"]) == (Kind.FAILED, k)
    peer.close()


def test_the_same_part_twice_at_a_time_costs_the_connection(server: ServiceServer, root: Path) -> None:
    work = work_of(root / "set") | {"seed": 97}
    peer = Peer(server)
    peer.ask(work)
    twice = [pack_frame(Kind.PART, {"number": k, "epoch": 0}, 4 * 24) + numbers_of(4) for k in range(2)]
    peer.connection.sendall(b"".join(twice))
    assert peer.next() is None
    check_serves(server, work, numbers_of(4))


def has_ended(peer: Peer) -> bool:
    """True if the server has ended a connection on which it has sent nothing."""
    try:
        return not peer.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_want_of_descriptors_costs_connections_and_never_a_server(root: Path, tmp_path: Path) -> None:
    work = work_of(root / "set")
    with contextlib.closing(ServiceServer(tmp_path, root)) as one:
        check_serves(one, work, numbers_of(4))
        taken = len(os.listdir(f"/proc/{one.process.pid}/fd"))
        resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, (taken + 8, taken + 8))
        known = [Peer(one) for _ in range(32)]
        for peer in known:
            with contextlib.suppress(OSError):  # the server has ended it
                peer.hello()
        wait_until(lambda: any(map(has_ended, known)))
        for peer in known:
            peer.close()
        check_serves(one, work, numbers_of(4))


def test_silent_peers_do_not_keep_others_out(server: ServiceServer, root: Path) -> None:
    before = server.status()["dropped"]
    silent = [Peer(server) for _ in range(80)]
    check_serves(server, work_of(root / "set"), numbers_of(4))
    assert silent[0].next() is None  # the one that has been silent for longest
    assert server.status()["dropped"] > before


def test_few_are_kept_who_have_not_said_the_token(server: ServiceServer) -> None:
    silent = [Peer(server) for _ in range(192)]
    assert server.status()["connections"] < len(silent) / 2


def test_no_more_is_taken_from_who_does_not_read_what_it_is_answered() -> None:
    here, there = socket.socketpair()
    with contextlib.closing(PartMemory(1 << 20)) as memory, there:
        client = Client(here, "a peer", memory, is_local=True)
        assert client.may_speak()
        client.sender.add(Kind.STATUS, {}, [memoryview(bytes(8 << 20))])
        client.flush()
        assert not client.may_speak()
        while not client.may_speak():
            assert there.recv(1 << 20)
            client.flush()
        client.close()


@pytest.mark.slow
def test_who_does_not_read_its_parts_loses_the_connection(server: ServiceServer, root: Path) -> None:
    before, work = server.status()["dropped"], work_of(root / "set") | {"recipe": LARGE}
    peer = Peer(server)
    peer.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
    peer.ask(work)
    peer.send(Kind.PART, {"number": 0, "epoch": 0}, numbers_of(4))
    while server.status()["dropped"] == before:
        with contextlib.suppress(OSError):
            peer.send(Kind.HEARTBEAT, {})


@pytest.mark.slow
def test_slow_peers_cost_their_connections(server: ServiceServer, root: Path) -> None:
    silent, slow = Peer(server), Peer(server)
    slow.connection.sendall(HEAD.pack(b"fd", Kind.HELLO, 2, 0))
    quiet = Peer(server)
    quiet.hello()
    check_serves(server, work_of(root / "set"), numbers_of(4))
    assert silent.next() is None
    assert slow.next() is None
    quiet.next(answers=False)
    assert quiet.next(answers=False) is None


def test_a_finished_part_is_shared_with_another_job(server: ServiceServer, root: Path) -> None:
    work, before = work_of(root / "set"), server.status()["shared"]
    first = check_serves(server, work | {"seed": 99}, numbers_of(8))
    assert check_serves(server, work | {"seed": 99}, numbers_of(8)) == first
    assert server.status()["shared"] == before + 1
    assert check_serves(server, work | {"seed": 98}, numbers_of(8)) != first


def test_the_file_is_for_its_owner_alone_and_goes_with_the_server(root: Path, tmp_path: Path) -> None:
    one = ServiceServer(tmp_path, root)
    assert one.path.stat().st_mode & 0o777 == 0o600
    assert set(json.loads(one.path.read_text())) == {"token", "servers"}
    one.close()
    assert not one.path.exists()


def test_an_address_that_nobody_can_connect_to_is_not_written_down(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["serve", "--root", str(root), "--cpus", "1", "--file", str(tmp_path / "file")]
    for host in ("0.0.0.0", "::"):
        assert main([*command, "--host", host]) != 0
        assert f"--host {host}: give the one address" in capsys.readouterr().err


def test_a_server_listens_on_ipv6(root: Path, tmp_path: Path) -> None:
    with contextlib.closing(ServiceServer(tmp_path, root, "--host", "::1", "--tcp-only")) as server:
        check_serves(server, work_of(root / "set"), numbers_of(4))
        one = feeder.DataLoader(
            feeder.ShardDataset(root / "set", transform=RECIPE),
            8,
            seed=0,
            service=feeder.Service(server.service, only=True),
        )
        assert len(list(one)) == 8
        one.close()


def test_a_file_of_something_else_is_left_alone(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.py"
    for content in ("import feeder", "[]", '{"token": ""}'):
        path.write_text(content)
        assert main(["serve", "--root", str(root), "--cpus", "1", "--file", str(path)]) != 0
        assert f"{path}: is no file of an input service" in capsys.readouterr().err
        assert path.read_text() == content


def test_a_server_leaves_the_file_of_its_successor(root: Path, tmp_path: Path) -> None:
    with contextlib.closing(ServiceServer(tmp_path, root)) as first:
        later = tmp_path / "later"
        later.mkdir()
        with contextlib.closing(ServiceServer(later, root)) as second:
            os.replace(second.path, first.path)
            first.close()
            assert json.loads(first.path.read_text())["token"] == second.token


def test_counts_are_served_to_prometheus(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    port = free_port()
    one = ServiceServer(tmp_path, root, "--metrics-port", str(port))
    check_serves(one, work_of(root / "set"), numbers_of(4))
    nameless = Peer(one)
    nameless.hello(job="\ud800")
    assert nameless.next() is None
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    one.close()
    assert 'feeder_service_job_images_total{job="test"} 4.0' in text
    assert "feeder_service_cores 1.0" in text


def test_the_state_of_a_server_and_its_jobs_is_shown(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = ServiceServer(tmp_path, root)
    check_serves(one, work_of(root / "set"), numbers_of(4))
    peer = Peer(one)
    peer.hello()
    assert main(["serve", "--status", "--file", str(one.path)]) == 0
    one.close()
    host, port = one.place
    node, job = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        rf"{host}:{port}: 0 of 1 core busy, 0 parts wait, 0 images/s, CPU \d+%, 0 parts shared, "
        "0 processes and 0 connections lost",
        node,
    )
    assert job == "  job test: 4 images, 0 parts in flight, 0 wait, 0 failed"


@pytest.mark.parametrize("text", ["", "[]", '{"servers": []}'])
def test_the_state_by_a_file_of_something_else_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "other.json").write_text(text)
    assert main(["serve", "--status", "--file", str(tmp_path / "other.json")]) != 0
    assert "other.json: names no service: " in capsys.readouterr().err


def test_work_that_ends_processes_does_not_end_the_server(root: Path, tmp_path: Path) -> None:
    module = "tests.support.ends_at_import"
    one = ServiceServer(tmp_path, root, "--allow-module", module)
    work = work_of(root / "set")
    for _ in range(8):
        assert (
            refusal(one, work | {"recipe": [{"Lambda": f"{module}:function"}]}) == "the process that made it has died"
        )
    check_serves(one, work, numbers_of(4))
    assert one.status()["lost"] == 8
    one.close()


def test_the_counts_of_jobs_that_are_gone_are_added_up(root: Path, tmp_path: Path) -> None:
    one, work, jobs = ServiceServer(tmp_path, root), work_of(root / "set"), 300
    for number in range(jobs):
        peer = Peer(one)
        peer.hello(job=f"job {number}")
        peer.next()
        peer.work(work)
        peer.next()
        peer.send(Kind.PART, {"number": 0, "epoch": 0}, numbers_of(1))
        peer.next()
        peer.close()
    found = one.status()["jobs"]
    assert len(found) <= 257
    assert f"job {jobs - 1}" in found
    assert sum(job["images"] for job in found.values()) == jobs
    one.close()


def test_a_size_that_the_recipe_does_not_make_costs_a_part_or_a_connection(server: ServiceServer, root: Path) -> None:
    recipe = T.Compose([T.RandomResizedCrop(T.ByEpoch({0: 16, 1: 20}))])
    dataset = feeder.ShardDataset(root / "set", transform=recipe)
    work = work_to_json(Work(dataset.reader, dataset.recipe, "cpu"))
    for value, size, expected in (
        (work, [16, 16], Kind.RESULT),
        (work, [16, 20], Kind.FAILED),
        (work, None, None),
        (work, [0, 16], None),
        (work, [1 << 20, 16], None),
        (work, [1 << 15, 1 << 15], Kind.FAILED),  # larger than all memory
        (work, "16", None),
        (work_of(root / "set"), [16, 16], None),
    ):
        peer = Peer(server)
        peer.hello()
        peer.next()
        peer.work(value)
        peer.next()
        peer.send(Kind.PART, {"number": 1, "epoch": 0} | ({} if size is None else {"size": size}), numbers_of(4))
        answer = peer.next()
        assert (None if answer is None else answer.kind) == expected, size
        peer.close()
    check_serves(server, work_of(root / "set"), numbers_of(4))


def test_padded_images_that_are_larger_than_their_batch_fail_alone(server: ServiceServer, root: Path) -> None:
    dataset = feeder.ShardDataset(root / "set", transform=T.Compose([T.Resize(12)]))
    made = Work(dataset.reader, dataset.recipe, "cpu", pad=feeder.PadToBatch(4), largest=(16, 16))
    peer = Peer(server)
    peer.hello()
    peer.next()
    peer.work(work_to_json(made))
    peer.next()
    for number, (size, kind) in enumerate((([12, 16], Kind.RESULT), ([4, 8], Kind.FAILED))):
        peer.send(Kind.PART, {"number": number, "epoch": 0, "size": size}, numbers_of(4))
        answer = peer.next()
        assert answer is not None
        assert (answer.kind, answer.message["number"]) == (kind, number)
    peer.close()


def test_a_tokenizer_outside_of_the_roots_or_another_one_is_refused(
    server: ServiceServer, root: Path, tmp_path: Path
) -> None:
    pytest.importorskip("tokenizers")
    from tests.support.tokenizer_files import word_tokenizer

    members_set(root / "texts", [{"txt": b"a cat"} for _ in range(8)])
    for path, message in (
        (tmp_path / "tokenizer.json", "lies below no folder"),
        (root / "tokenizer.json", "the tokenizer here is not the client's"),
    ):
        kinds = {"txt": F.Tokens(word_tokenizer(path), max_length=4)}
        dataset = feeder.ShardDataset(root / "texts", RECIPE, fields=kinds)
        work = work_to_json(Work(dataset.reader, dataset.recipe, "cpu", dataset.extras))
        word_tokenizer(path, direction="left")
        assert message in refusal(server, work)
