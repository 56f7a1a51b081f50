"""Frameworks that inspect, rebuild or drive loaders, over both paths."""

from __future__ import annotations

import copy
import inspect
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.order.buckets import Buckets
from feeder.transforms import BUCKET, MixUp, RandomResizedCrop
from tests.support.loader_data import write_shards
from tests.support.ranks import run_job
from tests.support.warm_python import run_warm

_SIZE = 50


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs: deprecations, advice on numbers of workers
        yield


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), _SIZE)


class Plain(torch.utils.data.Dataset[Any]):
    """The same batches as the shards', from a dataset that is not feeder's."""

    def __len__(self) -> int:
        return _SIZE

    def __getitem__(self, i: int) -> Any:
        return torch.full((3, 8, 8), float(i)), i % 7, i


def _dataset(kind: str, shards: Path) -> Any:
    return Plain() if kind == "plain" else ShardDataset(shards, RandomResizedCrop(8), fields=("index",))


def _loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    images, labels, _ = batch
    return torch.nn.functional.cross_entropy(model(images.flatten(1).float() / 255), labels)


def _lightning() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("pytorch_lightning")


def _module() -> Any:
    lightning = _lightning()

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.layer = torch.nn.Linear(3 * 8 * 8, 7)
            self.seen: list[tuple[int, list[int]]] = []
            self.validated: list[int] = []

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            self.seen.append((self.trainer.current_epoch, batch[2].tolist()))
            return _loss(self.layer, batch)

        def validation_step(self, batch: Any, _: int) -> None:
            self.validated += batch[2].tolist()

        def predict_step(self, batch: Any, _: int) -> list[int]:
            return batch[2].tolist()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

        def epoch(self, number: int) -> list[list[int]]:
            return [ids for epoch, ids in self.seen if epoch == number]

    return Module()


def _trainer(folder: Path, **options: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet["enable_checkpointing"] = "callbacks" in options
    return _lightning().Trainer(accelerator="cpu", default_root_dir=folder, **quiet, **options)


@pytest.mark.parametrize("kind", ["shards", "plain"])
@pytest.mark.parametrize("workers", [0, 2])
def test_lightning_sees_every_sample_of_every_epoch(shards: Path, tmp_path: Path, kind: str, workers: int) -> None:
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
    loader = DataLoader(_dataset(kind, shards), batch_size=8, shuffle=True, **options)
    val = DataLoader(_dataset(kind, shards), batch_size=16, num_workers=workers)
    model = _module()
    trainer = _trainer(tmp_path, max_epochs=3, num_sanity_val_steps=1)
    trainer.fit(model, loader, val)
    epochs = [model.epoch(number) for number in range(3)]
    for batches in epochs:
        assert [len(batch) for batch in batches] == [8] * 6 + [2]
        assert sorted(i for batch in batches for i in batch) == list(range(_SIZE))
    assert epochs[0] != epochs[1] != epochs[2]
    assert model.validated == list(range(16)) + 3 * list(range(_SIZE))
    assert [i for batch in trainer.predict(model, val) for i in batch] == list(range(_SIZE))
    limited = _module()
    _trainer(tmp_path, max_epochs=2, limit_train_batches=2).fit(limited, loader)
    assert [len(limited.epoch(number)) for number in range(2)] == [2, 2]
    loader.close()


@pytest.mark.parametrize("kind", ["shards", "plain"])
def test_lightning_resumes_in_the_middle_of_an_epoch(shards: Path, tmp_path: Path, kind: str) -> None:
    save = _lightning().callbacks.ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=5, save_top_k=-1)
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "num_workers": 1}
    unbroken = _module()
    _trainer(tmp_path, max_epochs=2, callbacks=[save]).fit(unbroken, DataLoader(_dataset(kind, shards), **options))
    for step in (5, 10):
        resumed = _module()
        checkpoint = tmp_path / f"step={step}.ckpt"
        loader = DataLoader(_dataset(kind, shards), **options)
        _trainer(tmp_path, max_epochs=2).fit(resumed, loader, ckpt_path=checkpoint)
        assert resumed.epoch(step // 7) == unbroken.epoch(step // 7)[step % 7 :]
        assert resumed.seen == unbroken.seen[step:]
        assert torch.equal(resumed.layer.weight, unbroken.layer.weight)


@pytest.mark.parametrize("every", ["epoch", "step"])
def test_lightning_goes_on_between_epochs(shards: Path, tmp_path: Path, every: str) -> None:
    """Lightning makes the iterator before it tells the epoch, and doesn't load the place in an epoch that is over."""
    options = {"every_n_epochs": 1} if every == "epoch" else {"every_n_train_steps": 7}
    save = _lightning().callbacks.ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1, **options)
    loaders = [DataLoader(_dataset("shards", shards), batch_size=8, shuffle=True, num_workers=k) for k in (0, 1)]
    unbroken, resumed = _module(), _module()
    _trainer(tmp_path, max_epochs=3, callbacks=[save]).fit(unbroken, loaders[0])
    _trainer(tmp_path, max_epochs=3).fit(resumed, loaders[1], ckpt_path=tmp_path / "epoch=0.ckpt")
    assert resumed.seen == [(epoch, ids) for epoch, ids in unbroken.seen if epoch > 0]
    assert torch.equal(resumed.layer.weight, unbroken.layer.weight)


@pytest.mark.parametrize(("kind", "workers"), [("shards", 1), ("shards", 0)])
def test_lightning_cycles_through_a_shorter_loader(shards: Path, tmp_path: Path, kind: str, workers: int) -> None:
    """It counts its own epochs, in each of which the shorter loader has several, and the last one not to its end."""

    class Pairs(type(_module())):  # type: ignore[misc]
        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            self.validated.append(batch[1][2].tolist())
            return super().training_step(batch[0], number)

    save = _lightning().callbacks.ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=5, save_top_k=-1)
    combined = pytest.importorskip("pytorch_lightning.utilities").CombinedLoader

    def train(resumed: Path | None = None) -> list[list[int]]:
        loaders = [DataLoader(_dataset(kind, shards), size, True, num_workers=workers) for size in (8, 20)]
        model, callbacks = Pairs(), [] if resumed else [save]
        trainer = _trainer(tmp_path, max_epochs=3, callbacks=callbacks)
        trainer.fit(model, combined(loaders, "max_size_cycle"), ckpt_path=resumed)
        return model.validated

    unbroken = train()
    assert len({tuple(batch) for batch in unbroken}) == len(unbroken) == 21
    for epoch in range(3):
        passes = unbroken[7 * epoch : 7 * epoch + 6]
        for whole in (passes[:3], passes[3:]):
            assert sorted(i for batch in whole for i in batch) == list(range(_SIZE))
    for step in (5, 10):
        assert train(tmp_path / f"step={step}.ckpt") == unbroken[step:]


def test_an_epoch_that_a_framework_tells_goes_on_where_the_loader_is(shards: Path) -> None:
    loader, resumed, expected = (DataLoader(_dataset("shards", shards), 20, True) for _ in range(3))
    sampler: Any = loader.sampler
    epochs = [[batch[2].tolist() for batch in expected] for _ in range(6)]

    def epoch(of: Any = loader) -> list[list[int]]:
        return [batch[2].tolist() for batch in of]

    for told, passes in ((0, [0, 1]), (1, [2]), (2, [3, 4])):
        sampler.set_epoch(told)
        sampler.set_epoch(told)  # by a callback of the user's, too
        assert [epoch() for _ in passes] == [epochs[number] for number in passes]
    next(iter(loader))
    resumed.load_state_dict(loader.state_dict())
    sampler = resumed.sampler
    sampler.set_epoch(0)  # as Lightning's Fabric counts in each run
    assert epoch(resumed) == epochs[5][1:]
    sampler.set_epoch(3)  # any other one is that epoch
    assert epoch(resumed) == epochs[3]
    resumed.set_epoch(1)
    sampler.set_epoch(2)
    assert epoch(resumed) == epochs[2]


_LIGHTNING_RANKS = """
import json, sys, warnings
from pathlib import Path
import torch
from tests.scenarios.test_frameworks import _dataset, _lightning, _module, _trainer
from feeder.loader.dataloader import DataLoader

class Report(_lightning().Callback):
    def __init__(self, folder):
        self.folder = folder

    def on_train_end(self, trainer, module):
        used = trainer.train_dataloader
        result = {"seen": module.seen, "length": len(used), "fast": used.path == "fast", "seed": used.seed,
                  "sampler": type(used.sampler).__name__, "weight": float(module.layer.weight.sum()),
                  "validated": module.validated}
        (self.folder / f"rank{trainer.global_rank}.json").write_text(json.dumps(result))

warnings.simplefilter("ignore")
shards, cases = json.loads(sys.argv[1])
for folder, kind, inject in cases:
    seed = {"seed": 3} if kind != "plain" else {}
    loader = DataLoader(_dataset(kind, Path(shards)), batch_size=8, shuffle=True, num_workers=1, **seed)
    trainer = _trainer(Path(folder), max_epochs=2, devices=2, strategy="ddp_fork", use_distributed_sampler=inject,
                       callbacks=[Report(Path(folder))], num_sanity_val_steps=0)
    trainer.fit(_module(), loader, DataLoader(_dataset(kind, Path(shards)), batch_size=8))
"""


@pytest.mark.slow
def test_lightning_on_two_processes(shards: Path, tmp_path: Path) -> None:
    """With its own sampler, which it rebuilds the loader with, and with the loader's own split."""
    _lightning()
    kinds = [("shards", True), ("plain", True), ("shards", False)]
    cases = [(tmp_path / str(number), *case) for number, case in enumerate(kinds)]
    for folder, *_ in cases:
        folder.mkdir()
    arguments = json.dumps([str(shards), [(str(folder), *rest) for folder, *rest in cases]])
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = run_warm(["-c", _LIGHTNING_RANKS, arguments], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    for folder, kind, inject in cases:
        ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]
        assert ranks[0]["weight"] == ranks[1]["weight"]
        epochs = []
        for epoch in range(2):
            batches = [[ids for number, ids in rank["seen"] if number == epoch] for rank in ranks]
            assert [len(part) for part in batches] == [ranks[0]["length"]] * 2 == [4, 4]
            assert sorted(i for part in batches for batch in part for i in batch) == list(range(_SIZE))
            epochs.append(batches)
        assert epochs[0] != epochs[1]
        assert sorted(ranks[0]["validated"] + ranks[1]["validated"]) == sorted(2 * list(range(_SIZE)))
        for rank in ranks:
            assert rank["fast"] == (kind == "shards")
            assert rank["seed"] == (None if kind == "plain" else 3)
            assert (rank["sampler"] == "DistributedSampler") == inject


@pytest.fixture(scope="module")
def accelerator() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accelerate = pytest.importorskip("accelerate")
        return accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)


@pytest.mark.parametrize("kind", ["shards", "plain"])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("prepared", [False, True])
def test_accelerate_loop(shards: Path, accelerator: Any, kind: str, workers: int, prepared: bool) -> None:
    """Outside of ``prepare()`` a loader is feeder's; inside, Accelerate makes one of torch's with the same meaning."""
    device = None if prepared else accelerator.device
    loader: Any = DataLoader(_dataset(kind, shards), batch_size=8, shuffle=True, num_workers=workers, device=device)
    if prepared:
        loader = accelerator.prepare(loader)
    torch.manual_seed(0)
    model = torch.nn.Linear(3 * 8 * 8, 7)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    before = model.weight.detach().clone()
    epochs = []
    for _ in range(2):
        seen = []
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(_loss(model, batch))
                optimizer.step()
                optimizer.zero_grad()
            seen.append(batch[2].tolist())
        assert [len(batch) for batch in seen] == [8] * 6 + [2]
        assert len(loader) == 7
        assert sorted(i for batch in seen for i in batch) == list(range(_SIZE))
        epochs.append(seen)
    assert epochs[0] != epochs[1]
    assert not torch.equal(model.weight, before)
    assert len(next(iter(loader))[2]) == 8
    assert sum(len(batch[2]) for batch in loader) == _SIZE


def test_accelerates_prepare_says_what_it_takes_away(shards: Path, accelerator: Any) -> None:
    loader = DataLoader(_dataset("shards", shards), batch_size=8)
    with pytest.warns(UserWarning, match=r"prepare\(\) makes one of torch's loaders .* device=accelerator.device"):
        assert type(accelerator.prepare(loader)) is not DataLoader
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        accelerator.prepare(DataLoader(Plain(), batch_size=8))  # loses nothing of the order, or of a fast path
        copy.copy(loader)


def test_accelerates_prepare_is_refused_where_it_loses_options(shards: Path, accelerator: Any) -> None:
    options: dict[str, Any] = {"mix": MixUp(num_classes=7), "on_error": "skip", "skip": [3]}
    loader = DataLoader(_dataset("shards", shards), 8, **options)
    with pytest.raises(
        ArgumentError, match=r"without mix=, on_error=, skip=, .* and give it device=accelerator.device"
    ):
        accelerator.prepare(loader)
    buckets = ShardDataset(shards, RandomResizedCrop(BUCKET))
    loader = DataLoader(buckets, 8, sizes=Buckets([(8, 8), (8, 16)]), device="cpu")
    with pytest.raises(ArgumentError, match=r"without sizes=, device=: leave the loader out of prepare\(\)$"):
        accelerator.prepare(loader)


@pytest.mark.slow  # imports Ray's training
def test_rays_loader_is_refused_where_it_loses_options(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray.train.torch.train_loop_utils")
    monkeypatch.setattr(ray, "session", SimpleNamespace(get_world_size=lambda: 2, get_world_rank=lambda: 0))
    accelerator = SimpleNamespace(_seed=None)  # its own constructor asks a cluster for the device
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        for options in ({"mix": MixUp(num_classes=7)}, {"skip": range(_SIZE)}, {"seed": 3}):
            loader = DataLoader(_dataset("shards", shards), 8, **options)
            prepared = ray._TorchAccelerator.prepare_data_loader(accelerator, loader, move_to_device=False)
            with pytest.raises(ArgumentError, match=rf"without {next(iter(options))}=.* prepare_data_loader\(\)"):
                next(iter(prepared))
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("kind", ["skip", "buckets", "ranks"])
def test_lightnings_sampler_is_refused_where_the_loader_decides_about_the_order(
    shards: Path, tmp_path: Path, kind: str
) -> None:
    _lightning()
    data = pytest.importorskip("pytorch_lightning.utilities.data")
    given: dict[str, dict[str, Any]] = {
        "skip": {"skip": [3]},
        "buckets": {"sizes": Buckets([(8, 8)])},
        "ranks": {"rank": 0, "world_size": 1},
    }
    options: dict[str, Any] = given[kind]
    dataset = ShardDataset(shards, RandomResizedCrop(BUCKET if kind == "buckets" else 8), fields=("index",))
    loaders = [DataLoader(dataset, 8, shuffle, **options) for shuffle in (True, False)]
    with pytest.raises(ArgumentError, match="Lightning does with use_distributed_sampler=False, with overfit"):
        data._update_dataloader(loaders[0], torch.utils.data.DistributedSampler(dataset, 2, 0))
    if kind != "ranks":
        with pytest.raises(ArgumentError, match="with overfit_batches if shuffle=False"):
            _trainer(tmp_path, max_epochs=1, overfit_batches=2).fit(_module(), loaders[0])
        with pytest.raises(ArgumentError, match=r"in predict\(\) if it gets an iterable around the loader"):
            _trainer(tmp_path).predict(_module(), loaders[1])
    model = _module()
    _trainer(tmp_path, max_epochs=2, overfit_batches=2).fit(model, loaders[1])
    assert [len(model.epoch(number)) for number in range(2)] == [2, 2]


def test_a_sampler_of_lightnings_keeps_all_other_options(shards: Path) -> None:
    _lightning()
    data = pytest.importorskip("pytorch_lightning.utilities.data")
    options: dict[str, Any] = {
        "mix": MixUp(num_classes=7),
        "fidelity": "exact",
        "memory_format": torch.channels_last,
        "timeout": 9,
    }
    loader = DataLoader(_dataset("shards", shards), 8, True, on_error="skip", num_workers=1, **options)
    rebuilt = data._update_dataloader(loader, range(20))
    expected = loader.options() | {"sampler": range(20), "shuffle": False}
    assert expected.items() <= rebuilt.options().items()
    assert rebuilt.path == "fast"


def test_accelerate_saves_and_loads_the_place_of_a_registered_loader(
    shards: Path, tmp_path: Path, accelerator: Any
) -> None:
    accelerator = type(accelerator)(cpu=True)

    def loader() -> Any:
        made = DataLoader(_dataset("shards", shards), 8, True, seed=2, num_workers=1, device=accelerator.device)
        accelerator.register_for_checkpointing(made)
        return made

    iterator = iter(loader())
    for _ in range(3):
        next(iterator)
    accelerator.save_state(str(tmp_path))
    rest = list(iterator)
    accelerator._custom_objects.clear()  # as in another run
    resumed = loader()
    accelerator.load_state(str(tmp_path))
    assert len(rest) == 4
    for batch, expected in zip(resumed, rest, strict=True):
        assert all(map(torch.equal, batch, expected))


def test_accelerate_skips_first_batches_of_torchs_order(accelerator: Any) -> None:
    accelerate = pytest.importorskip("accelerate")
    generator = torch.Generator().manual_seed(5)
    expected = [batch[2].tolist() for batch in torch.utils.data.DataLoader(Plain(), 8, True, generator=generator)]
    loader: Any = DataLoader(Plain(), 8, True, generator=generator, num_workers=1)
    for whole in (loader, accelerator.prepare(loader)):
        rest = accelerate.skip_first_batches(whole, 3)
        generator.manual_seed(5)
        assert len(rest) == 4
        assert [batch[2].tolist() for batch in rest] == expected[3:]


def test_accelerate_takes_feeders_order_along(shards: Path, accelerator: Any) -> None:
    accelerate = pytest.importorskip("accelerate")

    def loader() -> Any:
        return DataLoader(_dataset("shards", shards), 8, True, seed=2)

    whole = loader()
    epochs = [[batch[2].tolist() for batch in whole] for _ in range(3)]
    prepared = accelerator.prepare(loader())
    assert [[batch[2].tolist() for batch in prepared] for _ in range(3)] == epochs
    prepared = accelerator.prepare(loader())
    prepared.set_epoch(1)
    assert [batch[2].tolist() for batch in accelerate.skip_first_batches(prepared, 3)] == epochs[1][3:]


_ACCELERATE_RANKS = """
import json, sys, warnings
from pathlib import Path
import torch.distributed.nn  # before the process group, which its default arguments would keep for ever
warnings.simplefilter("ignore")
from accelerate import Accelerator
from tests.scenarios.test_frameworks import Drawn, _dataset
from feeder.loader.dataloader import DataLoader

accelerator = Accelerator(cpu=True)
seen = {}
for kind in ("shards", "plain"):
    for way in ("own", "prepared", "sampler"):
        dataset = _dataset(kind, Path(sys.argv[1]))
        sampler = torch.utils.data.DistributedSampler(dataset) if way == "sampler" else None
        loader = DataLoader(dataset, batch_size=8, shuffle=sampler is None, sampler=sampler, num_workers=1)
        if way == "own" and kind == "plain":
            continue
        epochs = []
        for epoch in range(2):
            torch.manual_seed(1 + accelerator.process_index)
            if epoch == 0 and way == "prepared":
                loader = accelerator.prepare(loader)
            loader.set_epoch(epoch)
            ids = []
            for batch in loader:
                ids += (accelerator.gather_for_metrics(batch[2]) if way == "prepared" else batch[2]).tolist()
            epochs.append(ids)
        seen[f"{kind} {way}"] = epochs
Path(sys.argv[2], f"rank{accelerator.process_index}.json").write_text(json.dumps(seen))
del loader
accelerator.free_memory()
accelerator.end_training()
"""


@pytest.mark.slow
def test_accelerate_on_two_processes(shards: Path, tmp_path: Path) -> None:
    """Whoever splits, each sample is counted once: Accelerate, torch's DistributedSampler, or the loader."""
    pytest.importorskip("accelerate")
    (tmp_path / "ranks.py").write_text(_ACCELERATE_RANKS)
    run_job(tmp_path / "ranks.py", shards, tmp_path, ranks=2)
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    ways = ("own", "prepared", "sampler")
    assert list(ranks[0]) == [*(f"shards {way}" for way in ways), "plain prepared", "plain sampler"]
    for way in ranks[0]:
        epochs = []
        for first, second in zip(ranks[0][way], ranks[1][way], strict=True):
            if "prepared" in way:
                assert first == second  # both have gathered all
                second = []
            assert sorted(first + second) == list(range(_SIZE)), way
            epochs.append(first)
        assert epochs[0] != epochs[1], way


@pytest.mark.parametrize("collate", [None, list])
def test_samplers_show_the_order_of_the_whole_job(shards: Path, collate: Any) -> None:
    """Frameworks split what the samplers show; only the loader's own iterator splits by rank."""
    ranks = [
        DataLoader(_dataset("shards", shards), 8, True, seed=3, rank=rank, world_size=2, collate_fn=collate)
        for rank in range(2)
    ]
    whole = [list(rank.sampler) for rank in ranks]
    assert sorted(whole[0]) == list(range(_SIZE))
    assert whole[0] == whole[1]
    for rank in ranks:
        rank.set_epoch(0)
        assert [len(batch) for batch in rank.batch_sampler] == [8] * 6 + [2]  # type: ignore[union-attr]
        assert len(rank) == 4

    def ids(batch: Any) -> list[int]:
        return batch[2].tolist() if collate is None else [sample[2] for sample in batch]

    assert sorted(i for rank in ranks for batch in rank for i in ids(batch)) == list(range(_SIZE))


@pytest.mark.parametrize("kind", ["shards", "plain"])
def test_a_derived_loader_can_replace_the_making_of_iterators(shards: Path, kind: str) -> None:
    """As the loaders of PyTorch Geometric do."""

    class Numbers(DataLoader[Any]):
        def _get_iterator(self) -> Any:
            return (batch[2].tolist() for batch in super()._get_iterator())

    assert [i for batch in Numbers(_dataset(kind, shards), 8) for i in batch] == list(range(_SIZE))


class _WithoutEnd:
    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.sampler


class _Infinite(DataLoader[Any]):
    """As ultralytics' InfiniteDataLoader, which keeps one iterator for all epochs."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        object.__setattr__(self, "batch_sampler", _WithoutEnd(self.batch_sampler))
        self.iterator = super().__iter__()

    def __iter__(self) -> Any:
        batches: Any = self.batch_sampler
        return (next(self.iterator) for _ in range(len(batches.sampler)))

    def reset(self) -> None:
        self.iterator = self._get_iterator()


class _MultiEpochs(_Infinite):
    """As timm's MultiEpochsDataLoader, which assigns what torch's loader refuses."""

    def __init__(self, *args: Any, **options: Any) -> None:
        DataLoader.__init__(self, *args, **options)
        self._DataLoader__initialized = False
        self.batch_sampler = _WithoutEnd(self.batch_sampler)
        self._DataLoader__initialized = True
        self.iterator = DataLoader.__iter__(self)


@pytest.mark.parametrize("kind", ["shards", "plain"])
@pytest.mark.parametrize("derived", [_Infinite, _MultiEpochs])
def test_loaders_without_an_end_have_all_epochs_from_one_iterator(
    shards: Path, kind: str, derived: type[_Infinite]
) -> None:
    seed: dict[str, Any] = {} if kind == "plain" else {"seed": 2}
    loader = derived(_dataset(kind, shards), 8, True, **seed)
    plain = DataLoader(_dataset(kind, shards), 8, True, **seed)
    epochs = [[batch[2].tolist() for batch in loader] for _ in range(3)]
    assert [sorted(i for batch in epoch for i in batch) for epoch in epochs] == [list(range(_SIZE))] * 3
    assert loader.stats()["batches"] == 21
    assert loader.state_dict()
    if kind == "plain":
        with pytest.raises(ArgumentError, match="skip= is for feeder's path"):
            derived(_dataset(kind, shards), 8, True, skip=[3])
    else:
        assert epochs == [[batch[2].tolist() for batch in plain] for _ in range(3)]
        object.__setattr__(plain, "batch_sampler", [[1, 2]])
        with pytest.raises(ArgumentError, match="batch_sampler can't be changed"):
            iter(plain)
    loader.reset()
    assert len([*loader]) == 7


class _Changed(torch.utils.data.Dataset[int]):
    value = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> int:
        return self.value


def test_a_reset_has_the_next_epoch_take_the_dataset_as_it_is() -> None:
    """As ultralytics' trainer does it, in a loader whose workers stay."""
    dataset = _Changed()
    loader = DataLoader(dataset, 2, num_workers=1, persistent_workers=True)
    first = iter(loader)
    seen = [next(first).tolist()]
    dataset.value = 1
    loader.reset()
    seen += [batch.tolist() for batch in first]
    assert seen == [[0, 0], [0, 0]]
    assert [batch.tolist() for batch in loader] == [[1, 1], [1, 1]]


class _Told:
    value = 0

    def __call__(self, samples: Any) -> int:
        return self.value


def test_a_reset_has_workers_take_the_collate_function_as_it_is(shards: Path) -> None:
    """On feeder's path, too."""
    told = _Told()
    loader = DataLoader(_dataset("shards", shards), 8, collate_fn=told, num_workers=1, persistent_workers=True)
    assert {*loader} == {0}
    told.value = 1
    assert {*loader} == {0}
    loader.reset()
    assert {*loader} == {1}


def test_a_shown_collate_function_is_told_from_a_plain_one(shards: Path) -> None:
    """cloudpickle and others look at the code of what says that it is a function."""
    shown = DataLoader(_dataset("shards", shards), 8).collate_fn
    assert not inspect.isroutine(shown)
    assert [*inspect.signature(shown).parameters] == ["samples"]


def test_collate_function_that_frameworks_pass_on_is_torchs_default(shards: Path) -> None:
    dataset = _dataset("shards", shards)
    rebuilt = DataLoader(dataset, batch_size=8, collate_fn=DataLoader(dataset, batch_size=8).collate_fn)
    assert rebuilt.state_dict()["fingerprint"]  # the fast path's
    images, _, index = next(iter(rebuilt))
    assert images.dtype == torch.uint8
    assert index.tolist() == list(range(8))


class Drawn(torch.utils.data.Dataset[Any]):
    """Pixels drawn anew in each epoch; the epoch has to be told."""

    epoch = 0

    def __len__(self) -> int:
        return _SIZE

    def __getitem__(self, i: int) -> Any:
        generator = torch.Generator().manual_seed(_SIZE * self.epoch + i)
        return torch.randint(256, (3, 8, 8), generator=generator, dtype=torch.uint8), i % 7, i

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def _for_trainer(kind: str, shards: Path) -> DataLoader[Any]:
    if kind == "plain":
        dataset = Drawn()
        plain: Any = torch.utils.data.DistributedSampler(dataset, 1, 0)
        return DataLoader(dataset, batch_size=8, num_workers=1, sampler=plain)
    numbers: Any = range(_SIZE)
    sampler: Any = torch.utils.data.DistributedSampler(numbers, 1, 0) if kind == "sampler" else None
    return DataLoader(_dataset(kind, shards), batch_size=8, shuffle=sampler is None, sampler=sampler, num_workers=1)


@pytest.mark.parametrize("kind", ["shards", "sampler", "plain"])
def test_transformers_trainer_resumes_in_the_middle_of_an_epoch(shards: Path, tmp_path: Path, kind: str) -> None:
    """With the example's callback. Trainer tells the loader its epoch, and hides samplers and datasets behind it."""
    transformers = pytest.importorskip("transformers")
    from examples.transformers_trainer import LoaderTrainer

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.layer = torch.nn.Linear(3 * 8 * 8, 7)
            self.seen: list[torch.Tensor] = []

        def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            self.seen.append(pixel_values.clone())
            return {"loss": _loss(self.layer, (pixel_values, labels, None))}

    def train(resume: bool) -> Model:
        arguments = transformers.TrainingArguments(
            str(tmp_path),
            num_train_epochs=3,
            per_device_train_batch_size=8,
            save_steps=10,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        model, loader = Model(), _for_trainer(kind, shards)
        trainer = LoaderTrainer(model, arguments, train_loader=loader)
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-10") if resume else None)
        assert trainer.state.global_step == 21
        return model

    unbroken, resumed = train(False), train(True)
    assert len(unbroken.seen) == 21
    assert len({batch.sum().item() for batch in unbroken.seen}) == 21
    assert len(resumed.seen) == 11
    assert all(torch.equal(*pair) for pair in zip(unbroken.seen[10:], resumed.seen, strict=True))
    assert torch.equal(unbroken.layer.weight, resumed.layer.weight)


def test_an_epoch_is_told_once_to_whatever_takes_it(shards: Path) -> None:
    class Taking:
        def __init__(self, *inner: Any) -> None:
            self.told: list[int] = []
            if inner:
                (self.sampler,) = inner

        def __iter__(self) -> Iterator[Any]:
            return iter([[0, 1], [2]] if hasattr(self, "sampler") else [0, 1, 2])

        def set_epoch(self, epoch: int) -> None:
            self.told.append(epoch)

    class Dataset(Plain, Taking):
        pass

    for dataset in (Dataset(), _dataset("shards", shards)):
        sampler = Taking()
        DataLoader(dataset, batch_size=2, sampler=sampler).set_epoch(4)
        outer = Taking(Taking())
        DataLoader(dataset, batch_sampler=outer).set_epoch(5)
        assert (sampler.told, outer.told, outer.sampler.told) == ([4], [5], [5])
        assert getattr(dataset, "told", [4, 5]) == [4, 5]
    DataLoader(range(3)).set_epoch(1)
    DataLoader(torch.utils.data.ChainDataset([]), batch_size=None).set_epoch(1)


@pytest.mark.parametrize("kind", ["shards", "plain"])
def test_a_loader_that_is_repeated_without_end_goes_on_from_its_state(shards: Path, kind: str) -> None:
    """As DeepSpeed's RepeatingLoader and Determined's trainer take it."""

    def begin() -> tuple[DataLoader[Any], Iterator[list[int]]]:
        loader = DataLoader(_dataset(kind, shards), batch_size=8, shuffle=True, num_workers=1)
        return loader, (batch[2].tolist() for _ in iter(int, 1) for batch in loader)

    loader, batches = begin()
    seen = [next(batches) for _ in range(10)]
    state = loader.state_dict()
    seen += [next(batches) for _ in range(11)]
    assert all(sorted(i for batch in seen[k : k + 7] for i in batch) == list(range(_SIZE)) for k in (0, 7, 14))
    assert seen[:7] != seen[7:14]
    loader, batches = begin()
    loader.load_state_dict(state)
    assert [next(batches) for _ in range(11)] == seen[10:]


def test_epochs_of_which_a_batch_was_taken_count(shards: Path) -> None:
    """As Composer's trainer goes on: it takes a batch of each earlier epoch."""
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "num_workers": 1, "seed": 5}
    loader = DataLoader(_dataset("shards", shards), **options)
    expected = [[batch[2].tolist() for batch in loader] for _ in range(3)]
    loader = DataLoader(_dataset("shards", shards), **options)
    for _ in range(2):
        for _ in loader:
            break
    assert [batch[2].tolist() for batch in loader] == expected[2] != expected[0]


@pytest.mark.parametrize("kind", ["shards", "plain"])
def test_ignite_resumes_in_the_middle_of_an_epoch(shards: Path, tmp_path: Path, kind: str) -> None:
    engines = pytest.importorskip("ignite.engine")
    handlers = pytest.importorskip("ignite.handlers")

    def run(checkpoint: Path | None) -> list[list[int]]:
        seen: list[list[int]] = []
        engine = engines.Engine(lambda _, batch: seen.append(batch[2].tolist()))
        loader = DataLoader(_dataset(kind, shards), batch_size=8, shuffle=True, num_workers=1)
        place = {"engine": engine, "loader": loader}
        saver = handlers.DiskSaver(str(tmp_path), require_empty=False)
        save = handlers.Checkpoint(place, saver, n_saved=None)
        engine.add_event_handler(engines.Events.ITERATION_COMPLETED(every=4), save)
        if checkpoint is not None:
            handlers.Checkpoint.load_objects(place, checkpoint=str(checkpoint))
        engine.run(loader, max_epochs=3)
        return seen

    unbroken, resumed = run(None), run(tmp_path / "checkpoint_12.pt")
    epochs = [unbroken[k : k + 7] for k in (0, 7, 14)]
    assert all(sorted(i for batch in epoch for i in batch) == list(range(_SIZE)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert len(resumed) == 9
    assert resumed == unbroken[12:]


@pytest.mark.parametrize("kind", ["shards", "plain"])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_ignites_deterministic_engine_makes_the_loader_anew(shards: Path, kind: str, device: str | None) -> None:
    engines = pytest.importorskip("ignite.engine")
    seen: list[int] = []
    loader = DataLoader(_dataset(kind, shards), batch_size=8, shuffle=True, device=device)
    next(iter(loader))
    engines.DeterministicEngine(lambda _, batch: seen.extend(batch[2].tolist())).run(loader, max_epochs=2)
    assert sorted(seen[:_SIZE]) == sorted(seen[_SIZE:]) == list(range(_SIZE))
    assert seen[:_SIZE] != seen[_SIZE:]


@pytest.mark.parametrize("kind", ["shards", "plain"])
def test_fastai_learner(shards: Path, tmp_path: Path, kind: str) -> None:
    """Its batches are inputs, then one target: what a loader without further fields gives."""
    core = pytest.importorskip("fastai.callback.all")
    from fastai.data.core import DataLoaders
    from fastai.learner import Learner

    class Seen(core.Callback):  # type: ignore[misc, name-defined]
        batches: list[tuple[bool, list[int]]]

        def before_fit(self) -> None:
            self.batches = []

        def before_batch(self) -> None:
            self.batches.append((self.training, self.yb[0].tolist()))

    dataset: Any = ShardDataset(shards, RandomResizedCrop(8)) if kind == "shards" else _Pairs()
    loaders = [DataLoader(dataset, 8, shuffle, num_workers=1, persistent_workers=True) for shuffle in (True, False)]
    seen = Seen()
    model = torch.nn.Sequential(_Scale(), torch.nn.Linear(3 * 8 * 8, 7))
    learner = Learner(DataLoaders(*loaders), model, torch.nn.functional.cross_entropy, cbs=[seen], path=tmp_path)
    with learner.no_bar(), learner.no_logging():
        learner.fit(2, 0.1)
    labels = [i % 7 for i in range(_SIZE)]
    assert [is_training for is_training, _ in seen.batches] == 2 * (7 * [True] + 7 * [False])
    parts = [[label for _, batch in seen.batches[k : k + 7] for label in batch] for k in range(0, 28, 7)]
    assert parts[1] == parts[3] == labels
    assert sorted(parts[0]) == sorted(parts[2]) == sorted(labels)
    assert parts[0] != parts[2]
    predictions, targets = learner.get_preds(dl=loaders[1])
    assert predictions.shape == (_SIZE, 7)
    assert targets.tolist() == labels
    for loader in loaders:
        loader.close()


class _Pairs(Plain):
    def __getitem__(self, i: int) -> Any:
        return super().__getitem__(i)[:2]


class _Scale(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1).float() / 255
