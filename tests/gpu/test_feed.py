"""On a GPU: what a loader promises of its feed, with each backend."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from feeder.dataset.shards import ShardDataset
from feeder.decoders import gpu
from feeder.decoders.registry import available_decoders
from feeder.loader.dataloader import DataLoader
from feeder.loader.options import ToDevice
from feeder.order.buckets import Buckets
from feeder.transforms import (
    BUCKET,
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
    RandomShortestSize,
    Resize,
    SanitizeBoundingBoxes,
    ToDtype,
    Views,
)
from feeder.transforms.pad_to_batch import PadToBatch
from tests.support.loader_data import write_shards
from tests.support.target_data import SCALE, TARGETS, write_target_shards

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

VIEWS = Views([RECIPE, RECIPE, Compose([RandomResizedCrop((16, 24), (0.1, 0.4)), RandomHorizontalFlip()])])


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), 160, jpegs=True)


@pytest.fixture(autouse=True)
def _has(backend: str) -> Iterator[None]:
    if backend not in available_decoders():
        pytest.skip(f"backend {backend!r} is not installed")
    yield
    torch.cuda.set_sync_debug_mode("default")


def _loader(shards: Path, backend: str, recipe: Compose | Views = RECIPE, **options: Any) -> DataLoader[Any]:
    given: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "shuffle": True, "device": "cuda"}
    given |= {"memory_format": torch.channels_last, **options}
    return DataLoader(ShardDataset(shards, recipe), 16, backend=backend, **given)


def _views(images: Any) -> list[torch.Tensor]:
    """The views of a batch's images, or its only one."""
    return images if isinstance(images, list) else [images]


def _close(loader: DataLoader[Any]) -> None:
    """Compares with a tolerance; where the GPU failed, the CPU has given right batches in its place."""
    assert loader.stats().get("redone_images", 0) == 0
    loader.close()


@pytest.mark.skipif(not gpu.has_triton(), reason="without Triton the references wait")
@pytest.mark.parametrize("recipe", [RECIPE, MORE, VIEWS], ids=["one pass", "batched ops", "views"])
def test_no_batch_waits_for_the_gpu(shards: Path, backend: str, recipe: Compose | Views) -> None:
    loader = _loader(shards, backend, recipe, mix=CutMix())
    sums: list[Any] = []
    for images, _ in itertools.chain(loader, loader):
        if len(sums) == 4:  # kernels are compiled, memory is there
            torch.cuda.set_sync_debug_mode("error")
        sums += [view.float().sum() for view in _views(images)[:1]]
    torch.cuda.set_sync_debug_mode("default")
    assert torch.stack(sums).isfinite().all()
    _close(loader)


@pytest.mark.parametrize("recipe", [RECIPE, MORE, VIEWS], ids=["one pass", "batched ops", "views"])
def test_memory_stays_flat_over_epochs(shards: Path, backend: str, recipe: Compose | Views) -> None:
    loader, free = _loader(shards, backend, recipe), []
    for _ in range(8):
        for images, _ in loader:
            assert all(view.is_cuda for view in _views(images))
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
    to_device = ToDevice("cuda", static_buffers=True)
    loader, plain = _loader(shards, backend, drop_last=True, device=to_device), _loader(shards, backend)
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


def test_views_are_those_of_the_host(shards: Path, backend: str) -> None:
    """Held on a stream that lags behind."""
    loader = _loader(shards, backend, VIEWS, mix=CutMix())
    host = DataLoader(ShardDataset(shards, VIEWS), 16, shuffle=True, backend="cpu", mix=CutMix())
    held = []
    for images, labels in loader:
        torch.cuda._sleep(20_000_000)
        held.append((images, labels))
    for (images, labels), (expected, wanted) in zip(held, host, strict=True):
        assert [view.shape for view in images] == [view.shape for view in expected]
        for view, other in zip(images, expected, strict=True):
            assert view.is_contiguous(memory_format=torch.channels_last)
            level = 1.0 if view.dtype == torch.uint8 else 1 / 255 / 0.25
            difference = (view.cpu().float() - other.float()).abs() / level
            assert difference.mean() <= 1.5
        assert torch.equal(labels[0].cpu(), wanted[0])
        assert torch.equal(labels[1].cpu(), wanted[1])
    _close(loader)


def test_targets_are_those_of_the_host(tmp_path: Path, backend: str) -> None:
    """Masks in slots and lists of boxes, on a stream that lags behind."""
    # All images have 24x32 pixels, so that nothing is resized.
    recipe = Compose([Resize((24, 32)), RandomCrop((20, 28)), RandomHorizontalFlip(), SanitizeBoundingBoxes()])
    dataset = ShardDataset(write_target_shards(tmp_path, 48), recipe, ("index",), targets=TARGETS)
    options: dict[str, Any] = {"batch_size": 5, "shuffle": True}
    loader = DataLoader(dataset, num_workers=2, prefetch_factor=1, backend=backend, device="cuda", **options)
    held = []
    for batch in loader:
        torch.cuda._sleep(20_000_000)
        held.append(batch)
    for (images, _, masks, *rest), (*_, wanted, boxes, points, index) in zip(
        held, DataLoader(dataset, backend="cpu", **options), strict=True
    ):
        assert torch.equal(masks.cpu(), wanted)
        assert torch.equal(images, (masks * SCALE)[:, None].expand(-1, 3, -1, -1))
        assert rest[0][0]["boxes"].is_cuda
        torch.testing.assert_close(rest, [boxes, points, index], rtol=0, atol=0, check_device=False)
    _close(loader)


@pytest.mark.parametrize(
    ("recipe", "sized"),
    [
        ([RandomResizedCrop(BUCKET), *RECIPE.transforms[3:5]], {"sizes": Buckets(sizes=[(16, 24), (24, 16)])}),
        ([RandomShortestSize([12, 18]), *RECIPE.transforms[3:5]], {"sizes": PadToBatch(multiple=8)}),
    ],
    ids=["buckets", "padded"],
)
def test_batches_of_several_sizes_are_those_of_the_host(
    tmp_path: Path, backend: str, recipe: list[Any], sized: dict[str, Any]
) -> None:
    """Those of DALI are of one size, so "auto" is to pass it over."""
    shards = write_shards(tmp_path, 60, jpegs=True, sizes=[(24, 40), (40, 22), (30, 31)])
    dataset = ShardDataset(shards, Compose(recipe), ("index",))
    options: dict[str, Any] = {"batch_size": 5, "shuffle": True, **sized}
    loader = DataLoader(dataset, num_workers=2, backend="cpu" if backend == "cpu" else "auto", device="cuda", **options)
    held = []
    for batch in loader:
        torch.cuda._sleep(20_000_000)
        held.append(batch)
    assert len({batch[0].shape for batch in held}) > 1
    for batch, expected in zip(held, DataLoader(dataset, backend="cpu", **options), strict=True):
        assert batch[0].is_cuda
        torch.testing.assert_close(batch, expected, rtol=0, atol=0, check_device=False)
    _close(loader)


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


def test_a_generator_of_the_gpu_is_a_source_of_seeds(shards: Path, backend: str) -> None:
    first, other, again = (
        _loader(shards, backend, generator=torch.Generator("cuda").manual_seed(n)) for n in (1, 2, 1)
    )
    assert first.seed == again.seed != other.seed
