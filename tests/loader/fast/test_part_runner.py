"""Parts in one native call: the pixels, labels, counts and errors of the other way, which takes what is unusual."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from feeder.dataset.shard_reader import ShardReader
from feeder.dataset.subset_reader import SubsetReader
from feeder.decoders.device.fused import divide_recipe
from feeder.errors import DecodeError, FormatError
from feeder.loader.fast.part_report import PartReport
from feeder.loader.fast.sample_maker import Work
from feeder.loader.observe.meter import STAGES, bucket_of, part_sums, stage_rows
from feeder.loader.slots.image_slots import Samples, SlotView
from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.transforms import (
    AutoAugment,
    CenterCrop,
    ColorJitter,
    GaussianBlur,
    Grayscale,
    Lambda,
    LetterBox,
    Normalize,
    Op,
    Pad,
    RandAugment,
    RandomApply,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Recipe,
    Resize,
    ToDtype,
    TrivialAugmentWide,
)
from tests.support import jpegs
from tests.support.images import encode
from tests.support.mirrors import StrictMirror
from tests.support.shard_sets import damage_row

NORMALIZE = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
TRAIN = Recipe.of([RandomResizedCrop(40), RandomHorizontalFlip(), ToDtype("float32", scale=True), NORMALIZE])
PHOTOS = 16


class OtherReader(ShardReader):
    """A reader that the kernels don't know."""


class Reads:
    """Counts the samples that go the other way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.samples = 0
        read = ShardReader.read

        def counted(reader: ShardReader, ids: npt.NDArray[np.int64], *arguments: Any) -> Any:
            self.samples += len(ids) if type(reader) is ShardReader else 0
            return read(reader, ids, *arguments)

        monkeypatch.setattr(ShardReader, "read", counted)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


def photos(folder: Path, others: dict[str, bytes] | None = None) -> Path:
    """A class tree of photos, upright and turned, and of other files."""
    files = {f"{k:02d}.jpg": jpegs.encode(jpegs.photo(k, 300 + 17 * k, 500 - 20 * k)) for k in range(PHOTOS - 8)}
    for turn in range(1, 9):
        files[f"turned {turn}.jpg"] = encode(jpegs.photo(turn, 330, 270), orientation=turn)
    for number, (name, data) in enumerate((files | (others or {})).items()):
        path = folder / str(number % 3) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def sharded(tmp_path: Path, encoding: Any = "seekable", others: dict[str, bytes] | None = None) -> Path:
    out = tmp_path / "shards"
    shard(
        str(photos(tmp_path / "images", others)),
        str(out),
        ShardOptions(encode=EncodeOptions(encoding), samples_per_shard=5),
    )
    return out / "index.bin"


def made(
    index: Path,
    ids: list[int],
    recipe: Recipe = TRAIN,
    *,
    reader: type[ShardReader] = ShardReader,
    repeats: list[int] | None = None,
    subset: list[int] | None = None,
    mirror: StrictMirror | None = None,
    change: Callable[[ShardReader], None] = lambda reader: None,
    **options: Any,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], PartReport, Work]:
    """Pixels, labels and report of one part."""
    own = reader(str(index)) if mirror is None else reader(mirror.index, mirror=mirror)
    change(own)
    work = Work(own if subset is None else SubsetReader(own, np.array(subset)), recipe, "cpu", seed=3, **options)
    samples = Samples.of(np.arange(len(ids)), np.array(ids))
    if repeats is not None:
        samples.repeats[:] = repeats
    view = SlotView.new(work.layout(len(ids)), samples)
    return view.images[0], view.labels, work.run(2, view), work


def check_same(index: Path, ids: list[int], recipe: Recipe = TRAIN, **options: Any) -> None:
    images, labels, report, work = made(index, ids, recipe, **options)
    images_, labels_, report_, _ = made(index, ids, recipe, reader=OtherReader, **options)
    np.testing.assert_array_equal(images, images_)
    np.testing.assert_array_equal(labels, labels_)
    assert labels.dtype == labels_.dtype
    assert (report.slow, report.clipped) == (report_.slow, report_.clipped)
    assert report.substitutions == report_.substitutions
    assert work.meter.words.any()


@pytest.mark.parametrize("encoding", ["seekable", "packed", "keep"])
def test_parts_are_those_of_the_other_way(tmp_path: Path, reads: Reads, encoding: str) -> None:
    index = sharded(tmp_path, encoding)
    ids = np.random.default_rng(0).permutation(PHOTOS).tolist()
    check_same(index, ids)
    check_same(index, [5], repeats=[2])
    check_same(index, [3, 3, 3, 3], repeats=[0, 1, 2, 3])
    assert reads.samples == 0


@pytest.mark.parametrize(
    "ops",
    [
        [Resize(64), CenterCrop(48)],
        [RandomResizedCrop((24, 32))],
        [RandomResizedCrop((24, 32), (0.2, 1.0), interpolation="bicubic"), RandomHorizontalFlip()],
        [Resize(60, "bicubic"), CenterCrop(40), ToDtype("float32")],
        [RandomResizedCrop(24), ToDtype("float16", scale=True)],
        [RandomResizedCrop(24), ToDtype("bfloat16", scale=True), RandomHorizontalFlip()],
        [RandomHorizontalFlip(), LetterBox((60, 41)), RandomHorizontalFlip(), ToDtype("float32")],
        [RandomCrop(420, 30, pad_if_needed=True, fill=9), RandomVerticalFlip()],
        [CenterCrop((350, 290)), Pad(5), NORMALIZE],
    ],
    ids=repr,
)
@pytest.mark.parametrize("fidelity", ["fast", "exact"])
def test_recipes_that_are_a_base_path_take_one_call(
    tmp_path: Path, reads: Reads, ops: list[Any], fidelity: str
) -> None:
    check_same(sharded(tmp_path), list(range(PHOTOS)), Recipe.of(ops), fidelity=fidelity, threads=2)
    assert reads.samples == 0


def test_subsets_given_labels_and_the_cpus_side_of_a_recipe_take_one_call(tmp_path: Path, reads: Reads) -> None:
    index = sharded(tmp_path)
    check_same(index, [0, 2, 1], subset=[7, 5, 9])
    check_same(index, [4, 0], change=lambda reader: reader.relabel(np.arange(PHOTOS) + 100, None))
    check_same(index, [4, 0], change=lambda reader: reader.relabel(np.ones((PHOTOS, 2), np.float32), None))
    jittered = Recipe.of([RandomResizedCrop(16), RandomHorizontalFlip(), ColorJitter(0.4), *TRAIN.ops[2:]])
    divided = divide_recipe(jittered)
    assert divided is not None
    check_same(index, [1, 2], jittered, divided=(divided,))
    assert reads.samples == 0


def test_images_of_a_remote_set_take_one_call_once_they_were_brought(tmp_path: Path, reads: Reads) -> None:
    index = sharded(tmp_path)
    mirror = StrictMirror(index.parent, tmp_path / "mirror")
    ids = np.random.default_rng(0).permutation(PHOTOS).tolist()
    images, labels, _, work = made(index, ids, mirror=mirror)
    expected = made(index, ids)
    np.testing.assert_array_equal(images, expected[0])
    np.testing.assert_array_equal(labels, expected[1])
    assert part_sums(work.meter.words)["encoded_bytes"] == part_sums(expected[3].meter.words)["encoded_bytes"]
    asked = [want for wants in mirror.calls for want in wants if want[0].endswith(".tar")]
    places = [place(index, i) for i in ids]
    assert asked == [(Path(path).name, offset, offset + length) for path, offset, length in places]
    for path in mirror.folder.glob("*.tar"):  # the shards are evicted, and come again
        os.truncate(path, 0)
        path.unlink()
    view = SlotView.new(work.layout(len(ids)), Samples.of(np.arange(len(ids)), np.array(ids)))
    work.run(2, view)
    np.testing.assert_array_equal(view.images[0], images)
    assert reads.samples == 0


def test_of_a_remote_set_whose_crops_are_read_alone_no_whole_image_is_asked_for(tmp_path: Path, reads: Reads) -> None:
    index = sharded(tmp_path)
    mirror = StrictMirror(index.parent, tmp_path / "mirror")
    mirror.reads_crops = True
    crop = Recipe.of([RandomResizedCrop(16, (0.02, 0.05))])
    images, *_ = made(index, [1, 2, 3], crop, mirror=mirror)
    np.testing.assert_array_equal(images, made(index, [1, 2, 3], crop)[0])
    asked = sum(end - start for wants in mirror.calls for name, start, end in wants if name.endswith(".tar"))
    assert asked < sum(place(index, i)[2] for i in (1, 2, 3))
    assert reads.samples == 3


def test_ops_after_the_base_path_take_one_call(tmp_path: Path, reads: Reads) -> None:
    index, ids = sharded(tmp_path), list(range(PHOTOS))
    behind: list[list[Op]] = [
        [RandomVerticalFlip()],
        [ColorJitter(0.4, 0.4, 0.4, 0.1), RandomGrayscale(0.5), RandAugment()],
        [RandomApply([GaussianBlur(9)], 0.5), ToDtype("float16", scale=True), NORMALIZE, RandomErasing(0.5, value=0.3)],
    ]
    for ops in behind:
        check_same(index, ids, Recipe.of([RandomResizedCrop((24, 31)), *ops]))
    check_same(
        index,
        [3, 3, 3],
        Recipe.of([RandomResizedCrop(16, interpolation="bicubic"), TrivialAugmentWide()]),
        repeats=[0, 1, 2],
    )
    jittered = Recipe.of([RandomResizedCrop(16), AutoAugment(), *TRAIN.ops[2:]])
    divided = divide_recipe(jittered)
    assert divided is not None
    check_same(index, [1, 2], jittered, divided=(divided,))
    assert reads.samples == 0


def test_functions_and_noise_run_on_what_one_call_made(tmp_path: Path, reads: Reads) -> None:
    others = {"a.webp": encode(jpegs.photo(1, 60, 70), "WEBP")}
    tail: list[Op] = [RandomErasing(0.5, value="random"), Lambda(np.negative)]
    check_same(sharded(tmp_path, others=others), list(range(PHOTOS + 1)), Recipe.of([*TRAIN.ops, *tail]))
    assert reads.samples == 1


def refuse_some(image: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if np.random.random() < 0.3:
        raise DecodeError("refused")
    return image


def test_samples_that_a_function_refuses_are_bad_samples(tmp_path: Path) -> None:
    index, recipe = sharded(tmp_path), Recipe.of([*TRAIN.ops, Lambda(refuse_some)])
    *_, report, _ = made(index, list(range(PHOTOS)), recipe, skip=True)
    assert 0 < len(report.substitutions) < PHOTOS
    check_same(index, list(range(PHOTOS)), recipe, skip=True)
    bad = int(report.substitutions[0].position)
    for reader in (ShardReader, OtherReader):
        with pytest.raises(DecodeError, match=r"sample '.*refused"):
            made(index, [bad], recipe, reader=reader)


def turned(image: Any) -> Any:
    return image.transpose(1)


def test_functions_before_other_ops_and_at_the_end_leave_the_one_call(tmp_path: Path, reads: Reads) -> None:
    index, ids = sharded(tmp_path), list(range(PHOTOS))
    first = Lambda(np.negative, keeps_shape=False)
    for ops in (
        [Lambda(np.negative), RandomVerticalFlip()],
        [Lambda(turned, on="pil"), *TRAIN.ops[2:]],
        [Grayscale(1), ToDtype("float32")],
        [*TRAIN.ops[2:], first],
    ):
        check_same(index, ids, Recipe.of([RandomResizedCrop((24, 31)), *ops]))
    assert reads.samples == 0


def test_ops_that_the_kernels_lack_go_the_other_way(tmp_path: Path, reads: Reads) -> None:
    check_same(sharded(tmp_path), [1, 2, 3], Recipe.of([RandomResizedCrop(16), GaussianBlur(65)]))
    assert reads.samples == 3


def test_only_unusual_samples_go_the_other_way(tmp_path: Path, reads: Reads) -> None:
    others = {
        "a.webp": encode(jpegs.photo(1, 60, 70), "WEBP"),
        "b.jpg": jpegs.encode(jpegs.photo(1, 99, 98), mode="CMYK"),
    }
    index = sharded(tmp_path, others=others)
    ids = list(range(PHOTOS + 2))
    check_same(index, ids)
    assert reads.samples == 1


def test_a_set_of_other_formats_is_soon_left_to_the_other_way_alone(tmp_path: Path) -> None:
    folder = tmp_path / "images" / "0"
    folder.mkdir(parents=True)
    for k in range(4):
        (folder / f"{k}.webp").write_bytes(encode(jpegs.photo(k, 60, 70), "WEBP"))
    shard(str(tmp_path / "images"), str(tmp_path / "out"), ShardOptions())
    *_, work = made(tmp_path / "out" / "index.bin", [0, 1, 2, 3])
    stages = stage_rows(work.meter.words)[0]
    reads, view = (
        int(stages[STAGES.index("read"), 0]),
        SlotView.new(work.layout(2), Samples.of(np.arange(2), np.arange(2))),
    )
    work.run(0, view)
    assert int(stages[STAGES.index("read"), 0]) == reads + 1


def place(index: Path, i: int) -> tuple[str, int, int]:
    """(path of the shard, offset, length) of a sample."""
    found = ShardReader(str(index)).index
    number, offset, length = found.place(i)
    return found.shard_path(number), offset, length


def overwrite(path: str, offset: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    os.pwrite(descriptor, data, offset)
    os.close(descriptor)


@pytest.mark.parametrize("skip", [False, True])
def test_a_damaged_sample_has_the_error_of_the_other_way(tmp_path: Path, skip: bool) -> None:
    index = sharded(tmp_path, "keep")
    path, offset, length = place(index, 3)
    overwrite(path, offset + length // 2, bytes([0xFF, 0xC7] * 40))
    if skip:
        check_same(index, [1, 3, 5], skip=True)
        return
    errors = []
    for reader in (ShardReader, OtherReader):
        with pytest.raises(DecodeError) as caught:
            made(index, [1, 3, 5], reader=reader)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def refusals(index: Path, ids: list[int], change: Callable[[ShardReader], None] = lambda reader: None) -> str:
    """The error that both ways raise."""
    errors = []
    for reader in (ShardReader, OtherReader):
        with pytest.raises((DecodeError, FormatError, IndexError)) as caught:
            made(index, ids, reader=reader, change=change)
        errors.append(f"{type(caught.value).__name__}: {caught.value}")
    assert errors[0] == errors[1]
    return errors[0]


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("orientation", 0, "orientation 0"),
        ("orientation", 9, "orientation 9"),
        ("width", 0, "gives its size"),
        ("width", 2**16 - 1, "Error"),
        ("width", 2**32 - 1, "Error"),
        ("offset", 2**32 - 1, "cut off"),
        ("length", 2**32 - 1, "cut off"),
        ("offset", 2**64 - 1, "cut off"),
        ("length", 2**64 - 1, "cut off"),
        ("height", 41, "the index says"),
    ],
)
def test_wrong_numbers_in_the_index_have_the_error_of_the_other_way(
    tmp_path: Path, column: str, value: int, expected: str
) -> None:
    index = sharded(tmp_path)
    damage_row(index, column, 6, value)
    assert expected in refusals(index, [1, 6, 2])


def test_a_missing_shard_or_index_of_one_is_named(tmp_path: Path) -> None:
    index = sharded(tmp_path)
    with pytest.raises(IndexError, match=f"asked for {PHOTOS}"):
        made(index, [PHOTOS])
    path = Path(place(index, 0)[0])
    path.rename(tmp_path / "away")
    assert path.name in refusals(index, [0, 9])
    (tmp_path / "away").rename(path)
    path.with_suffix(".fidx").unlink()
    assert path.with_suffix(".fidx").name in refusals(index, [9, 0])


def test_a_shard_that_was_cut_off_or_changed_is_seen(tmp_path: Path) -> None:
    index = sharded(tmp_path)
    path, offset, length = place(index, 4)

    def rewrite(reader: ShardReader) -> None:
        reader.made_ns -= 1 << 60
        overwrite(path, offset, bytes(length))

    assert "changed or replaced" in refusals(index, [4], rewrite)
    os.truncate(path, offset + 10)
    assert "cut off" in refusals(index, [4, 0])


def test_wrong_places_of_rows_are_read_again_with_a_warning(tmp_path: Path) -> None:
    index = sharded(tmp_path)
    places = np.frombuffer(ShardReader(str(index)).index.row_data(7), "<u4").copy()
    places[2] = 31_000
    damage_row(index, "row_data", 7, places.tobytes())
    crop = Recipe.of([RandomResizedCrop(16, (0.02, 0.03))])
    for epoch_key in range(8):
        kinds = []
        for reader in (ShardReader, OtherReader):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                images, *_ = made(index, [7], crop, reader=reader, repeats=[epoch_key])
            kinds.append(([str(each.message) for each in caught], images))
        assert kinds[0][0] == kinds[1][0]
        np.testing.assert_array_equal(kinds[0][1], kinds[1][1])


def test_more_shards_than_may_be_open_are_made_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = sharded(tmp_path)
    monkeypatch.setattr("feeder.dataset.open_files.OPEN_SHARDS", 2)
    check_same(index, list(range(PHOTOS)))


def test_shards_of_a_part_stay_open_while_its_others_are_opened(
    tmp_path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = sharded(tmp_path)  # shards of 5
    monkeypatch.setattr("feeder.dataset.open_files.OPEN_SHARDS", 2)
    work = Work(ShardReader(str(index)), TRAIN, "cpu")
    for ids in ([0, 1], [5, 6], [0, 11]):  # the first shard was opened first
        work.run(0, SlotView.new(work.layout(2), Samples.of(np.arange(2), np.array(ids))))
    assert reads.samples == 0


def test_parts_from_a_slow_disk_are_announced_and_stay_one_call(
    tmp_path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.dataset.shard_reader.READ_AHEAD_BYTES", 0)
    monkeypatch.setattr("feeder.dataset.shard_reader.ADVISED_READS", 2)
    index = sharded(tmp_path)
    reader = ShardReader(str(index))
    work = Work(reader, TRAIN, "cpu")

    def run() -> Any:
        view = SlotView.new(work.layout(PHOTOS), Samples.of(np.arange(PHOTOS), np.arange(PHOTOS)))
        work.run(0, view)
        return view.images[0]

    def is_slow() -> bool:
        return reader.advise_from is not None

    expected = run()
    while is_slow():  # the first read may have come from the disk
        run()
    reader.note_read(1, 2)  # longer than the page cache takes
    for _ in range(2):
        assert is_slow()
        np.testing.assert_array_equal(run(), expected)
    assert reads.samples == 0


def test_stages_are_counted_as_in_the_other_way(tmp_path: Path) -> None:
    index = sharded(tmp_path)
    counts = []
    for reader in (ShardReader, OtherReader):
        *_, work = made(index, [1, 2, 3], reader=reader)
        stages = stage_rows(work.meter.words)[0]
        assert (stages[:, 4:].sum(axis=1) == stages[:, 0]).all()  # each run is in the histogram
        assert (stages[[STAGES.index(name) for name in ("read", "draw", "decode", "transform")], 2] > 0).all()
        counts.append((stages[:, 0].tolist(), stages[:, 1].tolist()))
    assert counts[0] == counts[1]


def test_the_time_of_functions_is_transform(tmp_path: Path) -> None:
    index, spent = sharded(tmp_path), []

    def timed(image: npt.NDArray[Any]) -> npt.NDArray[Any]:
        started = time.perf_counter_ns()
        np.sort(np.tile(image, (1, 8, 8)), axis=None)
        spent.append(time.perf_counter_ns() - started)
        return image

    for reader in (ShardReader, OtherReader):
        spent.clear()
        *_, work = made(index, [1, 2, 3], Recipe.of([*TRAIN.ops, Lambda(timed)]), reader=reader)
        transform_ns = stage_rows(work.meter.words)[0][STAGES.index("transform"), 2]
        assert sum(spent) // 3 * 3 <= transform_ns


def test_times_are_counted_in_the_buckets_of_the_meter(tmp_path: Path) -> None:
    index = sharded(tmp_path)
    for sample in range(4):
        *_, work = made(index, [sample])
        stages = stage_rows(work.meter.words)[0]
        for name in ("read", "draw", "decode", "transform"):
            runs, _, total_ns, longest_ns, *buckets = stages[STAGES.index(name)].tolist()
            assert (runs, longest_ns, buckets.index(1)) == (1, total_ns, bucket_of(total_ns))


def test_a_heartbeat_comes_between_reading_and_decoding(tmp_path: Path) -> None:
    work = Work(ShardReader(str(sharded(tmp_path))), TRAIN, "cpu")
    view, heartbeats = SlotView.new(work.layout(2), Samples.of(np.arange(2), np.arange(2))), []
    work.run(0, view, lambda: heartbeats.append(work.meter.words.any()))
    assert heartbeats == [False]


def test_threads_that_share_one_work_do_not_share_a_call(tmp_path: Path) -> None:
    index = sharded(tmp_path)
    expected = made(index, list(range(PHOTOS)))[0]
    work = Work(ShardReader(str(index)), TRAIN, "cpu", seed=3)
    wrong: list[int] = []

    def make() -> None:
        for _ in range(20):
            view = SlotView.new(work.layout(PHOTOS), Samples.of(np.arange(PHOTOS), np.arange(PHOTOS)))
            work.run(2, view)
            if not np.array_equal(view.images[0], expected):
                wrong.append(1)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
