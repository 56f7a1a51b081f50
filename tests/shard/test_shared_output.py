"""Shards whose samples are sent to another process, which has nothing else of their source."""

from __future__ import annotations

import itertools
import os
import pickle
import re
import shutil
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from feeder.dataset.dataset_shards import write_shards
from feeder.errors import ArgumentError, LockedError, ShardError
from feeder.shard.source.open import open_source
from feeder.shard.source.sample_table import NO_FILE, SampleTable, StoredField
from feeder.shard.source.source import Source, SourceKind
from feeder.shard.source.table_file import ManifestColumns
from feeder.shard.store.open_store import open_store
from feeder.shard.write.attempt import attempt_shard, pickled_job, writer_versions
from feeder.shard.write.output_folder import OutputFolder
from feeder.shard.write.plan import ordered_ids, plan_shards
from feeder.shard.write.shard_engine import ShardEngine
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.shard_writer import ShardJob, WrittenShard
from feeder.shard.write.sharding import open_engine, shard
from feeder.shard.write.shared_output import SharedFolder, SharedOutput, SharedStore
from feeder.shard.write.store_lock import StoreLock
from feeder.system.progress import Progress
from tests.support import ROOT
from tests.support.images import encode, pixels
from tests.support.interrupted_runs import StopAfter
from tests.support.remote import Bucket
from tests.support.shard_sets import KEEP, StopAtOnce, contents, kept, tar_members, write_tar


@contextmanager
def _far_away(folder: OutputFolder) -> Iterator[None]:
    """Another working folder, without the files that only the driver has."""
    before, hidden = os.getcwd(), [] if folder.shown == folder.path else [(folder.path, f"{folder.path}-hidden")]
    for path, other in hidden:
        os.rename(path, other)
    os.chdir("/")
    try:
        yield
    finally:
        os.chdir(before)
        for path, other in hidden:
            os.rename(other, path)


class _Elsewhere:
    """An engine whose attempts get what a machine of a cluster gets: the order, and nothing else."""

    def __init__(self) -> None:
        self.options = ShardOptions()
        self.orders: list[int] = []
        self.ends: list[Any] = []

    def write(
        self,
        folder: OutputFolder,
        source: Source,
        jobs: Mapping[int, ShardJob],
        progress: Progress,
    ) -> dict[int, WrittenShard]:
        written = {}
        with folder.shared() as output:
            for number, job in jobs.items():
                ids = ordered_ids(job.positions, len(source.table), self.options)
                order = pickled_job(job, source, ids, folder, output)
                self.orders.append(len(order))
                with _far_away(folder):
                    written[number], files = attempt_shard(writer_versions(), order)
                folder.adopt(written[number], files)
                progress.advance(len(job.positions), 0)
        return written


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> _Elsewhere:
    """Has runs with the engine "ray" use this one."""
    engine = _Elsewhere()

    def opened(options: ShardOptions) -> AbstractContextManager[ShardEngine]:
        engine.options = options
        return nullcontext(engine.write) if options.engine == "ray" else open_engine(options)

    monkeypatch.setattr("feeder.shard.write.sharding.open_engine", opened)
    return engine


def _tars(tmp_path: Path, gzipped: bool) -> str:
    for k in range(3):
        members = [(name, b"%d" % k if name.endswith("cls") else data) for name, data in tar_members(6, 6 * k)]
        name = f"part-{k}.tar" + ".gz" * gzipped
        write_tar(tmp_path / "tars" / name, members, "w:gz" if gzipped else "w")
    return str(tmp_path / "tars")


def _manifest(tmp_path: Path, tree: Path) -> str:
    lines = ["path,label,note"]
    lines += [f"{path},{path.parent.name},n-{k}" for k, path in enumerate(sorted(tree.rglob("*.jpg")))]
    (tmp_path / "list.csv").write_text("\n".join(lines))
    return str(tmp_path / "list.csv")


@pytest.fixture(params=["folder", "members", "manifest", "targets", "tars", "gzipped"])
def source(request: pytest.FixtureRequest, tree: Path, tmp_path: Path) -> tuple[str, ManifestColumns]:
    """A source of each kind."""
    (tmp_path / "tars").mkdir()
    columns = ManifestColumns()
    if request.param == "members":
        for k, name in enumerate(["one", "two", "three", "four"]):
            (tmp_path / "tars" / f"{name}.jpg").write_bytes(encode(pixels(k)))
            (tmp_path / "tars" / f"{name}.txt").write_text(f"it is {name}")
            if k % 2:
                (tmp_path / "tars" / f"{name}.emb.npy").write_bytes(bytes(k))
        return str(tmp_path / "tars"), columns
    if request.param == "targets":
        (tmp_path / "numbers.csv").write_text(
            "path,x,y\n" + "".join(f"{path},{k}.5,{-k}\n" for k, path in enumerate(sorted(tree.rglob("*.jpg"))))
        )
        return str(tmp_path / "numbers.csv"), ManifestColumns(targets=("x", "y"))
    if request.param in ("tars", "gzipped"):
        return _tars(tmp_path, request.param == "gzipped"), columns
    return (str(tree) if request.param == "folder" else _manifest(tmp_path, tree)), columns


def test_shards_made_elsewhere_are_those_of_one_machine(
    source: tuple[str, ManifestColumns], tmp_path: Path, elsewhere: _Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, columns = source
    options = kept(samples_per_shard=7, columns=columns)
    shard(path, str(tmp_path / "here"), options)
    monkeypatch.chdir(tmp_path)  # a relative path means nothing elsewhere
    shard(os.path.relpath(path), "there", replace(options, engine="ray"))
    assert elsewhere.orders
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


def test_shards_made_elsewhere_come_into_a_store(
    source: tuple[str, ManifestColumns], bucket: Bucket, tmp_path: Path, elsewhere: _Elsewhere
) -> None:
    path, columns = source
    options = kept(samples_per_shard=7, columns=columns)
    shard(path, str(tmp_path / "here"), options)
    shard(path, f"{bucket.url}/there", replace(options, engine="ray"))
    expected = {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir() if path.name != ".lock"}
    assert {key.removeprefix("there/"): bucket.get(key) for key in bucket.keys()} == expected  # noqa: SIM118


def test_a_source_in_a_store_is_read_elsewhere(
    tree: Path, bucket: Bucket, tmp_path: Path, elsewhere: _Elsewhere
) -> None:
    (tmp_path / "tars").mkdir()
    _tars(tmp_path, gzipped=False)
    bucket.upload(tmp_path / "tars", "tars")
    for path in tree.rglob("*.jpg"):
        bucket.put(f"images/{path.relative_to(tree)}", path.read_bytes())
    for place in ("tars", "images"):
        options = kept(samples_per_shard=7)
        shard(f"{bucket.url}/{place}", str(tmp_path / f"here-{place}"), options)
        shard(f"{bucket.url}/{place}", str(tmp_path / f"there-{place}"), replace(options, engine="ray"))
        assert contents(tmp_path / f"there-{place}") == contents(tmp_path / f"here-{place}")


def test_an_iterable_is_sharded_elsewhere(tmp_path: Path, bucket: Bucket, elsewhere: _Elsewhere) -> None:
    samples = [{"__key__": f"{k}", "jpg": encode(pixels(k)), "cls": k % 2, "json": {"k": k}} for k in range(9)]
    options: dict[str, Any] = {"samples_per_shard": 4, "encode": "packed"}
    write_shards(samples, tmp_path / "here", **options)
    write_shards(samples, tmp_path / "there", **options, engine="ray")
    write_shards(samples, f"{bucket.url}/there", **options, engine="ray")
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    for path in (tmp_path / "here").glob("[is]*"):
        assert bucket.get(f"there/{path.name}") == path.read_bytes()
    assert len(elsewhere.orders) == 6


def test_an_order_has_the_rows_of_its_shard_alone(tmp_path: Path) -> None:
    source = Source(SourceKind.FLAT_FOLDER, "/data")
    for i in range(20_000):
        stored = [StoredField("json", 0, 10 * i, 10), source.table.add_file("txt", b"%06d.txt" % i, 5)]
        source.table.add(b"images/%06d.jpg" % i, 100 + i, i, i % 10, stored)
    ids = np.array([19_000, 7, 12_345])
    found, containers = source.table.rows(ids)
    assert containers == [0]
    for k, i in enumerate(ids.tolist()):
        assert (found.path(k), found.size(k), found.label(k)) == (b"images/%06d.jpg" % i, 100 + i, i % 10)
        box, text = found.stored_fields(k)
        assert box == StoredField("json", 0, 10 * i, 10)
        assert (text.name, found.file(text.offset), text.length) == ("txt", b"%06d.txt" % i, 5)
    assert len(pickle.dumps(found)) < 2_000


def test_containers_are_numbered_anew_among_the_rows() -> None:
    table = SampleTable()
    for i in range(4):
        table.add(b"%d" % i, 3, NO_FILE, -1, [StoredField("jpg", i, 0, 3)])
    found, containers = table.rows(np.array([3, 1]))
    assert containers == [1, 3]
    assert [found.stored_fields(k)[0].container for k in range(2)] == [1, 0]


def test_the_drivers_memory_is_that_of_its_table_and_of_few_orders(tmp_path: Path) -> None:
    """An order takes no more than 100 bytes a sample, and no copy of the table of all samples is made for it."""
    samples, options = 100_000, kept(samples_per_shard=1000)
    source: Any = Source(SourceKind.FLAT_FOLDER, str(tmp_path))
    tracemalloc.start()
    try:
        for i in range(samples):
            source.table.add(b"n01440764/n01440764_%08d.JPEG" % i, 110_000 + i, 1 << 60, i % 1000)
        plan = plan_shards(source, options)
        table_bytes = tracemalloc.get_traced_memory()[0]
        assert table_bytes < 100 * samples
        folder: Any = SimpleNamespace(is_copy=False, path=str(tmp_path))
        tracemalloc.reset_peak()
        for number, positions in enumerate(plan[:8]):
            job = ShardJob(f"shard-{number:06d}.tar", positions, 0, 8, KEEP, None)
            ids = ordered_ids(positions, samples, options)
            order = pickled_job(job, source, ids, folder, SharedFolder(str(tmp_path)))
            assert len(order) < 100 * len(positions)
        assert tracemalloc.get_traced_memory()[1] - table_bytes < table_bytes // 3
    finally:
        tracemalloc.stop()


def _attempt(tree: Path, out: OutputFolder, output: SharedOutput, versions: dict[str, str]) -> None:
    """Attempts one shard of all images."""
    source = open_source(str(tree), ManifestColumns(), out.work)
    job = ShardJob("shard-000000.tar", range(len(source.table)), 0, 8, KEEP, None)
    attempt_shard(versions, pickled_job(job, source, np.arange(len(source.table)), out, output))


@pytest.fixture
def out(tmp_path: Path) -> Iterator[OutputFolder]:
    with OutputFolder.locked(str(tmp_path / "out")) as folder:
        yield folder


def test_another_version_is_refused_by_name(tree: Path, out: OutputFolder) -> None:
    versions = writer_versions() | {"Pillow": "pillow 1.0"}
    refused = r"it has Pillow pillow\S* \S+ \(the driver has pillow 1\.0\); install the same"
    with out.shared() as output, pytest.raises(ShardError, match=refused):
        _attempt(tree, out, output, versions)


def test_a_machine_that_lacks_the_source_or_the_output_is_refused(
    tree: Path, out: OutputFolder, tmp_path: Path
) -> None:
    images = tmp_path / "images"
    shutil.copytree(tree, images)
    with out.shared() as output:
        _attempt(images, out, output, writer_versions())
    hint = "; all nodes must see source and output at the same paths"
    with pytest.raises(ShardError, match=re.escape(f"it does not have {out.path}{hint}")):
        _attempt(images, out, output, writer_versions())
    source = open_source(str(images), ManifestColumns(), out.work)
    shutil.rmtree(images)
    job = ShardJob("shard-000000.tar", range(3), 0, 8, KEEP, None)
    with out.shared() as output:
        order = pickled_job(job, source, np.arange(3), out, output)
        with pytest.raises(ShardError, match=re.escape(f"it does not have {images}{hint}")):
            attempt_shard(writer_versions(), order)


def test_an_attempt_that_goes_on_leaves_nothing_behind_a_run_that_has_ended(out: OutputFolder) -> None:
    def write_on(folder: str) -> None:
        with suppress(FileNotFoundError):
            for number in itertools.count():
                Path(folder, f"{number}.tmp").touch()
                writes.set()
                if ended.is_set():
                    return

    for _ in range(20):
        writes, ended = threading.Event(), threading.Event()
        with out.shared() as output, output.attempt("shard-000000.tar") as folder:
            thread = threading.Thread(target=write_on, args=(folder,))
            thread.start()
            writes.wait()
        ended.set()
        thread.join()
        assert os.listdir(out.work) == []


def test_an_attempt_for_a_run_that_has_ended_writes_nothing(tree: Path, bucket: Bucket, tmp_path: Path) -> None:
    store = open_store(f"{bucket.url}/set")
    with StoreLock.held(store) as lock:
        output = SharedStore(store.url, lock.id)
    with StoreLock.held(store), pytest.raises(LockedError):
        _attempt(tree, OutputFolder(str(tmp_path)), output, writer_versions())
    assert bucket.keys() == []


def test_a_run_over_attempts_that_were_left_behind_removes_them(
    tree: Path, tmp_path: Path, elsewhere: _Elsewhere
) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        shard(str(tree), str(out), kept(samples_per_shard=5, engine="ray"), progress=StopAfter(20))
    finished = sorted(path.name for path in out.glob("*.tar"))
    left = out / ".work" / "attempts-0123"
    (left / "4567").mkdir(parents=True)
    (left / "4567" / "shard-000009.tar.89ab.tmp").touch()
    with pytest.raises(KeyboardInterrupt):
        shard(str(tree), str(out), kept(samples_per_shard=5), progress=StopAtOnce())
    assert not left.exists()
    summary = shard(str(tree), str(out), kept(samples_per_shard=5))
    assert len(finished) == 5
    assert summary.written_shards <= 7
    shard(str(tree), str(tmp_path / "unbroken"), kept(samples_per_shard=5))
    assert contents(out) == contents(tmp_path / "unbroken")


def test_one_machine_imports_nothing_of_ray(tree: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from feeder.tools.cli import main\n"
        "main(['shard', sys.argv[1], '--out', sys.argv[2]]); assert 'ray' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tree), str(tmp_path / "out")], check=True, cwd=ROOT)


def test_without_ray_the_error_names_the_extra(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "feeder.shard.write.ray_engine", raising=False)
    with pytest.raises(ArgumentError, match=r"pip install 'feeder-data\[ray\]'"):
        shard(str(tree), str(tmp_path / "out"), kept(engine="ray"))
    assert not (tmp_path / "out").exists()


def test_engines_and_addresses_are_checked() -> None:
    with pytest.raises(ArgumentError, match="engine must be one of local, ray, got 'spark'"):
        ShardOptions(engine="spark")
    with pytest.raises(ArgumentError, match="address is for engine 'ray'"):
        ShardOptions(address="auto")
