"""DALI on the CPU as its documentation shows it: its readers, its decoder, its iterator for torch."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Generator
from typing import Any

import torch

from feeder.tools.bench.bench_options import RivalTask
from feeder.tools.bench.images import files_of, image_fields, is_packed_set, listed, tars
from feeder.tools.presets import MEAN, STD, is_shards, val_resize

_SHUFFLE_SAMPLES = 1000


def dali_batches(task: RivalTask) -> Generator[tuple[torch.Tensor, Any], None, None]:
    """Yields batches of images and labels; of shards, whose labels are text, without labels.

    Of packed shards, the files in the task's folder take their place.
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
