"""Sharding: every sample once, in one order, with the same bytes wherever and whenever it runs."""

from __future__ import annotations

import gc
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset

from feeder.errors import ArgumentError, SourceError
from feeder.order.permutation import permute
from feeder.shard.format.manifest import Manifest
from feeder.shard.format.open_index import open_index
from feeder.shard.source.table_file import ManifestColumns
from feeder.shard.write.sharding import shard
from feeder.system.progress import Progress
from tests.support.images import make_tree
from tests.support.shard_sets import contents, kept, samples_of


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
    index = open_index(out / "index.bin")
    ours = [(index.key(i), data, label) for i, (_, data, label) in enumerate(samples_of(out))]
    theirs = webdataset.WebDataset(str(out / "shard-{000000..000002}.tar"), shardshuffle=False)
    assert [(s["__key__"], s["jpg"], int(s["cls"])) for s in theirs] == ours
    del theirs
    gc.collect()
    assert all("." not in key and key.isdigit() for key, _, _ in ours)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_dali_reads_the_shards(tree: Path, tmp_path: Path) -> None:
    pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    from nvidia.dali import fn, pipeline_def

    out = tmp_path / "out"
    shard(str(tree), str(out), kept(samples_per_shard=25))
    shards = sorted(str(p) for p in out.glob("*.tar"))

    @pipeline_def(batch_size=60, num_threads=1, device_id=None)
    def pipeline():
        readers: Any = fn.readers
        return tuple(readers.webdataset(paths=shards, ext=["jpg", "cls"]))

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
    options = kept(seed=3, samples_per_shard=11, workers=1)
    shard(str(tree), str(tmp_path / "a"), options)
    copy = tmp_path / "elsewhere" / "images"
    files = [p.relative_to(tree) for p in tree.rglob("*.jpg")]
    random.Random(0).shuffle(files)  # another creation order, so another listing order, and other times
    for path in files:
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_bytes((tree / path).read_bytes())
    shard(str(copy), str(tmp_path / "b"), kept(seed=3, samples_per_shard=11, workers=5))
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


def test_a_file_that_changes_after_it_was_listed_stops_the_run(tree: Path, tmp_path: Path) -> None:
    source = tmp_path / "images"
    shutil.copytree(tree, source)

    class Grow(Progress):
        def begin(self, samples: int, size_bytes: int, done_samples: int, done_bytes: int) -> None:
            with open(source / "class-2" / "img-004.jpg", "ab") as file:
                file.write(b"more")

    with pytest.raises(SourceError, match=r"img-004\.jpg: changed while it was being sharded"):
        shard(str(source), str(tmp_path / "out"), progress=Grow())


@pytest.mark.parametrize(
    "options",
    [{"seed": -1}, {"shard_size_bytes": 0}, {"samples_per_shard": 0}, {"workers": 0}, {"max_bad": 1.5}],
)
def test_options_out_of_range_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ArgumentError, match=f"{next(iter(options))} must be"):
        kept(**options)  # type: ignore[arg-type]


def test_a_shard_set_in_the_source_is_no_class(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "images", 2, 2)
    (source / "list.csv").write_text("path\nclass-0/img-000.jpg\n")
    shard(str(source / "list.csv"), options=kept())
    with pytest.raises(SourceError, match="images/list-shards: is a shard set of feeder, not a class"):
        shard(str(source), str(tmp_path / "out"), kept(class_folders=True))
    columns = ManifestColumns(has_labels=False)
    with pytest.raises(SourceError, match="images/list-shards: is a shard set of feeder"):
        shard(str(source), str(tmp_path / "out"), kept(class_folders=True, columns=columns))
