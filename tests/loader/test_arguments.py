"""Arguments, attributes, and the choice of the path."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

from feeder.dataset.folders import FolderDataset
from feeder.dataset.shards import ShardDataset
from feeder.decoders.registry import Dali
from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.loader.options import Metrics, ToDevice, WorkerOptions
from feeder.loader.service_options import Service
from feeder.order.buckets import Buckets
from feeder.order.lanes import Lanes
from feeder.order.sample_order import Window
from feeder.order.skip import Skip
from feeder.transforms import (
    BUCKET,
    MixUp,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)
from feeder.transforms.pad_to_batch import PadToBatch
from tests.support import images
from tests.support.batches import copied_epoch, same_batches
from tests.support.loader_data import CROP_AND_FLIP, write_shards
from tests.support.torch_datasets import Stream

OWN = {*inspect.signature(DataLoader).parameters} - {*inspect.signature(torch.utils.data.DataLoader).parameters}


def note_start(path: Path, worker: int) -> None:
    path.write_text(str(worker))


class Derived(ShardDataset):
    """A derived class, whose samples a loader takes by torch's path."""

    def __getitem__(self, i: Any) -> Any:
        return super().__getitem__(i)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"rank": 0, "world_size": 2}, "^rank, world_size are for .*DistributedSampler splits the samples"),
        ({"shuffle": Window(4)}, r"^shuffle=Window\(...\) is for "),
    ],
)
def test_an_argument_that_other_datasets_do_not_take_is_named_alone(options: Any, named: str) -> None:
    with pytest.raises(ArgumentError, match=named):
        DataLoader([1, 2], **options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"seed": 1}, "^seed is for feeder's datasets, .* Here the dataset is a Stream. Leave it out; .*manual_seed"),
        ({"backend": "pillow", "on_error": "skip"}, "^backend, on_error are for .*Leave them out$"),
    ],
)
def test_an_argument_for_images_is_refused_where_there_are_none(options: Any, named: str) -> None:
    with pytest.raises(ArgumentError, match=named):
        DataLoader(Stream(), **options)
    later = named.replace("Here the dataset is a Stream", "which these samples lack").removesuffix("$")
    with pytest.raises(ArgumentError, match=later):
        next(iter(DataLoader([1, 2], **options)))


def test_loaders_show_what_they_are(tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 8), CROP_AND_FLIP)
    fast = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=2, seed=0, device="cpu")
    held = f"DataLoader({dataset!r}, batch_size=4, "
    assert repr(fast) == f"{held}shuffle=True, num_workers=2, seed=0, device='cpu', path='fast')"
    assert (
        repr(DataLoader(dataset, 4, sampler=[1], seed=0)) == f"{held}sampler=list, num_workers=0, seed=0, path='fast')"
    )
    plain = DataLoader(range(9), shuffle=True)
    assert repr(plain) == "DataLoader(range, batch_size=1, shuffle=True, num_workers=0, path='generic')"
    batches = DataLoader(range(9), batch_sampler=[[1, 2]])
    assert repr(batches) == "DataLoader(range, batch_sampler=list, num_workers=0, path='generic')"
    assert repr(DataLoader.__new__(DataLoader)).startswith("<feeder.loader.dataloader.DataLoader object")


def test_public_attributes_are_those_for_users(shards: Path) -> None:
    methods = {
        "close",
        "load_state_dict",
        "options",
        "replay",
        "reset",
        "samples_of",
        "set_epoch",
        "span_of",
        "state_dict",
    }
    methods |= {"stats", "steps_of", "worker_pids"}
    dataset = ShardDataset(shards, CROP_AND_FLIP)
    for loader in (DataLoader(dataset, batch_size=4), DataLoader(range(9))):
        further = set(dir(loader)) - set(dir(torch.utils.data.DataLoader(dataset)))
        public = {name for name in further if not name.startswith("_")}
        assert public - set(inspect.signature(DataLoader).parameters) == {"metrics_url", "path", *methods}


def test_a_timeout_without_workers_is_refused_as_torch_does(shards: Path) -> None:
    with pytest.raises(AssertionError, match="timeout must be 0"):
        iter(DataLoader(ShardDataset(shards, CROP_AND_FLIP), timeout=5))


def test_it_is_torchs_loader_with_its_attributes(shards: Path) -> None:
    dataset = ShardDataset(shards, CROP_AND_FLIP)
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2, seed=4)
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert (loader.batch_size, loader.num_workers, loader.prefetch_factor, loader.seed) == (8, 2, 2, 4)
    assert loader.dataset is dataset
    with pytest.raises(ValueError, match="batch_size"):
        loader.batch_size = 4
    with pytest.raises(ValueError, match="num_workers"):
        DataLoader(dataset, num_workers=-1)


@pytest.mark.parametrize(
    "arguments",
    [
        {"seed": -1},
        {"seed": 1.0},
        {"seed": "0"},
        {"rank": 0},
        {"rank": 2, "world_size": 2},
        {"on_error": "ignore"},
        {"backend": "magic"},
        {"memory_format": torch.preserve_format},
        {"sizes": (8, 8)},
        {"metrics": -1},
    ],
)
def test_bad_arguments_are_refused(shards: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        DataLoader(ShardDataset(shards, CROP_AND_FLIP), **arguments)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (ToDevice, {"device": "cpu", "prefetch": -1}),
        (WorkerOptions, {"threads": 0}),
        (WorkerOptions, {"hang_timeout_s": 0}),
        (WorkerOptions, {"numa_node": "here"}),
        (Dali, {"hw_decoder_load": 1.5}),
        (Dali, {"memory_limit_bytes": 0}),
        (Service, {"name": ""}),
        (Service, {"name": "file:"}),
        (Metrics, {"port": 1 << 16}),
    ],
)
def test_bad_options_are_refused(kind: Any, arguments: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        kind(**arguments)


def test_frameworks_find_each_argument_by_its_name(shards: Path) -> None:
    """Lightning looks in ``vars(loader)`` for what to make another loader of."""
    for dataset in (ShardDataset(shards, CROP_AND_FLIP), torch.arange(4)):
        loader = DataLoader(dataset, device="cpu")
        assert {name for name in OWN if name not in vars(loader)} == set()
        assert loader.device == vars(loader)["device"] == "cpu"
        with pytest.raises(ArgumentError, match="device can't be changed"):
            loader.device = None


def test_other_datasets_take_torchs_path() -> None:
    loader = DataLoader(torch.arange(10), batch_size=4)
    assert [b.tolist() for b in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    channels_last = {"memory_format": torch.channels_last}
    for options in ({"rank": 0, "world_size": 2}, {"shuffle": Window(4)}, channels_last):
        with pytest.raises(ArgumentError, match="feeder's datasets"):
            DataLoader(torch.arange(10), **options)


def test_what_would_have_no_effect_any_more_is_not_assigned(shards: Path) -> None:
    loader: Any = DataLoader(ShardDataset(shards, CROP_AND_FLIP), batch_size=8)
    vars(loader)["_DataLoader__initialized"] = False  # as timm's MultiEpochsDataLoader passes torch's own check
    for name in OWN - {"skip"} | {"collate_fn"}:
        before = getattr(loader, name)
        with pytest.raises(ArgumentError, match=f"{name} can't be changed"):
            setattr(loader, name, len)
        assert getattr(loader, name) is before
    loader.whatever = 1
    loader.batch_sampler = len
    with pytest.raises(ArgumentError, match="batch_sampler can't be changed"):
        iter(loader)
    generic = DataLoader(torch.arange(4), batch_size=2)
    generic.collate_fn = len
    assert list(generic) == [2, 2]


@pytest.mark.parametrize(
    "arguments",
    [
        {"shuffle": True, "mix": MixUp(num_classes=7), "skip": range(20), "on_error": "skip"},
        {"shuffle": Window(16), "generator": torch.Generator().manual_seed(4), "rank": 1, "world_size": 2},
        {"sampler": [3, 1, 2], "memory_format": torch.channels_last, "drop_last": True, "num_workers": "auto"},
        {"fidelity": "exact", "seed": 3, "collate_fn": None, "batch_size": 16},
        {"shuffle": True, "skip": [4], "collate_fn": len},
        {"device": ToDevice("cpu", prefetch=1), "worker_options": WorkerOptions(threads=2), "backend": "cpu"},
        {"sizes": PadToBatch(8), "metrics": Metrics(), "memory_format": torch.channels_last},
    ],
)
def test_options_make_another_loader_like_it(shards: Path, arguments: dict[str, Any]) -> None:
    loader = DataLoader(ShardDataset(shards, CROP_AND_FLIP), **({"batch_size": 4} | arguments))
    options = loader.options()
    settled = {"worker_options"} if arguments.get("num_workers") == "auto" else set()
    assert {*arguments} - {"collate_fn"} <= {*options} <= {*arguments, "dataset", "batch_size", "seed"} | settled
    another = DataLoader(**options)
    assert another.options() == options
    if options.get("collate_fn"):
        assert [*another] == [*loader]
    else:
        assert same_batches(copied_epoch(another), copied_epoch(loader))


GIVEN: dict[str, Any] = {
    "seed": 3,
    "rank": 1,
    "world_size": 2,
    "skip": Skip([4]),
    "mix": MixUp(num_classes=7),
    "sizes": PadToBatch(8),
    "memory_format": torch.channels_last,
    "device": ToDevice("cpu", prefetch=1),
    "backend": Dali(hw_decoder_load=0.5),
    "fidelity": "exact",
    "worker_options": WorkerOptions(hang_timeout_s=9),
    "on_error": "skip",
    "snapshot_every_n_steps": 3,
    "service": Service("file:none", only=True),
    "metrics": Metrics(address="127.0.0.2"),
}


@pytest.mark.parametrize("name", sorted(OWN))
def test_each_of_feeders_arguments_reads_back_and_is_accepted_again(shards: Path, name: str) -> None:
    value = GIVEN[name]
    together = {"rank": ("world_size", "seed"), "world_size": ("rank", "seed"), "service": ("seed",)}
    arguments = {each: GIVEN[each] for each in (name, *together.get(name, ()))}
    loader = DataLoader(ShardDataset(shards, CROP_AND_FLIP), 4, **arguments)
    assert value != inspect.signature(DataLoader).parameters[name].default
    assert getattr(loader, name) == vars(loader)[name] == loader.options()[name] == value
    again = DataLoader(ShardDataset(shards, CROP_AND_FLIP), 4, **{each: getattr(loader, each) for each in OWN})
    assert {each: getattr(again, each) for each in OWN} == {each: getattr(loader, each) for each in OWN}


def test_options_are_those_of_the_run(shards: Path) -> None:
    loader, resumed = (DataLoader(ShardDataset(shards, CROP_AND_FLIP), 4) for _ in range(2))
    loader.skip = [1, 2]
    next(iter(loader))
    resumed.load_state_dict(loader.state_dict())
    assert resumed.options()["skip"] == loader.options()["skip"] == loader.skip
    assert DataLoader([1, 2], num_workers=1).options() == {"dataset": [1, 2], "num_workers": 1}


def _torchs(loader: Any) -> list[Any]:
    """The batches of the loader that frameworks make of another's attributes."""
    batches: Any = torch.utils.data.BatchSampler(torch.utils.data.DistributedSampler(loader.dataset, 2, 0), 8, False)
    return [*torch.utils.data.DataLoader(loader.dataset, batch_sampler=batches, collate_fn=loader.collate_fn)]


@pytest.mark.parametrize(
    ("named", "arguments"),
    [
        ("mix=", {"mix": MixUp()}),
        ("skip=, and would bring back what skip= leaves out", {"skip": [3]}),
        ("skip=, and", {"skip": [3], "collate_fn": len}),
        ("memory_format=, on_error=", {"memory_format": torch.channels_last, "on_error": "skip"}),
        ("fidelity=, worker_options=", {"fidelity": "exact", "worker_options": WorkerOptions(hang_timeout_s=9)}),
        ("rank=, world_size=, device=", {"rank": 0, "world_size": 1, "device": "cpu"}),
        ("seed=, shuffle=", {"seed": 3, "shuffle": Lanes()}),
        ("metrics=", {"metrics": 0}),
    ],
)
def test_a_loader_of_torchs_in_its_place_is_refused(shards: Path, named: str, arguments: dict[str, Any]) -> None:
    loader = DataLoader(ShardDataset(shards, CROP_AND_FLIP), 8, **arguments)
    with pytest.raises(ArgumentError, match=f"feeder loader, without {named}.*Leave the loader as it is"):
        _torchs(loader)


def test_a_loader_of_torchs_in_place_of_one_with_buckets_is_refused(shards: Path) -> None:
    loader = DataLoader(ShardDataset(shards, RandomResizedCrop(BUCKET)), 8, sizes=Buckets([(8, 8), (8, 16)]))
    with pytest.raises(
        ArgumentError, match=r"sizes=feeder.Buckets\(...\), and iterate over it, not over one of torch's"
    ):
        _torchs(loader)


def test_a_loader_of_torchs_in_its_place_warns(shards: Path) -> None:
    dataset = ShardDataset(shards, CROP_AND_FLIP)
    for collate in (None, list):
        loader: Any = DataLoader(dataset, 8, collate_fn=collate)
        with pytest.warns(UserWarning, match="torch's loader was made from .*Leave the loader as it is") as caught:
            assert len(_torchs(loader)) == 4
        assert len(caught) == 1
        assert len([*loader]) == 7
        assert len(loader.collate_fn([dataset[0], dataset[1]])) == 2  # by hand


def test_options_of_the_fast_path_are_refused_with_what_it_lacks(shards: Path) -> None:
    dataset = ShardDataset(shards, CROP_AND_FLIP)
    concatenated: Any = torch.utils.data.ConcatDataset([dataset, ShardDataset(shards, Resize(8))])
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (concatenated, {}, "the dataset is a ConcatDataset"),
        (torch.arange(10), {}, "the dataset is a Tensor"),
        (ShardDataset(shards, Resize(8)), {}, r"Resize\(\(height, width\)\)"),
        (dataset, {"batch_size": None}, "batch_size is None"),
    ]
    for given, arguments, message in cases:
        with pytest.raises(ArgumentError, match=message):
            DataLoader(given, memory_format=torch.channels_last, **arguments)


@pytest.mark.filterwarnings("ignore:this loader runs torch's path")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_derived_class_comes_in_torchs_order_and_refuses_feeders_own_arguments(shards: Path, workers: int) -> None:
    dataset = Derived(shards, CROP_AND_FLIP, fields=("index",))
    loader = DataLoader(dataset, 8, shuffle=True, num_workers=workers)
    plain: Any = torch.utils.data.DataLoader(range(len(dataset)), 8, shuffle=True)  # type: ignore[arg-type]
    torch.manual_seed(3)
    expected = [ids.tolist() for ids in plain]
    torch.manual_seed(3)
    assert [ids.tolist() for *_, ids in loader] == expected
    for options, named in (
        ({"rank": 0, "world_size": 2}, "rank, world_size are for .*a DistributedSampler splits"),
        ({"shuffle": Window(4)}, r"shuffle=Window\(...\) is for"),
        ({"skip": [1]}, "skip= is for feeder's path. Here .*Leave the samples out by a Subset"),
    ):
        with pytest.raises(ArgumentError, match=named):
            DataLoader(dataset, 8, **options)
    with pytest.raises(ArgumentError, match="skip= is for feeder's path"):
        loader.skip = [1]
    assert loader.skip is None


def test_images_without_a_fixed_size_take_torchs_path(shards: Path) -> None:
    dataset = ShardDataset(shards, Resize(8))
    with pytest.warns(UserWarning, match="runs torch's path"):
        loader = DataLoader(dataset, batch_size=4)
    images, labels = next(iter(loader))
    assert images.shape == (4, 3, 8, 10)
    assert labels.tolist() == [0, 1, 2, 3]


class _AsDict(torch.utils.data.Dataset[Any]):
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, i: int) -> Any:
        return {"label": self.inner[i][1]}


def test_a_feeder_dataset_on_torchs_path_is_warned_of_once_with_the_reason_and_the_way_out(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = ShardDataset(shards, CROP_AND_FLIP)
    subset = torch.utils.data.Subset(dataset, [1, 2])
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (_AsDict(dataset), {}, "the dataset is a _AsDict around a ShardDataset: give the ShardDataset itself"),
        (_AsDict(_AsDict(subset)), {"num_workers": 1}, "a _AsDict around a ShardDataset"),
        (_AsDict([dataset]), {}, "a _AsDict around a ShardDataset"),
        (ShardDataset(shards, Resize(8)), {}, r"images have sizes of their own: .*\(\(height, width\)\), or give a"),
        (dataset, {"batch_size": None}, "batch_size is None: give batch_size"),
    ]
    for given, arguments, message in cases:
        with pytest.warns(UserWarning, match=message) as caught:
            loader = DataLoader(given, **arguments)
        assert [warning.filename for warning in caught] == [__file__]
        assert loader.path == loader.stats()["path"] == "generic"
        assert loader.stats()["path_reason"] in str(caught[0].message)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.warns(UserWarning, match="Each of the 2 ranks gets all samples, unless a sampler splits them"):
        DataLoader(_AsDict(dataset))
    for quiet in (DataLoader(dataset), DataLoader(subset), DataLoader(torch.arange(3))):
        assert quiet.stats()["path"] == quiet.path
        assert quiet.stats()["path_reason"] is None
    assert DataLoader(subset).path == "fast"
    assert DataLoader(torch.arange(3)).path == "generic"


@pytest.mark.parametrize("workers", [0, 1])
def test_images_of_different_sizes_are_told_of_when_the_loader_is_made(tmp_path: Path, workers: int) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    for i in range(4):
        (folder / f"{i}.jpg").write_bytes(images.encode(images.pixels(i, 40 + 8 * i, 30)))
    for recipe in (Resize(16), RandomHorizontalFlip()):
        with pytest.warns(UserWarning, match="sizes of their own: end the geometry of the recipe with a crop"):
            loader = DataLoader(FolderDataset(tmp_path, transform=recipe), batch_size=4, num_workers=workers)
        with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
            next(iter(loader))
    same = FolderDataset(tmp_path, transform=Resize((16, 16)))
    assert next(iter(DataLoader(same, batch_size=4)))[0].shape == (4, 3, 16, 16)


def test_a_derived_loader_may_have_such_a_name_before_it_is_made(shards: Path) -> None:
    class Own(DataLoader):
        def __init__(self, *arguments: Any) -> None:
            assert not hasattr(self, "device")
            self.metrics = 3
            super().__init__(*arguments)

    loader = Own(ShardDataset(shards, CROP_AND_FLIP))
    assert loader.metrics is None
    with pytest.raises(ArgumentError, match="metrics can't be changed"):
        loader.metrics = 3


def test_workers_run_the_init_function_that_was_assigned(shards: Path, tmp_path: Path) -> None:
    """As Lightning does; also after an epoch of workers that persist."""
    loader = DataLoader(ShardDataset(shards, CROP_AND_FLIP), num_workers=1, persistent_workers=True)
    for name in ("first", "second"):
        loader.worker_init_fn = functools.partial(note_start, tmp_path / name)
        copied_epoch(loader)
        assert (tmp_path / name).read_text() == "0"
    loader.close()


def test_options_have_the_threads_that_auto_chose(shards: Path) -> None:
    loader = DataLoader(ShardDataset(shards, CROP_AND_FLIP), num_workers="auto")
    assert loader.worker_options is not None
    assert loader.options()["worker_options"] == loader.worker_options
