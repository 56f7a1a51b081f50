"""Shards of datasets as objects: other libraries' are read without decoding."""

from __future__ import annotations

import bisect
import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from feeder.dataset.base import FeederDataset
from feeder.dataset.converted import ConvertedDataset
from feeder.dataset.foreign import ForeignReader, image_columns, read_foreign
from feeder.decoders.image_header import clipped_warning, image_info
from feeder.decoders.raw import is_raw, raw_pixels
from feeder.errors import ArgumentError, SourceError
from feeder.shard.source.box_files import open_voc
from feeder.shard.source.coco import open_coco
from feeder.shard.source.image_file import read_image
from feeder.shard.source.iterable import open_samples
from feeder.shard.source.json_field import json_field
from feeder.shard.source.labels import check_classes
from feeder.shard.source.pairs import open_pairs
from feeder.shard.source.source import Source
from feeder.shard.store.url import local_path
from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.shard_options import ShardOptions, ShardSummary
from feeder.shard.write.sharding import run_sharding
from feeder.system.arrays import Int64s
from feeder.system.progress import terminal_progress
from feeder.system.warning import warn


def write_shards(
    samples: Any,
    out: str | os.PathLike[str],
    *,
    seed: int = 0,
    shuffle: bool = True,
    shard_size_bytes: int = 256 << 20,
    samples_per_shard: int | None = None,
    workers: int | None = None,
    max_bad: float = 0.01,
    encode: EncodeOptions | str | None = None,
    image_field: str | None = None,
    classes: Sequence[str] | None = None,
    engine: str = "local",
    address: str | None = None,
    progress: bool = False,
) -> ShardSummary:
    """Shards a dataset, or any iterable of samples, shuffled.

    Datasets that :func:`feeder.from_torch` takes give their files, undecoded and without transforms: class folders,
    COCO's and Pascal VOC's with boxes or masks as from ``feeder shard``, CIFAR's pixels, rows of Hugging Face with
    further images as members such as ``mask.png`` and the other columns as ``json``; subsets and concatenations too. A
    file that comes again is named ``a.jpg#2``.
    Any other dataset gives the samples that it returns.

    They are read once and spooled to disk, in the output folder, before they are shuffled. An interrupted run can't
    be resumed: remove the folder and start again.

    Args:
        samples: A dataset or an iterable. A sample is a dict of fields by extension, such as
            ``{"__key__": "cat-1", "jpg": b"...", "cls": 3}``, or an image, or an image and its label. Values are bytes,
            text, integers, JSON values for ``json``, and arrays for names that end in ``npy``; images also Pillow's,
            uint8 arrays [H, W] or [H, W, channels], and tensors [channels, H, W], which become PNGs. ``cls`` is a class
            number, 0 or more, or a class name; a sample without a label has -1 or no ``cls``.
        out: Output folder, new or empty, or such a place in a store, as "s3://bucket/set".
        seed, shuffle, shard_size_bytes, samples_per_shard, workers, max_bad, image_field: As in :class:`ShardOptions`.
        encode: As there, or the mode alone: "seekable", "packed", "keep", "jpeg" or "raw".
        classes: Class names by label; None takes the names in ``cls``, sorted.
        engine, address: As in :class:`ShardOptions`.
        progress: True shows the progress on standard error once all samples are spooled: a bar on a terminal or in a
            notebook, elsewhere a line every few seconds.

    Raises:
        SourceError: for a sample that is not such a dict, a class that is not in ``classes``, or if more than
            ``max_bad`` of the images are bad.
        ShardError: if the output folder can't be used.
    """
    options = ShardOptions(
        seed,
        shuffle,
        shard_size_bytes,
        samples_per_shard,
        workers,
        max_bad,
        EncodeOptions(encode) if isinstance(encode, str) else encode or EncodeOptions(),
        image_field=image_field,
        engine=engine,
        address=address,
    )
    names = None if classes is None else check_classes(classes)

    summary = run_sharding(
        lambda work, image_field: open_dataset(samples, work, image_field, names),
        local_path(os.fspath(out)),
        options,
        terminal_progress(not progress),
    )
    if summary.too_many_bad:
        raise SourceError(summary.too_many_bad)
    if summary.clipped:
        warn(clipped_warning(summary.clipped))
    return summary


def open_dataset(samples: Any, work: str, image_field: str | None, classes: Sequence[str] | None) -> Source:
    """Lists the samples of a dataset, or those of an iterable.

    Args:
        samples: See :func:`write_shards`.
        work: Folder for scratch files.
        image_field: See :func:`open_samples`.
        classes: Class names by label; None takes the dataset's own.

    Raises:
        ArgumentError: for a dataset of feeder's, and for several that can't be one set.
        SourceError: for a sample that can't be written.
    """
    leaves = _leaves(samples)
    if any(isinstance(each, FeederDataset) for each in leaves):
        raise ArgumentError(f"{type(samples).__name__} reads a folder or a set: `feeder shard` takes it by its path")
    spool = os.path.join(work, "spool")
    try:
        readers = [read_foreign(each) for each in leaves]
    except TypeError:  # its samples are what it returns
        if not hasattr(samples, "__iter__") and hasattr(samples, "__len__"):
            samples = map(samples.__getitem__, range(len(samples)))
        return open_samples(samples, spool, image_field, classes)

    chosen = _chosen(samples, range(len(samples)))
    repeats = {id(leaf): np.zeros(len(leaf), np.int64) for leaf in leaves}
    if any(hasattr(each, "coco") or hasattr(each, "parse_voc_xml") or hasattr(each, "masks") for each in leaves):
        if len(leaves) > 1:
            raise ArgumentError("several datasets with boxes or masks: write one, and add the others by feeder append")
        ids = [i for _, i in chosen]
        if len({*ids}) < len(ids):
            raise ArgumentError("a sample with boxes or masks comes twice: write each once, and repeat it by a sampler")
        return _open_annotated(leaves[0], ids, work)

    names = [_names(leaf, reader) for leaf, reader in zip(leaves, readers, strict=True)]
    if any(each != names[0] for each in names):
        raise ArgumentError("the datasets name their classes in different ways: write each as a set of its own")
    by_leaf = {
        id(leaf): (reader, _rows(leaf, reader), f"{number}/" if len(leaves) > 1 else "")
        for number, (leaf, reader) in enumerate(zip(leaves, readers, strict=True))
    }
    fields = (_fields(i, *by_leaf[id(leaf)], repeats[id(leaf)]) for leaf, i in chosen)
    return open_samples(fields, spool, None, names[0] if classes is None else classes)


def _leaves(dataset: Any) -> list[Any]:
    """Returns the datasets that subsets and concatenations are made of, each once."""
    if isinstance(dataset, Subset):
        return _leaves(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return list({id(leaf): leaf for each in dataset.datasets for leaf in _leaves(each)}.values())
    return [dataset.theirs if isinstance(dataset, ConvertedDataset) else dataset]


def _chosen(dataset: Any, ids: Iterable[int]) -> Iterator[tuple[Any, int]]:
    """Yields the dataset and the number there of each of these samples."""
    if isinstance(dataset, Subset):
        yield from _chosen(dataset.dataset, (dataset.indices[i] for i in ids))
    elif isinstance(dataset, ConcatDataset):
        starts = [0, *dataset.cumulative_sizes]
        for i in (range(len(dataset))[i] for i in ids):
            number = bisect.bisect_right(starts, i) - 1
            yield from _chosen(dataset.datasets[number], [i - starts[number]])
    else:
        (leaf,) = _leaves(dataset)
        yield from ((leaf, range(len(leaf))[i]) for i in ids)


def _open_annotated(dataset: Any, ids: Sequence[int], work: str) -> Source:
    """Lists samples of torchvision's datasets of COCO and Pascal VOC, as ``feeder shard`` does."""
    spool, listed = os.path.join(work, "spool"), os.path.join(work, "listed")
    if hasattr(dataset, "coco"):
        images = [dataset.ids[i] for i in ids]
        data = {
            "images": dataset.coco.loadImgs(images),
            "annotations": dataset.coco.loadAnns(dataset.coco.getAnnIds(images)) if images else [],
            "categories": dataset.coco.dataset.get("categories", []),
        }
        with open(listed, "w", encoding="utf-8") as file:
            json.dump(data, file)
        return open_coco(os.fspath(dataset.root), listed, spool)

    with open(listed, "w", encoding="utf-8") as file:
        file.writelines(f"{os.path.splitext(os.path.basename(dataset.images[i]))[0]}\n" for i in ids)
    folder = os.path.dirname(dataset.images[0])
    if hasattr(dataset, "parse_voc_xml"):
        return open_voc(folder, os.path.dirname(dataset.annotations[0]), spool, listed)
    return open_pairs(folder, (("masks", os.path.dirname(dataset.masks[0])),), listed)


def _label_column(dataset: Any, reader: ForeignReader) -> str | None:
    """Returns the column with the labels of rows of Hugging Face: "label", or else the only one of classes."""
    names = [name for name in reader.row_names if type(dataset.features[name]).__name__ == "ClassLabel"]
    return "label" if "label" in names else names[0] if len(names) == 1 else None


def _names(dataset: Any, reader: ForeignReader) -> list[str] | None:
    column = _label_column(dataset, reader)
    return reader.classes if column is None else list(dataset.features[column].names)


class _Rows(NamedTuple):
    """Rows of Hugging Face without the image.

    Attributes:
        rows: The rows.
        label: Name of the column with the labels, if there is one.
        images: Names of further columns of images, whose cells are files.
    """

    rows: Any
    label: str | None
    images: tuple[str, ...]


def _rows(dataset: Any, reader: ForeignReader) -> _Rows | None:
    """Returns the rows of a dataset; None for one without any."""
    if not reader.row_names:
        return None
    rest = dataset.with_format(None).remove_columns(reader.image_column)
    images = tuple(image_columns(rest))
    for name in images:
        rest = rest.cast_column(name, dataclasses.replace(rest.features[name], decode=False))
    return _Rows(rest, _label_column(dataset, reader), images)


def _fields(i: int, reader: ForeignReader, rows: _Rows | None, prefix: str, repeats: Int64s) -> dict[str, Any]:
    """Returns a sample as :func:`open_samples` takes it, and counts it in ``repeats``, of which its name follows."""
    data = reader.encoded(i)
    repeats[i] += 1
    key = prefix + reader.path(i) + (f"#{repeats[i]}" if repeats[i] > 1 else "")
    if is_raw(data):
        found: dict[str, Any] = {"__key__": key, "png": raw_pixels(data)}
    else:
        try:
            found = {"__key__": key, image_info(data).extension: data}
        except ValueError:  # it is rejected with the reason
            found = {"__key__": key, "jpg": data}

    if rows is None:
        target = reader.field(i, "target")
        return found | ({"cls": target} if reader.targets is None else {"json": target})
    row = rows.rows[i] if rows.rows.column_names else {}  # one without columns has no rows
    label = row.pop(rows.label, None)
    try:
        for name in rows.images:
            cell = row.pop(name, None)
            if cell is not None:
                file = read_image(cell["path"]) if cell["bytes"] is None else cell["bytes"]
                found[f"{name}.{image_info(file).extension}"] = file
        extras = {"json": json_field(row)} if row else {}
    except (TypeError, ValueError) as error:
        raise SourceError(
            f"sample {key!r}: its columns {', '.join(row)} can't be written: {error}; leave such a column out by "
            "remove_columns"
        ) from None
    return found | {"cls": -1 if label is None else label} | extras
