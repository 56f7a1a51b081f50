from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace as Found
from typing import Any

import pytest

from feeder.errors import ArgumentError
from feeder.system import numa
from feeder.system.numa import cpus_near, gpu_cpus, numa_nodes, running_on
from feeder.system.nvml import open_nvml
from tests.support import fake_nvml


@pytest.fixture
def two_sockets(tmp_path: Path) -> str:
    """A host of two sockets, with hyperthreads and a node of memory alone."""
    nodes = tmp_path / "sys/devices/system/node"
    for name, cpus in {"node0": "0-3,8-11\n", "node1": "4-7,12-15\n", "node2": "\n"}.items():
        (nodes / name).mkdir(parents=True)
        (nodes / name / "cpulist").write_text(cpus)
    (nodes / "has_cpu").write_text("0-1\n")
    return str(tmp_path)


def test_nodes_are_those_with_cpus(two_sockets: str, tmp_path: Path) -> None:
    assert numa_nodes(two_sockets) == {0: {0, 1, 2, 3, 8, 9, 10, 11}, 1: {4, 5, 6, 7, 12, 13, 14, 15}}
    assert numa_nodes(str(tmp_path / "nothing")) == {}


def test_a_rank_stays_near_its_gpu(two_sockets: str) -> None:
    near = frozenset({4, 5, 6, 7, 12, 13, 14, 15})
    assert cpus_near(None, near, range(16), two_sockets) == near
    assert cpus_near(None, None, range(16), two_sockets) is None
    assert cpus_near(None, range(16), range(16), two_sockets) is None  # the driver knows no nearer ones


def test_a_given_node_goes_before_that_of_the_gpu(two_sockets: str) -> None:
    assert cpus_near(0, {4, 5, 6, 7}, range(16), two_sockets) == frozenset({0, 1, 2, 3, 8, 9, 10, 11})
    with pytest.raises(ArgumentError, match=r"a node of this host \(0, 1\), got 2"):
        cpus_near(2, None, range(16), two_sockets)


def test_what_the_process_was_bound_to_holds(two_sockets: str) -> None:
    assert cpus_near(0, None, {2, 3, 4}, two_sockets) == frozenset({2, 3})
    assert cpus_near(0, None, {4, 5}, two_sockets) is None  # bound to the other socket: not to be undone
    assert cpus_near(0, None, {2, 3}, two_sockets) is None  # bound as it should be


def test_one_node_makes_no_difference(tmp_path: Path) -> None:
    node = tmp_path / "sys/devices/system/node/node0"
    node.mkdir(parents=True)
    (node / "cpulist").write_text("0-3")
    assert cpus_near(0, None, range(4), str(tmp_path)) is None
    assert cpus_near(None, {0, 1}, range(4), str(tmp_path)) is None


def test_one_thread_alone_runs_elsewhere_for_a_while() -> None:
    before = os.sched_getaffinity(0)
    here = {min(before)}
    others: list[set[int]] = []
    started, done = threading.Event(), threading.Event()

    def other() -> None:
        started.set()
        done.wait()
        others.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=other)
    thread.start()
    started.wait()
    with running_on(here):
        assert os.sched_getaffinity(0) == here
        done.set()
        thread.join()
    assert others == [before]
    assert os.sched_getaffinity(0) == before
    with running_on(None):
        assert os.sched_getaffinity(0) == before


def test_nvml_names_the_cpus_near_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(fake_nvml.install(tmp_path)))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    nvml = open_nvml()
    assert not isinstance(nvml, str)
    assert nvml.near_cpus(nvml.gpus[0]) == frozenset({0, 1, 2, 3, 64})
    assert nvml.near_cpus(nvml.gpus[1]) is None  # not supported
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)


def fake_torch(**properties: Any) -> Any:
    return Found(cuda=Found(get_device_properties=lambda number: Found(uuid="10000000", **properties)))


@pytest.mark.parametrize("nvml", [True, False], ids=["NVML without affinity", "no NVML"])
def test_the_kernel_names_the_cpus_near_a_gpu_that_nvml_does_not(
    two_sockets: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvml: bool
) -> None:
    if nvml:
        monkeypatch.syspath_prepend(str(fake_nvml.install(tmp_path / "nvml")))
        monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    else:
        monkeypatch.setattr(numa, "gpu_of", lambda torch, number: None)
    device = tmp_path / "sys/bus/pci/devices/0002:c1:0a.0"
    device.mkdir(parents=True)
    (device / "local_cpulist").write_text("4-7,12-15\n")
    found = gpu_cpus(fake_torch(pci_domain_id=2, pci_bus_id=0xC1, pci_device_id=10), 0, two_sockets)
    assert found == frozenset({4, 5, 6, 7, 12, 13, 14, 15})
    assert gpu_cpus(fake_torch(pci_domain_id=0, pci_bus_id=0xC1, pci_device_id=10), 0, two_sockets) is None
    assert gpu_cpus(fake_torch(), 0, two_sockets) is None
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
