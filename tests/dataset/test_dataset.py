from __future__ import annotations

import copy
import gc
import itertools
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from feeder.dataset import open_files
from feeder.dataset import shard_reader as read_shards
from feeder.dataset.decoding import counted
from feeder.dataset.folders import FolderDataset
from feeder.dataset.shard_reader import ShardReader
from feeder.dataset.shards import ShardDataset
from feeder.decoders.cpu_decoder import CpuDecoder
from feeder.errors import ArgumentError, DecodeError, FormatError, SourceError
from feeder.loader.dataloader import DataLoader
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.source.folder import open_folder
from feeder.transforms import Compose, Normalize, RandomResizedCrop, Resize, ToDtype
from tests.support.gil import FREE_THREADED
from tests.support.loader_data import encode, write_shards
from tests.support.shard_sets import change_samples, damage_row, set_classes


def _folder(root: Path) -> Path:
    for name in ("b/1.png", "b/sub/2.png", "a/3.PNG", "a/10.png", "a/notes.txt"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(len(name)))
    return root


def test_sample_is_image_label_and_the_fields_asked_for(tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 20), fields=("json", "key", "path", "index", "cls", "png"))
    image, label, *fields = dataset[17]
    assert len(dataset) == 20
    assert image.shape == (3, 24, 32)
    assert image.dtype == torch.uint8
    assert image[0].unique().tolist() == [17]
    assert label == 3
    assert fields == [{"i": 17}, "00000017", "3/17.png", 17, b"3", encode(17)]
    assert torch.equal(dataset[-3][0], image)


def test_classes_come_from_the_index(tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 8))
    assert dataset.classes == [f"class{k}" for k in range(7)]
    assert dataset.class_to_idx == {f"class{k}": k for k in range(7)}
    packed = pickle.dumps(dataset)
    assert dataset.targets == [0, 1, 2, 3, 4, 5, 6, 0]
    assert dataset.targets is dataset.targets  # scripts ask for it once a sample
    assert pickle.dumps(dataset) == packed
    with pytest.raises(AttributeError, match="targets of a ShardDataset can't be changed, as its samples"):
        dataset.targets = [0] * 8
    set_classes(tmp_path / "index.bin", None)
    assert ShardDataset(tmp_path).classes is None
    assert ShardDataset(tmp_path).class_to_idx is None


def test_folder_follows_torchvisions_class_rule(tmp_path: Path) -> None:
    dataset = FolderDataset(_folder(tmp_path), fields=("key", "path"))
    assert dataset.classes == ["a", "b"]
    assert [dataset[i][1] for i in range(4)] == [0, 0, 1, 1]
    assert [dataset[i][2] for i in range(4)] == ["a/10.png", "a/3.PNG", "b/1.png", "b/sub/2.png"]
    assert dataset[3][3] == str(tmp_path / "b/sub/2.png")


def test_folder_without_classes_or_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="class"):
        FolderDataset(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no image"):
        FolderDataset(tmp_path)
    with pytest.raises(SourceError, match="No such file"):
        FolderDataset(tmp_path / "missing")


def test_exif_orientation_is_applied_unless_ignored(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/0.jpg").write_bytes(encode(0, (24, 32), extension="jpg", orientation=6))
    assert FolderDataset(tmp_path)[0][0].shape == (3, 32, 24)
    assert FolderDataset(tmp_path, exif_orientation="ignore")[0][0].shape == (3, 24, 32)
    with pytest.raises(ArgumentError, match="exif_orientation"):
        FolderDataset(tmp_path, exif_orientation="sideways")


def test_recipe_sets_size_and_dtype(tmp_path: Path) -> None:
    path = write_shards(tmp_path, 4)
    recipe = Compose([RandomResizedCrop(8), ToDtype("float32", scale=True), Normalize([0.5] * 3, [0.5] * 3)])
    image = ShardDataset(path, recipe)[3][0]
    assert image.shape == (3, 8, 8)
    assert image.dtype == torch.float32
    assert image.abs().max() <= 1.01
    assert ShardDataset(path, ToDtype("bfloat16"))[3][0].dtype == torch.bfloat16


@pytest.mark.parametrize("field", ["x.pyd", "weights.PTH", "pt", "a.pkl", "pickle"])
def test_fields_that_run_code_are_refused(tmp_path: Path, field: str) -> None:
    path = write_shards(tmp_path, 2)
    with pytest.raises(ArgumentError, match="refused"):
        ShardDataset(path, fields=(field,))


def test_what_torchvisions_datasets_have_and_ours_do_not_says_the_way_out(tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 1), Resize(8))
    with pytest.raises(ArgumentError, match=r"write \['path'\]"):
        ShardDataset(tmp_path, fields="path")
    with pytest.raises(ArgumentError, match=r"fields must be a sequence of names, or a mapping .* got None"):
        ShardDataset(tmp_path, fields=None)  # type: ignore[arg-type]
    for name in ("imgs", "samples"):
        with pytest.raises(AttributeError, match=r"fields=\['path'\]"):
            getattr(dataset, name)
    with pytest.raises(AttributeError, match=r"no attribute 'root'$"):
        dataset.root  # type: ignore[attr-defined]  # noqa: B018
    assert dataset.transform == dataset.recipe
    with pytest.raises(AttributeError, match="make another ShardDataset"):
        dataset.transform = Resize(4)
    assert copy.copy(dataset)[0][0].shape == (3, 8, 10)


def test_what_is_no_shard_set_or_no_folder_of_images_says_what_to_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = write_shards(tmp_path / "shards", 1)
    with pytest.raises(FormatError, match="give the shards' folder"):
        ShardDataset(shards / "shard-000000.tar")
    with pytest.raises(SourceError, match="read it with ShardDataset"):
        FolderDataset(shards)
    monkeypatch.chdir(shards)
    with pytest.raises(FormatError, match="is a folder, expected an index file"):
        ShardDataset("")


def test_unknown_fields_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="'txt'"):
        ShardDataset(write_shards(tmp_path / "s", 2), fields=("txt",))
    with pytest.raises(ArgumentError, match="'json'"):
        FolderDataset(_folder(tmp_path / "f"), fields=("json",))


def test_pickle_of_a_large_set_is_small(tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 300), RandomResizedCrop(8))
    dataset[0]
    data = pickle.dumps(dataset)
    assert len(data) < 2000
    again = pickle.loads(data)
    assert len(again) == 300
    assert again[299][1] == 299 % 7


def test_cut_off_shard_names_shard_key_and_offset(tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 16))
    offset = int(dataset.reader.index.column("offset")[15])  # type: ignore[attr-defined]
    os.truncate(tmp_path / "shard-000000.tar", offset + 10)
    assert dataset[14][1] == 0
    with pytest.raises(DecodeError, match="cut off") as caught:
        dataset[15]
    assert caught.value.key == "00000015"
    assert caught.value.shard == "shard-000000.tar"
    assert caught.value.offset_bytes == offset


def test_shard_cut_off_after_it_was_opened_is_an_error_and_no_crash(tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 16))
    dataset[0]
    os.truncate(tmp_path / "shard-000000.tar", 100)
    with pytest.raises(DecodeError, match="cut off"):
        dataset[15]


def test_hostile_offsets_and_lengths_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    path = write_shards(tmp_path, 4) / "index.bin"
    for column, row, value in (("length", 0, 1 << 63), ("offset", 1, (1 << 64) - 10), ("length", 1, 20)):
        damage_row(path, column, row, value)
    encoded = ShardReader(str(path)).read(np.array([0, 1, 2]))
    assert [error is None for error in encoded.errors] == [False, False, True]
    assert bytes(encoded.buffers[2]) == encode(2)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 20))
    os.unlink(tmp_path / "shard-000001.tar")
    assert dataset[0][1] == 0
    with pytest.raises(FormatError, match=r"shard-000001\.tar"):
        dataset[17]


def test_many_shards_keep_few_descriptors_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "OPEN_SHARDS", 64)
    dataset = ShardDataset(write_shards(tmp_path, 200, per_shard=1))
    before = len(os.listdir("/proc/self/fd"))
    labels = [dataset[i][1] for i in range(200)]
    assert labels == [i % 7 for i in range(200)]
    assert len(os.listdir("/proc/self/fd")) - before <= 70


def test_a_disk_that_turned_out_slow_is_told_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = ShardReader(str(write_shards(tmp_path, 8) / "index.bin"))
    lengths = reader.index.column("length").tolist()
    told: list[int] = []
    steps = [0]  # of the clock, ns
    clock = itertools.accumulate(steps[0] for _ in itertools.count())
    monkeypatch.setattr(read_shards, "time", SimpleNamespace(perf_counter_ns=lambda: next(clock)))
    monkeypatch.setattr(read_shards, "READ_AHEAD_BYTES", 0)
    monkeypatch.setattr(read_shards, "ADVISED_READS", 2)
    monkeypatch.setattr(os, "posix_fadvise", lambda *of: told.append(of[2]))
    for step, count in ((0, 0), (10**10, 0), (0, 1), (0, 2), (0, 2), (10**10, 2), (10**10, 3)):
        steps[0] = step
        reader.read(np.arange(8))
        assert told == count * lengths


def open_shards(folder: Path) -> int:
    """Number of a folder's shards that this process has open."""
    links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    return sum(os.readlink(link).startswith(f"{folder}/shard-") for link in links if os.path.lexists(link))


def test_threads_count_their_own_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    Image.fromarray(np.full((20, 20), 40_000, np.uint16)).save(tmp_path / "a/deep.png")  # 16 bits, clipped
    Image.fromarray(np.zeros((20, 20, 3), np.uint8)).save(tmp_path / "a/plain.png")
    dataset = FolderDataset(tmp_path, Resize((16, 16)))
    decode, both = CpuDecoder.decode, threading.Barrier(2)

    def decode_and_wait(self: CpuDecoder, *arguments: Any) -> Any:
        found = decode(self, *arguments)
        both.wait(60)
        return found

    monkeypatch.setattr(CpuDecoder, "decode", decode_and_wait)

    def clipped(i: int) -> int:
        with counted() as counts:
            dataset[i]
        return counts.clipped

    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(clipped, range(2))] == [1, 0]


def test_threads_share_a_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "OPEN_SHARDS", 64)
    dataset = ShardDataset(write_shards(tmp_path, 200, per_shard=1), fields=("json",))
    asked = [i * 37 % 200 for i in range(800)]
    expected = [dataset[i] for i in range(200)]
    with ThreadPoolExecutor(8) as pool:
        for i, (image, label, parsed) in zip(asked, pool.map(dataset.__getitem__, asked), strict=True):
            assert torch.equal(image, expected[i][0])
            assert (label, parsed) == (i % 7, {"i": i})
    assert 1 <= open_shards(tmp_path) <= 64  # this thread's; those of the others are closed
    del dataset
    if FREE_THREADED:
        gc.collect()  # which settles references of other threads
    assert open_shards(tmp_path) == 0


def test_many_threads_stay_below_the_limit_of_descriptors(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 40, per_shard=1)
    script = f"""
import os, resource, threading
import numpy as np
from feeder.dataset.shard_reader import ShardReader
resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))
reader = ShardReader({str(shards / "index.bin")!r})
meeting = threading.Barrier(16)
labels = [0] * 16
def read(k):
    meeting.wait()
    for i in range(40):
        labels[k] += reader.read(np.array([(i + k) % 40])).labels[0]
    meeting.wait()  # all threads have their files open
threads = [threading.Thread(target=read, args=(k,)) for k in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(labels == [sum(i % 7 for i in range(40))] * 16)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == ("True\n", "")


def test_a_forked_child_opens_the_shards_itself(tmp_path: Path) -> None:
    write_shards(tmp_path, 40)
    script = f"""
import os
import numpy as np
from feeder.dataset.shard_reader import ShardReader
reader = ShardReader({str(tmp_path / INDEX_NAME)!r})
ids = np.arange(40)
parent = [bytes(buffer) for buffer in reader.read(ids).buffers]
child = os.fork()
if not child:
    os.closerange(3, 256)  # as a daemon does; then another file takes the descriptors' numbers
    while os.open("/dev/zero", os.O_RDONLY) < 64: pass
    encoded = reader.read(ids)
    os._exit(0 if not any(encoded.errors) and [bytes(buffer) for buffer in encoded.buffers] == parent else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert [bytes(buffer) for buffer in reader.read(ids).buffers] == parent
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("column", "row", "value"),
    [("field", 2, 9), ("members", 2, [(9, 512, 1)]), ("orientation", 2, 9)],
)
def test_a_damaged_index_is_named(tmp_path: Path, column: str, row: int, value: Any) -> None:
    write_shards(tmp_path, 8)
    path = str(tmp_path / INDEX_NAME)
    damage_row(path, column, row, value)
    dataset = ShardDataset(path, fields=("json", "png") if column != "orientation" else ())
    assert dataset[1][1] == 1
    with pytest.raises((DecodeError, FormatError), match=r"index\.bin|shard-000000\.fidx"):
        dataset[2]
    if column == "orientation":
        (error,) = dataset.reader.read(np.array([2])).errors
        assert error is not None
        assert error.key == "00000002"
        assert ShardDataset(path, exif_orientation="ignore")[2][1] == 2


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A class folder with an image 1100 folders down."""
    folders = [tmp_path / "deep" / "a"]
    folders += [folders[0] / "/".join("d" * depth) for depth in range(1, 1100)]
    (tmp_path / "deep").mkdir()
    for folder in folders:
        folder.mkdir()
    (folders[-1] / "x.png").write_bytes(encode(5))
    (folders[0] / "x.png").write_bytes(encode(4))
    yield tmp_path / "deep"
    (folders[-1] / "x.png").unlink()  # shutil.rmtree recurses too
    (folders[0] / "x.png").unlink()
    for folder in reversed(folders):
        folder.rmdir()


def test_folders_may_be_nested_deeper_than_pythons_calls(deep: Path) -> None:
    dataset = FolderDataset(deep)
    assert [dataset[i][0][0, 0, 0].item() for i in range(len(dataset))] == [4, 5]
    source = open_folder(str(deep))
    assert [len(source.table.path(i)) for i in range(len(source.table))] == [len("a/x.png"), 2 * 1100 + len("x.png")]


def test_links_to_folders_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    root = _folder(tmp_path / "root")
    (root / "a/up").symlink_to(root)
    (root / "a/same").symlink_to(root / "a")
    (root / "a/self.png").symlink_to("self.png")
    (root / "a/b").symlink_to(root / "b")
    dataset = FolderDataset(root, fields=("key",))
    keys = [dataset.reader.field(i, "key") for i in range(len(dataset))]
    assert keys == ["a/10.png", "a/3.PNG", "a/self.png", "a/b/1.png", "a/b/sub/2.png", "b/1.png", "b/sub/2.png"]
    source = open_folder(str(root))
    listed = [source.table.path(i).decode() for i in range(len(source.table))]
    assert sorted(path for path in listed if path.lower().endswith("png")) == sorted(set(keys) - {"a/self.png"})
    assert {(r.path, r.reason) for r in source.rejected} == {
        (path, "symlink loop") for path in ("a/up", "a/same", "a/self.png")
    }


def test_bad_image_is_named(tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 4, bad=(2,)))
    with pytest.raises(DecodeError, match="00000002"):
        dataset[2]


@pytest.mark.parametrize(
    "number", [True, 1.0, "1", None, np.bool_(True), np.float32(1), torch.tensor(True), torch.tensor(1.0)]
)
def test_only_integers_are_sample_numbers(tmp_path: Path, number: Any) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 4), RandomResizedCrop(8))
    for ask in (
        lambda: dataset[number],
        lambda: dataset.__getitems__([0, number]),
        lambda: list(DataLoader(dataset, sampler=[0, number])),
        lambda: list(DataLoader(dataset, batch_sampler=[[0], [number, 1]], num_workers=1)),
    ):
        with pytest.raises(TypeError, match="a sample number must be an integer, got"):
            ask()
    numbers = [np.int64(1), np.uint8(1), np.array(1), torch.tensor(1), 1]
    assert [dataset[i][1] for i in numbers] == [1] * 5
    (batch,) = DataLoader(dataset, batch_size=5, sampler=numbers)
    assert batch[1].tolist() == [1] * 5


def test_index_out_of_range(tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 4))
    with pytest.raises(IndexError, match="4 samples"):
        dataset[4]
    samples: Any = dataset  # iterable by its IndexError
    assert [label for _, label in samples] == [0, 1, 2, 3]


def test_torch_rules_the_random_state_outside_feeders_loader(tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 4), RandomResizedCrop(16))
    torch.manual_seed(3)
    first = [dataset[0][0] for _ in range(4)]
    torch.manual_seed(3)
    assert all(torch.equal(a, dataset[0][0]) for a in first)
    assert any(not torch.equal(first[0], a) for a in first[1:])


@pytest.mark.parametrize("workers", [0, 2])
def test_works_under_torchs_loader_with_fresh_draws_in_each_epoch(tmp_path: Path, workers: int) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 24), RandomResizedCrop(16), fields=("index",))
    loader = torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=workers)
    torch.manual_seed(0)
    epochs = [list(loader) for _ in range(2)]
    for batches in epochs:
        assert torch.cat([index for _, _, index in batches]).tolist() == list(range(24))
        assert torch.cat([labels for _, labels, _ in batches]).tolist() == [i % 7 for i in range(24)]
    pairs = zip(*epochs, strict=True)
    assert any(not torch.equal(a[0], b[0]) for a, b in pairs)


class Cropped(torch.utils.data.Dataset[Any]):
    """A wrapper that makes one size of all images itself."""

    def __init__(self, dataset: FolderDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(image[:, :8, :8], *rest) for image, *rest in self.dataset.__getitems__(indices)]


def _of_two_sizes(folder: Path, transform: Any = None) -> FolderDataset:
    (folder / "a").mkdir()
    for i, size in enumerate([(10, 20), (30, 12)]):
        (folder / f"a/{i}.png").write_bytes(encode(i, size))
    return FolderDataset(folder, transform)


@pytest.mark.parametrize("workers", [0, 1])
def test_torchs_loader_names_the_op_that_is_missing_where_it_would_stack(tmp_path: Path, workers: int) -> None:
    dataset = _of_two_sizes(tmp_path, Resize(8))
    for samples in (dataset, torch.utils.data.Subset(torch.utils.data.Subset(dataset, [1, 0]), [1, 0])):
        loader = torch.utils.data.DataLoader(samples, batch_size=2, num_workers=workers)
        with pytest.raises(
            ArgumentError, match=r"different sizes: Resize\(size=\(8,\).* keeps each image's shape\. Put"
        ):
            next(iter(loader))


def test_images_of_different_sizes_pass_where_nobody_stacks_them(tmp_path: Path) -> None:
    dataset = _of_two_sizes(tmp_path, Resize(8))
    shapes = [(3, 8, 16), (3, 20, 8)]
    assert [image.shape for image, _ in dataset.__getitems__([0, 1])] == shapes
    (batch,) = torch.utils.data.DataLoader(dataset, batch_size=2, collate_fn=list)
    assert [image.shape for image, _ in batch] == shapes
    (first, second) = torch.utils.data.DataLoader(dataset)
    assert [first[0].shape, second[0].shape] == [(1, *shape) for shape in shapes]
    ((images, _),) = torch.utils.data.DataLoader(Cropped(dataset), batch_size=2)
    assert images.shape == (2, 3, 8, 8)


def test_a_large_set_takes_no_memory_per_sample_in_a_reader(tmp_path: Path) -> None:
    """An index is mapped, not read: opening it and reading two samples takes less than four bytes a sample."""
    samples = 250_000
    small, large = (str(write_shards(tmp_path / name, 1) / INDEX_NAME) for name in ("small", "large"))

    change_samples(large, lambda _, own: own * samples)
    script = f"""
import numpy as np
from feeder.dataset.shard_reader import ShardReader
def anonymous_kib():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))
ShardReader({small!r}).read(np.array([0]))
before = anonymous_kib()
reader = ShardReader({large!r})
assert len(reader) == {samples}
reader.read(np.array([5, {samples - 1}]))
print(anonymous_kib() - before)
"""
    result = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert int(result.stdout) << 10 < 4 * samples
