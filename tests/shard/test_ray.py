"""``feeder shard --engine ray`` on clusters in one machine."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from feeder.shard.format.open_index import open_index
from feeder.shard.write.sharding import shard
from tests.support import ROOT
from tests.support.held_file import held
from tests.support.interrupted_runs import StopAfter
from tests.support.processes import wait_until
from tests.support.ray_cluster import RayCluster
from tests.support.remote import Bucket
from tests.support.shard_sets import contents, kept

pytestmark = pytest.mark.slow

OPTIONS = kept(samples_per_shard=5)


@pytest.fixture(scope="module")
def whole_cluster() -> Iterator[RayCluster]:
    made = RayCluster()
    yield made
    made.close()


@pytest.fixture
def cluster(whole_cluster: RayCluster) -> Iterator[RayCluster]:
    """A cluster with one node of one core."""
    if not whole_cluster.nodes:
        whole_cluster.add_node()
    yield whole_cluster
    for node in whole_cluster.nodes[1:]:
        whole_cluster.kill_node(node)


@pytest.fixture(scope="module")
def expected(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of one machine's set, with their checksums."""
    out = tmp_path_factory.mktemp("expected") / "set"
    shard(str(tree), str(out), OPTIONS)
    return contents(out)


@pytest.fixture
def plan(tree: Path, tmp_path: Path) -> list[list[Path]]:
    """The images of each shard, in their order."""
    shard(str(tree), str(tmp_path / "plan"), OPTIONS)
    index = open_index(tmp_path / "plan" / "index.bin")
    ranges = [range(*index.header.sample_range(number)) for number in range(index.header.shards)]
    return [[tree / index.source_path(i) for i in ids] for ids in ranges]


class Driver:
    """A run of the command.

    Args:
        cluster: Its cluster.
        source, out: Its arguments.
        options: Further options.
        errors: What its standard error is.
    """

    def __init__(
        self, cluster: RayCluster, source: Path, out: Path | str, *options: str, errors: int = subprocess.PIPE
    ) -> None:
        settings = ["--samples-per-shard", "5", "--encode", "keep", "--engine", "ray", "--address", cluster.address]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "feeder", "shard", str(source), "--out", str(out), *settings, *options],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
        )

    def end(self, code: int = 0) -> tuple[str, str]:
        """Returns what it has printed, once it has ended with this code."""
        printed, errors = self.process.communicate()
        assert self.process.returncode == code, errors
        return printed, errors


def test_the_set_is_that_of_one_machine(
    cluster: RayCluster, tree: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    printed, errors = Driver(cluster, tree, tmp_path / "out", "--json").end()
    assert contents(tmp_path / "out") == expected
    summary = json.loads(printed)
    assert (summary["written_shards"], summary["samples"], summary["notes"]) == (12, 60, [])
    # Nothing of Ray's; how far the run is where it takes long.
    assert not re.sub(r"^\d+/60 images, .* left\n", "", errors, flags=re.M)


def test_a_killed_node_costs_the_shards_in_its_hands(cluster: RayCluster, tree: Path, tmp_path: Path) -> None:
    options = kept(samples_per_shard=60)  # one shard, which no other node tries because it is late
    shard(str(tree), str(tmp_path / "expected"), options)
    with held(tree / "class-2" / "img-007.jpg") as file:
        driver = Driver(cluster, tree, tmp_path / "out", "--samples-per-shard", "60", "--json")
        file.wait()
        cluster.add_node()
        cluster.kill_node(cluster.nodes[0])
        wait_until(lambda: not _writers(tmp_path / "out"))
        file.release()
        printed, errors = driver.end()
    assert contents(tmp_path / "out") == contents(tmp_path / "expected")
    assert json.loads(printed)["samples"] == 60  # and nothing of Ray's beside it
    assert "node" not in errors


def test_a_killed_driver_is_resumed_by_this_machine(
    cluster: RayCluster, tree: Path, tmp_path: Path, expected: dict[str, str], plan: list[list[Path]]
) -> None:
    out = tmp_path / "out"
    with held(plan[5][2]) as file:
        driver = Driver(cluster, tree, out)
        file.wait()
        driver.process.kill()
        driver.end(-signal.SIGKILL)
        file.release()
    finished = len(list(out.glob("*.tar")))
    assert 0 < finished < 12
    assert shard(str(tree), str(out), OPTIONS).written_shards == 12 - finished
    assert contents(out) == expected


def test_an_interrupted_run_leaves_a_folder_that_resumes(
    cluster: RayCluster, tree: Path, tmp_path: Path, expected: dict[str, str], plan: list[list[Path]]
) -> None:
    out = tmp_path / "out"
    with held(plan[5][2]) as file:
        driver = Driver(cluster, tree, out)
        file.wait()
        driver.process.send_signal(signal.SIGINT)
        file.release()
        _, errors = driver.end(130)
    assert "the same command resumes the run" in errors
    assert {path.suffix for path in (out / ".work").iterdir()} == {".json"}
    assert not list(out.rglob("*.tmp"))
    Driver(cluster, tree, out).end()
    assert contents(out) == expected


def test_a_run_of_this_machine_is_resumed_by_the_cluster(
    cluster: RayCluster, tree: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        shard(str(tree), str(out), OPTIONS, progress=StopAfter(30))
    finished = len(list(out.glob("*.tar")))
    printed, _ = Driver(cluster, tree, out, "--json").end()
    assert json.loads(printed)["written_shards"] == 12 - finished < 12
    assert contents(out) == expected


def test_a_set_in_a_store_is_that_of_one_machine(
    cluster: RayCluster, tree: Path, tmp_path: Path, bucket: Bucket, expected: dict[str, str]
) -> None:
    node = cluster.add_node({k: v for k, v in os.environ.items() if k.startswith("AWS_")})
    cluster.kill_node(next(each for each in cluster.nodes if each != node))
    Driver(cluster, tree, f"{bucket.url}/set").end()
    out = tmp_path / "out"
    for key in bucket.keys():  # noqa: SIM118
        (out / key).parent.mkdir(parents=True, exist_ok=True)
        (out / key).write_bytes(bucket.get(key))
    assert contents(out / "set") == {name: found for name, found in expected.items() if name != ".lock"}
    cluster.kill_node(node)


def test_a_script_that_has_joined_a_cluster_stays_there(cluster: RayCluster, tmp_path: Path) -> None:
    code = (
        "import sys, ray, feeder\n"
        "from tests.support.images import encode, pixels\n"
        "ray.init(sys.argv[1], log_to_driver=False)\n"
        "samples = [{'__key__': str(k), 'jpg': encode(pixels(k)), 'cls': k % 2} for k in range(9)]\n"
        "for engine in ('local', 'ray'):\n"
        "    feeder.write_shards(samples, f'{sys.argv[2]}/{engine}', samples_per_shard=4, engine=engine)\n"
        "assert ray.cluster_resources()\n"
    )
    subprocess.run([sys.executable, "-c", code, cluster.address, str(tmp_path)], check=True, cwd=ROOT)
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")


def _site(folder: Path, code: str) -> dict[str, str]:
    """The environment of a node whose processes run some code before anything else."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": str(folder)}


def test_a_node_with_another_version_ends_the_run_by_name(cluster: RayCluster, tree: Path, tmp_path: Path) -> None:
    cluster.add_node(_site(tmp_path / "site", "import feeder; feeder.__version__ = '0.0.9'"))
    cluster.kill_node(cluster.nodes[0])
    _, errors = Driver(cluster, tree, tmp_path / "none").end(1)
    assert re.search(r"it has feeder 0\.0\.9 \(the driver has \S+\); install the same .* \(on node \S+\)", errors)
    cluster.kill_node(cluster.nodes[0])


_OTHERS = {
    "Pillow": "import PIL.Image; PIL.__version__ = '0.0.9'",
    "Pillow's libjpeg": "from PIL import features; features.version = lambda name: '0.0.9'",
    "the kernels' libjpeg": "import feeder._native; feeder._native.libjpeg_turbo = lambda: ('0.0.9', 'none')",
}


@pytest.mark.parametrize("name", _OTHERS)
def test_a_node_with_another_pillow_or_another_libjpeg_ends_the_run(
    cluster: RayCluster, tree: Path, tmp_path: Path, name: str
) -> None:
    cluster.add_node(_site(tmp_path / "site", _OTHERS[name]))
    cluster.kill_node(cluster.nodes[0])
    _, errors = Driver(cluster, tree, tmp_path / "out").end(1)
    assert re.search(rf"it has {name} \S+ 0\.0\.9 \(the driver has [^,;]*\); install the same", errors), errors
    cluster.kill_node(cluster.nodes[0])


_BAD_DISK = """
import errno, os
import feeder.shard.source.source as source
real = source.read_image
def read_image(path, **options):
    if path.endswith("img-003.jpg"):
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)
    return real(path, **options)
source.read_image = read_image
"""


def test_a_bad_disk_of_a_node_ends_the_run_by_name(cluster: RayCluster, tree: Path, tmp_path: Path) -> None:
    cluster.add_node(_site(tmp_path / "site", _BAD_DISK))
    cluster.kill_node(cluster.nodes[0])
    _, errors = Driver(cluster, tree, tmp_path / "none").end(1)
    assert re.search(r"img-003\.jpg: can't be read: Input/output error.*\(on node", errors)
    cluster.kill_node(cluster.nodes[0])


def test_a_sample_that_ends_its_process_again_and_again_ends_the_run(
    cluster: RayCluster, tree: Path, tmp_path: Path
) -> None:
    code = _BAD_DISK.replace("raise OSError(errno.EIO, os.strerror(errno.EIO), path)", "os.kill(os.getpid(), 9)")
    cluster.add_node(_site(tmp_path / "site", code))
    cluster.kill_node(cluster.nodes[0])
    _, errors = Driver(cluster, tree, tmp_path / "out").end(1)
    assert re.search(r"the Ray cluster failed: .*; nothing is lost: run the same command again", errors, re.DOTALL)
    cluster.kill_node(cluster.nodes[0])


_HELD = """
import fcntl
import feeder.shard.source.source as source
real = source.read_image
def read_image(path, **options):
    with open({path!r}) as file:
        fcntl.flock(file, fcntl.LOCK_SH)
    return real(path, **options)
source.read_image = read_image
"""


def _lose_the_writers_node(cluster: RayCluster, out: Path, environment: dict[str, str], *, process_first: bool) -> None:
    """Kills the first node, which writes a shard, and the process before it, once another node is there."""
    wait_until(lambda: _writers(out))
    writers = set(_writers(out))
    if process_first:
        for writer in writers:
            os.kill(writer, signal.SIGKILL)
        wait_until(lambda: set(_writers(out)) - writers)  # it was started again
        writers = set(_writers(out))
    cluster.add_node(environment)
    cluster.kill_node(cluster.nodes[0])
    cluster.wait_for_nodes()
    wait_until(lambda: not writers & set(_writers(out)))


@pytest.mark.parametrize("process_first", [False, True])
def test_a_shard_outlives_any_number_of_its_nodes(
    cluster: RayCluster, tree: Path, tmp_path: Path, process_first: bool
) -> None:
    shard(str(tree), str(tmp_path / "expected"), kept(samples_per_shard=60))
    out, hold = tmp_path / "out", tmp_path / "hold"
    with open(hold, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        environment = _site(tmp_path / "site", _HELD.format(path=str(hold)))
        cluster.add_node(environment)
        cluster.kill_node(cluster.nodes[0])
        driver = Driver(cluster, tree, out, "--samples-per-shard", "60")
        for _ in range(3):
            _lose_the_writers_node(cluster, out, environment, process_first=process_first)
    driver.end()
    assert contents(out) == contents(tmp_path / "expected")
    cluster.kill_node(cluster.nodes[0])


def test_a_full_disk_of_a_node_ends_the_run(
    cluster: RayCluster, tree: Path, tmp_path: Path, plan: list[list[Path]]
) -> None:
    code = "import errno, os\ndef fsync(file): raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))\nos.fsync = fsync"
    with held(plan[0][2]) as file:
        driver = Driver(cluster, tree, tmp_path / "out")
        file.wait()
        cluster.add_node(_site(tmp_path / "site", code), cores=2)
        _, errors = driver.end(1)
        file.release()
    assert re.search(r"the disk is full \(No space left on device \(on node \S+\)\); nothing is lost", errors)


def test_a_source_that_changes_ends_the_run(
    cluster: RayCluster, tree: Path, tmp_path: Path, plan: list[list[Path]]
) -> None:
    last = plan[11][4]
    before = last.read_bytes()
    try:
        with held(plan[0][2]) as file:
            driver = Driver(cluster, tree, tmp_path / "out")
            file.wait()
            last.write_bytes(before[:-1])
            file.release()
            _, errors = driver.end(1)
    finally:
        last.write_bytes(before)
    assert re.search(rf"{last}: changed while it was being sharded.*\(on node", errors)


def _writers(out: Path) -> list[int]:
    """Processes that have a temporary file of a shard open."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        links: list[Path] = []
        with contextlib.suppress(OSError):  # it has ended
            links += (process / "fd").iterdir()
        for link in links:
            with contextlib.suppress(OSError):  # it was closed
                path = os.readlink(link)
                if path.startswith(f"{out}/") and path.endswith(".tmp"):
                    found.add(int(process.name))
    return sorted(found)
