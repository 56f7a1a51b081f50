"""feeder.wds.decoder in webdataset's pipelines gives feeder.decode's pixels by (seed, epoch, key)."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import feeder
from feeder import transforms as T
from feeder.wds import ImageDecoder
from tests.support.images import encode, pixels
from tests.support.shard_sets import write_tar

wds = pytest.importorskip("webdataset")

# webdataset leaves its last tar to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

CROPS = T.Compose([T.RandomResizedCrop(8), T.RandomHorizontalFlip(), T.ToDtype(torch.float32, scale=True)])
IMAGES = {
    f"dir/{i:03d}": encode(pixels(i, 30 + i, 40), "PNG" if i % 3 else "JPEG", orientation=1 + i % 8) for i in range(12)
}
EXTENSIONS = {key: "png" if i % 3 else "jpg" for i, key in enumerate(IMAGES)}


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Four tars of three samples each."""
    folder = tmp_path_factory.mktemp("tars")
    keys = list(IMAGES)
    for k in range(4):
        members = []
        for key in keys[k::4]:
            members += [(f"{key}.{EXTENSIONS[key]}", IMAGES[key]), (f"{key}.cls", b"3"), (f"{key}.txt", key.encode())]
        write_tar(folder / f"{k}.tar", members)
    return [str(folder / f"{k}.tar") for k in range(4)]


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    yield
    gc.collect()


def pipeline(urls: list[str], **options: Any) -> Any:
    return wds.WebDataset(urls, **{"shardshuffle": False, "seed": 0, **options})


def expected(key: str, epoch: int, seed: int = 0) -> torch.Tensor:
    return feeder.decode([IMAGES[key]], CROPS, ids=[key], seed=seed, epoch=epoch)[0]


def epoch_of(key: str, image: torch.Tensor) -> int:
    return next(epoch for epoch in range(20) if torch.equal(image, expected(key, epoch)))


def pairs(samples: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for sample in samples:
        yield sample["__key__"], sample[EXTENSIONS[sample["__key__"]]]


WAYS: dict[str, Callable[[Any, ImageDecoder], Any]] = {
    "map": lambda dataset, decoder: dataset.map(decoder),
    "decode": lambda dataset, decoder: dataset.decode(decoder),
    "stage": lambda dataset, decoder: wds.DataPipeline(dataset, wds.decode(decoder)),
    "wrapped": lambda dataset, decoder: dataset.map(lambda sample: decoder(sample)),
}


@pytest.mark.parametrize("way", WAYS)
def test_pixels_are_those_of_decode_by_key_and_pass(urls: list[str], way: str) -> None:
    dataset = WAYS[way](pipeline(urls), feeder.wds.decoder(CROPS, seed=5))
    for epoch in range(3):
        found = list(dataset)
        assert sorted(sample["__key__"] for sample in found) == sorted(IMAGES)
        for sample, (key, image) in zip(found, pairs(found), strict=True):
            assert torch.equal(image, expected(key, epoch, seed=5))
            if way in ("decode", "stage"):  # webdataset's own decoders go on behind it
                assert (sample["cls"], sample["txt"]) == (3, key)
            else:
                assert (sample["cls"], sample["txt"]) == (b"3", key.encode())


def test_lists_become_batches(urls: list[str]) -> None:
    dataset = (
        pipeline(urls)
        .decode()
        .listed(5)
        .map(feeder.wds.decoder(CROPS, field="jpg;png"))
        .to_tuple("jpg;png", "cls", "__key__", "txt")
    )
    for epoch in (0, 1):
        batches = list(dataset)
        assert [len(images) for images, *_ in batches] == [5, 5, 2]
        for images, labels, keys, texts in batches:
            assert torch.equal(images, torch.stack([expected(key, epoch) for key in keys]))
            assert labels.tolist() == [3] * len(keys)
            assert list(texts) == list(keys)
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=2)
    assert sorted(key for _, _, keys, _ in loader for key in keys) == sorted(IMAGES)


def test_a_list_names_the_sample_that_does_not_fit(tmp_path: Path) -> None:
    good = encode(pixels(0))
    bad = [("a.jpg", good), ("b.jpg", encode(pixels(1))[:60]), ("c.jpg", good), ("c.cls", b"1")]
    for count, message in ((2, "sample 'b' in a.tar: truncated jpg"), (1, "'a' and 'c' .* one lacks cls; drop it")):
        tar = write_tar(tmp_path / "a.tar", bad[:2] if count == 2 else [bad[0], *bad[2:]])
        with pytest.raises(feeder.FeederError, match=message):
            next(iter(pipeline([str(tar)]).listed(4).map(feeder.wds.decoder(CROPS))))


@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_go_on_in_a_data_loaders_workers(urls: list[str], persistent: bool) -> None:
    dataset = pipeline(urls).map(feeder.wds.decoder(CROPS, epoch=4))
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=persistent)
    for epoch in (4, 5, 6):
        found = dict(pairs(loader))
        assert len(found) == 12
        assert {key: epoch_of(key, image) for key, image in found.items()} == dict.fromkeys(IMAGES, epoch)
    del loader


@pytest.mark.slow
def test_epochs_go_on_in_spawned_workers(urls: list[str]) -> None:
    dataset = pipeline(urls).map(feeder.wds.decoder(CROPS))
    context = multiprocessing.get_context("spawn")
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context=context)
    for epoch in (0, 1):
        assert {epoch_of(key, image) for key, image in pairs(loader)} == {epoch}


def test_a_resampled_pipeline_has_the_epochs_of_with_epoch(urls: list[str]) -> None:
    dataset = pipeline(urls, resampled=True).map(feeder.wds.decoder(CROPS)).with_epoch(5)
    for epoch in (0, 1):
        found = list(pairs(dataset))
        assert len(found) == 5
        assert {epoch_of(key, image) for key, image in found} == {epoch}


def test_passes_that_stop_early_or_run_side_by_side_are_told_apart(urls: list[str]) -> None:
    dataset = pipeline(urls).map(feeder.wds.decoder(CROPS))
    next(iter(dataset))
    for (key, first), (_, second) in zip(pairs(dataset), pairs(dataset), strict=True):
        assert (epoch_of(key, first), epoch_of(key, second)) == (1, 2)
    assert {epoch_of(*pair) for pair in pairs(dataset.repeat(2))} == {3, 4}


def test_passes_are_counted_behind_a_stage_that_is_no_generator(urls: list[str]) -> None:
    dataset = pipeline(urls).slice(4).map(feeder.wds.decoder(CROPS))
    assert {epoch_of(*pair) for pair in pairs(dataset)} == {0}
    for (key, first), (_, second) in zip(pairs(dataset), pairs(dataset), strict=True):
        assert (epoch_of(key, first), epoch_of(key, second)) == (1, 2)


def test_an_unfinished_pass_keeps_no_pipeline_alive() -> None:
    closed = []

    def source() -> Iterator[Any]:
        try:
            yield from ({"__key__": key, EXTENSIONS[key]: data} for key, data in IMAGES.items())
        finally:
            closed.append(True)

    dataset = wds.DataPipeline(source, wds.map(feeder.wds.decoder(CROPS)))
    samples = iter(dataset)
    next(samples)
    del samples
    assert closed == [True]


def test_a_bad_image_names_its_sample_and_obeys_the_handler(tmp_path: Path) -> None:
    good, bad = encode(pixels(0)), encode(pixels(1))[:60]
    tar = write_tar(tmp_path / "some.tar", [("a.jpg", good), ("b.jpg", bad), ("c.cls", b"1"), ("d.jpg", good)])
    for way in ("map", "decode"):
        dataset = getattr(pipeline([str(tar)]), way)
        found = [sample["__key__"] for sample in dataset(feeder.wds.decoder(CROPS), handler=wds.ignore_and_continue)]
        assert found == (["a", "d"] if way == "map" else ["a", "c", "d"])
    samples = iter(pipeline([str(tar)]).map(feeder.wds.decoder(CROPS)))
    next(samples)
    with pytest.raises(feeder.DecodeError, match=r"sample 'b' in some.tar: truncated jpg"):
        next(samples)
    missing = pipeline([str(write_tar(tmp_path / "c.tar", [("c.cls", b"1"), ("c.txt", b"x")]))])
    with pytest.raises(feeder.DecodeError, match=r"sample 'c' in c.tar: has no image; its fields are cls, txt"):
        next(iter(missing.map(feeder.wds.decoder(CROPS))))
    with pytest.raises(feeder.DecodeError, match=r"has no image jpg or png; its fields"):
        next(iter(missing.map(feeder.wds.decoder(CROPS, field="jpg;png"))))


@pytest.mark.parametrize("way", ["map", "decode"])
def test_one_of_several_images_is_named(tmp_path: Path, way: str) -> None:
    image, mask = encode(pixels(0)), encode(pixels(1), "PNG")
    urls = [str(write_tar(tmp_path / "a.tar", [("a.jpg", image), ("a.seg.png", mask)]))]
    with pytest.raises((feeder.ArgumentError, wds.autodecode.DecodingError)) as caught:
        next(iter(getattr(pipeline(urls), way)(feeder.wds.decoder(CROPS))))
    error = caught.value if way == "map" else caught.value.__cause__
    assert "sample 'a' has several images, jpg, seg.png: name one, decoder(..., field='jpg')" in str(error)
    (sample,) = getattr(pipeline(urls), way)(feeder.wds.decoder(CROPS, field="jpg;png"))
    assert torch.equal(sample["jpg"], feeder.decode([image], CROPS, ids=["a"])[0])
    assert sample["seg.png"] == mask


def test_refuses_images_that_are_decoded_already(urls: list[str]) -> None:
    with pytest.raises(feeder.ArgumentError, match=r"sample 'dir/000' .* of type Image: use feeder's decoder in place"):
        next(iter(pipeline(urls).decode("pil").map(feeder.wds.decoder(CROPS))))


@pytest.mark.parametrize(
    ("put", "message"),
    [
        (lambda dataset, decoder: dataset.batched(4).map(decoder), r"put .listed\(n\) in place of .batched\(n\)"),
        (lambda dataset, decoder: dataset.map_dict(jpg=decoder), "and got bytes: give it to .map or .decode, not"),
        (lambda dataset, decoder: dataset.to_tuple("jpg").map_tuple(decoder), "and got bytes: give it to .map or"),
        (lambda dataset, decoder: dataset.to_tuple("jpg").map(decoder), "got tuple: .* before .to_tuple"),
        (lambda dataset, decoder: dataset.to_tuple("jpg").listed(2).map(decoder), "got tuple: .* before .to_tuple"),
        (
            lambda dataset, decoder: dataset.rename(image="jpg", keep=False).map(decoder),
            r"before .*\.rename\(keep=False\)",
        ),
    ],
    ids=["batched", "map_dict", "map_tuple", "tuples", "listed tuples", "renamed"],
)
def test_says_in_which_place_of_a_pipeline_it_works(tmp_path: Path, put: Callable[..., Any], message: str) -> None:
    urls = [str(write_tar(tmp_path / "a.tar", [("a.jpg", encode(pixels(0))), ("b.jpg", encode(pixels(1)))]))]
    with pytest.raises(feeder.ArgumentError, match=message):
        next(iter(put(pipeline(urls), feeder.wds.decoder(CROPS))))


def test_a_list_of_images_of_different_sizes_names_the_sample(urls: list[str]) -> None:
    message = "sample 'dir/004' has another size than sample 'dir/000' after .* CenterCrop"
    with pytest.raises(feeder.ArgumentError, match=message):
        next(iter(pipeline(urls).listed(4).map(feeder.wds.decoder(T.Resize(20)))))


def test_says_where_it_works() -> None:
    decoder = feeder.wds.decoder(CROPS)
    with pytest.raises(feeder.ArgumentError, match=r"works in .map and .decode of a webdataset pipeline"):
        decoder({"__key__": "a", "jpg": encode(pixels(0))})
    with pytest.raises(feeder.ArgumentError, match="expected an op"):
        feeder.wds.decoder("crop")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "seed must be an integer from 0 to"),
        ({"epoch": 1 << 32}, "epoch must be an integer from 0 to"),
        ({"backend": "gpu"}, "backend must be 'auto' or one of"),
        ({"backend": "cuda"}, "gives CPU tensors; use 'cpu'"),
        ({"fidelity": "best"}, "fidelity must be one of"),
        ({"field": ["jpg"]}, "field must be the name"),
        ({"transform": [T.RandomResizedCrop(T.BUCKET)]}, "T.BUCKET"),
        ({"transform": [T.RandomIoUCrop()]}, "images alone: leave it out, or use feeder.DataLoader"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_before_any_sample(options: dict[str, Any], message: str) -> None:
    """In a pipeline a handler such as ``ignore_and_continue`` would leave all samples out instead."""
    with pytest.raises(feeder.ArgumentError, match=message):
        feeder.wds.decoder(**{"transform": CROPS, **options})


def test_a_pickled_decoder_decodes(urls: list[str]) -> None:
    decoder = feeder.wds.decoder(CROPS)
    list(pipeline(urls).map(decoder))
    again = pipeline(urls).map(pickle.loads(pickle.dumps(decoder)))
    assert {epoch_of(*pair) for pair in pairs(again)} == {1}
