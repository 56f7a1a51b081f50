"""Runs that are interrupted, killed or out of disk space, and those that go on where these ended."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from feeder.errors import ShardError, SourceError
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from tests.support.interrupted_runs import StopAfter, killed_at
from tests.support.shard_sets import contents, kept


def test_a_second_run_has_nothing_to_do_and_touches_nothing(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shard(str(tree), str(out))
    before = {p.name: p.stat().st_mtime_ns for p in out.iterdir()}
    assert shard(str(tree), str(out)).written_shards == 0
    assert {p.name: p.stat().st_mtime_ns for p in out.iterdir()} == before


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
        if not killed_at(step, source, out):
            break
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
    "change",
    [
        lambda root: (root / "class-1" / "img-003.jpg").write_bytes(b"x"),
        lambda root: os.utime(root / "class-2" / "img-000.jpg", (1, 1)),
        lambda root: (root / "class-3" / "img-014.jpg").unlink(),
        lambda root: (root / "class-3" / "z.jpg").write_bytes(b"x"),
        lambda root: (root / "class-1" / "a.jpg").symlink_to("nowhere"),
    ],
)
def test_a_resume_on_changed_input_is_refused(tree: Path, tmp_path: Path, change: Callable[[Path], object]) -> None:
    source, out = tmp_path / "images", tmp_path / "out"
    shutil.copytree(tree, source)
    options = kept(samples_per_shard=5, workers=1)
    with pytest.raises(KeyboardInterrupt):
        shard(str(source), str(out), options, progress=StopAfter(20))
    before = contents(out)
    change(source)
    with pytest.raises(ShardError, match=r"before they changed \(60 then, (59|60|61) now\)"):
        shard(str(source), str(out), options)
    assert contents(out) == before


def test_a_resume_over_another_folder_of_the_same_names_sizes_and_times_is_refused(tree: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "images", tmp_path / "out"
    shutil.copytree(tree, source)
    options = kept(samples_per_shard=5, workers=1)
    with pytest.raises(KeyboardInterrupt):
        shard(str(tree), str(out), options, progress=StopAfter(20))
    with pytest.raises(ShardError, match=r"unfinished run over other inputs.*--force"):
        shard(str(source), str(out), options)


def test_other_settings_on_the_same_folder_are_refused(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        shard(str(tree), str(out), kept(samples_per_shard=5, workers=1), progress=StopAfter(20))
    with pytest.raises(ShardError, match="unfinished run with seed=0, asked for seed=1"):
        shard(str(tree), str(out), kept(samples_per_shard=5, seed=1))
    shard(str(tree), str(out), kept(samples_per_shard=5))
    with pytest.raises(ShardError, match="shuffle=True, asked for shuffle=False"):
        shard(str(tree), str(out), kept(samples_per_shard=5, shuffle=False))


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
    run = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if run.returncode == 77 or "unshare failed" in run.stderr:
        pytest.skip(f"this machine lets nobody mount a small disk: {run.stderr.strip()}")
    assert run.returncode == 0, (run.returncode, run.stdout, run.stderr)
    assert "the disk is full" in run.stderr
    assert "run the same command again" in run.stderr
    shard(str(tree), str(tmp_path / "unbroken"), ShardOptions(samples_per_shard=5))
    assert contents(saved) == contents(tmp_path / "unbroken")


@pytest.mark.parametrize("name", ["plan.json", "shard-000000.tar.json"])
def test_a_fifo_in_the_work_folder_is_not_waited_for(tree: Path, tmp_path: Path, name: str) -> None:
    options = kept(samples_per_shard=5, workers=1)
    with pytest.raises(KeyboardInterrupt):
        shard(str(tree), str(tmp_path / "out"), options, progress=StopAfter(20))
    (tmp_path / "out" / ".work" / name).unlink()
    os.mkfifo(tmp_path / "out" / ".work" / name)
    if name == "plan.json":  # else it is no shard set
        for path in (tmp_path / "out").glob("shard-*"):
            path.unlink()
    with pytest.raises(ShardError, match=rf"{name}: not a regular file"):
        shard(str(tree), str(tmp_path / "out"), options)


@pytest.mark.parametrize("name", ["shard-000001.tar", "shard-000001.fidx", INDEX_NAME])
def test_a_finished_set_that_lost_a_file_is_no_success(tree: Path, tmp_path: Path, name: str) -> None:
    shard(str(tree), str(tmp_path / "out"), kept(samples_per_shard=20))
    (tmp_path / "out" / name).unlink()
    with pytest.raises(ShardError, match=rf"{name}: is missing"):
        shard(str(tree), str(tmp_path / "out"), kept(samples_per_shard=20))


def test_a_damaged_plan_or_record_is_named_or_made_anew(tree: Path, tmp_path: Path) -> None:
    out, options = tmp_path / "out", kept(samples_per_shard=5, workers=1)
    shard(str(tree), str(tmp_path / "unbroken"), options)
    with pytest.raises(KeyboardInterrupt):
        shard(str(tree), str(out), options, progress=StopAfter(20))
    (out / ".work" / "shard-000000.tar.json").write_text("{")
    os.truncate(out / "shard-000001.fidx", 300)
    plan = (out / ".work" / "plan.json").read_bytes()
    (out / ".work" / "plan.json").write_bytes(plan[:-8])
    with pytest.raises(ShardError, match=r"plan is damaged .*--force"):
        shard(str(tree), str(out), options)
    (out / ".work" / "plan.json").write_bytes(plan)
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


def test_a_refused_run_leaves_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such manifest"):
        shard(str(tmp_path / "gone.csv"), str(tmp_path / "out"))
    assert not (tmp_path / "out" / ".work").exists()
