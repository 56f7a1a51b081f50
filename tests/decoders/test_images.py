"""feeder.decode gives the loader's pixels for the same (seed, epoch, sample id), to the bit."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import feeder
from feeder import transforms as T
from feeder.decoders.decode import sample_id
from feeder.decoders.registry import available_decoders
from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from tests.support.images import encode, pixels
from tests.support.loader_data import without_tables
from tests.support.shard_sets import samples_of

CROPS = T.Compose([T.RandomResizedCrop(20), T.RandomHorizontalFlip()])
NORMALIZED = T.Compose([*CROPS.transforms, T.ToDtype(torch.float32, scale=True), T.Normalize((0.5,) * 3, (0.2,) * 3)])
GROWING = T.Compose([T.RandomResizedCrop(T.ByEpoch({0: 16, 2: 24, 3: 32})), T.ColorJitter(0.4)])
FURTHER = T.Compose([T.Resize((18, 22)), T.RandomRotation(20), T.ColorJitter(0.4), T.ToDtype(torch.bfloat16)])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEGs of all orientations and sizes, and other formats."""
    folder = tmp_path_factory.mktemp("source") / "a"
    folder.mkdir()
    for i in range(1, 9):
        (folder / f"{i}.jpg").write_bytes(encode(pixels(i, 60 + 4 * i, 90 - 3 * i), quality=95, orientation=i))
    (folder / "9.png").write_bytes(encode(pixels(9, 33, 70), "PNG"))
    (folder / "10.webp").write_bytes(encode(pixels(10, 71, 32), "WEBP"))
    (folder / "11.jpg").write_bytes(encode(pixels(11, 64, 48).convert("L"), progressive=True))
    return folder.parent


def loaded(out: Path, transform: Any, **options: Any) -> dict[int, torch.Tensor]:
    """The loader's images of epoch 2, by sample id."""
    dataset = feeder.ShardDataset(out, transform, fields=["index"])
    loader = feeder.DataLoader(dataset, batch_size=4, shuffle=True, seed=7, **options)
    loader.set_epoch(2)
    found = {i: image for images, _, ids in loader for image, i in zip(images, ids.tolist(), strict=True)}
    loader.close()
    return found


@pytest.mark.pairwise
@pytest.mark.parametrize("mode", ["seekable", "keep"])
@pytest.mark.parametrize("transform", [CROPS, NORMALIZED, FURTHER], ids=["crops", "normalized", "further"])
@pytest.mark.parametrize("backend", ["cpu", "pillow", "dali"])
def test_pixels_are_the_loaders(source: Path, tmp_path: Path, backend: str, transform: Any, mode: str) -> None:
    if backend not in available_decoders():
        pytest.skip(f"backend {backend!r} is not installed")
    shard(str(source), str(tmp_path / "out"), ShardOptions(encode=EncodeOptions(mode)))
    expected = loaded(tmp_path / "out", transform, backend=backend)
    images = [data for _, data, _ in samples_of(tmp_path / "out")]
    assert len(images) == len(expected) == 11
    found = feeder.decode(images, transform, ids=range(11), seed=7, epoch=2, backend=backend)
    assert found.dtype == expected[0].dtype
    assert torch.equal(found, torch.stack([expected[i] for i in range(11)]))
    order = [5, 0, 9]
    some = feeder.decode([images[i] for i in order], transform, ids=order, seed=7, epoch=2, backend=backend, threads=3)
    assert torch.equal(some, found[order])


def test_sizes_follow_the_epoch(source: Path, tmp_path: Path) -> None:
    shard(str(source), str(tmp_path / "out"))
    expected = loaded(tmp_path / "out", GROWING)
    images = [data for _, data, _ in samples_of(tmp_path / "out")]
    found = feeder.decode(images, GROWING, ids=range(11), seed=7, epoch=2)
    assert torch.equal(found, torch.stack([expected[i] for i in range(11)]))
    assert feeder.decode(images, GROWING, epoch=9).shape == (11, 3, 32, 32)


def test_exact_pixels_and_arrays_are_the_loaders(tmp_path: Path) -> None:
    for mode in ("keep", "raw"):
        out = tmp_path / mode
        upright = tmp_path / f"{mode}-source" / "a"
        upright.mkdir(parents=True)
        for i in range(4):
            (upright / f"{i}.png").write_bytes(encode(pixels(i, 40 + i, 50), "PNG"))
        shard(str(upright.parent), str(out), ShardOptions(encode=EncodeOptions(mode)))
        images = [data for _, data, _ in samples_of(out)]
        assert (images[0][:6] == b"\x93NUMPY") == (mode == "raw")
        expected = loaded(out, CROPS, fidelity="exact")
        found = feeder.decode(images, CROPS, ids=range(4), seed=7, epoch=2, fidelity="exact")
        assert torch.equal(found, torch.stack([expected[i] for i in range(4)]))


def test_epoch_seed_and_id_change_the_draws(source: Path) -> None:
    image = (source / "a" / "1.jpg").read_bytes()
    changes: list[dict[str, Any]] = [{}, {"seed": 1}, {"epoch": 1}, {"ids": [1]}]
    found = [feeder.decode([image], CROPS, **{"seed": 0, **change}) for change in changes]
    for number, one in enumerate(found):
        assert all(not torch.equal(one, other) for other in found[:number])
    for options in ({"seed": 0}, {"ids": [0, 1]}):
        assert torch.equal(feeder.decode([image, image], CROPS, **options), torch.cat([found[0], found[3]]))


def test_without_ids_each_call_draws_anew_from_torchs_random_state(source: Path) -> None:
    images = [(source / "a" / "1.jpg").read_bytes()] * 2
    torch.manual_seed(3)
    first, second = (feeder.decode(images, CROPS, epoch=1) for _ in range(2))
    assert not any(torch.equal(a, b) for a, b in ((first, second), (first[0], first[1])))
    torch.manual_seed(3)
    assert torch.equal(feeder.decode(images, CROPS, epoch=1), first)

    state = torch.get_rng_state()
    feeder.decode(images, CROPS, ids=[1, 2])
    feeder.decode(images, CROPS, seed=4)
    assert torch.equal(torch.get_rng_state(), state)


class Decoded(torch.utils.data.Dataset[torch.Tensor]):
    """One image again and again, decoded in the dataset."""

    def __init__(self, image: bytes) -> None:
        self.image = image

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> torch.Tensor:
        return feeder.decode([self.image], CROPS)[0]


def test_without_ids_workers_and_epochs_draw_differently(source: Path) -> None:
    dataset = Decoded((source / "a" / "1.jpg").read_bytes())
    for cls in (torch.utils.data.DataLoader, feeder.DataLoader):
        loader: Any = cls(dataset, batch_size=2, num_workers=2)
        found = torch.cat([images for _ in range(2) for images in loader])
        assert not any(torch.equal(a, b) for a, b in itertools.combinations(found, 2))


def test_keys_are_ids(source: Path) -> None:
    """For ever: whoever resumes a run with a later version expects the same crops."""
    assert [sample_id(key) for key in ("", "000001", "ä/\udcff")] == KEYS
    image = (source / "a" / "1.jpg").read_bytes()
    by_key = feeder.decode([image] * 3, CROPS, ids=["", "000001", "ä/\udcff"])
    assert torch.equal(by_key, feeder.decode([image] * 3, CROPS, ids=torch.tensor(KEYS)))
    assert torch.equal(by_key, feeder.decode([image] * 3, CROPS, ids=np.array(KEYS)))


KEYS = [8238016292129134938, 2626169346458842143, 3389951045236455973]


def test_takes_buffers_and_fills_out(source: Path) -> None:
    data = (source / "a" / "1.jpg").read_bytes()
    for transform in (NORMALIZED, FURTHER):
        expected = feeder.decode([data] * 4, transform, seed=0)
        kinds: list[Any] = [data, bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)]
        out = torch.zeros_like(expected)
        assert feeder.decode(iter(kinds), transform, seed=0, out=out) is out
        assert torch.equal(out, expected)


@pytest.mark.parametrize(
    "out",
    [
        torch.zeros(1, 3, 20, 20, dtype=torch.float32),
        torch.zeros(2, 3, 20, 20, dtype=torch.uint8),
        torch.zeros(1, 20, 20, 3, dtype=torch.uint8).permute(0, 3, 1, 2),
        torch.zeros(1, 3, 20, 20, dtype=torch.uint8, device="meta"),
    ],
    ids=["dtype", "shape", "order", "device"],
)
def test_refuses_an_out_that_does_not_fit(source: Path, out: torch.Tensor) -> None:
    with pytest.raises(feeder.ArgumentError, match=r"out must be a contiguous torch.uint8 \[1, 3, 20, 20\] on the CPU"):
        feeder.decode([(source / "a" / "1.jpg").read_bytes()], CROPS, out=out)


def test_refuses_an_out_that_is_no_tensor(source: Path) -> None:
    with pytest.raises(feeder.ArgumentError, match=r"out must be a torch.Tensor, got ndarray"):
        feeder.decode([(source / "a" / "1.jpg").read_bytes()], CROPS, out=np.zeros((1, 3, 20, 20), np.uint8))  # type: ignore


@pytest.mark.parametrize("backend", ["cpu", "pillow"])
def test_names_the_position_of_a_bad_image(source: Path, backend: str) -> None:
    good = (source / "a" / "1.jpg").read_bytes()
    array = b"\x93NUMPY\x01\x00\x06\x00{'a':\n"
    for bad in (b"", b"no image", good[:50], without_tables(good), array):
        with pytest.raises(feeder.DecodeError, match=r"images\[2\]") as caught:
            feeder.decode([good, good, bad, good], CROPS, backend=backend)
        assert caught.value.key == "images[2]"


def test_refuses_images_of_different_sizes(source: Path) -> None:
    images = [(source / "a" / f"{i}.jpg").read_bytes() for i in (1, 2)]
    with pytest.raises(feeder.ArgumentError, match=r"images\[1\] has another size than images\[0\].*CenterCrop"):
        feeder.decode(images, T.Resize(20))
    assert feeder.decode(images[:1], T.Resize(20)).shape[:3] == (1, 3, 27)
    assert feeder.decode([], CROPS).shape == (0, 3, 20, 20)
    with pytest.raises(feeder.ArgumentError, match=r"T.BUCKET, .* and there are no buckets"):
        feeder.decode(images, T.RandomResizedCrop(T.BUCKET))
    with pytest.raises(feeder.ArgumentError, match="no images"):
        feeder.decode([], None)


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        (b"\xff\xd8", {}, r"a list of encoded images, got one bytes; write \[image\]"),
        ([torch.zeros(4)], {}, r"images\[0\] must be the bytes of an image's file, got Tensor"),
        ([Image.new("RGB", (4, 4))], {}, r"images\[0\] must be the bytes of an image's file, got Image"),
        ([np.zeros(4)], {}, r"images\[0\] must be a buffer of bytes, got one of 'd' \(4,\)"),
        ([b"\xff\xd8"], {"backend": "none"}, "backend must be"),
        ([b"\xff\xd8"], {"backend": "cuda"}, "decode gives CPU tensors; use 'cpu', 'pillow' or 'dali'"),
        ([], {"transform": T.Views([CROPS] * 2)}, "or call decode once for each view with ids of its own"),
        ([], {"threads": 0}, "threads must be an integer of 1 or more"),
        ([], {"transform": [torch.nn.Identity()]}, "expected an op of feeder.transforms"),
    ],
)
def test_refuses_what_it_cannot_take(images: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(feeder.ArgumentError, match=message):
        feeder.decode(images, **{"transform": CROPS, **options})


@pytest.mark.parametrize("ids", [[1], [1, -1], [1, 1 << 63], [1, 0.5], [True, False], [[1], [2]], "ab"])
def test_refuses_ids_that_are_none(source: Path, ids: Any) -> None:
    image = (source / "a" / "1.jpg").read_bytes()
    with pytest.raises(feeder.ArgumentError, match="ids must"):
        feeder.decode([image, image], CROPS, ids=ids)


def test_warns_of_clipped_images() -> None:
    deep = encode(Image.fromarray(np.full((20, 20), 60_000, np.uint16)), "PNG")
    with pytest.warns(UserWarning, match="2 images of more than 8 bits a sample clipped"):
        feeder.decode([deep, deep], CROPS)


def test_threads_share_nothing(source: Path) -> None:
    """A decoder has the counts of its last call, of as many images as that had."""
    image = (source / "a" / "1.jpg").read_bytes()
    expected = feeder.decode([image] * 9, CROPS, seed=0)
    wrong: list[object] = []

    def work(count: int) -> None:
        try:
            for _ in range(10):
                if not torch.equal(feeder.decode([image] * count, CROPS, seed=0), expected[:count]):
                    wrong.append(count)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(count,)) for count in (1, 5, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
