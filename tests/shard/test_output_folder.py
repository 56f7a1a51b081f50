"""The output folder: what is never overwritten, and what --force replaces."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from feeder.errors import LockedError, ShardError, SourceError
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import default_out, shard
from feeder.system.files import exclusive_lock
from tests.support.images import make_tree
from tests.support.interrupted_runs import StopAfter, killed_at
from tests.support.shard_sets import contents, kept


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
    with pytest.raises(ShardError, match=r"can.t be written: .*; allow it, or name another one"):
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


def test_a_dry_run_says_that_the_real_one_would_be_refused(tree: Path, tmp_path: Path) -> None:
    shard(str(tree), str(tmp_path / "out"))
    with pytest.raises(ShardError, match="seed=0, asked for seed=4"):
        shard(str(tree), str(tmp_path / "out"), ShardOptions(seed=4), dry_run=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no image found, as it is empty"):
        shard(str(tmp_path / "empty"), str(tmp_path / "more"), dry_run=True)


def test_force_replaces_a_shard_set(tree: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "out", make_tree(tmp_path / "other", classes=2, per_class=3, first_seed=77)
    shard(str(other), str(tmp_path / "expected"), kept())
    shard(str(tree), str(out), kept(samples_per_shard=7))
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
        if not killed_at(step, tree, out, force=True):
            break
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
        ("images/typo-{00..09}.tar", "no tar at"),
        ("typo.csv", "no such manifest"),
        ("pipe.csv", "is not a regular file"),
        ("bad.csv", "no column for the images"),
        ("mem.csv", r"mem\.csv: can't be read: Input/output error$"),
        ("header.csv", r"header\.csv: no image found, as it is empty"),
        ("images/text", "no image found, as it is empty"),
        ("images/class-0/text", r"starts with b'line.n'\)$"),
        ("images/broken", r"no image found \(2 inputs, all rejected, first a\.jpg: not an image"),
        ("images/tables", r"rejected, first 0\.parquet: .*'images/tables/0\.parquet' is a table: name it in place of"),
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
    (tmp_path / "images" / "tables").mkdir()  # as img2dataset writes with output_format="parquet"
    for name in ("0.parquet", "1.parquet", "0_stats.json"):
        (tmp_path / "images" / "tables" / name).write_bytes(b"PAR1")
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    (tmp_path / "header.csv").write_text("path,label\n")
    (tmp_path / "mem.csv").symlink_to("/proc/self/mem")
    os.mkfifo(tmp_path / "pipe.csv")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for out in (None, "a/b/c"):
        with pytest.raises(SourceError, match=message):
            shard(source, out, kept())
        assert sorted(tmp_path.rglob("*")) == before
