"""Class folders and flat folders: the samples found, bad files listed, and unreadable folders never passed over."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from feeder.dataset.folders import FolderDataset
from feeder.errors import ShardError, SourceError
from feeder.shard.format.manifest import Manifest
from feeder.shard.format.open_index import open_index
from feeder.shard.source.class_folders import class_names
from feeder.shard.source.folder import open_folder
from feeder.shard.write.sharding import shard
from feeder.system.progress import Progress
from tests.support.images import encode, make_tree, pixels
from tests.support.shard_sets import (
    StopAtOnce,
    kept,
    member,
    rejected,
    samples_of,
    sharded,
    write_tar,
)

JPEG = encode(pixels(1))


def test_class_indices_follow_torchvisions_rule(tmp_path: Path) -> None:
    names = ["b", "A", "10", "9", "é", "empty"]
    for name in names:
        (tmp_path / "src" / name).mkdir(parents=True)
        if name != "empty":
            (tmp_path / "src" / name / "x.jpg").write_bytes(JPEG)
    # torchvision.datasets.folder.find_classes: sorted(entry.name for entry in os.scandir(directory) if entry.is_dir())
    assert class_names(str(tmp_path / "src")) == ["10", "9", "A", "b", "empty", "é"]
    notes: list[str] = []

    class Notes(Progress):
        def note(self, line: str) -> None:
            notes.append(line)

    shard(str(tmp_path / "src"), str(tmp_path / "out"), progress=Notes())
    assert {(path, label) for path, _, label in samples_of(tmp_path / "out")} == {
        ("10/x.jpg", 0),
        ("9/x.jpg", 1),
        ("A/x.jpg", 2),
        ("b/x.jpg", 3),
        ("é/x.jpg", 5),
    }
    assert notes == ["class folder 'empty' gives no sample; it keeps its label 4"]


_SYSTEM_FOLDERS = [
    ".ipynb_checkpoints",
    "__MACOSX",
    "@eaDir",
    "$RECYCLE.BIN",
    "lost+found",
    "System Volume Information",
]
_NO_IMAGES = [
    "a.jpg.crdownload",
    "a.jpg~",
    "a.PNG.part",
    "a.jpg.TMP",
    "a.jpg.bak",
    "#a.jpg#",
    "._b.jpg",
    ".nfs00000000a1b2c3d4",
    ".fuse_hidden00001",
    "a.jpg.!qB",
]
_IMAGES = [
    ".a.jpg",
    "a.jpg",
    "a.v2.JPG",
    "a part.jpg",
    "b.gif",
    "c.jfif",
    "none",
    "d.0001",
    "e.jpg?w=300",
    "really-jpeg.heic",
]


def _zoo(root: Path) -> tuple[Path, set[str]]:
    """Two classes of images under many names, beside files and folders that are none, and the paths of the images."""
    for name in ("cat", "dog"):
        (root / name / "more").mkdir(parents=True)
        for file in (*_NO_IMAGES, *_IMAGES):
            (root / name / file).write_bytes(JPEG)
        for folder in (root / name, root / name / "more"):
            for system in _SYSTEM_FOLDERS:
                (folder / system).mkdir()
                (folder / system / "x.jpg").write_bytes(JPEG)
        for file, data in (
            (".DS_Store", b"\0"),
            ("Thumbs.db", b"\0"),
            ("BMW", b"BMW is"),
            ("z.txt", JPEG),
            ("a.txt", b""),
        ):
            (root / name / file).write_bytes(data)
        (root / name / ".#a.jpg").symlink_to("user@host.1")
        (root / name / "photo.heic").write_bytes(b"\0\0\0\x18ftypheic")
    for system in _SYSTEM_FOLDERS:
        (root / system).mkdir()
        (root / system / "x.jpg").write_bytes(JPEG)
    return root, {f"{name}/{file}" for name in ("cat", "dog") for file in _IMAGES}


def _entries(root: Path) -> set[str]:
    """All files that a source must account for, and the folders that are left out in place of those in them."""
    found = set()
    for path in root.rglob("*"):
        inside = path.relative_to(root)
        if not set(inside.parts[:-1]) & set(_SYSTEM_FOLDERS) and (inside.name in _SYSTEM_FOLDERS or not path.is_dir()):
            found.add(str(inside))
    return found


def test_shards_and_a_folder_dataset_leave_the_same_out_and_say_so(tmp_path: Path) -> None:
    root, images = _zoo(tmp_path / "src")
    summary = shard(str(root), str(tmp_path / "out"), kept(max_bad=1))
    assert {path for path, _, _ in samples_of(tmp_path / "out")} == images
    members = {"cat/a.txt", "dog/a.txt"}
    assert images | rejected(tmp_path / "out").keys() | members == _entries(root)
    assert (summary.inputs, summary.bad, summary.classes) == (len(_entries(root)) - 2, 4, 2)
    expected = {
        "30 hidden or system folders, such as $RECYCLE.BIN",
        "22 unfinished, backup or system files, such as cat/#a.jpg#",
    }
    told = {note.partition(": left out ")[2].partition(": rename")[0] for note in summary.notes}
    assert told - {""} == expected
    with pytest.warns(UserWarning, match="left out") as warned:
        dataset = FolderDataset(root)
    assert {dataset.reader.field(i, "key") for i in range(len(dataset))} == images
    assert dataset.classes == ["cat", "dog"]
    told = {str(each.message).partition(": left out ")[2].partition(": rename")[0] for each in warned}
    assert told - {""} == expected | {"2 undecodable images, such as cat/photo.heic"}


def test_a_flat_folder_beside_a_systems_folder_stays_flat(tmp_path: Path) -> None:
    for folder in ("src/.ipynb_checkpoints", "src/__MACOSX"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "._x.jpg").write_bytes(JPEG)
    (tmp_path / "src/x.jpg").write_bytes(JPEG)
    out = sharded(tmp_path / "src", tmp_path)
    assert samples_of(out) == [("x.jpg", JPEG, -1)]
    assert set(rejected(out)) == {".ipynb_checkpoints", "__MACOSX"}


def test_folders_named_as_splits_are_pointed_out(tmp_path: Path) -> None:
    for path in ("src/train/cat", "src/val/cat", "trains/train", "trains/plane"):
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "x.jpg").write_bytes(JPEG)
    source = open_folder(str(tmp_path / "src"))
    assert source.notes == [
        f"{tmp_path}/src: its folders train, val are taken as classes; if they are splits of one dataset, give one at "
        f"a time, such as {tmp_path}/src/train"
    ]
    with pytest.warns(UserWarning, match="train, val are taken as classes"):
        assert FolderDataset(tmp_path / "src").classes == ["train", "val"]
    assert open_folder(str(tmp_path / "src/train")).notes == []
    assert open_folder(str(tmp_path / "trains")).notes == []
    assert FolderDataset(tmp_path / "trains").classes == ["plane", "train"]


def test_nested_folders_belong_to_their_class(tmp_path: Path) -> None:
    (tmp_path / "src" / "cat" / "a" / "b").mkdir(parents=True)
    (tmp_path / "src" / "cat" / "a" / "b" / "x.jpg").write_bytes(JPEG)
    out = sharded(tmp_path / "src", tmp_path)
    assert samples_of(out) == [("cat/a/b/x.jpg", JPEG, 0)]


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for i in range(3):
        (tmp_path / "src" / f"{i}.jpg").write_bytes(encode(pixels(i)))
    out = sharded(tmp_path / "src", tmp_path)
    assert [label for _, _, label in samples_of(out)] == [-1] * 3
    assert member(out, "0.jpg", "cls") is None
    assert Manifest.read(str(out)).classes is None  # type: ignore[union-attr]


def test_every_kind_of_bad_file_is_listed_with_its_reason(tmp_path: Path) -> None:
    folder = make_tree(tmp_path / "src", 1, 3) / "class-0"
    good_png = encode(pixels(5), "PNG")
    (folder / "truncated.jpg").write_bytes(JPEG[: len(JPEG) // 2])
    (folder / "header-only.jpg").write_bytes(JPEG[:30])
    (folder / "truncated.png").write_bytes(good_png[:-200])
    (folder / "truncated.webp").write_bytes(encode(pixels(6), "WEBP")[:-40])
    (folder / "empty.jpg").touch()
    (folder / "text.jpg").write_text("I am no image")
    (folder / "notes.txt").write_text("neither am I")
    (folder / "loop").symlink_to("..")
    (folder / "self.jpg").symlink_to("self.jpg")
    (folder / "broken.jpg").symlink_to("nowhere.jpg")
    os.mkfifo(folder / "pipe.jpg")
    (tmp_path / "src" / "stray.jpg").write_bytes(JPEG)
    out = sharded(tmp_path / "src", tmp_path)
    found = rejected(out)
    expected = {
        "class-0/broken.jpg": "broken symlink",
        "class-0/empty.jpg": "empty file",
        "class-0/header-only.jpg": "truncated jpg",
        "class-0/loop": "symlink loop",
        "class-0/notes.txt": "not an image",
        "class-0/pipe.jpg": "not a regular file",
        "class-0/self.jpg": "symlink loop",
        "class-0/text.jpg": "not an image",
        "class-0/truncated.jpg": "truncated",
        "class-0/truncated.png": "damaged or unsupported png",
        "class-0/truncated.webp": "damaged",
        "stray.jpg": "is outside the class folders",
    }
    assert found.keys() == expected.keys()
    for path, reason in expected.items():
        assert found[path].startswith(reason), (path, found[path])
    assert {path for path, _, _ in samples_of(out)} == {f"class-0/img-00{i}.jpg" for i in range(3)}


def _downloaded(root: Path, endings: list[str]) -> Path:
    """A folder as img2dataset writes it with output_format="files": the second shard has no image that came through."""
    for shard_name in ("00000", "00001"):
        (root / shard_name).mkdir(parents=True)
        for ending in endings:
            (root / f"{shard_name}{ending}").write_bytes(b"PAR1")
    for key in ("000000000", "000000003"):
        (root / "00000" / f"{key}.jpg").write_bytes(JPEG)
        (root / "00000" / f"{key}.txt").write_text(f"caption {key}")
        (root / "00000" / f"{key}.json").write_text("{}")
    return root


@pytest.mark.parametrize("endings", [[".parquet", "_stats.json"], ["_stats.json"]])
def test_shard_folders_of_img2dataset_are_no_classes(tmp_path: Path, endings: list[str]) -> None:
    root = _downloaded(tmp_path / "src", endings)
    source = open_folder(str(root))
    note = f"{root}: its folders, such as 00000, are shards of img2dataset and no classes: samples have no label"
    assert (source.classes, source.notes[0]) == (None, note)
    out = sharded(root, tmp_path)
    assert [(path, label) for path, _, label in samples_of(out)] == [
        ("00000/000000000.jpg", -1),
        ("00000/000000003.jpg", -1),
    ]
    with pytest.warns(UserWarning, match="are shards of img2dataset and no classes"):
        dataset = FolderDataset(root, fields=("txt", "json"))
    assert (dataset.classes, dataset.reader.labels().tolist()) == (None, [-1, -1])
    assert dataset[1][1:] == (-1, b"caption 000000003", {})


def test_folders_are_classes_unless_each_is_a_shard_of_img2dataset(tmp_path: Path) -> None:
    root = _downloaded(tmp_path / "src", ["_stats.json"])
    (root / "00001_stats.json").unlink()
    assert open_folder(str(root)).classes == ["00000", "00001"]
    shutil.rmtree(root / "00001")
    for path in (root / "00000").iterdir():
        path.unlink()
    with (
        pytest.warns(UserWarning, match="no classes"),
        pytest.raises(SourceError, match=r"no image in the folders of img2dataset; its _stats\.json say why"),
    ):
        FolderDataset(root)


def test_only_files_that_claim_to_be_images_count_as_bad(tmp_path: Path) -> None:
    folder = make_tree(tmp_path / "src", 1, 3) / "class-0"
    (folder / "labels.txt").write_text("x")
    (folder / "Thumbs.db").write_bytes(b"\0")
    summary = shard(str(tmp_path / "src"), str(tmp_path / "out"))
    assert (summary.rejected, summary.bad, summary.too_many_bad) == (2, 0, None)
    (folder / "bad.jpg").write_text("x")
    summary = shard(str(tmp_path / "src"), str(tmp_path / "out2"))
    assert (summary.rejected, summary.bad) == (3, 1)
    assert "1 of 4 images (25.00%)" in str(summary.too_many_bad)


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A scratch folder, with the rights of an ordinary user even where the tests run as root."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65_534)
        try:
            yield Path(folder)
        finally:
            os.seteuid(user)


def test_an_unreadable_folder_ends_the_run_unless_it_is_to_be_skipped(unprivileged: Path) -> None:
    source = make_tree(unprivileged / "src", 3, 2)
    (source / "class-0" / "img-000.jpg").chmod(0)
    (source / "class-1").chmod(0)
    (source / "class-2").chmod(0o644)  # its names can be read, and nothing else of its files
    (source / "linked").symlink_to(source / "class-1" / "below")
    out = unprivileged / "out"
    with pytest.raises(SourceError, match=r"src/linked: unreadable folder: Permission denied; .*--skip-unreadable"):
        shard(str(source), str(out), kept(max_bad=1))
    (source / "linked").unlink()
    for name, mode in (("class-1", 0o755), ("class-2", 0o755)):
        with pytest.raises(SourceError, match=f"src/{name}: unreadable folder: Permission denied; "):
            shard(str(source), str(out), kept(max_bad=1))
        (source / name).chmod(mode)
    (source / "class-1").chmod(0)
    (source / "class-2").chmod(0o644)
    (source / "class-0" / "linked").symlink_to(source / "class-1" / "below")
    summary = shard(str(source), str(out), kept(max_bad=1, skip_unreadable=True))
    found = rejected(out)
    for name in ("class-1", "class-2"):
        (source / name).chmod(0o755)
    assert found == {
        "class-0/img-000.jpg": "unreadable: Permission denied",
        "class-0/linked": "unreadable link: Permission denied",
        "class-1": "unreadable folder: Permission denied",
        "class-2": "unreadable folder: Permission denied",
    }
    assert (summary.samples, summary.bad, summary.unreadable_folders) == (1, 1, 3)
    assert summary.loss == f"1 of 2 images and 3 unreadable folders left out, see {out}/rejected.jsonl"


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("call", ["scandir", "stat"])
def test_an_error_of_the_machine_ends_the_listing_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, call: str
) -> None:
    source = make_tree(tmp_path / "src", 2, 3)
    options = kept(samples_per_shard=2, workers=1)
    with pytest.raises(KeyboardInterrupt):
        shard(str(source), str(tmp_path / "out"), options, progress=StopAtOnce())
    real = getattr(os, call)

    def fail(path: str, *args: object) -> object:
        if str(path).endswith("class-1" if call == "scandir" else "class-1/img-001.jpg"):
            raise OSError(code, os.strerror(code), path)
        return real(path, *args)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(SourceError, match=f"src/class-1: can't be listed: {os.strerror(code)}"):
            shard(str(source), str(tmp_path / "out"), replace(options, skip_unreadable=True))
        if call == "scandir":
            with pytest.raises(SourceError, match=f"src/class-1: can't be listed: {os.strerror(code)}"):
                FolderDataset(source)
    assert shard(str(source), str(tmp_path / "out"), options).samples == 6


def test_a_bad_spot_of_the_disk_ends_the_run_unless_its_file_is_to_be_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_tree(tmp_path / "src", 2, 3)
    bad = source / "class-1" / "img-001.jpg"
    real = os.read

    def fail(descriptor: int, count: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(bad):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, count)

    monkeypatch.setattr(os, "read", fail)
    options = kept(samples_per_shard=1, max_bad=1)
    with pytest.raises(ShardError, match=r"class-1/img-001\.jpg: can't be read: Input/output error; nothing is lost"):
        shard(str(source), str(tmp_path / "out"), options)
    summary = shard(str(source), str(tmp_path / "out"), replace(options, skip_unreadable=True))
    assert (summary.samples, summary.bad) == (5, 1)
    assert rejected(tmp_path / "out") == {"class-1/img-001.jpg": "unreadable: Input/output error"}


def test_a_folder_that_vanishes_while_it_is_listed_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_tree(tmp_path / "src", 2, 3)
    real = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("class-0"):
            shutil.rmtree(source / "class-1")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(SourceError, match="src/class-1: vanished while it was being listed"):
        open_folder(str(source))


def test_a_source_behind_an_unreadable_folder_is_not_called_missing(unprivileged: Path) -> None:
    make_tree(unprivileged / "secret" / "src", 1, 1)
    (unprivileged / "secret").chmod(0)
    for name in ("src", "list.csv", "x.tar"):
        with pytest.raises(SourceError, match=f"secret/{name}: can't be examined: Permission denied"):
            shard(str(unprivileged / "secret" / name), str(unprivileged / "out"))


def test_a_pattern_of_tars_passes_over_no_unreadable_folder(unprivileged: Path) -> None:
    for name in "ab":
        (unprivileged / name).mkdir()
        write_tar(unprivileged / name / "x.tar", [("k.jpg", JPEG)])
    (unprivileged / "b").chmod(0o300)
    with pytest.raises(SourceError, match="/b: unreadable folder: Permission denied"):
        shard(str(unprivileged / "*" / "*.tar"), str(unprivileged / "out"), kept())


def test_a_folder_dataset_passes_over_no_unreadable_folder(unprivileged: Path) -> None:
    source = make_tree(unprivileged / "src", 2, 2)
    below = source / "class-0" / "below"
    below.mkdir()
    shutil.copy(source / "class-0" / "img-000.jpg", below)
    below.chmod(0)
    with pytest.raises(SourceError, match="class-0/below: unreadable folder: Permission denied"):
        FolderDataset(source)
    below.chmod(0o755)
    assert len(FolderDataset(source)) == 5
    secret = unprivileged / "secret"
    (secret / "class-2").mkdir(parents=True)
    (source / "class-2").symlink_to(secret / "class-2")
    secret.chmod(0)
    with pytest.raises(SourceError, match="src/class-2: unreadable folder: Permission denied"):
        FolderDataset(source)


def test_odd_names_are_no_reason_to_reject(tmp_path: Path) -> None:
    folder = tmp_path / "src" / "Größe 日本"
    folder.mkdir(parents=True)
    names = [
        "a b.jpg",
        "ünïcode-🦊.jpg",
        "many.dots.in.name.jpg",
        "x" * 251 + ".jpg",
        "-rf.jpg",
        "new\nline.jpg",
        "noext",
    ]
    raw = [os.fsencode(name) for name in names] + [b"undecodable-\xff\xfe.jpg"]
    for i, name in enumerate(raw):
        with open(os.path.join(os.fsencode(folder), name), "wb") as file:
            file.write(encode(pixels(i)))
    out = sharded(tmp_path / "src", tmp_path)
    assert rejected(out) == {}
    assert {path for path, _, _ in samples_of(out)} == {f"Größe 日本/{os.fsdecode(name)}" for name in raw}


def test_the_extension_follows_the_bytes_not_the_name(tmp_path: Path) -> None:
    folder = tmp_path / "src" / "c"
    folder.mkdir(parents=True)
    kinds = {"png": "PNG", "webp": "WEBP", "bmp": "BMP", "gif": "GIF", "tiff": "TIFF", "ppm": "PPM", "jpg": "JPEG"}
    for extension, kind in kinds.items():
        (folder / f"{extension}.JPEG").write_bytes(encode(pixels(3), kind))
    index = open_index(sharded(tmp_path / "src", tmp_path) / "index.bin")
    assert {index.source_path(i): index.image_field(i) for i in range(len(index))} == {f"c/{e}.JPEG": e for e in kinds}


def test_size_and_orientation_stand_in_the_index(tmp_path: Path) -> None:
    folder = tmp_path / "src" / "c"
    folder.mkdir(parents=True)
    for orientation in range(1, 9):
        (folder / f"{orientation}.jpg").write_bytes(encode(pixels(0, 30, 20), orientation=orientation))
        (folder / f"{orientation}.png").write_bytes(encode(pixels(0, 30, 20), "PNG", orientation=orientation))
    (folder / "none.jpg").write_bytes(encode(pixels(0, 30, 20)))
    index = open_index(sharded(tmp_path / "src", tmp_path) / "index.bin")
    for i in range(len(index)):
        name = Path(index.source_path(i)).stem
        assert int(index.column("orientation")[i]) == (1 if name == "none" else int(name))
        assert (int(index.column("width")[i]), int(index.column("height")[i])) == (30, 20)


def test_a_folder_without_images_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    with pytest.raises(SourceError, match="no image found"):
        shard(str(tmp_path / "src"), str(tmp_path / "out"))
    with pytest.raises(SourceError, match=r"missing: no such file or folder; expected a folder of images"):
        shard(str(tmp_path / "missing"), str(tmp_path / "out"))
    (tmp_path / "data.xlsx").touch()
    with pytest.raises(SourceError, match="is not a dataset that feeder knows"):
        shard(str(tmp_path / "data.xlsx"), str(tmp_path / "out"))
