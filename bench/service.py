"""The input service beside local workers, and beside the same batches through Ray's object store and Ray Data.

Equal for all: the shard set, the samples in stored order, random crops of --size to uint8 by the same native call, the
batches, and two cores that make them: two local workers; a server with two; two Ray nodes of one. The SHA-256 of every
batch's first image is compared before any time counts.

images/s    of the caller, which does nothing with a batch.
same host   parts in the server's memory, which the relay reads; all else goes over TCP, as between two machines.
busy        share of two cores' time that all of them used.
host CPU    ms an image in the caller's process and the relay: what the training machine pays. The rest is the server's.
trials      CPU of a server for two and for three trials, processes that read the same epochs at the same time, beside
            one: on the same host, and over TCP, where each trial's pixels are sent; and each a second after the other.
heavy       the service's figures once more, with RandAugment after the crop.

Needs two cores that have nothing else to do, and a set of some thousand images: one of a few batches measures how an
epoch begins and ends.

    python -m bench.service --shards SHARDS [--size 224] [--batch 256] [--epochs 4] [--repeats 5] [--trials 3]
        [--rivals store,data] [--json OUT]
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import feeder
from bench.smoke import arguments
from feeder import transforms as T
from feeder.system.process_usage import cpu_seconds_by_process
from feeder.tools.bench.result_file import interleave, save, spread
from tests.support.ray_cluster import RayCluster
from tests.support.service import ServiceServer

_CORES = 2
_RAY = {"store": "Ray's object store", "data": "Ray Data"}
_LOCAL, _SERVICE, _SAME = "2 local workers", "service of 2 cores", "the same host"
_LATE_S = 1.0
_TRIAL_S = 120.0  # for the trials to start
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")  # of CPU times: at the smallest size nothing else may be seen


def loader(options: Any, *, heavy: bool = False, **more: Any) -> Any:
    further = [T.RandAugment()] if heavy else []
    recipe = T.Compose([T.RandomResizedCrop(options.size), T.RandomHorizontalFlip(), *further])
    dataset = feeder.ShardDataset(options.shards, transform=recipe)
    return feeder.DataLoader(dataset, batch_size=options.batch, seed=0, **more)


def run(one: Any, epochs: int, first: int = 0) -> tuple[int, float, str]:
    """Returns images, seconds, and the digest of the first images of all batches."""
    digest, images, began = hashlib.sha256(), 0, time.perf_counter()
    for epoch in range(first, first + epochs):
        one.set_epoch(epoch)
        for found, _ in one:
            digest.update(found[0].numpy())
            images += len(found)
    return images, time.perf_counter() - began, digest.hexdigest()


def _cpu_s(server: ServiceServer) -> tuple[float, float]:
    """CPU seconds of this process and the loader's, and of the server and its processes."""
    theirs = cpu_seconds_by_process(server.process.pid)
    ours = cpu_seconds_by_process()
    return sum(spent for pid, spent in ours.items() if pid not in theirs), sum(theirs.values())


def must_be(digest: str, expected: str, name: str) -> None:
    if digest != expected:
        raise SystemExit(f"{name}: its batches are not those of local workers")


def service_run(
    options: Any, folder: Path, expected: str, *, heavy: bool = False, same_host: bool = False
) -> dict[str, float]:
    """Runs the epochs by a fresh server, so that none of its parts is there already."""
    way = () if same_host else ("--tcp-only",)
    server = ServiceServer(folder, Path(options.shards).parent, "--window", "0", *way, cores=_CORES)
    try:
        one = loader(options, heavy=heavy, service=feeder.Service(server.service, only=True))
        must_be(run(one, options.epochs)[2], expected, "the service")
        before = _cpu_s(server)
        images, seconds, _ = run(one, options.epochs)
        here, there = (after - earlier for after, earlier in zip(_cpu_s(server), before, strict=True))
        one.close()
    finally:
        server.close()
    return {
        "images_per_s": images / seconds,
        "host_ms": 1000 * here / images,
        "server_ms": 1000 * there / images,
        "busy": max(_TICK_S, here + there) / seconds / _CORES,
    }


def local_rate(options: Any, expected: str, *, heavy: bool = False) -> float:
    one = loader(options, heavy=heavy, num_workers=_CORES, persistent_workers=True)
    must_be(run(one, options.epochs)[2], expected, "local workers")
    images, seconds, _ = run(one, options.epochs)
    one.close()
    return images / seconds


def ray_rate(way: str, options: Any, expected: str) -> float:
    """Runs the epochs through Ray, in a cluster that is there for no other turn: its idle processes take CPU."""
    cluster = RayCluster()
    try:
        for _ in range(_CORES):
            cluster.add_node()
        command = [sys.executable, "-m", "bench.service_runs.ray_batches", way, cluster.address, options.shards]
        command += [str(each) for each in (options.size, options.batch, options.epochs)]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    finally:
        cluster.close()
    must_be(found["digest"], expected, f"Ray's {way}")
    return float(found["images"] / found["seconds"])


def trials(options: Any, folder: Path, count: int, *way: str, late_s: float = 0.0) -> float:
    """CPU seconds of a server, for trials that read the same epochs, each in a process of its own, together or each so
    much later than the one before."""
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(count + 1)
    server = ServiceServer(folder, Path(options.shards).parent, *way, cores=_CORES)
    try:
        given = [(options, server.service, together, k * late_s) for k in range(count)]
        processes = [context.Process(target=_trial, args=each, daemon=True) for each in given]
        for process in processes:
            process.start()
        together.wait(_TRIAL_S)
        before = _cpu_s(server)[1]
        together.wait(_TRIAL_S)
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise SystemExit("a trial has failed")
        return max(_TICK_S, _cpu_s(server)[1] - before)
    finally:
        server.close()


def _trial(options: Any, service: str, together: Barrier, late_s: float) -> None:
    """Reads the epochs, after one in which the server opens the set."""
    with contextlib.closing(loader(options, service=feeder.Service(service, only=True))) as one:
        run(one, 1)
        for _ in range(2):  # in between, the CPU times are taken
            together.wait(_TRIAL_S)
        time.sleep(late_s)
        run(one, options.epochs, 1)


def main() -> None:
    rivals_here = "store,data" if importlib.util.find_spec("ray") else ""  # free-threaded Pythons have no Ray
    options = arguments(
        __doc__, "service",
        smoke={"size": 32, "batch": 16, "epochs": 1, "repeats": 1, "rivals": rivals_here, "trials": 2},
        shards=None, size=224, batch=256, epochs=4, repeats=5, rivals="store,data", trials=3,
    )  # fmt: skip
    options.shards = os.path.abspath(options.shards)
    expected = run(loader(options, num_workers=1), options.epochs)[2]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found: list[dict[str, float]] = []
        same_host: list[dict[str, float]] = []

        def service(runs: list[dict[str, float]]) -> float:
            runs.append(service_run(options, folder, expected, same_host=runs is same_host))
            return runs[-1]["images_per_s"]

        rivals: dict[str, Callable[[], float]] = {
            _LOCAL: lambda: local_rate(options, expected),
            _SERVICE: lambda: service(found),
            _SAME: lambda: service(same_host),
        }
        for way in filter(None, options.rivals.split(",")):
            rivals[_RAY[way]] = functools.partial(ray_rate, way, options, expected)
        rates = interleave(rivals, options.repeats)
        by_count = {str(k): functools.partial(trials, options, folder, k) for k in range(1, options.trials + 1)}
        by_count |= {
            f"{k} over TCP": functools.partial(trials, options, folder, k, "--tcp-only")
            for k in sorted({1, options.trials})
        }
        late = functools.partial(trials, options, folder, options.trials, late_s=_LATE_S)
        spent = interleave(by_count | {f"{options.trials} late": late}, options.repeats)
        augmented = run(loader(options, heavy=True, num_workers=1), options.epochs)[2]
        heavy_runs: list[dict[str, float]] = []

        def heavy_service() -> float:
            heavy_runs.append(service_run(options, folder, augmented, heavy=True))
            return heavy_runs[-1]["images_per_s"]

        heavy_rivals: dict[str, Callable[[], float]] = {
            _LOCAL: functools.partial(local_rate, options, augmented, heavy=True),
            _SERVICE: heavy_service,
        }
        heavy_rates = interleave(heavy_rivals, options.repeats)
    ratios, same_ratios = (
        [ours / theirs for theirs, ours in zip(rates[_LOCAL], rates[name], strict=True)] for name in (_SERVICE, _SAME)
    )
    most = options.trials
    alone = {"": "1", " over TCP": "1 over TCP", " late": "1"}
    further = {
        way: [
            (last - first) / max(1, most - 1) / first
            for first, last in zip(spent[one], spent[f"{most}{way}"], strict=True)
        ]
        for way, one in alone.items()
    }
    results = {
        "images_per_s": {name: spread(values) for name, values in rates.items()},
        "service_of_local": spread(ratios),
        "host_cpu_ms": spread([each["host_ms"] for each in found]),
        "server_cpu_ms": spread([each["server_ms"] for each in found]),
        "busy_share": spread([each["busy"] for each in found]),
        "same_host": {
            "service_of_local": spread(same_ratios),
            "host_cpu_ms": spread([each["host_ms"] for each in same_host]),
            "server_cpu_ms": spread([each["server_ms"] for each in same_host]),
            "busy_share": spread([each["busy"] for each in same_host]),
        },
        "server_cpu_s_by_trials": {name: spread(values) for name, values in spent.items()},
        "share_of_a_further_trial": {way.strip() or "same host": spread(values) for way, values in further.items()},
        "heavy": {
            "images_per_s": {name: spread(values) for name, values in heavy_rates.items()},
            "host_cpu_ms": spread([each["host_ms"] for each in heavy_runs]),
            "server_cpu_ms": spread([each["server_ms"] for each in heavy_runs]),
        },
        "options": {"size": options.size, "batch": options.batch, "cores": _CORES},
    }
    for name, values in rates.items():
        print(f"{name:20} {spread(values)['median']:8.0f} images/s")
    for name, shares, runs in (("over TCP", ratios, found), ("same host", same_ratios, same_host)):
        host, busy = (spread([each[key] for each in runs])["median"] for key in ("host_ms", "busy"))
        print(
            f"service / local workers, {name}: {spread(shares)['median']:.2f}, host CPU {host:.3f} ms an image, "
            f"{busy:.0%} of two cores"
        )
    for way, shares in further.items():
        print(f"each further trial{way} costs {spread(shares)['median']:.0%} of the first one's CPU at the server")
    print(f"written to {save('service', results, options.json)}")


if __name__ == "__main__":
    main()
