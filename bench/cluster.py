"""Shards on a Ray cluster in one machine: nodes are killed at random, and two nodes run beside two threads.

Kills: runs of at least --shards shards on four nodes of one core, of which three are killed, one by one at random
times. The SHA-256 of every file must be that of a run on one machine; one that is not ends the benchmark. Kills that
came after the end of a run do not count.
Efficiency: two nodes of one core against `feeder shard` in one process with two workers, in turn, on --gigabytes of
JPEGs made seekable. Equal: the files, the file system, the shards, and that everything is on disk at the end. Both
times are those of the whole command; the cluster is there before. Needs two cores that have nothing else to do.

    python -m bench.cluster --images IMAGES [--kills 50] [--shards 40] [--gigabytes 2] [--repeats 5] [--scratch DIR]
        [--json OUT]
"""

from __future__ import annotations

import functools
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.shard import replicate
from bench.smoke import arguments
from feeder.tools.bench.result_file import interleave, save, spread
from tests.support.ray_cluster import RayCluster
from tests.support.shard_sets import contents

_KILLS_A_RUN = 3


def command(source: Path, out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "feeder", "shard", str(source), "--out", str(out), "-q", *options]


def on(cluster: RayCluster) -> list[str]:
    return ["--engine", "ray", "--address", cluster.address]


def run_with_kills(
    cluster: RayCluster, source: Path, out: Path, shards: int, size: list[str], kills: int, draw: random.Random
) -> tuple[float, int]:
    """Shards while nodes are killed, each after a random number of finished shards; returns seconds and kills."""
    while len(cluster.nodes) < kills + 1:
        cluster.add_node()
    moments = sorted(draw.sample(range(shards), min(kills, shards)))
    killed = 0
    began = time.perf_counter()
    driver = subprocess.Popen(command(source, out, *size, *on(cluster)))
    for moment in moments:
        while len(list(out.glob("*.tar"))) < moment and driver.poll() is None:
            time.sleep(0.01)
        if driver.poll() is None:
            cluster.kill_node(draw.choice(cluster.nodes))
            killed += 1
    if driver.wait():
        raise SystemExit(f"a run with {killed} kills ended with exit code {driver.returncode}")
    return time.perf_counter() - began, killed


def timed(arguments: list[str], out: Path) -> float:
    shutil.rmtree(out, ignore_errors=True)
    os.sync()
    began = time.perf_counter()
    subprocess.run(arguments, check=True)
    return time.perf_counter() - began


def main() -> None:
    options = arguments(
        __doc__, "cluster", smoke={"kills": 3, "shards": 8, "gigabytes": 0.0, "repeats": 1},
        images=None, kills=50, shards=40, gigabytes=2.0, repeats=5, seed=0, scratch="",
    )  # fmt: skip
    images = Path(options.images).resolve()
    draw = random.Random(options.seed)
    cluster = RayCluster()
    try:
        with tempfile.TemporaryDirectory(dir=options.scratch or None) as name:
            scratch = Path(name)
            count = sum(1 for path in images.rglob("*") if path.is_file())
            size = ["--samples-per-shard", str(max(1, count // options.shards))]
            subprocess.run(command(images, scratch / "expected", *size), check=True)
            expected = contents(scratch / "expected")
            shards = len(list((scratch / "expected").glob("*.tar")))
            seconds, left = [], options.kills
            while left:
                kills = min(left, _KILLS_A_RUN)
                took_s, killed = run_with_kills(cluster, images, scratch / "out", shards, size, kills, draw)
                seconds.append(took_s)
                if contents(scratch / "out") != expected:
                    raise SystemExit(f"run {len(seconds)}: the set is not that of one machine")
                shutil.rmtree(scratch / "out")
                left -= killed
                print(f"run {len(seconds)}: {killed} kills, {seconds[-1]:.1f} s, the same bytes")
            while len(cluster.nodes) != 2:
                cluster.add_node() if len(cluster.nodes) < 2 else cluster.kill_node(cluster.nodes[0])
            files, size_bytes = replicate(images, scratch / "images", int(options.gigabytes * 1e9) or 1)
            out = scratch / "out"
            rivals = {
                "1 process of 2 workers": command(scratch / "images", out, "--workers", "2"),
                "2 nodes of 1 core": command(scratch / "images", out, *on(cluster)),
            }
            times = interleave(
                {name: functools.partial(timed, each, out) for name, each in rivals.items()}, options.repeats
            )
    finally:
        cluster.close()
    ratios = [here / there for here, there in zip(*times.values(), strict=True)]
    print(f"{options.kills} kills over {len(seconds)} runs of {shards} shards: every set the same")
    print(f"efficiency: {spread(ratios)['median']:.2f} ({min(ratios):.2f}-{max(ratios):.2f})")
    results = {
        "kills": {"nodes_killed": options.kills, "runs": len(seconds), "shards": shards, "seconds": spread(seconds)},
        "efficiency": {"files": files, "bytes": size_bytes, "ratio": spread(ratios)}
        | {"seconds": {name: spread(values) for name, values in times.items()}},
    }
    print(f"written to {save('cluster', results, options.json)}")


if __name__ == "__main__":
    main()
