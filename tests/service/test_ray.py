"""The input service on the nodes of Ray clusters in one machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import feeder
from feeder import transforms as T
from feeder.loader.fast.service_directory import Directory
from feeder.loader.service_options import Service, job_name
from tests.support import ROOT, held_parts, named_functions
from tests.support.batches import check_same, copied_epoch
from tests.support.daemons import free_port
from tests.support.held_parts import HeldParts, held
from tests.support.processes import all_ended, wait_until
from tests.support.ray_cluster import RayCluster

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("FEEDER_HEAD_SECONDS", "5"))
_SERVERS_END_S = 120.0  # after Ray's time for a head to come back
RECIPE = T.Compose([T.RandomResizedCrop(16), T.RandomHorizontalFlip()])


def serve(cluster: RayCluster, *options: str) -> str:
    """Returns what the command prints; calls it again while it says that the registry moves."""
    command = [sys.executable, "-m", "feeder", "serve", "--address", cluster.address, *options]
    while True:
        ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        if ended.returncode == 0:
            return ended.stdout
        assert "ask again in a moment" in ended.stderr, ended.stderr


def status(cluster: RayCluster) -> list[dict[str, Any]]:
    """The state of the servers that answer."""
    return [each for each in cluster.service_status() if "problem" not in each]


def registries(cluster: RayCluster) -> list[int]:
    """The processes of the registry of a cluster: none while it moves."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            is_its = any(cluster.folder in os.readlink(each) for each in (path / "fd").iterdir())  # its logs
            if is_its and (path / "comm").read_text().startswith("ray::Registry"):
                found.append(int(path.name))
    return found


def registry(cluster: RayCluster) -> int:
    """The process of the registry of a cluster, once there is one."""
    wait_until(lambda: registries(cluster))
    (pid,) = registries(cluster)
    return pid


def node_of_the_registry(cluster: RayCluster) -> str:
    """The node of the registry of a cluster. Where that is the head the registry is killed until it is another one."""
    while True:
        raylet = int(Path(f"/proc/{registry(cluster)}/stat").read_text().rpartition(")")[2].split()[1])
        command = Path(f"/proc/{raylet}/cmdline").read_text().split("\0")
        (node,) = (each.partition("=")[2] for each in command if each.startswith("--node_id="))
        if node in cluster.nodes:
            return node
        pid = registry(cluster)
        os.kill(pid, signal.SIGKILL)
        assert all_ended([pid])


def loader(
    root: Path, cluster: RayCluster | None, recipe: T.Compose = RECIPE, *, only: bool = False, **options: Any
) -> Any:
    """A loader that leaves most of an epoch to be made after the first batch."""
    dataset = feeder.ShardDataset(root / "set", transform=recipe)
    if cluster is not None:
        options |= {"service": feeder.Service(f"feeder@{cluster.address}", only=only), "prefetch_factor": 1}
    return feeder.DataLoader(dataset, batch_size=8, shuffle=True, seed=1, **options)


@pytest.fixture(scope="module")
def hold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeldParts]:
    """Holds the parts of the cluster's nodes."""
    made = HeldParts(tmp_path_factory.mktemp("hold") / "held")
    yield made
    made.close()


@pytest.fixture(scope="module")
def cluster(root: Path, hold: HeldParts) -> Iterator[RayCluster]:
    """A cluster with two nodes, on which a service runs."""
    made = RayCluster(hold.environment)
    made.add_node()
    made.add_node()
    allowed = [f"--allow-module={module.__name__}" for module in (named_functions, held_parts)]
    serve(made, "--root", str(root), "--cpus", "1", *allowed)
    yield made
    made.close()


@pytest.fixture(scope="module")
def expected(root: Path) -> list[list[Any]]:
    one = loader(root, None, num_workers=1)
    return [copied_epoch(one) for _ in range(3)]


def check_with_fault(one: Any, expected: list[list[Any]], fault: Callable[[], object]) -> None:
    """Fails unless three epochs are exact, with a fault in the second."""
    check_same(copied_epoch(one), expected[0])
    batches = []
    for step, batch in enumerate(one):
        batches.append(tuple(each.clone() for each in batch))
        if step == 1:
            fault()
    check_same(batches, expected[1])
    check_same(copied_epoch(one), expected[2])


def test_epochs_are_exact_while_nodes_come_and_go(
    root: Path, cluster: RayCluster, expected: list[list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "ray"]:  # which other tests import
        monkeypatch.delitem(sys.modules, name)
    one = loader(root, cluster, only=True)

    def fault() -> None:
        cluster.kill_node(cluster.nodes[0])
        cluster.add_node()

    check_with_fault(one, expected, fault)
    assert "ray" not in sys.modules
    assert one.stats()["respawns"] == 0
    one.close()


def test_a_node_that_joins_makes_parts_of_the_epoch_that_is_under_way(
    root: Path, cluster: RayCluster, hold: HeldParts
) -> None:
    wait_until(lambda: len(status(cluster)) == 2)
    known = [each["address"] for each in status(cluster)]
    recipe = T.Compose([RECIPE, T.Lambda(held)])
    one = loader(root, cluster, recipe, only=True)

    def parts() -> int:
        """The number of parts that the joined server has given out."""
        joined = [each["jobs"] for each in status(cluster) if each["address"] not in known]
        return sum(jobs[job_name()]["parts"] for jobs in joined if job_name() in jobs)

    hold.hold()
    with ThreadPoolExecutor(1) as trainer:
        try:
            epoch = trainer.submit(copied_epoch, one)
            hold.wait()
            cluster.add_node({})
            wait_until(parts)
        finally:
            hold.release()
        check_same(epoch.result(), copied_epoch(loader(root, None, recipe)))
    one.close()
    cluster.kill_node(cluster.nodes[-1])
    wait_until(lambda: len(status(cluster)) == 2)


def test_functions_of_allowed_modules_run_on_the_nodes(root: Path, cluster: RayCluster) -> None:
    recipe = T.Compose([RECIPE, T.Lambda(named_functions.inverted)])
    dataset = feeder.ShardDataset(root / "set", transform=recipe)
    service = f"feeder@{cluster.address}"
    only = feeder.DataLoader(dataset, batch_size=8, seed=0, service=feeder.Service(service, only=True))
    check_same(copied_epoch(only), copied_epoch(feeder.DataLoader(dataset, batch_size=8)))
    only.close()


def test_a_registry_that_does_not_answer_in_time_is_told(cluster: RayCluster) -> None:
    ask = f"cluster.directory('feeder', address={cluster.address!r})"
    code = f"from feeder.service import cluster\ncluster._ANSWER_S = 0\n{ask}"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert ended.returncode == 1
    said = "feeder.errors.ServiceError: the registry of the service 'feeder' does not answer (GetTimeoutError)"
    assert ended.stderr.splitlines()[-1].startswith(said)


def test_a_registry_that_dies_while_it_is_asked_is_asked_again(cluster: RayCluster) -> None:
    code = (
        "import os, signal, sys, threading\n"
        "from feeder.service import cluster\n"
        "find, pid = cluster._registry, int(sys.argv[2])\n"
        "def found(ray, name):\n"
        "    os.kill(pid, signal.SIGSTOP)\n"
        "    threading.Timer(0.5, os.kill, (pid, signal.SIGKILL)).start()\n"
        "    return find(ray, name)\n"
        "cluster._registry, cluster._ANSWER_S = found, 600.0\n"
        "cluster.directory('feeder', address=sys.argv[1])\n"
    )
    command = [sys.executable, "-c", code, cluster.address, str(registry(cluster))]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("lost", ["registry", "its node"])
def test_the_loss_of_the_registry_costs_nothing(
    root: Path, cluster: RayCluster, expected: list[list[Any]], lost: str
) -> None:
    wait_until(lambda: len(status(cluster)) == 2)
    node = node_of_the_registry(cluster)
    wait_until(lambda: len(status(cluster)) == 2)
    one = loader(root, cluster, only=True)

    def fault() -> None:
        if lost == "registry":
            os.kill(registry(cluster), signal.SIGKILL)
        else:
            cluster.kill_node(node)
            cluster.add_node()

    check_with_fault(one, expected, fault)
    wait_until(lambda: len(status(cluster)) == 2)
    later = loader(root, cluster, only=True)
    for each in (one, later):
        each.set_epoch(0)
        check_same(copied_epoch(each), expected[0])
        assert each.stats()["respawns"] == 0
        each.close()


def test_while_the_registry_does_not_answer_loaders_learn_of_the_servers_that_were_known(
    root: Path, cluster: RayCluster, expected: list[list[Any]]
) -> None:
    wait_until(lambda: len(status(cluster)) == 2)
    one = loader(root, cluster, only=True)
    check_same(copied_epoch(one), expected[0])
    known = Directory(Service(f"feeder@{cluster.address}"))

    def is_known() -> bool:
        known.look()
        return len(known.servers) == 2 and not known.problem

    with contextlib.closing(known):
        wait_until(is_known)
        pid = registry(cluster)
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_until(lambda: known.look() or known.problem)
            assert known.problem == "its registry does not answer: GetTimeoutError"
            later = loader(root, cluster, timeout=600, only=True)
            check_same(copied_epoch(later), expected[0])
            later.close()
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(is_known)
    one.close()


def test_a_helper_that_dies_costs_nothing(root: Path, cluster: RayCluster, expected: list[list[Any]]) -> None:
    one = loader(root, cluster, only=True)
    killed = set()

    def fault() -> None:
        killed.update(cluster.helpers())
        for pid in killed:
            os.kill(pid, signal.SIGKILL)

    check_with_fault(one, expected, fault)
    assert len(killed) == 1
    wait_until(lambda: cluster.helpers() - killed)
    assert one.stats()["respawns"] == 0
    one.close()


def test_all_loaders_share_a_helper(root: Path, cluster: RayCluster, expected: list[list[Any]]) -> None:
    made = [loader(root, cluster, only=True) for _ in range(3)]
    for one in made:
        check_same(copied_epoch(one), expected[0])
    assert len(cluster.helpers()) == 1
    made.pop(0).close()
    for one in made:
        check_same(copied_epoch(one), expected[1])
    assert len(cluster.helpers()) == 1
    for one in made:
        one.close()
    wait_until(lambda: not cluster.helpers())


def test_a_trainer_that_dies_leaves_no_helper(root: Path, cluster: RayCluster) -> None:
    code = (
        "import sys, feeder\n"
        "from feeder import transforms as T\n"
        "dataset = feeder.ShardDataset(sys.argv[1], transform=T.Compose([T.RandomResizedCrop(16)]))\n"
        "loader = feeder.DataLoader(dataset, batch_size=8, seed=0, service=feeder.Service(sys.argv[2], only=True))\n"
        "iterator = iter(loader)\n"
        "next(iterator)\n"
        "print(loader.worker_pids()[-1], flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(root / "set"), f"feeder@{cluster.address}"]
    trainer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert trainer.stdout is not None
    relay = int(trainer.stdout.readline())
    assert cluster.helpers()
    trainer.kill()
    trainer.communicate()
    assert all_ended([relay])
    wait_until(lambda: not cluster.helpers())


def test_the_state_of_all_nodes_is_shown(cluster: RayCluster) -> None:
    wait_until(lambda: len(status(cluster)) == 2)
    shown = [each for each in json.loads(serve(cluster, "--status", "--json"))["servers"] if "problem" not in each]
    assert [node["cores"] for node in shown] == [1, 1]
    assert all(node["images_per_s"] >= 0 for node in shown)
    assert "images/s" in serve(cluster, "--status")


def test_a_node_that_was_lost_is_shown(cluster: RayCluster) -> None:
    """Also by a registry that has started since."""
    wait_until(lambda: len(status(cluster)) == 2)
    lost = [{"address": each["address"], "problem": "it is lost"} for each in status(cluster)]
    os.kill(registry(cluster), signal.SIGKILL)
    cluster.kill_node(cluster.nodes[0])
    wait_until(lambda: any(each in lost for each in cluster.service_status()))
    assert sum(each in lost for each in cluster.service_status()) == 1
    cluster.add_node()


def test_the_token_is_in_no_log_and_no_output(root: Path, cluster: RayCluster) -> None:
    one = loader(root, cluster, only=True)
    copied_epoch(one)
    one.close()
    code = (
        f"from feeder.service import cluster\nprint(cluster.directory('feeder', address={cluster.address!r})['token'])"
    )
    token = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert len(token.strip()) == 64
    shown = serve(cluster, "--status") + serve(cluster, "--status", "--json")
    logs = [path.read_bytes() for path in Path(cluster.folder).rglob("*") if path.is_file()]
    assert sum(map(len, logs)) > 10_000
    assert not any(token.strip().encode() in text for text in (shown.encode(), *logs))


def test_a_node_the_helper_and_the_relay_fail_together(
    root: Path, cluster: RayCluster, expected: list[list[Any]]
) -> None:
    wait_until(lambda: len(status(cluster)) == 2)
    one = loader(root, cluster, only=True)

    def fault() -> None:
        for pid in cluster.helpers():
            os.kill(pid, signal.SIGKILL)
        cluster.kill_node(cluster.nodes[0])
        os.kill(one.worker_pids()[-1], signal.SIGKILL)

    check_with_fault(one, expected, fault)
    assert one.stats()["respawns"] == 1
    one.close()
    cluster.add_node()


def test_servers_go_where_they_are_meant_to_go_and_reasons_against_them_are_named(root: Path, tmp_path: Path) -> None:
    made = RayCluster()
    try:
        nodes = [made.add_node() for _ in range(2)]
        command = ["serve", "--address", made.address, "--root", str(tmp_path / "none"), "--cpus", "1"]
        ended = subprocess.run([sys.executable, "-m", "feeder", *command], capture_output=True, text=True, cwd=ROOT)
        assert ended.returncode
        assert "none: expected a folder below which the service may read sets (--root)" in ended.stderr
        port = free_port()
        options = ["--label", f"ray.io/node-id={nodes[1]}", "--metrics-port", str(port)]
        serve(made, "--root", str(root), "--cpus", "1", *options)
        wait_until(lambda: status(made))
        (one,) = status(made)
        with urllib.request.urlopen(f"http://{one['address'].rpartition(':')[0]}:{port}/metrics") as answer:
            assert "feeder_service_cores 1.0" in answer.read().decode()
        serve(made, "--stop")
        options = ["--resource", "memory=64MiB", "--host", "0.0.0.0"]
        serve(made, "--root", str(root), "--cpus", "1", *options)  # on both: the cores are free again
        wait_until(lambda: len(status(made)) == 2)
        assert not any(each["address"].startswith("0.0.0.0") for each in status(made))
    finally:
        made.close()


def test_servers_end_without_their_registry(root: Path, expected: list[list[Any]]) -> None:
    """Ray never starts a registry again that somebody has killed by its API. The time until then is a short one."""
    code = (
        "import sys, ray, feeder.service.cluster as cluster\n"
        "from feeder.service.actors import NAMESPACE, registry_name\n"
        "cluster._ORPHAN_S = 1.0\n"
        "ray.init(sys.argv[1], log_to_driver=False)\n"
        "((host, port),) = cluster.start(roots=[sys.argv[2]], cpus=1)['servers']\n"
        "ray.kill(ray.get_actor(registry_name('feeder'), NAMESPACE))\n"
        "print(host, port)\n"
    )
    made = RayCluster()
    try:
        made.add_node()
        command = [sys.executable, "-c", code, made.address, str(root)]
        ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        assert ended.returncode == 0, ended.stderr
        host, port = ended.stdout.split()

        def is_there() -> bool:
            with socket.socket() as connection:
                return connection.connect_ex((host, int(port))) == 0

        wait_until(lambda: not is_there())
        one = loader(root, made, timeout=5, only=True)
        said = ""
        while "there is no service 'feeder' in the Ray" not in said:  # until its helper has joined Ray in these five
            with pytest.raises(feeder.ServiceError, match=r"was there for 5 s: ") as refused:
                list(one)
            said = str(refused.value)
        one.close()
        serve(made, "--root", str(root), "--cpus", "1")  # the core is free, and so is the name
        later = loader(root, made, only=True)  # with no bound on the time of a start
        check_same(copied_epoch(later), expected[0])
        later.close()
    finally:
        made.close()


def test_without_the_head_epochs_go_on(root: Path, cluster: RayCluster, expected: list[list[Any]]) -> None:
    """FEEDER_HEAD_SECONDS sets how long: three minutes are a campaign, in which Ray ends the servers, too."""
    both = loader(root, cluster, num_workers=1)
    check_with_fault(both, expected, cluster.kill_head)
    alone = loader(root, cluster, timeout=3, only=True)
    began, epochs = time.monotonic(), 0
    while time.monotonic() - began < SECONDS:
        both.set_epoch(epochs % 3)
        check_same(copied_epoch(both), expected[epochs % 3])
        epochs += 1
    assert both.stats()["respawns"] == 0
    if SECONDS >= _SERVERS_END_S:
        with pytest.raises(feeder.ServiceError, match=r"no server of the service .* was there for 3 s"):
            list(alone)
    cluster.close()
    alone.set_epoch(0)
    with pytest.raises(feeder.ServiceError, match=r"no server of the service .* was there for 3 s"):
        list(alone)
