"""An epoch stays exact, whatever dies or stalls while a server makes parts of it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feeder
from feeder import transforms as T
from feeder.system.process_usage import process_tree
from tests.support import ROOT, held_parts
from tests.support.batches import check_same, copied_epoch
from tests.support.held_parts import HeldParts, held
from tests.support.link_proxy import LinkProxy
from tests.support.loader_data import write_shards
from tests.support.processes import all_ended, wait_until
from tests.support.service import ServiceServer, refusal
from tests.support.warm_python import WarmPython

RECIPE = T.Compose([T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.Lambda(held)])
ALLOWED = ("--allow-module", held_parts.__name__)
COUNTS = ("batches", "samples", "encoded_bytes", "clipped", "slow", "skipped")
WAYS = [{"num_workers": 0}, {"num_workers": 1}, {"only": True}]


def loader(root: Path, *, only: bool = False, **options: Any) -> Any:
    if only:
        options["service"] = feeder.Service(options["service"], only=True)
    dataset = feeder.ShardDataset(root / "set", transform=RECIPE)
    return feeder.DataLoader(dataset, batch_size=8, shuffle=True, seed=1, **options)


@pytest.fixture(scope="module")
def expected(root: Path) -> list[list[Any]]:
    """Three epochs of local workers."""
    one = loader(root, num_workers=1)
    return [copied_epoch(one) for _ in range(3)]


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[HeldParts]:
    made = HeldParts(tmp_path / "held")
    yield made
    made.close()


@pytest.fixture(params=[(), ("--tcp-only",)], ids=["same host", "tcp"])
def server(root: Path, tmp_path: Path, hold: HeldParts, request: pytest.FixtureRequest) -> Iterator[ServiceServer]:
    made = ServiceServer(tmp_path, root, *ALLOWED, *request.param, environment=hold.environment)
    yield made
    hold.release()
    made.close()


@pytest.fixture
def tcp_server(root: Path, tmp_path: Path, hold: HeldParts) -> Iterator[ServiceServer]:
    """A server that is reached by TCP alone, as through a proxy."""
    made = ServiceServer(tmp_path, root, *ALLOWED, "--tcp-only", environment=hold.environment)
    yield made
    hold.release()
    made.close()


def check_with_fault(
    one: Any, expected: list[list[Any]], server: ServiceServer, hold: HeldParts, fault: Callable[[], object]
) -> None:
    """Fails unless epochs are exact, of which one has a fault while the server makes parts of it, and unless that one
    counts as much as without a fault."""
    with pytest.MonkeyPatch.context() as patch, contextlib.closing(HeldParts(hold.path.with_name("local"))) as local:
        for name, value in local.environment.items():
            patch.setenv(name, value)
        while not server.parts():  # it has opened the set, and the loader knows it
            one.set_epoch(0)
            check_same(copied_epoch(one), expected[0])
        counts = [counts_of(one)]
        one.set_epoch(1)
        hold.hold()
        local.hold()  # else local workers may make all parts before the server gets one
        batches: Iterator[Any] = iter(one)
        hold.wait()
        local.release()
        assert server.status()["busy"] == 1
        fault()
        check_same([tuple(each.clone() for each in batch) for batch in batches], expected[1])
        counts.append(counts_of(one))
        check_same(copied_epoch(one), expected[2])
        counts.append(counts_of(one))
        one.set_epoch(1)
        check_same(copied_epoch(one), expected[1])
        counts.append(counts_of(one))
    with_fault, _, without = np.diff(counts, axis=0).tolist()
    assert with_fault == without


def counts_of(one: Any) -> list[int]:
    return [one.stats()[name] for name in COUNTS]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_dies_or_stalls(
    root: Path, server: ServiceServer, hold: HeldParts, expected: list[list[Any]], workers: int, number: int
) -> None:
    one = loader(root, num_workers=workers, service=server.service)
    check_with_fault(one, expected, server, hold, lambda: server.signal(number))
    assert one.stats()["respawns"] == 0


@pytest.mark.parametrize("options", WAYS)
def test_a_process_of_a_server_that_dies(
    root: Path, server: ServiceServer, hold: HeldParts, expected: list[list[Any]], options: dict[str, Any]
) -> None:
    one = loader(root, service=server.service, **options)

    def fault() -> None:
        for pid in process_tree(server.process.pid)[2:]:  # all but the server and its fork server
            os.kill(pid, signal.SIGKILL)
        hold.release()

    check_with_fault(one, expected, server, hold, fault)
    wait_until(lambda: server.status()["lost"])


@pytest.mark.parametrize("options", [{"num_workers": 1}, {"only": True}])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_relay_that_dies_or_hangs(
    root: Path,
    server: ServiceServer,
    hold: HeldParts,
    expected: list[list[Any]],
    options: dict[str, Any],
    number: int,
) -> None:
    one = loader(
        root,
        service=server.service,
        worker_options=feeder.WorkerOptions(hang_timeout_s=1 if number == signal.SIGSTOP else None),
        **options,
    )

    def fault() -> None:
        os.kill(one.worker_pids()[-1], number)
        hold.release()

    check_with_fault(one, expected, server, hold, fault)
    # On a machine that stands still the next one may be silent for a second, too.
    assert one.stats()["respawns"] == 1 or (number == signal.SIGSTOP and one.stats()["respawns"])


def test_a_part_that_is_late_is_made_locally_too(
    root: Path, server: ServiceServer, hold: HeldParts, expected: list[list[Any]]
) -> None:
    for workers in (0, 1):
        one = loader(root, num_workers=workers, service=server.service)
        parts = server.parts()
        while server.parts() == parts:
            one.set_epoch(0)
            check_same(copied_epoch(one), expected[0])
        hold.hold()
        one.set_epoch(1)
        check_same(copied_epoch(one), expected[1])  # all of it while the server holds its part
        assert server.status()["busy"] == 1
        hold.release()
        check_same(copied_epoch(one), expected[2])
        one.close()


def test_another_server_is_asked_for_a_part_that_is_late(
    root: Path, server: ServiceServer, hold: HeldParts, tmp_path: Path, expected: list[list[Any]]
) -> None:
    other = ServiceServer(tmp_path, root, *ALLOWED)
    path = tmp_path / "both.json"
    path.write_text(json.dumps({"token": server.token, "servers": [server.place]}))
    with contextlib.ExitStack() as stack:
        stack.callback(other.close)
        one = loader(root, service=feeder.Service(f"file:{path}", only=True))
        check_same(copied_epoch(one), expected[0])
        hold.hold()
        batches = iter(one)
        hold.wait()
        path.with_suffix(".new").write_text(json.dumps({"token": other.token, "servers": [server.place, other.place]}))
        os.replace(path.with_suffix(".new"), path)
        check_same([tuple(each.clone() for each in batch) for batch in batches], expected[1])
        assert server.status()["busy"] == 1  # which has never answered
        assert other.parts() > 0


def test_a_trainer_that_dies_leaves_nothing(root: Path, server: ServiceServer) -> None:
    code = (
        "import sys, feeder\n"
        "from feeder import transforms as T\n"
        "dataset = feeder.ShardDataset(sys.argv[1], transform=T.Compose([T.RandomResizedCrop(16)]))\n"
        "loader = feeder.DataLoader(dataset, batch_size=8, seed=0, service=feeder.Service(sys.argv[2], only=True))\n"
        "iterator = iter(loader)\n"
        "next(iterator)\n"
        "print(*loader.worker_pids(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    arguments = ["-c", code, root / "set", server.service]
    trainer = WarmPython(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert trainer.stdout is not None
    pids = [int(pid) for pid in trainer.stdout.readline().split()]
    assert pids
    trainer.kill()
    trainer.communicate()
    assert all_ended(pids)
    wait_until(lambda: server.status()["connections"] == 1)  # that which asks


def test_without_a_server_and_without_local_parts_the_end_is_named(root: Path, tmp_path: Path) -> None:
    one = loader(root, service=feeder.Service(f"file:{tmp_path}/none.json", only=True), timeout=1)
    with pytest.raises(feeder.ServiceError, match=r"no server of the service .* was there for 1 s: .*none\.json"):
        list(one)


def test_a_server_that_answers_nothing_ends_in_a_named_error(
    root: Path, server: ServiceServer, hold: HeldParts, expected: list[list[Any]]
) -> None:
    def epoch(number: int) -> list[Any]:
        while True:  # until the server has answered in two seconds: the machine may be busy
            one.set_epoch(number)
            with contextlib.suppress(feeder.ServiceError):
                return copied_epoch(one)

    one = loader(root, service=feeder.Service(server.service, only=True), timeout=2)
    check_same(epoch(0), expected[0])
    hold.hold()
    with pytest.raises(
        feeder.ServiceError, match=r"was there for 2 s: server 127\.0\.0\.1:\d+ has not answered \d part"
    ):
        list(one)
    hold.release()
    check_same(epoch(2), expected[2])


def test_a_refusal_is_in_the_error(root: Path, server: ServiceServer, tmp_path: Path) -> None:
    write_shards(tmp_path / "outside", 64)
    dataset = feeder.ShardDataset(tmp_path / "outside", transform=RECIPE)
    one = feeder.DataLoader(dataset, batch_size=8, seed=0, service=feeder.Service(server.service, only=True), timeout=1)
    assert re.search(r"refuses this job: .*lies below no folder", refusal(one))


def test_without_a_server_local_workers_do_all(root: Path, tmp_path: Path, expected: list[list[Any]]) -> None:
    for workers in (0, 1):
        one = loader(root, num_workers=workers, service=f"file:{tmp_path}/none.json")
        check_same(copied_epoch(one), expected[0])


def test_a_loader_that_waits_goes_on_with_the_next_server(
    root: Path, server: ServiceServer, hold: HeldParts, tmp_path: Path, expected: list[list[Any]]
) -> None:
    one = loader(root, service=feeder.Service(server.service, only=True))
    next_one: list[ServiceServer] = []

    def fault() -> None:
        server.kill()
        next_one.append(ServiceServer(tmp_path, root, *ALLOWED))
        os.replace(next_one[0].path, server.path)

    check_with_fault(one, expected, server, hold, fault)
    assert next_one[0].parts() > 0
    next_one[0].close()


@pytest.fixture
def half_open(tcp_server: ServiceServer, tmp_path: Path) -> Iterator[tuple[LinkProxy, str]]:
    """A proxy before the server, and the service by way of it."""
    proxy, path = LinkProxy(tcp_server.place), tmp_path / "by-proxy.json"
    path.write_text(json.dumps({"token": tcp_server.token, "servers": [proxy.place]}))
    yield proxy, f"file:{path}"
    proxy.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_peer_that_vanishes_without_an_end(
    root: Path,
    tcp_server: ServiceServer,
    hold: HeldParts,
    half_open: tuple[LinkProxy, str],
    expected: list[list[Any]],
    workers: int,
) -> None:
    proxy, service = half_open
    one = loader(root, num_workers=workers, service=service)

    def fault() -> None:
        proxy.swallow()
        hold.release()

    check_with_fault(one, expected, tcp_server, hold, fault)
    assert one.stats()["respawns"] == 0
    wait_until(lambda: proxy.swallowed > PART_BYTES)  # its answer, too


# Pixels of a part: those of the smallest batch.
PART_BYTES = 8 * 3 * 16 * 16


@pytest.mark.slow
def test_a_server_ends_the_connection_of_a_client_that_has_vanished(
    root: Path, tcp_server: ServiceServer, half_open: tuple[LinkProxy, str], expected: list[list[Any]]
) -> None:
    proxy, service = half_open
    one = loader(root, service=feeder.Service(service, only=True))
    check_same(copied_epoch(one), expected[0])
    proxy.swallow()
    one.close()  # of which the server hears nothing
    wait_until(lambda: tcp_server.status()["connections"] == 1)  # that which asks


@pytest.mark.slow
def test_memory_that_another_part_has_by_now_is_never_taken_for_an_answer(
    root: Path, tmp_path: Path, hold: HeldParts, expected: list[list[Any]]
) -> None:
    """The relay stops before it reads an answer, until the server has given it up, and made other parts there."""
    server = ServiceServer(tmp_path, root, *ALLOWED, "--window", "0", environment=hold.environment)
    one = loader(root, service=feeder.Service(server.service, only=True))
    others = feeder.DataLoader(
        feeder.ShardDataset(root / "set", transform=RECIPE), batch_size=8, seed=2, service=server.service
    )

    def fault() -> None:
        relay = one.worker_pids()[-1]
        os.kill(relay, signal.SIGSTOP)
        hold.release()
        wait_until(lambda: server.status()["connections"] == 1)  # that which asks
        for _ in range(3):
            copied_epoch(others)
        os.kill(relay, signal.SIGCONT)

    check_with_fault(one, expected, server, hold, fault)
    assert one.stats()["respawns"] == 0
    others.close()
    server.close()


@pytest.mark.parametrize("options", WAYS)
def test_a_link_a_server_and_the_relay_fail_together(
    root: Path,
    tcp_server: ServiceServer,
    hold: HeldParts,
    half_open: tuple[LinkProxy, str],
    tmp_path: Path,
    expected: list[list[Any]],
    options: dict[str, Any],
) -> None:
    proxy, service = half_open
    one = loader(root, service=service, **options)
    path = Path(service.removeprefix("file:"))
    later: list[ServiceServer] = []

    def fault() -> None:
        proxy.swallow()
        tcp_server.kill()
        os.kill(one.worker_pids()[-1], signal.SIGKILL)
        later.append(ServiceServer(tmp_path, root, *ALLOWED))
        for pid in process_tree(later[0].process.pid)[2:]:
            os.kill(pid, signal.SIGKILL)
        os.replace(later[0].path, path)

    try:
        check_with_fault(one, expected, tcp_server, hold, fault)
        for epoch in itertools.count():
            if later[0].parts():
                break
            one.set_epoch(epoch % 3)
            check_same(copied_epoch(one), expected[epoch % 3])
    finally:
        for each in later:
            each.close()
