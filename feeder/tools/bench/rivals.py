"""The rivals of ``feeder bench``. Each makes batches of the same images by the same work, or says why it can't."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from feeder.decoders.packed import is_packed_field
from feeder.decoders.registry import dali_is_installed
from feeder.loader.dataloader import DataLoader
from feeder.shard.format.packed_samples import packed_decoder
from feeder.shard.source.labels import label_text
from feeder.system.versions import pillow_info
from feeder.tools.bench.bench_options import BenchOptions, RivalTask
from feeder.tools.bench.images import files_of, image_fields, is_packed_set, listed, tars
from feeder.tools.bench.pillow import PillowDataset, preprocess
from feeder.tools.presets import MEAN, STD, is_shards, open_dataset, preset, val_resize

# Shorter epochs go over the images several times, so that their start and end do not dominate.
_LEAST_BATCHES = 64
_SHUFFLE_SAMPLES = 1000


@dataclass
class Feed:
    """A running rival.

    Attributes:
        batches: Yields (images, labels or None); closing it ends the workers.
        stats: Returns the rival's own figures.
    """

    batches: Generator[tuple[torch.Tensor, Any], None, None]
    stats: Callable[[], dict[str, Any]] = dict


@dataclass(frozen=True)
class Rival:
    """A system to measure.

    Attributes:
        title: Returns its name.
        missing: Returns the reason why it can't be measured on a path, with a folder of the same images or None, and on
            this machine; None if it can.
        open: Starts it.
    """

    title: Callable[[], str]
    missing: Callable[[str, str | None], str | None]
    open: Callable[[RivalTask], Feed]


def pillow_name() -> str:
    """Returns the distribution that PIL is imported from: "pillow" or "pillow-simd"."""
    info = pillow_info()
    return info.distribution if info and info.distribution != "unknown" else "pillow"


def _feeder(task: RivalTask) -> Feed:
    recipe = preset(task.options.preset, task.options.dtype, task.options.image_size)
    dataset = open_dataset(task.path, recipe, exif_orientation="ignore")  # as the peers do
    loader: DataLoader[Any] = DataLoader(dataset, backend=task.options.backend, **_arguments(task, len(dataset)))
    return Feed(_endless(loader, task.in_order), loader.stats)


def _torch(task: RivalTask) -> Feed:
    dataset = PillowDataset(task.path if task.in_order else task.folder or task.path, task.options)
    loader: TorchDataLoader[Any] = TorchDataLoader(dataset, **_arguments(task, len(dataset)))
    return Feed(_endless(loader, task.in_order))


def _arguments(task: RivalTask, images: int) -> dict[str, Any]:
    """Returns the arguments of both loaders."""
    batch_size = task.options.batch_size
    order: dict[str, Any] = {"shuffle": not task.in_order}
    if not task.in_order and images < _LEAST_BATCHES * batch_size:
        passes = -(-_LEAST_BATCHES * batch_size // images)
        order = {"sampler": torch.cat([torch.randperm(images) for _ in range(passes)]).tolist()}
    return order | {
        "batch_size": batch_size,
        "num_workers": task.workers,
        "drop_last": not task.in_order,
        "persistent_workers": task.workers > 0,
    }


def _endless(loader: TorchDataLoader[Any], once: bool) -> Generator[tuple[torch.Tensor, Any], None, None]:
    """Yields epoch after epoch; closing it closes the loader, if the loader can be closed."""
    try:
        while True:
            for images, labels, *_ in loader:
                yield images, labels
            if once:
                return
    finally:
        if isinstance(loader, DataLoader):
            loader.close()


def _webdataset(task: RivalTask) -> Feed:
    import webdataset as wds

    options = task.options
    shuffled = not task.in_order
    classes = open_dataset(task.path, None).class_to_idx or {}
    kinds = [f"{name[: -len('fpk')]}jpg" if is_packed_field(name) else name for name in image_fields(task.path)]
    sample = functools.partial(webdataset_sample, kinds, options, classes)

    # With replacement, so that any number of workers has shards, without end.
    source = wds.WebDataset(tars(task.path), resampled=shuffled, shardshuffle=False)
    if shuffled:
        source = source.shuffle(_SHUFFLE_SAMPLES)
    if is_packed_set(task.path):
        source = source.map(packed_decoder(task.path))
    source = source.map(sample).batched(
        options.batch_size, collation_fn=torch.utils.data.default_collate, partial=not shuffled
    )
    loader: Any = wds.WebLoader(source, batch_size=None, num_workers=task.workers, persistent_workers=task.workers > 0)
    return Feed(((images, labels) for images, labels in loader))


def webdataset_sample(
    kinds: Collection[str], options: BenchOptions, classes: Mapping[str, int], fields: dict[str, Any]
) -> tuple[torch.Tensor, int]:
    """Decodes a sample of the webdataset library, as :func:`preprocess` does; its label is -1 where it has none.

    Args:
        kinds: Names of the fields that hold images.
        options: The options of the benchmark.
        classes: Class numbers by name.
        fields: The sample's fields by name.
    """
    image = next(fields[name] for name in kinds if name in fields)
    label = label_text(fields.get("cls", b"-1")) or "-1"
    return preprocess(image, options), int(label) if label.lstrip("-").isdecimal() else classes.get(label, -1)


def _dali(task: RivalTask) -> Feed:
    return Feed(_dali_batches(task))


def _dali_batches(task: RivalTask) -> Generator[tuple[torch.Tensor, Any], None, None]:
    """Yields batches of images and labels by DALI on the CPU, used as its documentation shows it: its readers, its
    decoder, its iterator for torch.

    Labels of shards are None: they are text. In place of packed shards it reads the files in the task's folder.
    """
    # By name, as DALI's type hints don't cover this use.
    dali: Any = importlib.import_module("nvidia.dali")
    plugin: Any = importlib.import_module("nvidia.dali.plugin.pytorch")
    files: list[tuple[str, int]] | None = None
    if not is_shards(task.path):
        files = listed(task.path)
    elif is_packed_set(task.path):
        assert task.folder is not None
        files = files_of(task.path, task.folder)

    graph = functools.partial(_graph, task, files)
    threads = max(1, task.workers)
    built = dali.pipeline_def(graph, batch_size=task.options.batch_size, num_threads=threads, device_id=None)()
    built.build()
    iterator = plugin.DALIGenericIterator(
        [built],
        ["images"] if files is None else ["images", "labels"],
        reader_name="reader",
        last_batch_policy=plugin.LastBatchPolicy.PARTIAL if task.in_order else plugin.LastBatchPolicy.DROP,
        auto_reset=True,
    )
    while True:
        for (batch,) in iterator:
            yield batch["images"], batch["labels"].flatten() if "labels" in batch else None
        if task.in_order:
            return


def _graph(task: RivalTask, files: list[tuple[str, int]] | None) -> tuple[Any, ...]:
    """Returns the outputs of DALI's pipeline: images, and labels where there are files."""
    fn: Any = importlib.import_module("nvidia.dali.fn")
    types: Any = importlib.import_module("nvidia.dali.types")
    size = task.options.image_size
    train = task.options.preset == "train"
    floats = task.options.dtype == "float32"

    reader = {"random_shuffle": not task.in_order, "initial_fill": _SHUFFLE_SAMPLES, "name": "reader"}
    if files is None:
        fields = [";".join(image_fields(task.path)), "cls"]
        encoded = fn.readers.webdataset(paths=tars(task.path), ext=fields, **reader)[0]
        outputs = []  # their labels are text
    else:
        names, targets = zip(*files, strict=True)
        encoded, *outputs = fn.readers.file(files=list(names), labels=list(targets), **reader)

    resize = {"interp_type": types.INTERP_LINEAR, "antialias": True}
    if train:
        area, ratio = [0.08, 1.0], [3 / 4, 4 / 3]
        images = fn.decoders.image_random_crop(
            encoded, random_area=area, random_aspect_ratio=ratio, num_attempts=10, adjust_orientation=False
        )
        images = fn.resize(images, size=(size, size), **resize)
    else:
        images = fn.decoders.image(encoded, adjust_orientation=False)
        images = fn.resize(images, resize_shorter=val_resize(size), **resize)

    images = fn.crop_mirror_normalize(
        images,
        crop=(size, size),
        dtype=types.FLOAT if floats else types.UINT8,
        output_layout="CHW",
        mean=[255 * value for value in MEAN] if floats else 0.0,
        std=[255 * value for value in STD] if floats else 1.0,
        mirror=fn.random.coin_flip() if train else 0,
    )
    return images, *outputs


def _webdataset_missing(path: str, folder: str | None) -> str | None:
    if not is_shards(path):
        return "reads tars only: run `feeder shard` on the images, and measure the shards"
    return None if importlib.util.find_spec("webdataset") else "not installed (pip install webdataset)"


def _dali_missing(path: str, folder: str | None) -> str | None:
    if not dali_is_installed():
        return "not installed (pip install nvidia-dali-cuda130)"
    if is_shards(path) and "npy" in image_fields(path):
        return "decodes images only, and these shards hold raw pixels"
    if folder is None and is_packed_set(path):
        return "reads no packed images: give it the files of `feeder export` with --folder"
    return None


RIVALS: dict[str, Rival] = {
    "feeder": Rival(lambda: "feeder", lambda path, folder: None, _feeder),
    "torch": Rival(lambda: f"torch+{pillow_name()}", lambda path, folder: None, _torch),
    "webdataset": Rival(lambda: "webdataset", _webdataset_missing, _webdataset),
    "dali": Rival(lambda: "DALI (CPU)", _dali_missing, _dali),
}
