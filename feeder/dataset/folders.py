"""A folder of images for each class, as a dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from feeder.dataset.base import FeederDataset, applies_exif
from feeder.dataset.extras import Fields
from feeder.dataset.fields_of import fields_of
from feeder.dataset.folder_reader import FolderReader
from feeder.dataset.relabel import TargetTransform, name_classes, transform_labels
from feeder.dataset.stored_folder import open_stored_folder
from feeder.dataset.target_values import target_values
from feeder.shard.cache.cache_mirror import FetchOptions
from feeder.shard.cache.listed_contents import LISTING
from feeder.shard.store.open_store import open_store
from feeder.shard.store.store import TIMEOUT_S
from feeder.shard.store.url import is_remote
from feeder.transforms import recipe_or_views
from feeder.transforms.targets import Target


class FolderDataset(FeederDataset):
    """Images in a folder for each class, by torchvision's ImageFolder rule: classes are the subfolders, sorted.

    As in ``feeder shard``, hidden folders and those of systems, such as ``__MACOSX``, are no classes, and unfinished
    and backup files, such as ``a.jpg~``, are no images; a warning counts each kind. Files without an image's extension
    are judged by their first bytes.

    Args:
        path: The folder; or its URL in an object store, ``s3://bucket/images``, ``gs://``, ``az://`` or ``hf://``. It
            is listed once for all that open it within a minute, and images come whole, many at a time, when their
            batches are made. What lacks an image's extension is left out there, unread.
        transform: A recipe of :mod:`feeder.transforms`, torchvision's ``Compose``, or None for the image as it is.
        fields: Further fields of each sample: "key" (the path relative to the folder), "path", "index", "width",
            "height", "orientation", or a file beside the image, by what follows the image's name without its extension:
            "txt" is ``a.txt`` for ``a.jpg``. Or a mapping, see :class:`ShardDataset`.
        exif_orientation: "apply" turns images upright; "ignore" leaves them as stored, as torchvision does.
        classes, target_transform: See :class:`ShardDataset`.
        cache_dir, allow_http, timeout: See :class:`ShardDataset`; for a folder in a store.
        cache_bytes: Bytes of a folder in a store that the cache may keep for later epochs and jobs. None: images from
            S3 are not kept, and those of other stores as of a :class:`ShardDataset`.
        targets: As in :class:`ShardDataset`; ``a.seg.png`` is the member "seg.png" of ``a.jpg``, and no sample.

    Raises:
        SourceError: if there is no class folder, or one without an image, or no object.
        StoreError: if a store can't be read; for an image that was changed or deleted since, then, naming it.
        ArgumentError: for an unknown field or ``exif_orientation``; for labels that are not in ``classes`` or
            ``target_transform``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        transform: Any = None,
        fields: Fields = (),
        exif_orientation: str = "apply",
        *,
        classes: Sequence[str] | None = None,
        target_transform: TargetTransform | None = None,
        targets: Mapping[str, Target] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
        allow_http: bool | None = None,
        timeout: float = TIMEOUT_S,
    ) -> None:
        place = os.fspath(path)
        exif, recipe = applies_exif(exif_orientation), recipe_or_views(transform)
        moved = target_values(targets, recipe, exif=exif)
        names = tuple(each.name for each in moved)
        if place.startswith("hf://"):
            place = str(open_store(place).url)  # at a commit, whose files never change
        if is_remote(place):
            options = FetchOptions(place, LISTING, cache_bytes=cache_bytes, allow_http=allow_http, timeout_s=timeout)
            reader: FolderReader = open_stored_folder(options, cache_dir, exif=exif, targets=names)
        else:
            reader = FolderReader.scan(os.path.abspath(place), exif=exif, targets=names)

        if classes is not None:
            name_classes(reader, classes)
        if target_transform is not None:
            transform_labels([reader], target_transform)
        super().__init__(reader, recipe, (*moved, *fields_of(fields)))
        self._check_extras()
