from __future__ import annotations

import gc
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset

from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError, FeederError, LockedError, ShardError, SourceError
from feeder.order.permutation import permute
from feeder.shard.format.index import Index
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.manifest import Manifest
from feeder.shard.write.options import ShardOptions
from feeder.shard.write.sharding import default_out, shard, write_shards
from feeder.system.files import exclusive_lock
from feeder.system.progress import Progress
from tests.support.images import encode, make_tree, pixels
from tests.support.shard_sets import KEEP, contents, kept, samples_of


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("data") / "images", classes=4, per_class=15)


def test_every_sample_is_written_once_with_its_bytes_and_label(tree: Path, tmp_path: Path) -> None:
    summary = shard(str(tree), str(tmp_path / "out"), kept(samples_per_shard=7))
    assert (summary.inputs, summary.samples, summary.rejected, summary.shards) == (60, 60, 0, 9)
    found = samples_of(tmp_path / "out")
    assert sorted(path for path, _, _ in found) == sorted(str(p.relative_to(tree)) for p in tree.rglob("*.jpg"))
    for path, data, label in found:
        assert data == (tree / path).read_bytes()
        assert path.startswith(f"class-{label}/")
    manifest = Manifest.read(str(tmp_path / "out"))
    assert manifest is not None
    assert manifest.classes == [f"class-{i}" for i in range(4)]


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # webdataset leaves its last tar to the garbage collector
def test_the_webdataset_library_reads_the_same_keys_bytes_and_labels(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shard(str(tree), str(out), kept(samples_per_shard=25))
    index = Index(out / "index.bin")
    ours = [(index.key(i), data, label) for i, (_, data, label) in enumerate(samples_of(out))]
    theirs = webdataset.WebDataset(str(out / "shard-{000000..000002}.tar"), shardshuffle=False)
    assert [(s["__key__"], s["jpg"], int(s["cls"])) for s in theirs] == ours
    del theirs
    gc.collect()
    assert all("." not in key and key.isdigit() for key, _, _ in ours)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_dali_reads_the_shards_with_the_index_files(tree: Path, tmp_path: Path) -> None:
    pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    from nvidia.dali import fn, pipeline_def

    out = tmp_path / "out"
    shard(str(tree), str(out), kept(samples_per_shard=25, dali_index=True))
    shards = sorted(str(p) for p in out.glob("*.tar"))

    @pipeline_def(batch_size=60, num_threads=1, device_id=None)
    def pipeline():
        readers: Any = fn.readers
        return tuple(
            readers.webdataset(paths=shards, index_paths=[s[:-4] + ".idx" for s in shards], ext=["jpg", "cls"])
        )

    built = pipeline()
    built.build()
    images, labels = built.run()
    read = [(bytes(images.at(i)), int(bytes(labels.at(i)))) for i in range(60)]
    assert read == [(data, label) for _, data, label in samples_of(out)]


def test_the_shuffle_is_one_permutation_of_everything(tree: Path, tmp_path: Path) -> None:
    shard(str(tree), str(tmp_path / "a"), kept(seed=5))
    listed = sorted(str(p.relative_to(tree)) for p in tree.rglob("*.jpg"))
    expected = [listed[i] for i in permute(np.arange(60), 60, 5).tolist()]
    assert [path for path, _, _ in samples_of(tmp_path / "a")] == expected
    shard(str(tree), str(tmp_path / "b"), kept(shuffle=False))
    assert [path for path, _, _ in samples_of(tmp_path / "b")] == listed


def test_output_is_byte_identical_whatever_workers_place_times_and_listing_order(tree: Path, tmp_path: Path) -> None:
    options = kept(seed=3, samples_per_shard=11, workers=1, dali_index=True)
    shard(str(tree), str(tmp_path / "a"), options)
    copy = tmp_path / "elsewhere" / "images"
    files = [p.relative_to(tree) for p in tree.rglob("*.jpg")]
    random.Random(0).shuffle(files)  # another creation order, so another listing order, and other times
    for path in files:
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_bytes((tree / path).read_bytes())
    shard(str(copy), str(tmp_path / "b"), kept(seed=3, samples_per_shard=11, workers=5, dali_index=True))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    shard(str(tree), str(tmp_path / "c"), kept(seed=4, samples_per_shard=11))
    assert contents(tmp_path / "c")["shard-000000.tar"] != contents(tmp_path / "a")["shard-000000.tar"]


def test_shards_keep_to_the_asked_size(tree: Path, tmp_path: Path) -> None:
    limit = 20_000
    summary = shard(str(tree), str(tmp_path / "out"), kept(shard_size_bytes=limit))
    sizes = [p.stat().st_size for p in sorted((tmp_path / "out").glob("*.tar"))]
    assert summary.shards == len(sizes) > 2
    assert max(sizes) <= limit
    assert min(sizes[:-1]) > limit - 4096  # no shard is closed before the next sample would not fit


def test_an_image_larger_than_a_shard_gets_one_of_its_own(tree: Path, tmp_path: Path) -> None:
    assert shard(str(tree), str(tmp_path / "out"), kept(shard_size_bytes=1)).shards == 60


def test_a_second_run_has_nothing_to_do_and_touches_nothing(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shard(str(tree), str(out))
    before = {p.name: p.stat().st_mtime_ns for p in out.iterdir()}
    assert shard(str(tree), str(out)).written_shards == 0
    assert {p.name: p.stat().st_mtime_ns for p in out.iterdir()} == before


class StopAfter(Progress):
    """Interrupts the run from the thread that reports progress."""

    def __init__(self, samples: int) -> None:
        self.left = samples

    def advance(self, samples: int, size_bytes: int) -> None:
        self.left -= samples
        if self.left < 0:
            raise KeyboardInterrupt


def test_an_interrupted_run_goes_on_and_ends_as_an_unbroken_one(tree: Path, tmp_path: Path) -> None:
    options = kept(samples_per_shard=5, workers=1)
    shard(str(tree), str(tmp_path / "unbroken"), options)
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        shard(str(tree), str(out), options, progress=StopAfter(20))
    finished = {p.name: p.stat().st_mtime_ns for p in out.glob("*.tar")}
    assert not (out / "manifest.json").exists()
    assert not list(out.rglob("*.tmp"))
    summary = shard(str(tree), str(out), options)
    assert summary.written_shards == 12 - len(finished)
    assert contents(out) == contents(tmp_path / "unbroken")
    assert {n: (out / n).stat().st_mtime_ns for n in finished} == finished


KILLED = """
import os, signal, sys
import feeder.system.files, feeder.shard
steps = int(sys.argv[3])
real = {name: getattr(os, name) for name in ("replace", "fsync", "rename", "unlink")}
def wrap(name):
    def call(*args, **kwargs):
        global steps
        steps -= 1
        if steps < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real[name](*args, **kwargs)
    return call
for name in real:
    setattr(os, name, wrap(name))
options = feeder.shard.ShardOptions(samples_per_shard=20, workers=1, max_bad=1)
feeder.shard.shard(sys.argv[1], sys.argv[2], options, force=len(sys.argv) > 4)
"""


@pytest.mark.slow
def test_killed_before_any_fsync_or_rename_it_resumes_to_the_same_bytes(tree: Path, tmp_path: Path) -> None:
    source = tmp_path / "images"
    shutil.copytree(tree, source)
    (source / "class-0" / "broken.jpg").write_bytes(b"\xff\xd8 no image")
    options = ShardOptions(samples_per_shard=20, max_bad=1)
    shard(str(source), str(tmp_path / "unbroken"), options)
    expected = contents(tmp_path / "unbroken")
    out = tmp_path / "out"
    for step in range(200):
        shutil.rmtree(out, ignore_errors=True)
        killed = subprocess.run([sys.executable, "-c", KILLED, str(source), str(out), str(step)], check=False)
        if killed.returncode == 0:
            break
        assert killed.returncode == -signal.SIGKILL
        shard(str(source), str(out), options)
        assert contents(out) == expected, f"killed at step {step}"
    else:
        pytest.fail("the run has no end")
    assert step > 20


def test_a_shard_that_was_cut_after_it_was_finished_is_written_again(tree: Path, tmp_path: Path) -> None:
    options = kept(samples_per_shard=5, workers=1)
    shard(str(tree), str(tmp_path / "unbroken"), options)
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        shard(str(tree), str(out), options, progress=StopAfter(20))
    os.truncate(out / "shard-000000.tar", 1000)
    shard(str(tree), str(out), options)
    assert contents(out) == contents(tmp_path / "unbroken")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root: (root / "class-1" / "img-003.jpg").write_bytes(b"x"), r"class-1/img-003\.jpg: size in bytes was"),
        (lambda root: os.utime(root / "class-2" / "img-000.jpg", (1, 1)), r"class-2/img-000\.jpg: modification time"),
        (lambda root: (root / "class-0" / "img-002.jpg").unlink(), r"was 'class-0/img-002\.jpg'"),
        (lambda root: (root / "class-3" / "img-014.jpg").unlink(), r"'class-3/img-014\.jpg' is gone"),
        (lambda root: (root / "class-3" / "z.jpg").write_bytes(b"x"), r"'class-3/z\.jpg' is new"),
        (
            lambda root: (root / "class-1" / "a.jpg").symlink_to("nowhere"),
            r"'class-1/a\.jpg' was rejected now, not then",
        ),
    ],
)
def test_a_resume_on_changed_input_is_refused_with_the_first_difference(
    tree: Path, tmp_path: Path, change: object, message: str
) -> None:
    source, out = tmp_path / "images", tmp_path / "out"
    shutil.copytree(tree, source)
    options = kept(samples_per_shard=5, workers=1)
    with pytest.raises(KeyboardInterrupt):
        shard(str(source), str(out), options, progress=StopAfter(20))
    before = contents(out)
    change(source)  # type: ignore[operator]
    with pytest.raises(ShardError, match=message):
        shard(str(source), str(out), options)
    assert contents(out) == before


def test_other_settings_on_the_same_folder_are_refused(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        shard(str(tree), str(out), kept(samples_per_shard=5, workers=1), progress=StopAfter(20))
    with pytest.raises(ShardError, match="unfinished run with seed=0, asked for seed=1"):
        shard(str(tree), str(out), kept(samples_per_shard=5, seed=1))
    shard(str(tree), str(out), kept(samples_per_shard=5))
    with pytest.raises(ShardError, match="shuffle=True, asked for shuffle=False"):
        shard(str(tree), str(out), kept(samples_per_shard=5, shuffle=False))


def test_another_dataset_on_a_finished_folder_is_refused(tree: Path, tmp_path: Path) -> None:
    shard(str(tree), str(tmp_path / "out"))
    before = contents(tmp_path / "out")
    other = make_tree(tmp_path / "other", classes=2, per_class=3, first_seed=77)
    with pytest.raises(ShardError, match=r"another dataset.*60 inputs then, 6 now"):
        shard(str(other), str(tmp_path / "out"))
    assert contents(tmp_path / "out") == before


def test_a_foreign_folder_is_never_written_into(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ShardError, match=r"holds 'thesis\.tex'"):
        shard(str(tree), str(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(ShardError, match="not a folder"):
        shard(str(tree), str(tmp_path / "thesis.tex"))
    with pytest.raises(ShardError, match=r"can.t be written: .*choose another --out"):
        shard(str(tree), "/proc/shards")


@pytest.mark.parametrize("inside", [".", "class-0", "new", "../images/new", "link"])
def test_an_output_inside_the_source_is_refused(tmp_path: Path, inside: str) -> None:
    source = make_tree(tmp_path / "images", 2, 2)
    (tmp_path / "link").symlink_to(source)
    out = tmp_path / "link" / "x" if inside == "link" else source / inside
    before = contents(tmp_path)
    with pytest.raises(ShardError, match="lies inside the source"):
        shard(str(source), str(out))
    assert contents(tmp_path) == before


def test_the_sources_own_tars_are_refused_as_output(tree: Path, tmp_path: Path) -> None:
    shard(str(tree), str(tmp_path / "a"), kept(samples_per_shard=30))
    tars = tmp_path / "tars"
    tars.mkdir()
    for path in (tmp_path / "a").glob("*.tar"):
        shutil.copy(path, tars)
    before = contents(tars)
    for source in (str(tars), str(tars / "shard-{000000..000001}.tar"), str(tars / "*.tar")):
        with pytest.raises(ShardError, match="lies inside the source"):
            shard(source, str(tars))
    assert contents(tars) == before


def test_two_writers_on_one_folder_are_kept_apart(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with exclusive_lock(str(out / ".lock")), pytest.raises(LockedError, match="another feeder process"):
        shard(str(tree), str(out))
    shard(str(tree), str(out))


FULL_DISK = """
mount -t tmpfs -o size=128k feeder-test "$1" || exit 77
"$2" -m feeder shard "$3" --out "$1/out" --samples-per-shard 5 --workers 2
code=$?
[ $code = 1 ] || exit 50
ls "$1"/out/*.tmp "$1"/out/.work/*.tmp 2>/dev/null && exit 51
mount -o remount,size=100m "$1" || exit 52
"$2" -m feeder shard "$3" --out "$1/out" --samples-per-shard 5 || exit 53
cp -r "$1/out" "$4"
"""


def test_a_full_disk_ends_with_a_clear_error_and_a_folder_that_resumes(tree: Path, tmp_path: Path) -> None:
    disk, saved = tmp_path / "disk", tmp_path / "saved"
    disk.mkdir()
    arguments = ["unshare", "-rm", "bash", "-c", FULL_DISK, "full-disk"]
    arguments += [str(disk), sys.executable, str(tree), str(saved)]
    run = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=250)
    if run.returncode == 77 or "unshare failed" in run.stderr:
        pytest.skip(f"this machine lets nobody mount a small disk: {run.stderr.strip()}")
    assert run.returncode == 0, (run.returncode, run.stdout, run.stderr)
    assert "the disk is full" in run.stderr
    assert "run the same command again" in run.stderr
    shard(str(tree), str(tmp_path / "unbroken"), ShardOptions(samples_per_shard=5))
    assert contents(saved) == contents(tmp_path / "unbroken")


def test_a_file_that_changes_after_it_was_listed_stops_the_run(tree: Path, tmp_path: Path) -> None:
    source = tmp_path / "images"
    shutil.copytree(tree, source)

    class Grow(Progress):
        def begin(self, samples: int, size_bytes: int, done_samples: int, done_bytes: int) -> None:
            with open(source / "class-2" / "img-004.jpg", "ab") as file:
                file.write(b"more")

    with pytest.raises(SourceError, match=r"img-004\.jpg: changed while it was being sharded"):
        shard(str(source), str(tmp_path / "out"), progress=Grow())


def test_write_shards_takes_any_iterable_once(tmp_path: Path) -> None:
    images = [encode(pixels(i)) for i in range(20)]
    samples = (
        {"__key__": f"a/b.{i}", "jpg": data, "cls": i % 4, "json": {"n": i}, "note.txt": "é"}
        for i, data in enumerate(images)
    )
    summary = write_shards(samples, tmp_path / "out", seed=1, samples_per_shard=6, encode=KEEP)
    assert (summary.samples, summary.shards) == (20, 4)
    index = Index(tmp_path / "out" / "index.bin")
    for i, (path, data, label) in enumerate(samples_of(tmp_path / "out")):
        n = int(path.rpartition(".")[2])
        assert data == images[n]
        assert label == n % 4
        with tarfile.open(index.shard_path(int(index.shard[i]))) as tar:
            assert json.load(tar.extractfile(f"{index.key(i)}.json")) == {"n": n}  # type: ignore[arg-type]
            assert tar.extractfile(f"{index.key(i)}.note.txt").read().decode() == "é"  # type: ignore[union-attr]
    assert sorted(os.listdir(tmp_path / "out"))[:2] == [".lock", "index.bin"]


def test_write_shards_names_the_sample_that_it_cannot_encode(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="sample 'x': field 'jpg' is a ndarray; expected bytes"):
        write_shards([{"__key__": "x", "jpg": np.zeros(3)}], tmp_path / "out")
    with pytest.raises(SourceError, match="expected a dict"):
        write_shards([b"x"], tmp_path / "out2")  # type: ignore[list-item]


def test_write_shards_raises_when_too_many_are_bad_and_keeps_the_good_ones(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"1 of 2 images .*rejected"):
        write_shards([{"jpg": b"no image", "cls": 1}, {"jpg": encode(pixels(0))}], tmp_path / "out", encode=KEEP)
    assert [data for _, data, _ in samples_of(tmp_path / "out")] == [encode(pixels(0))]


def test_a_cut_off_write_shards_is_not_resumed_and_says_so(tmp_path: Path) -> None:
    def endless() -> object:
        yield {"jpg": encode(pixels(0))}

    def run(progress: Progress | None = None) -> None:
        write_shards(endless(), tmp_path / "out")  # type: ignore[arg-type]

    (tmp_path / "out" / ".work").mkdir(parents=True)
    plan = {"settings": ShardOptions().settings(), "kind": "samples", "containers": [], "rejected": []}
    (tmp_path / "out" / ".work" / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(ShardError, match=r"can't be resumed.*remove the folder"):
        run()


@pytest.mark.parametrize(
    "options",
    [{"seed": -1}, {"shard_size_bytes": 0}, {"samples_per_shard": 0}, {"workers": 0}, {"max_bad": 1.5}],
)
def test_options_out_of_range_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ArgumentError, match=f"{next(iter(options))} must be"):
        kept(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "out"),
    [
        ("/data/images", "/data/images-shards"),
        ("/data/images/", "/data/images-shards"),
        ("/data/train.csv", "/data/train-shards"),
        ("/data/train-{000..009}.tar.gz", "/data/train-shards"),
        ("/data/{a,b}.tar", "/data-shards"),
    ],
)
def test_the_default_output_stands_beside_the_source(source: str, out: str) -> None:
    assert default_out(source) == out


@pytest.mark.parametrize("name", ["plan.json", "inputs.npy", "shard-000000.tar.json"])
def test_a_fifo_in_the_work_folder_is_not_waited_for(tree: Path, tmp_path: Path, name: str) -> None:
    options = kept(samples_per_shard=5, workers=1)
    with pytest.raises(KeyboardInterrupt):
        shard(str(tree), str(tmp_path / "out"), options, progress=StopAfter(20))
    (tmp_path / "out" / ".work" / name).unlink()
    os.mkfifo(tmp_path / "out" / ".work" / name)
    if name == "plan.json":  # else it is no shard set
        for path in (tmp_path / "out").glob("*.tar"):
            path.unlink()
    with pytest.raises(ShardError, match=rf"{name}: not a regular file"):
        shard(str(tree), str(tmp_path / "out"), options)


@pytest.mark.parametrize("name", ["shard-000001.tar", INDEX_NAME])
def test_a_finished_set_that_lost_a_file_is_no_success(tree: Path, tmp_path: Path, name: str) -> None:
    shard(str(tree), str(tmp_path / "out"), kept(samples_per_shard=20))
    (tmp_path / "out" / name).unlink()
    with pytest.raises(ShardError, match=rf"{name}: is missing"):
        shard(str(tree), str(tmp_path / "out"), kept(samples_per_shard=20))


def test_a_dry_run_says_that_the_real_one_would_be_refused(tree: Path, tmp_path: Path) -> None:
    shard(str(tree), str(tmp_path / "out"))
    with pytest.raises(ShardError, match="seed=0, asked for seed=4"):
        shard(str(tree), str(tmp_path / "out"), ShardOptions(seed=4), dry_run=True)


def test_a_plan_that_does_not_fit_on_the_disk_is_not_published(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        shard(str(tree), str(out), kept(), progress=StopAfter(0))
    size_bytes = (out / ".work" / "inputs.npy").stat().st_size
    shutil.rmtree(out)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The end of the inputs does not fit, which numpy.save, with a buffer of its own, keeps for itself.
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes - 8, hard))
    try:
        with pytest.raises(ShardError, match="the disk is full"):
            shard(str(tree), str(out), kept())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not out.exists()
    assert shard(str(tree), str(out), kept()).samples == 60


def test_a_damaged_plan_or_record_is_named_or_made_anew(tree: Path, tmp_path: Path) -> None:
    out, options = tmp_path / "out", kept(samples_per_shard=5, workers=1)
    shard(str(tree), str(tmp_path / "unbroken"), options)
    with pytest.raises(KeyboardInterrupt):
        shard(str(tree), str(out), options, progress=StopAfter(20))
    (out / ".work" / "shard-000000.tar.json").write_text("{")
    os.truncate(out / ".work" / "shard-000001.tar.idx", 30)
    inputs = (out / ".work" / "inputs.npy").read_bytes()
    (out / ".work" / "inputs.npy").write_bytes(inputs[:-8])
    with pytest.raises(ShardError, match=r"plan is damaged .*--force"):
        shard(str(tree), str(out), options)
    (out / ".work" / "inputs.npy").write_bytes(inputs)
    shard(str(tree), str(out), options)
    assert contents(out) == contents(tmp_path / "unbroken")


def test_what_a_killed_run_left_of_a_file_goes(tree: Path, tmp_path: Path) -> None:
    out, options = tmp_path / "out", kept(samples_per_shard=5, workers=1)
    with pytest.raises(KeyboardInterrupt):
        shard(str(tree), str(out), options, progress=StopAfter(20))
    for name in ("shard-000003.tar.0123abcd.tmp", ".work/spool.0123abcd.tmp", "index.bin.0123abcd.tmp", "mine.tmp"):
        (out / name).touch()
    shard(str(tree), str(out), options)
    assert [path.name for path in out.rglob("*.tmp")] == ["mine.tmp"]


def test_force_replaces_a_shard_set(tree: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "out", make_tree(tmp_path / "other", classes=2, per_class=3, first_seed=77)
    shard(str(other), str(tmp_path / "expected"), kept())
    shard(str(tree), str(out), kept(samples_per_shard=7, dali_index=True))
    before = contents(out)
    with pytest.raises(SourceError, match="no such file"):
        shard(str(tmp_path / "typo"), str(out), kept(), force=True)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(SourceError, match="no image found"):
        shard(str(empty), str(out), kept(), force=True)
    shard(str(other), str(out), kept(), force=True, dry_run=True)
    assert contents(out) == before
    shard(str(other), str(out), kept(), force=True)
    assert contents(out) == contents(tmp_path / "expected")


def test_force_replaces_an_unfinished_run_and_resumes_its_own(tree: Path, tmp_path: Path) -> None:
    out, options = tmp_path / "out", kept(samples_per_shard=5, workers=1)
    shard(str(tree), str(tmp_path / "expected"), options)
    with pytest.raises(KeyboardInterrupt):
        shard(str(tree), str(out), kept(samples_per_shard=1, workers=1), progress=StopAfter(30))
    with pytest.raises(KeyboardInterrupt):
        shard(str(tree), str(out), options, progress=StopAfter(20), force=True)
    assert shard(str(tree), str(out), options, force=True).written_shards < 12
    assert contents(out) == contents(tmp_path / "expected")


@pytest.mark.slow
def test_killed_anywhere_while_it_replaces_a_set_force_ends_as_a_new_one(tree: Path, tmp_path: Path) -> None:
    old, out = tmp_path / "old", tmp_path / "out"
    options = ShardOptions(samples_per_shard=20, max_bad=1)
    shard(str(make_tree(tmp_path / "other", 2, 6, first_seed=77)), str(old), kept(samples_per_shard=2))
    shard(str(tree), str(tmp_path / "expected"), options)
    expected = contents(tmp_path / "expected")
    for step in range(200):
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(old, out)
        command = [sys.executable, "-c", KILLED, str(tree), str(out), str(step), "force"]
        killed = subprocess.run(command, check=False)
        if killed.returncode == 0:
            break
        assert killed.returncode == -signal.SIGKILL
        shard(str(tree), str(out), options, force=True)
        assert contents(out) == expected, f"killed at step {step}"
    else:
        pytest.fail("the run has no end")
    assert step > 20


def test_force_replaces_nothing_but_a_shard_set(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "manifest.json").write_text('{"name": "a web page"}')
    with pytest.raises(ShardError, match=r"holds 'manifest\.json' and no shard set"):
        shard(str(tree), str(out), kept(), force=True)
    (out / "manifest.json").unlink()
    shard(str(tree), str(out), kept())
    (out / "thesis.tex").write_text("years of work")
    before = contents(out)
    for dry_run in (True, False):
        with pytest.raises(ShardError, match=r"holds 'thesis\.tex' beside a shard set"):
            shard(str(tree), str(out), kept(seed=1), force=True, dry_run=dry_run)
    assert contents(out) == before


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("typo", "no such file or folder"),
        ("images/class-0/img-000.jpg", "is not a dataset that feeder knows"),
        ("s3://bucket/train", "only local files"),
        ("images/typo-{00..09}.tar", "no tar at"),
        ("typo.csv", "no such manifest"),
        ("pipe.csv", "is not a regular file"),
        ("bad.csv", "no column for the images"),
        ("images/text", "no image found, as it holds no input"),
        ("images/class-0/text", r"starts with b'line.n'\)$"),
        ("images/broken", r"no image found \(2 inputs, all rejected, first a\.jpg: not an image"),
    ],
)
def test_a_wrong_source_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    make_tree(tmp_path / "images", 2, 2)
    (tmp_path / "images" / "text").mkdir()
    (tmp_path / "images" / "class-0" / "text").mkdir()
    (tmp_path / "images" / "class-0" / "text" / "a.txt").write_text("line\n")
    (tmp_path / "images" / "broken").mkdir()
    for name in "ab":
        (tmp_path / "images" / "broken" / f"{name}.jpg").write_text("x")
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    os.mkfifo(tmp_path / "pipe.csv")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for out in (None, "a/b/c"):
        with pytest.raises(SourceError, match=message):
            shard(source, out, kept())
        assert sorted(tmp_path.rglob("*")) == before


def test_a_shard_set_in_the_source_is_no_class(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "images", 2, 2)
    (source / "list.csv").write_text("path\nclass-0/img-000.jpg\n")
    shard(str(source / "list.csv"), options=kept())
    with pytest.raises(SourceError, match="images/list-shards: is a shard set of feeder, not a class"):
        shard(str(source), str(tmp_path / "out"), kept())


def test_a_refused_run_leaves_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such manifest"):
        shard(str(tmp_path / "gone.csv"), str(tmp_path / "out"))
    assert not (tmp_path / "out" / ".work").exists()


@pytest.mark.parametrize(
    ("label", "message"),
    [(-3, "class number, 0 or"), (b"0.5", "class number, 0 or"), (b"\xff", "class name"), (2**70, "label 118059")],
)
def test_write_shards_refuses_what_is_no_class(tmp_path: Path, label: object, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        write_shards([{"jpg": encode(pixels(0)), "cls": label}], tmp_path / "out")


def test_write_shards_takes_class_names(tmp_path: Path) -> None:
    samples = [{"jpg": encode(pixels(i)), "cls": cls} for i, cls in enumerate(["dog", "cat", -1, "dog"])]
    write_shards(samples, tmp_path / "sorted", shuffle=False, encode="keep")
    dataset = ShardDataset(tmp_path / "sorted")
    assert (dataset.classes, dataset.targets) == (["cat", "dog"], [1, 0, -1, 1])
    write_shards(samples, tmp_path / "given", shuffle=False, classes=["dog", "ant", "cat"])
    dataset = ShardDataset(tmp_path / "given")
    assert (dataset.classes, dataset.targets) == (["dog", "ant", "cat"], [0, 2, -1, 0])
    numbered = [{"jpg": encode(pixels(0)), "cls": 1}]
    write_shards(numbered, tmp_path / "numbered", classes=["ant", "bee"])
    assert ShardDataset(tmp_path / "numbered").classes == ["ant", "bee"]
    for number, (given, message) in enumerate(
        [
            (["dog"], "holds the class 'cat', which is not in the list of 1 class"),
            (["dog", "dog"], "names 'dog' twice"),
            ("dog", "must be a sequence of names"),
        ]
    ):
        with pytest.raises(FeederError, match=message):
            write_shards(samples, tmp_path / f"wrong-{number}", classes=given)
    with pytest.raises(FeederError, match="holds the label 1, but the list has 1 class"):
        write_shards(numbered, tmp_path / "few", classes=["ant"])
    with pytest.raises(FeederError, match="encode must be one of seekable, keep"):
        write_shards(samples, tmp_path / "typo", encode="keeep")
