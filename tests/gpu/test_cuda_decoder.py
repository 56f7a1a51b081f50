"""On a GPU: the kernels of kernels/cuda beside the CPU's, to the bit."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from feeder import DataLoader, ShardDataset
from feeder import _native as native
from feeder import transforms as T
from feeder.decoders.cpu_decoder import CpuDecoder
from feeder.decoders.cuda.batch import Uploaded, upload
from feeder.decoders.cuda.cuda_decoder import CudaDecoder
from feeder.decoders.decoder import View
from feeder.decoders.staged.staged import Staged
from feeder.decoders.staged.trainer_decoder import StagedView
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from tests.support import jpegs
from tests.support.conformance import MEAN, STD
from tests.support.cuda_checks import check_corpus, check_damaged, check_fixtures, decoder_on_gpu
from tests.support.dali_batches import finish
from tests.support.packed import packed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SIZE = (231, 300)
BASE = (T.RandomResizedCrop(64), T.RandomHorizontalFlip())
HALF = T.Recipe.of([*BASE, T.Normalize(MEAN, STD), T.ToDtype("float16")])


@pytest.fixture(scope="module")
def decoder() -> CudaDecoder:
    return decoder_on_gpu()


def buffers(count: int) -> list[bytes]:
    kinds = ("4:2:0", "4:4:4", "gray", "4:2:2", "rgb", "4:4:0")
    made = []
    for k in range(count):
        data = native.transcode(jpegs.jpeg(kinds[k % 6], SIZE[::-1], k), keep_metadata=False, segment_px=32)
        made.append(packed(data) if k % 4 == 3 else data)
    return made


def draw(recipe: T.Recipe, count: int, epoch: int = 0) -> T.Draws:
    return recipe.draw(1, epoch, np.arange(count), [SIZE] * count)


def of_the_cpu(files: list[bytes], recipe: T.Recipe, epoch: int = 0) -> npt.NDArray[Any]:
    assert recipe.output_size is not None
    out = np.zeros((len(files), 3, *recipe.output_size), recipe.storage_dtype)
    draws = draw(recipe, len(files), epoch)
    result = CpuDecoder().decode(files, np.ones(len(files), np.uint8), [View(recipe, draws, out)])
    assert result.errors == [None] * len(files)
    return out


def staged(decoder: CudaDecoder, files: list[bytes], recipe: T.Recipe, epoch: int = 0) -> Staged:
    draws = draw(recipe, len(files), epoch)
    return decoder.stager.stage(files, np.ones(len(files), np.uint8), [recipe], [draws])[0]


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16", "bfloat16"])
def test_all_kinds_have_the_cpus_pixels(decoder: CudaDecoder, dtype: str) -> None:
    affine = () if dtype == "uint8" else (T.Normalize(MEAN, STD), T.ToDtype(dtype))
    recipe, files = T.Recipe.of([*BASE, *affine]), buffers(24)
    batch = staged(decoder, files, recipe)
    for channels_last in (False, True):
        images, errors = finish(decoder, batch, recipe, (), channels_last=channels_last)
        assert errors == [None] * len(files)
        found = images.cpu().contiguous()
        stored = found.view(torch.uint16) if dtype == "bfloat16" else found
        assert stored.numpy().tobytes() == of_the_cpu(files, recipe).tobytes()


def test_held_batches_stay_as_they_are_on_several_streams(decoder: CudaDecoder) -> None:
    """200 batches, some of them started ahead, on four streams of which some lag behind."""
    files, streams = buffers(32), [torch.cuda.Stream() for _ in range(4)]
    expected = [torch.from_numpy(of_the_cpu(files, HALF, epoch)) for epoch in range(8)]
    batches = [staged(decoder, files, HALF, epoch) for epoch in range(8)]
    kept: list[tuple[int, torch.Tensor]] = []
    for iteration in range(200):
        epoch = iteration % 8
        if iteration % 2:
            with torch.cuda.stream(streams[(iteration + 1) % 4]):
                decoder.start(batches[epoch])
        with torch.cuda.stream(streams[iteration % 4]):
            if iteration % 3 == 0:
                torch.cuda._sleep(20_000_000)
            images, errors = finish(decoder, batches[epoch], HALF, (), channels_last=True)
        assert errors == [None] * len(files)
        kept = [*kept[-15:], (epoch, images)]
        if iteration % 16 == 15:
            torch.cuda.synchronize()
            for number, held in kept:
                assert torch.equal(held.cpu(), expected[number]), iteration


@pytest.mark.parametrize("ends", ["finished", "dropped"])
def test_page_locked_payloads_may_change_once_a_batch_is_finished_or_dropped(decoder: CudaDecoder, ends: str) -> None:
    """Their copies are queued behind work that takes a while."""
    files = buffers(32)
    expected = [torch.from_numpy(of_the_cpu(files, HALF, epoch)) for epoch in range(2)]
    batches = [staged(decoder, files, HALF, epoch) for epoch in range(2)]
    locked = torch.empty(max(batch.packed_bytes for batch in batches), dtype=torch.uint8, pin_memory=True)
    memory, stream = locked.numpy(), torch.cuda.Stream()
    for iteration in range(40):
        number = iteration % 2
        assert batches[number].pack(memory) == {}
        batch = Staged.unpack(memory, len(files))
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            assert decoder.start(batch)
            if ends == "dropped":
                decoder.drop(batch)
                assert stream.query()
                continue
            images, errors = finish(decoder, batch, HALF, ())
        memory[:] = 0xFF
        assert errors == [None] * len(files)
        stream.synchronize()
        assert torch.equal(images.cpu(), expected[number]), iteration


def test_fixtures_in_all_forms_have_the_cpus_pixels(decoder: CudaDecoder) -> None:
    check_fixtures(decoder)


def test_damage_gets_the_cpus_verdict(decoder: CudaDecoder) -> None:
    check_damaged(decoder, 2)


def test_damage_to_the_fuzz_corpus_gets_the_cpus_verdict(decoder: CudaDecoder) -> None:
    check_corpus(decoder, 6)


def test_memory_on_the_gpu_stays_flat(decoder: CudaDecoder) -> None:
    batch, free = staged(decoder, buffers(32), HALF), []
    for _ in range(60):
        finish(decoder, batch, HALF, ())
        torch.cuda.synchronize()
        free.append(torch.cuda.mem_get_info()[0])
    assert free[19] - free[59] <= 8 << 20


def test_views_share_their_planes(decoder: CudaDecoder) -> None:
    files = buffers(12)
    near, small = T.RandomResizedCrop(64, scale=(0.5, 1.0)), T.RandomResizedCrop(32, scale=(0.1, 0.4))
    recipes = [T.Recipe.of([crop, T.RandomHorizontalFlip()]) for crop in (near, near, small, small, small)]
    draws = [draw(recipe, len(files), epoch) for epoch, recipe in enumerate(recipes)]
    batch, _ = decoder.stager.stage(files, np.ones(len(files), np.uint8), recipes, draws)
    assert len(np.unique(batch.owners)) < 3 * len(files)
    images, errors = decoder.finish(batch, [StagedView(recipe, ()) for recipe in recipes])
    assert errors == [None] * len(files)
    for epoch, (found, recipe) in enumerate(zip(images, recipes, strict=True)):
        assert np.array_equal(found.cpu().numpy(), of_the_cpu(files, recipe, epoch))


def test_a_loader_gives_the_cpus_batches_and_waits_for_no_copy(
    decoder: CudaDecoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned: list[bool] = []

    def noted(device: torch.device, plans: list[Any]) -> Uploaded:
        pinned.extend(torch.from_numpy(run).is_pinned() for run, _ in native.upload_runs(plans)[1])
        return upload(device, plans)

    monkeypatch.setattr("feeder.decoders.cuda.cuda_decoder.upload", noted)
    for i in range(96):
        path = tmp_path / "images" / f"{i % 3}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpegs.jpeg("4:2:0", (300, 220), i))
    shard(str(tmp_path / "images"), str(tmp_path / "set"), ShardOptions())
    dataset = ShardDataset(tmp_path / "set", HALF)
    options: dict[str, Any] = {"batch_size": 16, "shuffle": True}
    loader = DataLoader(
        dataset, backend="cuda", device="cuda", num_workers=2, memory_format=torch.channels_last, **options
    )
    host = DataLoader(dataset, backend="cpu", **options)
    held = []
    try:
        for number, (images, labels) in enumerate(itertools.chain(loader, loader)):
            if number == 6:  # memory is there
                torch.cuda.set_sync_debug_mode("error")
            torch.cuda._sleep(20_000_000)
            held.append((images, labels))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for (images, labels), (expected, wanted) in zip(held, itertools.chain(host, host), strict=True):
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(images.cpu(), expected)
        assert torch.equal(labels.cpu(), wanted)
    stats = loader.stats()
    assert (stats["cuda_images"], stats["cpu_images"], stats["redone_images"]) == (192, 0, 0)
    assert pinned
    assert all(pinned)
    loader.close()
