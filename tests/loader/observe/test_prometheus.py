from __future__ import annotations

import builtins
import gc
import os
import re
import select
import signal
import socket
import threading
import traceback
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.loader.observe import metrics_server
from feeder.loader.observe import prometheus as metrics
from feeder.service.metrics import serve_metrics
from feeder.transforms import RandomResizedCrop
from tests.support import ROOT
from tests.support.loader_data import write_shards
from tests.support.processes import wait_until


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), 20)


def _loader(shards: Path, **options: Any) -> DataLoader[Any]:
    options = {"batch_size": 4, "metrics": 0, **options}
    return DataLoader(ShardDataset(shards, RandomResizedCrop(8)), **options)


def _samples(url: str | None) -> dict[tuple[str, str, str], float]:
    """Value by name, loader and what else it is of."""
    assert url is not None
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            rest = ",".join(v for k, v in sorted(sample.labels.items()) if k != "loader")
            found[sample.name, sample.labels["loader"], rest] = sample.value
    return found


def test_the_dashboard_shows_what_loaders_and_services_export(shards: Path) -> None:
    loader = _loader(shards, num_workers=1)
    for _ in loader:
        pass
    named = {name for name, _, _ in _samples(loader.metrics_url)} | {"feeder_remote_bytes_total"}
    loader.close()
    counts = dict.fromkeys(
        ("cores", "busy", "queue", "connections", "lost", "dropped", "messages", "shared", "cpu_s"), 1
    )
    status = {**counts, "jobs": {"job": {"parts": 1, "images": 8, "failed": 0}}}
    with urllib.request.urlopen(serve_metrics(lambda: status, "127.0.0.1", 0), timeout=60) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    values = {sample.name: sample.value for family in families for sample in family.samples}
    assert (values["feeder_service_job_images_total"], values["feeder_service_cpu_seconds_total"]) == (8, 1)
    shown = set(re.findall(r"feeder_\w+", (ROOT / "docs/grafana.json").read_text()))
    assert len(shown) > 15
    assert shown <= named | values.keys()


def test_a_scrape_gives_what_stats_give(shards: Path) -> None:
    loader = _loader(shards, num_workers=2)
    assert _samples(loader.metrics_url)["feeder_batches_total", "0", ""] == 0
    iterator = iter(loader)
    batch = next(iterator)
    during = _samples(loader.metrics_url)
    assert during["feeder_batches_total", "0", ""] == 1
    assert during["feeder_slots", "0", "held"] == 1
    assert during["feeder_slots", "0", "total"] > 1
    del batch
    for _ in iterator:
        pass
    found, stats = _samples(loader.metrics_url), loader.stats()
    assert found["feeder_samples_total", "0", ""] == 20
    assert found["feeder_skipped_samples_total", "0", ""] == found["feeder_worker_respawns_total", "0", ""] == 0
    assert found["feeder_stage_bytes_total", "0", "read"] == stats["stages"]["read"]["bytes"]
    assert found["feeder_stage_runs_total", "0", "decode"] == 20
    assert found["feeder_stage_seconds_total", "0", "read"] == pytest.approx(stats["stages"]["read"]["total_ns"] / 1e9)
    worker_reads = "feeder_worker_stage_seconds_total", "0", "read,"  # of those that came to read anything
    per_worker = [value for (*name, rest), value in found.items() if (*name, rest[:5]) == worker_reads]
    assert sum(per_worker) == pytest.approx(found["feeder_stage_seconds_total", "0", "read"])
    loader.close()


def test_any_dataset_has_metrics() -> None:
    loader = DataLoader(range(8), batch_size=4, metrics=0)
    for _ in loader:
        pass
    assert _samples(loader.metrics_url)["feeder_stage_runs_total", "0", "fetch"] == 2
    loader.close()


def _is_over(url: str | None) -> bool:
    """True once nobody serves there."""
    try:
        return not _samples(url)
    except OSError:  # it was refused, or ended as it began
        return True


def test_the_server_listens_on_this_machine_only_and_ends_with_the_loader(shards: Path) -> None:
    loader = _loader(shards)
    url = loader.metrics_url
    assert url is not None
    assert url.startswith("http://127.0.0.1:")
    loader.close()
    assert loader.metrics_url is None
    wait_until(lambda: _is_over(url))
    for _ in loader:  # comes back with the next epoch
        pass
    assert _samples(loader.metrics_url)["feeder_batches_total", "0", ""] == 5
    url = loader.metrics_url
    del loader
    gc.collect()
    wait_until(lambda: _is_over(url))


def test_loaders_share_a_port_and_are_told_apart(shards: Path) -> None:
    first = _loader(shards)
    assert first.metrics_url is not None
    port = int(first.metrics_url.split(":")[2].split("/")[0])
    second = _loader(shards, metrics=port, batch_size=10)
    for _ in second:
        pass
    found = _samples(first.metrics_url)
    assert found["feeder_batches_total", "0", ""] == 0
    assert found["feeder_batches_total", "1", ""] == 2
    first.close()
    assert {key[1] for key in _samples(second.metrics_url)} == {"1"}
    second.close()
    wait_until(lambda: _is_over(f"http://127.0.0.1:{port}/metrics"))


def test_a_port_that_another_program_has_is_refused(shards: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ArgumentError, match=f"127.0.0.1 port {port}: Address already in use; take another"):
            _loader(shards, metrics=port)


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_there_is_not_is_refused(shards: Path, port: int) -> None:
    with pytest.raises(ArgumentError, match="metrics must be a port of 0 to 65535"):
        _loader(shards, metrics=port)


def _say_nothing(loader: DataLoader[Any], times: int) -> list[socket.socket]:
    """Connections that ask for something and never come to its end."""
    assert loader.metrics_url is not None
    port = int(loader.metrics_url.split(":")[2].split("/")[0])
    connections = []
    for _ in range(times):
        connections.append(socket.create_connection(("127.0.0.1", port), timeout=60))
        connections[-1].sendall(b"GET /metrics HTTP/1.1\r\n")
    return connections


def test_connections_that_say_nothing_keep_out_nobody_and_are_ended(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server.Handler, "timeout", 0.1)
    loader = _loader(shards)
    silent = _say_nothing(loader, 20)
    assert _samples(loader.metrics_url)["feeder_batches_total", "0", ""] == 0
    for connection in silent:
        assert connection.recv(1) == b""
        connection.close()
    loader.close()


def test_without_the_package_the_error_says_what_to_install(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("prometheus_client"):
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ArgumentError, match=r"pip install 'feeder-data\[metrics\]'"):
        _loader(shards)


def test_nothing_is_left_in_the_packages_global_registry(shards: Path) -> None:
    before = prometheus_client.generate_latest(prometheus_client.REGISTRY).count(b"feeder")
    loader = _loader(shards)
    assert prometheus_client.generate_latest(prometheus_client.REGISTRY).count(b"feeder") == before == 0
    loader.close()


def _garbage(shards: Path) -> metrics._Server:
    """Leaves a loader that only a garbage collection ends; gives its server."""
    garbage: list[Any] = [_loader(shards)]
    garbage.append(garbage)
    return metrics._servers["127.0.0.1", int(garbage[0].metrics_url.split(":")[2].split("/")[0])]


def test_a_garbage_collection_that_ends_a_loader_may_come_anywhere(shards: Path) -> None:
    server = _garbage(shards)

    def collect() -> None:
        with metrics._lock:
            gc.collect()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    server._thread.join(60)
    assert not server._thread.is_alive()
    assert server not in metrics._servers.values()


def test_a_garbage_collection_that_ends_a_loader_may_come_in_the_servers_own_thread(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = _garbage(shards)
    monkeypatch.setattr(server._server, "handle_timeout", gc.collect)  # called by it all the time
    server._thread.join(60)
    assert not server._thread.is_alive()


def test_a_forked_child_ends_its_copy_and_can_serve_on_the_same_port(shards: Path) -> None:
    loader = _loader(shards)
    assert loader.metrics_url is not None
    port = int(loader.metrics_url.split(":")[2].split("/")[0])
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.read(ours, 1)
            loader.close()
            other = _loader(shards, metrics=port)
            found = _samples(other.metrics_url)
            os._exit(int(found["feeder_batches_total", "0", ""]))
        except BaseException:
            traceback.print_exc()
        os._exit(2)
    assert _samples(loader.metrics_url)["feeder_batches_total", "0", ""] == 0
    url = loader.metrics_url
    loader.close()
    wait_until(lambda: _is_over(url))
    os.write(theirs, b"-")
    poll = select.poll()
    descriptor = os.pidfd_open(child)
    poll.register(descriptor, select.POLLIN)
    has_ended = bool(poll.poll(60_000))
    os.close(descriptor)
    if not has_ended:
        os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == 0
