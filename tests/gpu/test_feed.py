"""On a GPU: what a loader promises of its feed, with each backend."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from feeder import _gpu
from feeder.dataset.shards import ShardDataset
from feeder.decoders.registry import available_decoders
from feeder.loader.dataloader import DataLoader
from feeder.transforms import (
    CenterCrop,
    ColorJitter,
    Compose,
    CutMix,
    GaussianBlur,
    Normalize,
    Pad,
    RandAugment,
    RandomAffine,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    Resize,
    ToDtype,
)
from tests.support.loader_data import write_shards

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.parametrize("backend", ["cpu", "dali"]),
]

RECIPE = Compose(
    [
        RandomResizedCrop(32),
        RandomHorizontalFlip(),
        ColorJitter(0.4, 0.4, 0.4),
        Normalize([0.5] * 3, [0.25] * 3),
        ToDtype("float16"),
        RandomErasing(0.5),
    ]
)


# What kernel 1 does not do comes before and after it.
MORE = Compose(
    [
        RandomResizedCrop(32),
        RandomHorizontalFlip(),
        RandAugment(4),
        RandomAffine(20, (0.1, 0.1), interpolation="bicubic"),
        RandomRotation(20, interpolation="bilinear"),
        ColorJitter(0.4, 0.4, 0.4, 0.1),
        GaussianBlur(5),
        Pad(2, padding_mode="reflect"),
        RandomCrop(32, 2),
        Resize((24, 24)),
        RandomErasing(0.5, value=9),
        RandomGrayscale(0.5),
        Normalize([0.5] * 3, [0.25] * 3),
        RandomErasing(0.9, value="random"),
        RandomHorizontalFlip(),
        ToDtype("float16"),
    ]
)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), 160, jpegs=True)


@pytest.fixture(autouse=True)
def _has(backend: str) -> Iterator[None]:
    if backend not in available_decoders():
        pytest.skip(f"backend {backend!r} is not installed")
    yield
    torch.cuda.set_sync_debug_mode("default")


def _loader(shards: Path, backend: str, recipe: Compose = RECIPE, **options: Any) -> DataLoader[Any]:
    options = {"num_workers": 2, "persistent_workers": True, "shuffle": True, "channels_last": True} | options
    return DataLoader(ShardDataset(shards, recipe), 16, backend=backend, device="cuda", **options)


def _close(loader: DataLoader[Any]) -> None:
    """Compares with a tolerance; where the GPU failed, the CPU has given right batches in its place."""
    assert loader.stats().get("redone_images", 0) == 0
    loader.close()


@pytest.mark.skipif(not _gpu.has_triton(), reason="without Triton the references wait")
@pytest.mark.parametrize("recipe", [RECIPE, MORE], ids=["one pass", "batched ops"])
def test_no_batch_waits_for_the_gpu(shards: Path, backend: str, recipe: Compose) -> None:
    loader = _loader(shards, backend, recipe, mix=CutMix())
    sums: list[Any] = []
    for images, _ in itertools.chain(loader, loader):
        if len(sums) == 4:  # kernels are compiled, memory is there
            torch.cuda.set_sync_debug_mode("error")
        sums.append(images.float().sum())
    torch.cuda.set_sync_debug_mode("default")
    assert torch.stack(sums).isfinite().all()
    _close(loader)


@pytest.mark.parametrize("recipe", [RECIPE, MORE], ids=["one pass", "batched ops"])
def test_memory_stays_flat_over_epochs(shards: Path, backend: str, recipe: Compose) -> None:
    loader, free = _loader(shards, backend, recipe), []
    for _ in range(8):
        for images, _ in loader:
            assert images.is_cuda
        torch.cuda.synchronize()
        free.append(torch.cuda.mem_get_info()[0])
    assert free[2] - free[7] <= 16 << 20
    _close(loader)


def test_few_slots_are_enough_for_a_loop_that_keeps_nothing(shards: Path, backend: str) -> None:
    loader = _loader(shards, backend, num_workers=1, prefetch_factor=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # of batches that are held
        for images, _ in itertools.chain(loader, loader, loader):
            images.float().sum().item()
    _close(loader)


def test_a_cuda_graph_reads_static_buffers(shards: Path, backend: str) -> None:
    loader, plain = _loader(shards, backend, static_buffers=True, drop_last=True), _loader(shards, backend)
    graph, found = torch.cuda.CUDAGraph(), torch.empty(16, device="cuda")
    expected = [images.float().mean((1, 2, 3)) for images, _ in plain]
    for step, (images, _) in enumerate(loader):
        if step == 0:
            torch.cuda.synchronize()
            found.copy_(images.float().mean((1, 2, 3)))
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                found.copy_(images.float().mean((1, 2, 3)))
        graph.replay()
        torch.testing.assert_close(found, expected[step], rtol=0, atol=5e-3)
    assert step == 9
    _close(loader)
    _close(plain)


def test_two_loaders_at_once_train_and_validation(shards: Path, backend: str) -> None:
    def make() -> list[DataLoader[Any]]:
        validation = Compose([Resize(40), CenterCrop(32), *RECIPE.transforms[3:5]])
        return [_loader(shards, backend), _loader(shards, backend, validation, shuffle=False)]

    alone = [[(images.cpu(), labels.cpu()) for images, labels in loader] for loader in make()]
    loaders = make()
    for step, pair in enumerate(zip(*loaders, strict=True)):
        for epoch, (images, labels) in zip(alone, pair, strict=True):
            torch.testing.assert_close(images.cpu(), epoch[step][0], rtol=0, atol=5e-3)
            assert torch.equal(labels.cpu(), epoch[step][1])
    assert step == 9
    half = next(iter(loaders[0]))
    loaders[0].close()
    again = [images.cpu() for images, _ in loaders[1]]
    torch.testing.assert_close(again, [images for images, _ in alone[1]], rtol=0, atol=5e-3)
    assert half[0].isfinite().all()
    _close(loaders[1])


@pytest.mark.filterwarnings("ignore")  # of Lightning's own
def test_lightning_trains_and_validates_on_the_gpu(shards: Path, backend: str, tmp_path: Path) -> None:
    lightning, seen = pytest.importorskip("pytorch_lightning"), []

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3 * 32 * 32, 7)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            images, labels, ids = batch
            seen.append(("train", ids.tolist()))
            return torch.nn.functional.cross_entropy(self.layer(images.flatten(1).float()), labels)

        def validation_step(self, batch: Any, _: int) -> None:
            assert batch[0].is_cuda
            seen.append(("validate", batch[2].tolist()))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    options: dict[str, Any] = {"batch_size": 48, "backend": backend, "device": "cuda", "num_workers": 2}
    train = DataLoader(dataset, shuffle=True, persistent_workers=True, **options)
    validate = DataLoader(dataset, **options)
    trainer = lightning.Trainer(
        accelerator="gpu", devices=1, max_epochs=2, num_sanity_val_steps=1, default_root_dir=tmp_path, logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(Module(), train, validate)
    epoch = 4 * ["train"] + 4 * ["validate"]
    assert [kind for kind, _ in seen] == ["validate", *epoch, *epoch]
    for first in (1, 5, 9, 13):  # each epoch has all of them once, the last batch is smaller
        assert [len(ids) for _, ids in seen[first : first + 4]] == [48, 48, 48, 16]
        assert sorted(i for _, ids in seen[first : first + 4] for i in ids) == list(range(160))
    _close(train)
    _close(validate)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_loop_can_be_left_while_another_gpu_is_current(shards: Path, backend: str) -> None:
    dataset = ShardDataset(shards, RECIPE)
    loader = DataLoader(dataset, 16, backend=backend, device="cuda:1", num_workers=2, persistent_workers=True)
    with torch.cuda.device(0):
        expected = [images.cpu() for images, _ in loader]
        for _ in range(3):
            loader.set_epoch(0)
            next(iter(loader))
        loader.set_epoch(0)
        again = [images.cpu() for images, _ in loader]
    torch.cuda.synchronize(1)
    for images, others in zip(again, expected, strict=True):
        torch.testing.assert_close(images, others, rtol=0, atol=5e-3)
    _close(loader)
