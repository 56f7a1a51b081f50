"""Map-style datasets: shards with an index, and folders of images not sharded yet."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from feeder._gpu.tensors import as_samples
from feeder.dataset.decoding import SampleDecoder
from feeder.dataset.field_index import index_of_field
from feeder.dataset.folder_reader import FolderReader
from feeder.dataset.joined_reader import JoinedReader, shared_classes
from feeder.dataset.reader import Reader, check_fields
from feeder.dataset.relabel import (
    TargetTransform,
    labels_from_json,
    named,
    refuse_unread_labels,
    transformed,
    without_labels,
)
from feeder.dataset.sample_numbers import sample_numbers
from feeder.dataset.shard_reader import ShardReader
from feeder.dataset.subset_reader import PartReader
from feeder.errors import ArgumentError, FormatError
from feeder.shard.format.index import INDEX_NAME
from feeder.shard.format.manifest import manifest_bytes, matches_checksum
from feeder.text import count

if TYPE_CHECKING:
    from feeder.transforms import Recipe

__all__ = [
    "FOLDER_EXTENSIONS",
    "FeederDataset",
    "FolderDataset",
    "ShardDataset",
    "as_feeder",
    "differing_part",
    "joined_in",
]

# torchvision's IMG_EXTENSIONS
FOLDER_EXTENSIONS = frozenset({"bmp", "jpeg", "jpg", "pgm", "png", "ppm", "tif", "tiff", "webp"})


class FeederDataset(Dataset[tuple[Any, ...]]):
    """Base of :class:`ShardDataset` and :class:`FolderDataset`.

    ``dataset[i]`` is ``(image, label, *fields)``: a tensor [C, H, W], uint8 0-255 unless the recipe has ToDtype or
    Normalize; an int, or of a set with targets a tensor, float32 [] or [K]; the fields in the order asked for. Under
    :class:`feeder.DataLoader` augmentation is a function of (seed, epoch, sample id). Under torch's own loader, and
    with ``dataset[i]``, it is drawn from torch's random state, so that workers and epochs differ as they do for any
    dataset there.

    Attributes:
        reader: Where the bytes come from.
        recipe: What is done to every image.
        fields: Names of the further fields.
        classes: Class names by label; None if they are not known.
        class_to_idx: Label by class name; None if they are not known.
    """

    reader: Reader
    recipe: Recipe
    fields: tuple[str, ...]
    _targets: list[Any] | None = None
    _decoder: SampleDecoder | None = None

    def __init__(self, reader: Reader, transform: Any, fields: Sequence[str]) -> None:
        from feeder.transforms import Recipe

        self.reader = reader
        self.recipe = Recipe.of(transform)
        self.fields = check_fields(fields)
        self._decoder: SampleDecoder | None = None

    def __len__(self) -> int:
        return len(self.reader)

    def __repr__(self) -> str:
        classes = "" if self.classes is None else f", classes={len(self.classes)}"
        fields = f", fields={list(self.fields)}" if self.fields else ""
        transform = f", transform={self.recipe!r}" if self.recipe.ops else ""
        return f"{type(self).__name__}({self.reader.place!r}, samples={len(self)}{classes}{fields}{transform})"

    def __getitem__(self, i: int | slice) -> tuple[Any, ...]:
        if isinstance(i, slice):
            numbers = range(*i.indices(len(self)))
            raise TypeError(
                f"a slice of a dataset is torch.utils.data.Subset(dataset, {numbers!r}), which a loader takes as it is"
            )
        return self._samples([i])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, ...]]:
        """Several samples at once, as torch's loader asks for them."""
        if type(self).__getitem__ is not FeederDataset.__getitem__:  # a class of the user's own, with its own samples
            return [self[i] for i in indices]
        return self._samples(indices)

    def _samples(self, indices: Sequence[int]) -> list[tuple[Any, ...]]:
        size = len(self)
        ids = sample_numbers(indices)
        for i in ids.tolist():
            if not -size <= i < size:
                raise IndexError(f"sample {i} is out of range: the dataset has {count(size, 'sample')}")
        ids[ids < 0] += size
        if self._decoder is None:
            self._decoder = SampleDecoder(self.reader, self.recipe, self.fields)
        seed = int(torch.empty((), dtype=torch.int64).random_())
        images, labels, fields = self._decoder.decode(seed, ids)
        return as_samples(images, labels, fields, self.recipe.output_dtype)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_decoder": None} | ({"_targets": None} if _keeps_samples(self, FeederDataset) else {})

    if not TYPE_CHECKING:  # for which it would give every name

        def __getattr__(self, name: str) -> NoReturn:
            hint = ""
            if name in ("imgs", "samples"):  # which torchvision's ImageFolder has
                hint = ": fields=['path'] gives each sample's path behind its label, targets the labels of all"
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    @property
    def transform(self) -> Recipe:
        """The recipe. It is there for good: loaders and their workers rely on it."""
        return self.recipe

    @transform.setter
    def transform(self, value: object) -> NoReturn:
        name = type(self).__name__
        raise AttributeError(f"the transform of a {name} can't be changed; make another {name}(path, transform=...)")

    @property
    def classes(self) -> list[str] | None:
        return self.reader.classes

    @property
    def class_to_idx(self) -> dict[str, int] | None:
        return None if self.classes is None else {name: label for label, name in enumerate(self.classes)}

    @property
    def targets(self) -> list[Any]:
        """Labels of all samples, as torchvision's datasets have them: a list, made once, apart from the samples. Of a
        set with targets a float each, or a list of K."""
        if self._targets is None:  # scripts ask for it for each sample: [dataset.targets[i] for i in subset.indices]
            self._targets = self.reader.labels().tolist()
        return self._targets

    @targets.setter
    def targets(self, value: list[Any]) -> None:
        if _keeps_samples(self, FeederDataset):
            name = type(self).__name__
            way = "derive a class whose dataset[i] has the labels wanted"
            raise AttributeError(f"the targets of a {name} can't be changed, as its samples keep their labels; {way}")
        self._targets = value  # its own class's, with samples of its own

    def column(self, name: str) -> npt.NDArray[Any] | list[Any]:
        """A field of all samples, without decoding an image: to filter by, or to split into folds.

        Args:
            name: As ``fields`` takes it; it need not be one of them.

        Returns:
            int64 [N] for "index", "width", "height", "orientation" and "row", else a list of N: text for "key" and
            "path", parsed values for "json", bytes for any other member; None for a sample without the member.

        Raises:
            ArgumentError: for a field that no sample has, or that is refused.
        """
        self._check_known(*check_fields([name]))
        return self.reader.column(name)

    def _check_known(self, *names: str) -> None:
        """Refuses fields that no sample has."""
        for reader in self.reader.readers if isinstance(self.reader, JoinedReader) else [self.reader]:
            known = reader.field_names()
            for name in names:
                if name not in known:
                    raise ArgumentError(f"field {name!r} is in no sample of {reader.place}; it has {', '.join(known)}")


class ShardDataset(FeederDataset):
    """Samples of a shard set, as ``feeder shard`` or ``feeder index`` made it, or of several sets as of one.

    The index is memory-mapped and opened again in each process: pickling costs the path, and workers share one copy in
    the page cache.

    Args:
        path: The shards' folder, or its index file; or a list of these, whose samples follow one another.
        transform: A recipe of :mod:`feeder.transforms`, or None for the image as it is.
        fields: Further fields of each sample: "key", "path" (the original path), "index" (the sample id), "json"
            (parsed) or any other member of the sample (its bytes); "width" and "height" (of the image before the
            recipe, pixels), "orientation" (EXIF's, 1-8); "row" (in the manifest that was sharded, from 0).
        exif_orientation: "apply" turns images upright; "ignore" leaves them as stored, which is torchvision's habit.
        image_field: Another field that holds the image, such as "mask.png", or several with ";" between them, of which
            each sample has one; None takes the image that the index names. The first time, the headers of these images
            are read, and kept in a file beside the index. Samples without one are left out, with a warning.
        classes: Class names by label. Where the set has names of its own, or names in its ``cls`` fields, labels
            follow this list: ``ShardDataset(val, classes=train.classes)`` has the labels of ``train``. Of several sets,
            None asks for the same names in all, label by label; "merge" numbers classes by their names, in the order in
            which they first appear, so that the first set's labels stay.
        labels: True: those of the set. False: none, -1 for all. A key of the samples' ``json``: what it says, with
            integers from 0 on as class numbers, text as class names (sorted) and other numbers as float32 targets;
            several keys: their numbers as targets. The ``json`` of all samples is read when the dataset is made.
        target_transform: What is made of a label: a function, or a mapping of all labels, to an integer, a float or a
            row of numbers. It is asked once for each label that occurs, when the dataset is made; -1 stays.

    Raises:
        FormatError: if an index is missing or damaged.
        ArgumentError: for a field that no sample of a set has, or that is refused; for an unknown
            ``exif_orientation``; for ``cls`` fields that give no label; for labels that ``classes`` or
            ``target_transform`` has no place for;
            for an ``image_field`` in which no sample has an image, or whose file can't be written; for sets whose
            classes differ, naming the first that does.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        transform: Any = None,
        fields: Sequence[str] = (),
        exif_orientation: str = "apply",
        *,
        image_field: str | None = None,
        classes: Sequence[str] | Literal["merge"] | None = None,
        labels: bool | str | Sequence[str] = True,
        target_transform: TargetTransform | None = None,
    ) -> None:
        paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
        if not paths:
            raise ArgumentError("path must be a folder of shards or a list of these, got an empty list")
        wanted = None if classes == "merge" else classes
        exif = _applies(exif_orientation)
        readers = [_shard_reader(each, exif, image_field, wanted, labels) for each in paths]
        if len(readers) > 1:
            _share_classes(readers, merge=classes == "merge")
        if target_transform is not None:
            _transform_labels(readers, target_transform)
        super().__init__(readers[0] if len(readers) == 1 else JoinedReader(readers, own_index=True), transform, fields)
        self._check_known(*self.fields)
        for reader in readers:
            reader.index.check_fields(self.fields)


class FolderDataset(FeederDataset):
    """Images in a folder for each class, by torchvision's ImageFolder rule: classes are the subfolders, sorted.

    Args:
        path: The folder.
        transform: A recipe of :mod:`feeder.transforms`, or None for the image as it is.
        fields: Further fields of each sample: "key" (the path relative to the folder), "path", "index", "width",
            "height" or "orientation".
        exif_orientation: "apply" turns images upright; "ignore" leaves them as stored, which is torchvision's habit.
        classes, target_transform: As :class:`ShardDataset` takes them.

    Raises:
        SourceError: if there is no class folder, or one without an image.
        ArgumentError: for an unknown field or ``exif_orientation``; for labels that ``classes`` or
            ``target_transform`` has no place for.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        transform: Any = None,
        fields: Sequence[str] = (),
        exif_orientation: str = "apply",
        *,
        classes: Sequence[str] | None = None,
        target_transform: TargetTransform | None = None,
    ) -> None:
        root = os.path.abspath(os.fspath(path))
        reader = FolderReader.scan(root, FOLDER_EXTENSIONS, exif=_applies(exif_orientation))
        if classes is not None:
            named(reader, classes)
        if target_transform is not None:
            reader.relabel(transformed(reader.labels(), target_transform), reader.classes)
        super().__init__(reader, transform, fields)
        self._check_known(*self.fields)


def as_feeder(dataset: Any, *, stored_order: bool = False) -> FeederDataset | None:
    """The samples of a dataset as a feeder dataset: of one itself, or of torch's ``Subset`` of one, or of torch's
    ``ConcatDataset`` of several with equal recipes and fields.

    None for any other, also for a class that derives from these and makes its own of ``dataset[i]`` or the length.

    Args:
        dataset: Any dataset.
        stored_order: Whether samples are taken in the order that they are stored in, and not in a ``Subset``'s own.

    Raises:
        IndexError: if the ``Subset`` has a sample that its dataset has not.
        ArgumentError: if its indices are not integers.
    """
    if isinstance(dataset, FeederDataset):
        return dataset if _keeps_samples(dataset, FeederDataset) else None
    if isinstance(dataset, ConcatDataset):
        return _concatenated(dataset, stored_order)
    whole = as_feeder(dataset.dataset) if isinstance(dataset, Subset) and _keeps_samples(dataset, Subset) else None
    if whole is None:
        return None
    ids = _subset_ids(dataset.indices, len(whole))
    if isinstance(whole.reader, PartReader):
        ids, reader = whole.reader.ids[ids], whole.reader.whole
    else:
        reader = whole.reader
    return FeederDataset(PartReader(reader, np.sort(ids) if stored_order else ids), whole.recipe, whole.fields)


def differing_part(dataset: ConcatDataset[Any]) -> tuple[int, str] | None:
    """The first dataset of a ``ConcatDataset`` that can't be joined with those before it.

    Returns:
        Its number, and "samples" where it is no feeder dataset, else what differs from the first's: "transform",
        "fields" or "kind of labels"; None if all can be joined.
    """
    first: FeederDataset | None = None
    for number, each in enumerate(dataset.datasets):
        part = as_feeder(each)
        if part is None:
            return number, "samples"
        first = first or part
        if part.recipe != first.recipe:
            return number, "transform"
        if part.fields != first.fields:
            return number, "fields"
        if part.reader.label_dtype != first.reader.label_dtype:
            return number, "kind of labels"
    return None


def _concatenated(dataset: ConcatDataset[Any], stored_order: bool) -> FeederDataset | None:
    if not _keeps_samples(dataset, ConcatDataset) or differing_part(dataset) is not None:
        return None
    parts = [part for each in dataset.datasets if (part := as_feeder(each)) is not None]
    readers: list[Reader] = []  # each once: what one has read lasts until it reads again
    for part in parts:
        readers += [reader for reader in joined_in(part.reader) if all(reader is not other for other in readers)]
    starts = {id(reader): start for reader, start in zip(readers, np.cumsum([0, *map(len, readers)]), strict=False)}
    chosen = []
    for part in parts:
        ids = np.concatenate([np.arange(len(reader)) + starts[id(reader)] for reader in joined_in(part.reader)])
        chosen.append(ids[part.reader.ids] if isinstance(part.reader, PartReader) else ids)
    joined: Reader = readers[0] if len(readers) == 1 else JoinedReader(readers)
    ids = np.concatenate(chosen)
    if len(ids) != len(joined) or (ids != np.arange(len(ids))).any():
        joined = PartReader(joined, np.sort(ids) if stored_order else ids)
    return FeederDataset(joined, parts[0].recipe, parts[0].fields)


def joined_in(reader: Reader) -> list[Reader]:
    """The readers whose samples a dataset's reader has, all or some of them."""
    whole = reader.whole if isinstance(reader, PartReader) else reader
    return whole.readers if isinstance(whole, JoinedReader) and not whole.own_index else [whole]


def _keeps_samples(dataset: Any, base: type) -> bool:
    """Returns whether the samples and the length of a dataset are what its base class makes of them."""
    names = ("__getitem__", "__getitems__", "__len__")
    return all(getattr(type(dataset), name, None) is getattr(base, name, None) for name in names)


def _subset_ids(indices: Any, size: int) -> npt.NDArray[np.int64]:
    """Indices of a ``Subset`` of a dataset with so many samples, as numbers from 0 on."""
    try:
        found = np.asarray(indices)
    except ValueError as error:  # as of both sides of a split at once
        raise ArgumentError(f"the indices of a Subset must be integers in one row: {error}") from None
    if found.size and (found.ndim != 1 or found.dtype.kind not in "iu"):
        raise ArgumentError(
            f"the indices of a Subset must be integers in one row, got {found.dtype} of shape {found.shape}"
            + ("; of a mask, np.flatnonzero(mask) gives them" if found.dtype.kind == "b" else "")
        )
    ids = np.array(found, np.int64)
    outside = ids[(ids < -size) | (ids >= size)]
    if outside.size:
        raise IndexError(f"sample {outside[0]} of a Subset is out of range: its dataset has {count(size, 'sample')}")
    ids[ids < 0] += size
    return ids


def _applies(exif_orientation: str) -> bool:
    if exif_orientation not in ("apply", "ignore"):
        raise ArgumentError(f"exif_orientation must be 'apply' or 'ignore', got {exif_orientation!r}")
    return exif_orientation == "apply"


def _shard_reader(
    path: str | os.PathLike[str],
    exif: bool,
    image_field: str | None,
    classes: Sequence[str] | None,
    labels: bool | str | Sequence[str],
) -> ShardReader:
    """The reader of one set, with the labels that are asked for."""
    folder = os.fspath(path)
    index = os.path.join(folder, INDEX_NAME) if os.path.isdir(folder) else folder
    index = os.path.abspath(index)
    if image_field is not None:
        index = index_of_field(index, image_field)
    reader = ShardReader(index, exif=exif)
    names = reader.index.classes
    reader.classes = _classes(os.path.dirname(index)) if names is None else names
    if labels is False:
        if classes is not None:
            raise ArgumentError("classes= names the classes of labels, and labels=False asks for none")
        without_labels(reader)
    elif labels is not True:
        labels_from_json(reader, labels, classes)
    if classes is not None:
        named(reader, classes)
    if labels is True:
        refuse_unread_labels(reader)
    return reader


def _transform_labels(readers: Sequence[ShardReader], change: TargetTransform) -> None:
    """Changes the labels of several sets as those of one, so that all have labels of one kind."""
    if len({reader.label_dtype for reader in readers}) > 1:
        return  # which is an error of its own
    ends = np.cumsum([len(reader) for reader in readers])
    labels = transformed(np.concatenate([reader.labels() for reader in readers]), change)
    for reader, own in zip(readers, np.split(labels, ends[:-1]), strict=True):
        reader.relabel(own, reader.classes)


def _share_classes(readers: Sequence[ShardReader], *, merge: bool) -> None:
    """Gives several sets the same classes, or refuses sets whose classes differ."""
    places = [reader.place for reader in readers]
    classes = shared_classes([reader.classes for reader in readers], places, merge=merge)
    if classes is not None and merge:
        for reader in readers:
            named(reader, classes)


def _classes(folder: str) -> list[str] | None:
    """Class names from the manifest beside an index; None if there is none."""
    path = os.path.join(folder, "manifest.json")
    text = manifest_bytes(folder)
    if text is None:
        return None
    try:
        manifest = json.loads(text)
    except ValueError as error:
        raise FormatError(f"{path}: damaged manifest: {error}; run `feeder inspect --verify`") from None
    if not matches_checksum(text):
        raise FormatError(
            f"{path}: damaged manifest: its bytes do not match its checksum; restore it, or, if it was edited on "
            "purpose, remove its line with crc32"
        )
    classes = manifest.get("classes") if isinstance(manifest, dict) else None
    return cast("list[str]", classes) if isinstance(classes, list) else None
