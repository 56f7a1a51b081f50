"""Sets of packed images: they load like seekable ones, on every backend, and the original files come back."""

from __future__ import annotations

import gc
import hashlib
import json
import pickle
import shutil
import tarfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feeder
from feeder import DataLoader, ShardDataset
from feeder.decoders.packed import codebook_id, unpack_checked
from feeder.errors import ArgumentError, DecodeError, ShardError
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.manifest import Manifest
from feeder.shard.format.open_index import open_index
from feeder.shard.source.image_file import read_image
from feeder.shard.source.target_sources import TargetSources
from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.index_tars import index_tars
from feeder.shard.write.set_append import append
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.system.cores import Cores
from feeder.system.progress import Progress
from feeder.tools.cli import main
from feeder.tools.exported_images import export
from feeder.tools.set_report import inspect
from feeder.tools.verify import verify
from feeder.transforms import (
    ColorJitter,
    Normalize,
    Op,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    Resize,
    ToDtype,
    Views,
)
from tests.support import jpegs
from tests.support.images import encode
from tests.support.shard_sets import contents, one_image_index, samples_of, write_tar

PACKED = ShardOptions(shard_size_bytes=1 << 20, encode=EncodeOptions("packed"))
KINDS = ("4:2:0", "4:2:2", "4:4:4", "gray", "4:4:0", "progressive", "rgb")
CROP: tuple[Op, ...] = (
    RandomResizedCrop(32, scale=(0.05, 0.5)),
    RandomHorizontalFlip(),
    ToDtype("float32"),
    Normalize((0.5,) * 3, (0.5,) * 3),
)
RECIPES: dict[str, Any] = {
    "crop": CROP,
    "photometric": (RandomResizedCrop(32), RandomRotation(20), ColorJitter(0.4, 0.4, 0.4, 0.1)),
    "views": Views([CROP, (RandomResizedCrop(24), RandomHorizontalFlip())]),
    "whole": (Resize((40, 40)),),
}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Images, a packed set of them and a seekable one."""
    root = tmp_path_factory.mktemp("packed")
    for i in range(28):
        path = root / "images" / f"{i % 3}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        size = (301 + 16 * i, 640 - 13 * i)
        if i >= 14:
            data = encode(jpegs.photo(i, *size), orientation=1 + i % 8, quality=95)
        else:
            data = jpegs.jpeg(KINDS[i % len(KINDS)], size, i)
        path.write_bytes(data)
    jpegs.photo(0, 50, 40).save(root / "images" / "0" / "28.png")
    shard(str(root / "images"), str(root / "packed"), PACKED)
    shard(str(root / "images"), str(root / "seekable"), ShardOptions(shard_size_bytes=1 << 20))
    return root / "images", root / "packed", root / "seekable"


def batches(folder: Path | list[Path], recipe: Any, **options: Any) -> list[list[torch.Tensor]]:
    loader = DataLoader(ShardDataset(folder, recipe), batch_size=7, seed=3, **options)
    return [[tensor.clone() for tensor in flat(batch)] for batch in loader]


def assert_equal(found: list[list[torch.Tensor]], expected: list[list[torch.Tensor]]) -> None:
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        for a, b in zip(one, other, strict=True):
            assert torch.equal(a, b)


def members_of(tar: Path) -> dict[str, bytes]:
    with tarfile.open(tar) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


def flat(batch: Any) -> list[torch.Tensor]:
    return [batch] if isinstance(batch, torch.Tensor) else [tensor for each in batch for tensor in flat(each)]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("options", [{}, {"fidelity": "exact"}, {"fidelity": "draft"}, {"backend": "pillow"}], ids=str)
def test_batches_are_those_of_the_seekable_set(
    sets: tuple[Path, Path, Path], recipe: str, options: dict[str, Any]
) -> None:
    _, packed, seekable = sets
    assert_equal(batches(packed, RECIPES[recipe], **options), batches(seekable, RECIPES[recipe], **options))


def test_drafts_are_the_same_from_every_encoding_and_every_way(sets: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Parts made in one native call or sample by sample, in workers or here, and single images."""
    images, packed, seekable = sets
    shard(str(images), str(tmp_path / "keep"), ShardOptions(encode=EncodeOptions("keep")))
    recipe = (Resize((40, 40)), RandomHorizontalFlip())
    draft = batches(packed, recipe, fidelity="draft")
    assert not all(torch.equal(a[0], b[0]) for a, b in zip(draft, batches(packed, recipe), strict=True))
    for folder in (packed, seekable):
        for options in ({}, {"num_workers": 1}):
            assert_equal(batches(folder, recipe, fidelity="draft", **options), draft)
    pixels = torch.cat([batch[0] for batch in draft])
    files = [data for _, data, _ in samples_of(seekable)]
    assert torch.equal(feeder.decode(files, recipe, seed=3, fidelity="draft"), pixels)
    # Progressive files are made sequential in the other two, so that they are no drafts here only.
    kept = torch.cat([batch[0] for batch in batches(tmp_path / "keep", recipe, fidelity="draft")])
    originals = [data for _, data, _ in samples_of(tmp_path / "keep")]
    same = [i for i, data in enumerate(originals) if b"\xff\xc2" not in data[:1000]]
    assert torch.equal(kept[same], pixels[same])
    assert len(same) == len(kept) - 2


def test_other_backends_take_draft_as_fast(sets: tuple[Path, Path, Path]) -> None:
    recipe = (Resize((40, 40)),)
    for backend in ("pillow", "dali"):
        if backend == "dali":
            pytest.importorskip("nvidia.dali")
        fast, draft = (batches(sets[2], recipe, backend=backend, fidelity=each) for each in ("fast", "draft"))
        assert_equal(draft, fast)


def test_workers_make_the_same_batches(sets: tuple[Path, Path, Path]) -> None:
    _, packed, seekable = sets
    assert_equal(batches(packed, CROP, num_workers=2), batches(seekable, CROP))


def test_dali_gets_jpegs(sets: tuple[Path, Path, Path]) -> None:
    pytest.importorskip("nvidia.dali")
    _, packed, seekable = sets
    options: dict[str, Any] = {"backend": "dali", "num_workers": 1}
    found = batches(packed, CROP, **options)
    for one, other in zip(found, batches(seekable, CROP, **options), strict=True):
        torch.testing.assert_close(one[0], other[0], rtol=0, atol=0.05)
        assert torch.equal(one[1], other[1])


def test_single_samples_are_those_of_the_seekable_set(sets: tuple[Path, Path, Path]) -> None:
    _, packed, seekable = sets
    ours, theirs = ShardDataset(packed, (Resize((40, 40)),)), ShardDataset(seekable, (Resize((40, 40)),))
    for i in range(len(ours)):
        assert torch.equal(ours[i][0], theirs[i][0])
        assert ours[i][1] == theirs[i][1]


def test_crops_read_only_their_rows(sets: tuple[Path, Path, Path]) -> None:
    _, packed, _ = sets
    index = open_index(packed / INDEX_NAME)
    i = next(i for i in range(len(index)) if index.image_field(i) == "fpk" and index.column("length")[i] > 60_000)
    found = index.row(i).extents(np.array([[100, 120]], np.int32))
    assert found is not None
    ((first, head, begin, end),) = found.tolist()
    assert first >= 0
    assert head + end - begin < 0.6 * int(index.column("length")[i])


def test_what_is_not_packed_is_counted_by_reason(sets: tuple[Path, Path, Path]) -> None:
    _, packed, _ = sets
    manifest = Manifest.read(str(packed))
    assert manifest is not None
    assert manifest.encoded == {"kept (png)": 1, "packed": 26, "seekable (not packed: progressive)": 2}
    report = inspect(str(packed))
    assert report.fields["fpk"] == 26
    assert len(report.codebooks) == 1


def test_every_tar_starts_with_its_codebook(sets: tuple[Path, Path, Path]) -> None:
    _, packed, _ = sets
    (codebook,) = open_index(packed / INDEX_NAME).codebooks
    tars = sorted(packed.glob("*.tar"))
    assert len(tars) > 1
    for tar in tars:
        name, data = next(iter(members_of(tar).items()))
        assert name == f"__codebook-{codebook_id(codebook).hex()}__"
        assert data == codebook


def test_the_same_source_gives_the_same_set(sets: tuple[Path, Path, Path], tmp_path: Path) -> None:
    images, packed, _ = sets
    shard(str(images), str(tmp_path / "again"), ShardOptions(shard_size_bytes=1 << 20, workers=1, encode=PACKED.encode))
    for path in packed.glob("*.tar"):
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()
    assert (tmp_path / "again" / INDEX_NAME).read_bytes() == (packed / INDEX_NAME).read_bytes()


def test_export_gives_the_original_files(
    sets: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, packed, _ = sets
    assert main(["export", str(packed), "--out", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {
        "out": str(tmp_path / "out"),
        "unpacked": 26,
        "stored": 3,
        "copies": 0,
        "renamed": 0,
    }
    same = 0
    for path in sorted(images.rglob("*.*")):
        data = (tmp_path / "out" / path.relative_to(images)).read_bytes()
        same += data == path.read_bytes()
    assert same == 27  # the progressive ones were made seekable
    assert main(["export", str(packed), "--out", str(tmp_path / "out")]) == 1
    assert "not empty" in capsys.readouterr().err


class OneThread(Progress):
    """Counts what is done, and refuses other threads than its own."""

    def __init__(self) -> None:
        self.samples, self._thread = 0, threading.get_ident()

    def advance(self, samples: int, size_bytes: int) -> None:
        assert threading.get_ident() == self._thread
        self.samples += samples


def test_export_uses_all_cores_and_tells_of_progress_in_one_thread(
    sets: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two images are unpacked at once, or the first one would wait for ever."""
    both = threading.Barrier(2, timeout=30)
    seen: list[int] = []

    def unpacked(data: bytes) -> bytes:
        seen.append(threading.get_ident())
        if len(seen) <= 2:
            both.wait()
        return unpack_checked(data)

    monkeypatch.setattr("feeder.tools.exported_images.unpack_checked", unpacked)
    monkeypatch.setattr("feeder.tools.exported_images.cores", lambda: Cores(2, 2))
    progress = OneThread()
    export(str(sets[1]), str(tmp_path / "out"), progress=progress)
    assert progress.samples == 29
    assert len(set(seen)) == 2


def test_progressive_files_are_packed_as_sequential_copies_where_asked_for(
    sets: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, packed, seekable = sets
    out = tmp_path / "set"
    options = ["--encode", "packed", "--progressive", "sequential", "--shard-size", "1MiB", "--quiet"]
    assert main(["shard", str(images), "--out", str(out), *options]) == 0
    manifest = Manifest.read(str(out))
    assert manifest is not None
    assert manifest.encoded == {"kept (png)": 1, "packed": 26, "packed (sequential copy)": 2}
    assert_equal(batches(out, CROP), batches(seekable, CROP))
    assert verify(str(out), deep=True) == []
    capsys.readouterr()
    assert main(["export", str(out), "--out", str(tmp_path / "out")]) == 0
    assert "copies    2, sequential ones of progressive files" in capsys.readouterr().out
    same = []
    for path in sorted(images.rglob("*.*")):
        data = (tmp_path / "out" / path.relative_to(images)).read_bytes()
        if data != path.read_bytes():
            same.append(path.name)
            np.testing.assert_array_equal(jpegs.pixels_of(data), jpegs.pixels_of(path.read_bytes()))
            assert b"\xff\xc2" in path.read_bytes()
    assert same == ["12.jpg", "5.jpg"]
    # Samples that are added are packed in the same way, and the setting is part of the set's.
    (tmp_path / "more" / "0").mkdir(parents=True)
    (tmp_path / "more" / "0" / "x.jpg").write_bytes(jpegs.jpeg("progressive", (300, 200), 90))
    assert append(str(out), str(tmp_path / "more"), ShardOptions()).encoded["packed (sequential copy)"] == 3
    with pytest.raises(ShardError, match="progressive"):
        shard(str(images), str(packed), ShardOptions(shard_size_bytes=1 << 20, encode=manifest_options(manifest)))


def manifest_options(manifest: Manifest) -> EncodeOptions:
    return EncodeOptions.of_settings(manifest.settings)


def test_a_set_of_progressive_files_has_a_codebook_of_them(tmp_path: Path) -> None:
    folder = tmp_path / "images" / "a"
    folder.mkdir(parents=True)
    sequential = tmp_path / "sequential" / "a"
    sequential.mkdir(parents=True)
    for k in range(3):
        (folder / f"{k}.jpg").write_bytes(jpegs.jpeg("progressive", (160, 120), k))
        (sequential / f"{k}.jpg").write_bytes(jpegs.jpeg("4:2:0", (160, 120), k))
    options = ShardOptions(encode=EncodeOptions("packed", progressive="sequential"))
    for name in ("images", "sequential"):
        shard(str(tmp_path / name), str(tmp_path / f"{name}-set"), options)
    found = [open_index(tmp_path / f"{name}-set" / INDEX_NAME).codebooks for name in ("images", "sequential")]
    assert found[0] == found[1]


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # webdataset leaves its files open
def test_webdataset_reads_the_jpegs(sets: tuple[Path, Path, Path]) -> None:
    wds = pytest.importorskip("webdataset")
    images, packed, _ = sets
    tars = [str(path) for path in sorted(packed.glob("*.tar"))]
    index = open_index(packed / INDEX_NAME)
    source = wds.WebDataset(tars, shardshuffle=False).map(feeder.packed_decoder(packed))
    samples = list(source)
    del source
    gc.collect()
    assert len(samples) == 29
    for i, sample in enumerate(samples):
        assert sample["__key__"] == index.key(i)
        if index.image_field(i) == "fpk":
            assert sample["jpg"] == (images / index.source_path(i)).read_bytes()
            assert "fpk" not in sample
    decoder = pickle.loads(pickle.dumps(feeder.packed_decoder(packed)))  # as for a worker
    (name, file), *_ = [each for each in members_of(Path(tars[0])).items() if each[0].endswith(".fpk")]
    assert decoder({"__key__": name, "fpk": file})["jpg"] == feeder.decode_packed(file, index.codebooks)
    with pytest.raises(DecodeError, match=r"sample 'a'.*not a packed JPEG"):
        decoder({"__key__": "a", "fpk": b"x"})


def test_tars_of_packed_images_can_be_indexed_and_sharded_again(sets: tuple[Path, Path, Path], tmp_path: Path) -> None:
    images, packed, seekable = sets
    tars = tmp_path / "tars"
    tars.mkdir()
    for path in packed.glob("*.tar"):
        (tars / path.name).write_bytes(path.read_bytes())
    summary = index_tars(str(tars))
    assert summary.samples == 29
    assert summary.rejected == []
    assert open_index(summary.path).codebooks == open_index(packed / INDEX_NAME).codebooks
    assert_equal(batches(tars, CROP), batches(seekable, CROP))
    result = shard(str(tars), str(tmp_path / "kept"), ShardOptions(encode=EncodeOptions("keep")))
    assert result.samples == 29
    originals = {hashlib.sha256(path.read_bytes()).digest() for path in images.rglob("*.jpg")}
    stored = [
        data for tar in (tmp_path / "kept").glob("*.tar") for name, data in members_of(tar).items() if ".jpg" in name
    ]
    assert len(stored) == 28
    assert sum(hashlib.sha256(data).digest() in originals for data in stored) == 26


@pytest.mark.parametrize("mode", ["keep", "seekable", "packed"])
def test_packed_images_of_other_fields_are_unpacked_as_the_new_set_lacks_their_codebook(
    tmp_path: Path, mode: str
) -> None:
    """Pairs that are sharded again for their right images."""
    left = [jpegs.jpeg("4:2:0", (60, 40), k) for k in range(3)]
    (tmp_path / "images").mkdir()
    for k, data in enumerate(left):
        (tmp_path / "images" / f"{k}.jpg").write_bytes(data)
        (tmp_path / "images" / f"{k}.right.jpg").write_bytes(jpegs.jpeg("4:2:0", (60, 40), 10 + k))
    targets = TargetSources(members=("right.jpg",))
    first = tmp_path / "first"
    shard(
        str(tmp_path / "images"),
        str(first),
        ShardOptions(targets=targets, shuffle=False, encode=EncodeOptions("packed")),
    )
    assert {"00000000.fpk", "00000000.right.jpg"} <= members_of(first / "shard-000000.tar").keys()
    out = tmp_path / "again"
    options = ShardOptions(image_field="right.jpg", shuffle=False, encode=EncodeOptions(mode))
    shard(str(first / "shard-000000.tar"), str(out), options)
    members = members_of(out / "shard-000000.tar")
    assert [members[f"0000000{k}.jpg"] for k in range(3)] == left
    right = "image.fpk" if mode == "packed" else "right.jpg"
    assert {name.partition(".")[2] for name in members if name.startswith("0")} == {"jpg", right}
    assert verify(str(out), deep=True) == []


def test_packed_files_of_a_folder_are_unpacked_or_rejected(sets: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Not stored as they are, in a set without their codebook, if it is known here by chance."""
    images, packed, _ = sets
    known = members_of(packed / "shard-000000.tar")
    ShardDataset(packed)  # whose codebook is known from here on
    name, file = next((name, data) for name, data in known.items() if name.endswith(".fpk"))
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / name).write_bytes(file)
    (tmp_path / "files" / "other.fpk").write_bytes(file[:4] + bytes(8) + file[12:])
    options = ShardOptions(encode=EncodeOptions("keep"), max_bad=1.0)
    summary = shard(str(tmp_path / "files"), str(tmp_path / "set"), options)
    assert (summary.samples, summary.rejected) == (1, 1)
    ((_, data, _),) = samples_of(tmp_path / "set")
    assert data in {path.read_bytes() for path in images.rglob("*.jpg")}


@pytest.mark.parametrize(("name", "kept"), [("a.FPK", "jpg"), ("a.left.fpk", "left.jpg"), ("a.jpg", "jpg")])
def test_packed_images_of_any_name_are_kept_as_jpegs(
    sets: tuple[Path, Path, Path], tmp_path: Path, name: str, kept: str
) -> None:
    members = members_of(sets[1] / "shard-000000.tar")
    book = next(iter(members.items()))
    write_tar(tmp_path / "x.tar", [book, (name, next(data for n, data in members.items() if n.endswith(".fpk")))])
    shard(str(tmp_path / "x.tar"), str(tmp_path / "set"), ShardOptions(encode=EncodeOptions("keep")))
    assert [*members_of(tmp_path / "set" / "shard-000000.tar")] == [f"00000000.{kept}"]


def test_tars_with_other_codebooks_load_together(sets: tuple[Path, Path, Path], tmp_path: Path) -> None:
    _, packed, seekable = sets
    (tmp_path / "images" / "a").mkdir(parents=True)
    (tmp_path / "images" / "a" / "1.jpg").write_bytes(jpegs.jpeg("high quality"))
    shard(str(tmp_path / "images"), str(tmp_path / "other"), PACKED)
    (tmp_path / "tars").mkdir()
    for name, folder in (("a", packed), ("b", tmp_path / "other")):
        shutil.copy(folder / "shard-000000.tar", tmp_path / "tars" / f"{name}.tar")
    index_tars(str(tmp_path / "tars"))
    known = {*open_index(packed / INDEX_NAME).codebooks, *open_index(tmp_path / "other" / INDEX_NAME).codebooks}
    assert len(known) == 2
    assert set(open_index(tmp_path / "tars" / INDEX_NAME).codebooks) == known
    assert verify(str(tmp_path / "tars"), deep=True) == []
    assert len(ShardDataset([packed, seekable], CROP)) == 58
    joined = batches([packed, seekable], CROP)
    assert_equal(joined, batches([seekable, packed], CROP))


def test_a_damaged_codebook_in_a_tar_is_rejected_by_name(sets: tuple[Path, Path, Path], tmp_path: Path) -> None:
    data = bytearray((sets[1] / "shard-000000.tar").read_bytes())
    data[512 + 20] ^= 1
    (tmp_path / "x.tar").write_bytes(data)
    (rejected,) = index_tars(str(tmp_path / "x.tar")).rejected
    assert rejected.path.startswith("x.tar/__codebook-")
    assert "damaged codebook of packed images: its bytes do not match its name" in rejected.reason


def test_damage_is_found_and_named(sets: tuple[Path, Path, Path], tmp_path: Path) -> None:
    _, packed, _ = sets
    for path in packed.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    assert verify(str(tmp_path), deep=True) == []
    index = open_index(tmp_path / INDEX_NAME)
    i = next(i for i in range(len(index)) if index.image_field(i) == "fpk")
    tar = tmp_path / index.header.shard_name(int(index.column("shard")[i]))
    data = bytearray(tar.read_bytes())
    data[int(index.column("offset")[i]) + 12] ^= 1  # in the SHA-256
    tar.write_bytes(data)
    assert [damage.reason for damage in verify(str(tmp_path), deep=True) if damage.sample] == [
        f"its bytes changed (image at byte {index.column('offset')[i]})",
        "packed JPEG: damaged: the JPEG in it does not match its SHA-256",
    ]
    data[int(index.column("offset")[i]) + 48] ^= 1  # in its lengths
    tar.write_bytes(data)
    with pytest.raises(DecodeError, match=f"sample '{index.key(i)}'.*packed JPEG"):
        ShardDataset(tmp_path, CROP)[i]
    with pytest.raises(DecodeError, match=f"sample '{index.key(i)}'.*packed JPEG"):
        batches(tmp_path, CROP)


def test_export_refuses_images_that_changed(sets: tuple[Path, Path, Path], tmp_path: Path) -> None:
    for number, folder in enumerate(sets[1:]):
        copy = tmp_path / str(number)
        shutil.copytree(folder, copy)
        index = open_index(copy / INDEX_NAME)
        shard_number, offset, length = index.place(3)
        tar = copy / index.header.shard_name(shard_number)
        for at in (offset, offset + length - 3):
            data = bytearray(tar.read_bytes())
            data[at] ^= 1
            tar.write_bytes(data)
            with pytest.raises(DecodeError, match=rf"^sample '{index.key(3)}' in {tar.name} at byte {offset}: "):
                export(str(copy), str(tmp_path / f"out-{number}-{at}"))
            data[at] ^= 1
            tar.write_bytes(data)


@pytest.mark.parametrize("key", ["../evil", "a/../../evil", "/evil"])
def test_export_writes_nothing_outside_its_folder(tmp_path: Path, key: str) -> None:
    with pytest.raises(ShardError, match="leads out of the folder"):
        export(one_image_index(tmp_path, [(key, key)]), str(tmp_path / "in" / "out"))
    assert not list(tmp_path.rglob("evil*"))


def test_a_run_that_was_interrupted_goes_on_with_the_same_codebook(
    sets: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, packed, _ = sets
    options = ShardOptions(shard_size_bytes=1 << 20, workers=1, encode=PACKED.encode)

    def read_until_a_shard_is_there(path: str, **limits: int) -> bytes:
        if any((tmp_path / "out").glob("*.tar")):
            raise KeyboardInterrupt
        return read_image(path, **limits)

    with monkeypatch.context() as patched:
        patched.setattr("feeder.shard.source.source.read_image", read_until_a_shard_is_there)
        with pytest.raises(KeyboardInterrupt):
            shard(str(images), str(tmp_path / "out"), options)
    finished = len(list((tmp_path / "out").glob("*.tar")))
    summary = shard(str(images), str(tmp_path / "out"), options)
    assert 0 < summary.written_shards == len(list(packed.glob("*.tar"))) - finished
    assert finished > 0
    assert contents(tmp_path / "out") == contents(packed)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_image_is_skipped_where_asked_for(
    sets: tuple[Path, Path, Path], tmp_path: Path, workers: int
) -> None:
    shutil.copytree(sets[1], tmp_path / "set")
    index = open_index(tmp_path / "set" / INDEX_NAME)
    i = next(i for i in range(len(index)) if index.image_field(i) == "fpk")
    shard_number, offset, _ = index.place(i)
    with open(tmp_path / "set" / index.header.shard_name(shard_number), "r+b") as file:
        file.seek(offset + 4)
        file.write(bytes(8))  # the id of its codebook
    with pytest.warns(UserWarning, match=f"{index.key(i)}: .*unknown codebook 0000000000000000"):
        found = batches(tmp_path / "set", CROP, on_error="skip", num_workers=workers)
    assert sum(len(batch[0]) for batch in found) == 29


def test_an_image_of_an_unknown_codebook_is_an_error_that_names_it(tmp_path: Path) -> None:
    other = bytes(range(8))
    images = tmp_path / "images" / "a"
    images.mkdir(parents=True)
    (images / "1.jpg").write_bytes(jpegs.jpeg("4:2:0"))
    shard(str(tmp_path / "images"), str(tmp_path / "set"), PACKED)
    (tar,) = (tmp_path / "set").glob("*.tar")
    members = members_of(tar)
    file = members["00000000.fpk"]
    write_tar(tmp_path / "x.tar", [("0.fpk", file[:4] + other + file[12:]), ("0.cls", b"0")])
    index_tars(str(tmp_path / "x.tar"))
    with pytest.raises(DecodeError, match=f"unknown codebook {other.hex()}"):
        ShardDataset(tmp_path, CROP)[0]


def test_options_that_packed_images_have_no_use_for_are_refused() -> None:
    with pytest.raises(ArgumentError, match="strip their metadata"):
        EncodeOptions("packed", keep_metadata=False)
    with pytest.raises(ArgumentError, match="max_side"):
        EncodeOptions("packed", max_side=100)
    with pytest.raises(ArgumentError, match="progressive 'sequential' needs encode 'packed', got 'seekable'"):
        EncodeOptions("seekable", progressive="sequential")
    with pytest.raises(ArgumentError, match="progressive must be one of keep, sequential, got 'x'"):
        EncodeOptions("packed", progressive="x")
    assert main(["inspect", "nowhere", "--deep"]) == 2
