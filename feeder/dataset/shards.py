"""Shard sets as datasets."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from feeder.dataset.base import FeederDataset, applies_exif
from feeder.dataset.extras import Extra, Fields
from feeder.dataset.fields_of import fields_of
from feeder.dataset.further_images import FurtherImage
from feeder.dataset.joined_reader import JoinedReader
from feeder.dataset.relabel import (
    TargetTransform,
    labels_from_json,
    name_classes,
    refuse_unread_labels,
    share_classes,
    transform_labels,
    without_labels,
)
from feeder.dataset.shard_reader import ShardReader
from feeder.dataset.target_values import target_values, targets_in
from feeder.errors import ArgumentError
from feeder.shard.cache.cache_mirror import CacheMirror, FetchOptions, open_mirror
from feeder.shard.cache.places import refuse_mirror
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.store.store import TIMEOUT_S
from feeder.shard.store.url import is_remote, local_path
from feeder.system.text import count
from feeder.system.warning import warn
from feeder.transforms import recipe_or_views
from feeder.transforms.targets import Target

# The first samples whose orientations are looked at when a dataset is made, some milliseconds, in blocks of this size.
_LOOKED_AT = 1 << 20
_BLOCK = 1 << 16


class ShardDataset(FeederDataset):
    """Samples of a shard set that ``feeder shard`` or ``feeder index`` made, or of several sets in a row.

    The index is memory-mapped, and opened again in each process: a pickle holds only its path, and workers share one
    copy in the page cache.

    Args:
        path: The shards' folder, or its index file; or a list of these, whose samples follow one another. Also the
            URL of a folder in an object store, ``s3://bucket/set``, ``gs://``, ``az://`` or ``https://``: a process of
            its own fetches what is needed into a cache, once for all ranks and jobs on a machine. Or a dataset on the
            Hub, ``hf://datasets/ORG/NAME@REVISION/path``: a set, or WebDataset tars, which are indexed on first use.
        transform: A recipe of :mod:`feeder.transforms`, torchvision's ``Compose``, or None for the image as it is.
        fields: Further fields of each sample: "key", "path" (the original path), "index" (the sample id), "json"
            (parsed) or any other member of the sample (its bytes); "json:caption" (the value of that key of "json", or
            of another JSON member: a manifest's columns stand there); "width" and "height" (of the image before the
            recipe, pixels), "orientation" (EXIF's, 1-8); "row" (in the manifest that was sharded, from 0);
            "original_size" (height, width, int64 [2]) and "crop_box" (top, left, height, width of the recipe's crop, in
            pixels of the resized image and before any flip, int64 [4]; not with ``Views``). Or a mapping of names to a
            kind of :mod:`feeder.fields`, a function of the member's or value's bytes, or None for the value that the
            name alone gives: ``{"txt": feeder.fields.Text(), "json:score": feeder.fields.Float(), "key": None}``.
        exif_orientation: "apply" turns images upright; "ignore" leaves them as stored, as torchvision does.
        classes: Class names by label. If the set has class names, in its index, manifest or ``cls`` fields, labels
            follow this list: ``ShardDataset(val, classes=train.classes)`` has the labels of ``train``. For several
            sets, None requires the same class names in each; "merge" numbers all names in the order in which they
            first appear, so that the first set keeps its labels.
        labels: True for those of the set; False for none, which is -1. A key of the samples' ``json`` for its values:
            integers from 0 are class numbers, text is a class name (numbered in sorted order), and other numbers are
            float32 targets. Several keys for their numbers as targets. The ``json`` of all samples is read when the
            dataset is created.
        target_transform: A function of a label, or a mapping of all labels, to an integer, a float or a row of numbers.
            It is applied once to each label that occurs, when the dataset is created; -1 stays.
        version: Number of the version of each set, from 1; None for the newest. ``feeder append`` makes a new one.
        targets: Members that the geometry of the recipe moves with the image, such as ``{"seg.png": T.Mask(),
            "boxes.json": T.BoundingBoxes(), "kp.json": T.KeyPoints()}``, or further images, ``{"right.png":
            T.Image()}``. A sample has them after its label, before its fields.
        cache_dir: Folder of the cache of remote sets; None: ``feeder`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.
        cache_bytes: Bytes that the cache of each remote set may take; None: what leaves 10 GiB of the disk free,
            or a tenth of a smaller one. Shards stay until the cache is full; the others come and go.
        allow_http: True to allow http without encryption; None: as ``AWS_ALLOW_HTTP`` says, else False.
        allow_private: True to let a web server of the internet redirect to this machine and to private networks.
        timeout: Seconds that a store is waited for, also one whose answers drip, after which reading is an error.
        fetch_crops: True to fetch of each image in a store only the blocks of 256 KiB that the rows of its crop lie in,
            when it is read; False fetches all of a shard ahead, in ranges of 8 MiB. True saves traffic for small crops
            of images of several MB, and costs requests. For random crops of ImageNet's photos, of 110 kB, it does not
            pay: the rows are 78 % of the bytes, at 1.37 requests a sample, 1.75 million in an epoch instead of 17,000.
            Only ``RandomResizedCrop`` and ``RandomIoUCrop`` before any other op but flips need a part of the rows, with
            views all of them: other crops are cut from the whole image, or from the whole resized one, of which all
            bytes are fetched.

    Raises:
        StoreError: if a remote set can't be read; where bytes come only when they are needed, then.
        FormatError: if an index is missing or damaged.
        ArgumentError: for a field that no sample of a set has, or that is refused, or of no kind; for a target that the
            recipe can't move; for an unknown ``exif_orientation``; for ``cls`` fields without labels; for labels that
            are not in ``classes`` or ``target_transform``; for sets whose classes differ, naming the first difference.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        transform: Any = None,
        fields: Fields = (),
        exif_orientation: str = "apply",
        *,
        classes: Sequence[str] | Literal["merge"] | None = None,
        labels: bool | str | Sequence[str] = True,
        target_transform: TargetTransform | None = None,
        targets: Mapping[str, Target] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
        allow_http: bool | None = None,
        allow_private: bool = False,
        timeout: float = TIMEOUT_S,
        version: int | None = None,
        fetch_crops: bool = False,
    ) -> None:
        paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
        if not paths:
            raise ArgumentError("path must be a folder of shards or a list of these, got an empty list")
        wanted = None if classes == "merge" else classes

        exif = applies_exif(exif_orientation)

        def mirrored(url: str) -> CacheMirror:
            options = FetchOptions(
                url,
                cache_bytes=cache_bytes,
                allow_http=allow_http,
                allow_private=allow_private,
                timeout_s=timeout,
                reads_crops=fetch_crops,
            )
            return open_mirror(options, cache_dir)

        readers = [_opened(each, mirrored, exif, wanted, labels, version) for each in paths]
        if len(readers) > 1:
            share_classes(readers, merge=classes == "merge")

        if target_transform is not None:
            transform_labels(readers, target_transform)
        reader = readers[0] if len(readers) == 1 else JoinedReader(readers, own_index=True)

        recipe = recipe_or_views(transform)
        super().__init__(reader, recipe, (*target_values(targets, recipe, exif=exif), *fields_of(fields)))
        self._check_extras()
        for each in readers:
            _warn_of_turned(each, self.extras)


def _warn_of_turned(reader: ShardReader, extras: Sequence[Extra]) -> None:
    """Warns of targets without the ``canvas`` that turned images need: each is an error only when it comes."""
    moved = (each for each in targets_in(extras) if not isinstance(each, FurtherImage))
    names = [each.name for each in moved if each.target.canvas is None]
    if not names or not reader.exif or reader.is_remote:
        return
    looked_at, turned = min(len(reader), _LOOKED_AT), 0
    for first in range(0, looked_at, _BLOCK):
        rows = reader.index.rows(np.arange(first, min(first + _BLOCK, looked_at)))
        turned += int(np.count_nonzero(rows.orientation != 1))
    if turned:
        warn(
            f"{reader.place}: {turned:,} of the first {count(looked_at, 'image')} have an EXIF orientation, and will "
            f"be errors: give {', '.join(map(repr, names))} canvas='stored' if targets are in pixels of the file, or "
            "canvas='upright' if they are in pixels of the image as it is seen"
        )


def _opened(
    path: str | os.PathLike[str],
    mirrored: Callable[[str], CacheMirror],
    exif: bool,
    classes: Sequence[str] | None,
    labels: bool | str | Sequence[str],
    version: int | None,
) -> ShardReader:
    """Opens one set, with the requested labels."""
    folder, mirror, hub = os.fspath(path), None, None

    if folder.startswith("hf://"):
        from feeder.shard.write.index_tars import hub_header

        hub, folder = hub_header(folder)
    if is_remote(folder):
        mirror = mirrored(folder)
        index = os.path.join(mirror.folder, mirror.options.index)
    else:
        folder = local_path(folder)
        index = os.path.abspath(os.path.join(folder, INDEX_NAME) if os.path.isdir(folder) else folder)
        refuse_mirror(os.path.dirname(index))

    reader = ShardReader(index, exif=exif, version=version, mirror=mirror)
    reader.hub = hub

    if labels is False:
        if classes is not None:
            raise ArgumentError("classes= names the classes of labels, and labels=False asks for none")
        without_labels(reader)
    elif labels is not True:
        labels_from_json(reader, labels, classes)
    if classes is not None:
        name_classes(reader, classes)
    if labels is True:
        refuse_unread_labels(reader)
    return reader
