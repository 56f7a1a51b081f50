"""Faults of an input service: the longest pause between two batches after each, and a fuzz test of the protocol.

Every epoch must be exact: the SHA-256 of all its batches is compared with that of local workers. The loader has one
worker of its own and a service with one core. A fault comes in the middle of an epoch, and epochs go on for --seconds
after it. A pause is the time between two batches that the caller gets, who does nothing with them; it holds what the
machine was busy with, too. All faults come --repeats times, those of Ray in another cluster each time; the result has
the worst and the median.

server killed, server stalled   by SIGKILL and SIGSTOP
process killed                  that makes parts
link vanished                   a connection over which nothing comes any more, and which nobody has ended
relay killed                    the loader's process that talks to servers
combined link, server, relay    the link vanishes, and then server and relay are killed, in one epoch
helper killed, node killed      in a Ray cluster of two nodes; the loader has no worker of its own
combined helper, node           both are killed in one epoch
head killed                     with a worker; epochs go on for --head-seconds. 0: nothing of Ray
combined head, servers          all nodes are killed after the head: epochs go on by the local worker alone

After the last of them a loader with only=True must end in the error that names the service. In the fuzz test a
server takes --messages messages of clients that gave the token, over TCP and its Unix socket; most of their connections
end with a malformed one.

It fails if a pause after the loss of a node is longer than 2 s, but with --smoke, which takes two minutes.

    python -m bench.service_campaign --shards SHARDS [--size 224] [--batch 64] [--seconds 10] [--repeats 5]
        [--head-seconds 180] [--messages 1000000] [--json OUT]
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import feeder
from bench.smoke import ROOT, arguments
from feeder import transforms as T
from feeder.system.process_usage import process_tree
from feeder.tools.bench.result_file import save, spread
from tests.support.link_proxy import LinkProxy
from tests.support.processes import wait_until
from tests.support.ray_cluster import RayCluster
from tests.support.service import ServiceServer

_EPOCHS = 3
_LOST_NODE_S = 2.0  # the longest pause that the loss of a node may take
_WITHOUT_RAY = (
    "server killed",
    "server stalled",
    "process killed",
    "link vanished",
    "relay killed",
    "combined link, server, relay",
)
_LOSSES = (
    "server killed",
    "server stalled",
    "link vanished",
    "combined link, server, relay",
    "node killed",
    "combined helper, node",
    "combined head, servers",
)
_ALONE_S = 10.0  # that a loader without local parts waits for a server
_FUZZ = "tests/service/test_protocol_fuzz.py::test_random_messages_cost_connections_and_never_a_server"


def loader(options: Any, num_workers: int = 1, **more: Any) -> Any:
    recipe = T.Compose([T.RandomResizedCrop(options.size), T.RandomHorizontalFlip()])
    dataset = feeder.ShardDataset(options.shards, transform=recipe)
    return feeder.DataLoader(dataset, batch_size=options.batch, shuffle=True, seed=0, num_workers=num_workers, **more)


def epoch(one: Any, number: int, after: Callable[[int], object] = lambda step: None) -> str:
    """Runs an epoch, and calls a function after each batch; returns the digest of all batches."""
    digest = hashlib.sha256()
    one.set_epoch(number % _EPOCHS)
    for step, (images, labels) in enumerate(one):
        digest.update(images.numpy())
        digest.update(labels.numpy())
        after(step)
    return digest.hexdigest()


def longest_pause(one: Any, expected: list[str], fault: Callable[[], object], seconds: float) -> float:
    """Returns the longest time between two batches, seconds, from a fault in the middle of an epoch on."""
    last_s = ended_s = longest_s = 0.0

    def after(step: int) -> None:
        nonlocal last_s, ended_s, longest_s
        now = time.monotonic()
        if ended_s:
            longest_s = max(longest_s, now - last_s)
        elif step == len(one) // 2:
            faults.append(thread.submit(fault))  # batches go on while it takes its time
            ended_s = now + seconds
        last_s = now

    number, faults = 0, list[Future[object]]()
    with ThreadPoolExecutor(1) as thread:
        while not ended_s or time.monotonic() < ended_s:
            if epoch(one, number, after) != expected[number % _EPOCHS]:
                raise SystemExit(f"epoch {number} is not that of local workers")
            number += 1
            last_s = time.monotonic()  # how an epoch begins is measured elsewhere
    for each in faults:
        each.result()
    return longest_s


def server_pause(options: Any, folder: Path, expected: list[str], kind: str) -> float:
    """Returns the longest pause after a fault of a server without Ray."""
    with contextlib.ExitStack() as stack:
        server = ServiceServer(folder, Path(options.shards).parent, "--tcp-only")
        stack.callback(server.close)
        proxy = LinkProxy(server.place)
        stack.callback(proxy.close)
        path = folder / f"by-proxy-{time.monotonic_ns()}.json"
        path.write_text(json.dumps({"token": server.token, "servers": [proxy.place]}))
        one = loader(options, service=f"file:{path}")
        stack.callback(one.close)
        number = 0
        while not server.parts():  # it has opened the set, and the loader knows it
            epoch(one, number)
            number += 1

        def kill_relay() -> None:
            os.kill(one.worker_pids()[-1], signal.SIGKILL)

        def end_all() -> None:
            proxy.swallow()
            server.kill()
            kill_relay()

        faults: dict[str, Callable[[], object]] = {
            "server killed": server.kill,
            "server stalled": lambda: server.signal(signal.SIGSTOP),
            "process killed": lambda: os.kill(process_tree(server.process.pid)[-1], signal.SIGKILL),
            "link vanished": proxy.swallow,
            "relay killed": kill_relay,
            "combined link, server, relay": end_all,
        }
        return longest_pause(one, expected, faults[kind], options.seconds)


def ray_pauses(options: Any, expected: list[str]) -> tuple[dict[str, float], float]:
    """Returns the longest pauses after the ends of the helper, a node and the head, also in combination, and the time
    after which a loader that makes no part locally ends in its error."""
    found: dict[str, float] = {}
    cluster = RayCluster()
    try:
        for _ in range(2):
            cluster.add_node()
        _serve(cluster, "--root", str(Path(options.shards).parent), "--cpus", "1")
        service = f"feeder@{cluster.address}"
        alone = loader(options, 0, service=feeder.Service(service, only=True), timeout=_ALONE_S)
        with contextlib.closing(loader(options, 0, service=feeder.Service(service, only=True))) as one:
            _run_until_served(one, cluster, 2)

            def kill_helper() -> None:
                if not (helpers := cluster.helpers()):
                    raise SystemExit("there is no helper that could be killed")
                for helper in helpers:
                    with contextlib.suppress(ProcessLookupError):  # one that lost a race has just ended
                        os.kill(helper, signal.SIGKILL)

            def kill_node() -> None:
                cluster.kill_node(cluster.nodes[0])

            def kill_both() -> None:
                kill_helper()
                kill_node()

            wait_until(cluster.helpers)  # one that has ended is started again after a while
            found["helper killed"] = longest_pause(one, expected, kill_helper, options.seconds)
            found["node killed"] = longest_pause(one, expected, kill_node, options.seconds)
            cluster.add_node()
            _run_until_served(one, cluster, 2)
            wait_until(cluster.helpers)
            found["combined helper, node"] = longest_pause(one, expected, kill_both, options.seconds)
            _check_relay(one)
        with contextlib.closing(loader(options, service=service)) as one, contextlib.closing(alone):
            for each in (one, alone):
                _run_until_served(each, cluster, 1)
            found["head killed"] = longest_pause(one, expected, cluster.kill_head, options.head_seconds)
            found["combined head, servers"] = longest_pause(one, expected, cluster.kill_nodes, options.seconds)
            _check_relay(one)
            return found, _named_error_s(alone)
    finally:
        cluster.close()


def _check_relay(one: Any) -> None:
    """Exits if a process of a loader was replaced, of which no fault has killed one."""
    if one.stats()["respawns"]:
        raise SystemExit("the relay or a worker has ended by itself")


def _named_error_s(alone: Any) -> float:
    """Returns the time in which an epoch without any server ends in the error that says so."""
    began_s = time.monotonic()
    try:
        epoch(alone, 0)
    except feeder.ServiceError as error:
        if f"was there for {_ALONE_S:g} s" not in str(error):
            raise
        return time.monotonic() - began_s
    raise SystemExit("an epoch ended that no server has made, with only=True")


def _serve(cluster: RayCluster, *options: str) -> str:
    command = [sys.executable, "-m", "feeder", "serve", "--address", cluster.address, *options]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _run_until_served(one: Any, cluster: RayCluster, servers: int) -> None:
    """Runs epochs until so many servers have made parts in them."""
    before = _parts(cluster)
    while sum(parts > before.get(address, 0) for address, parts in _parts(cluster).items()) < servers:
        for number in range(_EPOCHS):
            epoch(one, number)


def _parts(cluster: RayCluster) -> dict[str, int]:
    """Returns the number of parts that each server has given out."""
    while True:
        with contextlib.suppress(subprocess.CalledProcessError):  # the registry moves from a node that was killed
            servers = json.loads(_serve(cluster, "--status", "--json"))["servers"]
            break
    return {each["address"]: sum(job["parts"] for job in each["jobs"].values()) for each in servers if "jobs" in each}


def main() -> None:
    options = arguments(
        __doc__,
        "service_campaign",
        smoke={"size": 32, "batch": 8, "seconds": 2.0, "repeats": 1, "head_seconds": 1.0, "messages": 50_000},
        shards=None,
        size=224,
        batch=64,
        seconds=10.0,
        repeats=5,
        head_seconds=180.0,
        messages=1_000_000,
    )
    options.shards = os.path.abspath(options.shards)
    with contextlib.closing(loader(options)) as local:
        expected = [epoch(local, number) for number in range(_EPOCHS)]
    has_ray = options.head_seconds and importlib.util.find_spec("ray") is not None
    pauses, errors_s = dict[str, list[float]](), list[float]()
    with tempfile.TemporaryDirectory() as name:
        for _ in range(options.repeats):
            found = {kind: server_pause(options, Path(name), expected, kind) for kind in _WITHOUT_RAY}
            if has_ray:
                by_ray, error_s = ray_pauses(options, expected)
                found |= by_ray
                errors_s.append(error_s)
            for kind, value in found.items():
                pauses.setdefault(kind, []).append(value)
    fuzz = [sys.executable, "-m", "pytest", "-q", "-o", "timeout=0", _FUZZ]
    environment = {**os.environ, "FEEDER_FUZZ_MESSAGES": str(options.messages)}
    subprocess.run(fuzz, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    results: dict[str, Any] = {
        "longest_pause_s": {kind: spread(values) | {"worst": max(values)} for kind, values in pauses.items()},
        "fuzz_messages": options.messages,
        "options": {"size": options.size, "batch": options.batch, "head_seconds": options.head_seconds},
    }
    if errors_s:
        results["named_error_s"] = spread(errors_s)
    for kind, values in pauses.items():
        print(f"{kind:28} longest pause: worst {max(values):.2f} s, median {median(values):.2f} s of {len(values)}")
    print(f"a server took {options.messages} messages of a fuzz test, which cost connections only")
    print(f"written to {save('service_campaign', results, options.json)}")
    slow = [kind for kind in _LOSSES if max(pauses.get(kind, [0.0])) > _LOST_NODE_S]
    if slow and options.smoke is None:
        raise SystemExit(f"a loop paused for more than {_LOST_NODE_S:g} s: {', '.join(slow)}")


if __name__ == "__main__":
    main()
