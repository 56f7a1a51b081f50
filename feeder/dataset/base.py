"""The base of feeder's map-style datasets."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from torch.utils.data import Dataset, Subset, default_collate

from feeder.dataset.decoding import SampleDecoder
from feeder.dataset.drawn_fields import CropBox, check_crop_box
from feeder.dataset.extras import Extra, MemberField, NamedField, arranged
from feeder.dataset.fields_of import fields_of
from feeder.dataset.further_images import further_recipes, images_in, key_rows
from feeder.dataset.joined_reader import JoinedReader
from feeder.dataset.reader import Reader
from feeder.dataset.target_values import targets_in
from feeder.decoders.decode import drawn_seed
from feeder.decoders.tensors import as_samples
from feeder.errors import ArgumentError, DecodeError
from feeder.system.arrays import AnyArray, Int64s
from feeder.system.checks import check_one_of, sample_numbers
from feeder.system.text import count
from feeder.system.warning import warn
from feeder.transforms import Recipe, Resize, Views


class FeederDataset(Dataset[tuple[Any, ...]]):
    """Base of :class:`ShardDataset` and :class:`FolderDataset`.

    ``dataset[i]`` is ``(image, label, *targets, *fields)``. The image is a tensor [C, H, W], uint8 0-255 unless the
    recipe has ToDtype or Normalize. The label is an int, or in a set with float labels a tensor, float32 [] or [K].
    Targets and fields come in the order of ``targets`` and ``fields``. Under :class:`feeder.DataLoader` augmentation is
    a function of (seed, epoch, sample id). Under torch's own loader, and with ``dataset[i]``, it is drawn from torch's
    random state, so it differs between workers and epochs as for any other dataset.

    Attributes:
        reader: Reads the samples' bytes.
        recipe: The ops that every image goes through, or its views.
        extras: Targets and further fields, in the order of a sample's values.
        classes: Class names by label; None if they are not known.
        class_to_idx: Label by class name; None if they are not known.
        is_mixture: True for a :class:`Mixture` alone.
    """

    is_mixture = False
    reader: Reader
    recipe: Recipe | Views
    extras: tuple[Extra, ...]
    _targets: list[Any] | None = None
    _decoder: SampleDecoder | None = None
    _has_warned = False

    def __init__(self, reader: Reader, transform: Any, extras: Sequence[Extra]) -> None:
        from feeder.transforms import recipe_or_views

        self.reader = reader
        self.recipe = recipe_or_views(transform)
        self.extras = tuple(extras)
        if any(isinstance(extra, CropBox) for extra in self.extras):
            check_crop_box(self.recipe)
        self._decoder = None

    def __len__(self) -> int:
        return len(self.reader)

    def __repr__(self) -> str:
        classes = "" if self.classes is None else f", classes={len(self.classes)}"
        moved = {extra.name: extra.target for extra in targets_in(self.extras)}
        fields = (f", targets={moved}" if moved else "") + (f", fields={list(self.fields)}" if self.fields else "")
        transform = f", transform={self.recipe!r}" if any(view.ops for view in self.recipe.views) else ""
        return f"{type(self).__name__}({self.reader.place!r}, samples={len(self)}{classes}{fields}{transform})"

    def __getitem__(self, i: int | slice) -> tuple[Any, ...]:
        if isinstance(i, slice):
            numbers = range(*i.indices(len(self)))
            raise TypeError(
                f"a dataset can't be sliced; torch.utils.data.Subset(dataset, {numbers!r}) has these samples"
            )
        return self._samples([i])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, ...]]:
        """Makes several samples at once, as torch's loader asks for them.

        Raises:
            ArgumentError: if the loader is going to stack them, and their images differ in size.

        Warns:
            UserWarning: once, if a size is T.ByEpoch.
        """
        if type(self).__getitem__ is not FeederDataset.__getitem__:  # a user's subclass that makes its own samples
            return [self[i] for i in indices]
        if not self._has_warned and any(recipe.by_epoch for recipe in self._recipes()):
            self._has_warned = True
            warn(
                "T.ByEpoch stays at the size of epoch 0 in this loader, which does not tell the dataset the epoch: "
                "give the dataset to feeder.DataLoader"
            )
        samples = self._samples(indices)
        check_stackable(samples, self.recipe)
        return samples

    def _recipes(self) -> tuple[Recipe, ...]:
        return *self.recipe.views, *further_recipes(images_in(self.extras))

    def _samples(self, indices: Sequence[int]) -> list[tuple[Any, ...]]:
        """Returns samples as ``dataset[i]`` has them, drawn from torch's random state."""
        size = len(self)
        ids = sample_numbers(indices)
        for i in ids.tolist():
            if not -size <= i < size:
                raise IndexError(f"sample {i} is out of range: the dataset has {count(size, 'sample')}")
        ids[ids < 0] += size
        # Under a new seed any keys do: a sample that is asked for twice has another each time.
        return self._drawn(drawn_seed(), 0, np.arange(key_rows(self.recipe, self.extras) * len(ids)), ids)

    def _drawn(self, seed: int, epoch: int, keys: Int64s, ids: Int64s) -> list[tuple[Any, ...]]:
        """Returns samples that are augmented by keys.

        Args:
            seed, epoch: Of the draws.
            keys: int64 [R * N] of N samples, row by row of :func:`key_rows`.
            ids: int64 [N], each in [0, len(self)).
        """
        if self._decoder is None:
            self._decoder = SampleDecoder(self.reader, self.recipe, self.extras)
        keys = keys.reshape(key_rows(self.recipe, self.extras), len(ids))
        images, labels, fields = self._decoder.decode(seed, epoch, keys, ids)
        samples = as_samples(images, labels, fields, self.recipe.output_dtype)
        return [arranged(self.extras, sample) for sample in samples]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_decoder": None} | ({"_targets": None} if keeps_samples(self, FeederDataset) else {})

    def snapshot(self) -> FeederDataset:
        """Returns a dataset of the same samples, with the recipe that this one has now."""
        return self

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the further fields."""
        moved = targets_in(self.extras)
        return tuple(extra.name for extra in self.extras if extra not in moved)

    if not TYPE_CHECKING:  # a type checker would take it for every name

        def __getattr__(self, name: str) -> NoReturn:
            hint = ""
            if name in ("imgs", "samples"):  # attributes of torchvision's ImageFolder
                hint = ": fields=['path'] adds each sample's path after its label, and targets has all labels"
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    @property
    def transform(self) -> Recipe | Views:
        """The recipe. It can't be changed, as loaders and their workers rely on it."""
        return self.recipe

    @transform.setter
    def transform(self, value: object) -> NoReturn:
        name = type(self).__name__
        way_out = " of sources with other recipes" if self.is_mixture else "(path, transform=...)"
        raise AttributeError(f"the transform of a {name} can't be changed; make another {name}{way_out}")

    @property
    def classes(self) -> list[str] | None:
        return self.reader.classes

    @property
    def class_to_idx(self) -> dict[str, int] | None:
        return None if self.classes is None else {name: label for label, name in enumerate(self.classes)}

    @property
    def targets(self) -> list[Any]:
        """Labels of all samples, as in torchvision's datasets: a list of ints, made once. In a set with targets, a list
        of floats, or of lists of K floats. Changing it doesn't change the samples."""
        if self._targets is None:  # scripts ask for it for each sample: [dataset.targets[i] for i in subset.indices]
            self._targets = self.reader.labels().tolist()
        return self._targets

    @targets.setter
    def targets(self, value: list[Any]) -> None:
        if keeps_samples(self, FeederDataset):
            name = type(self).__name__
            raise AttributeError(
                f"the targets of a {name} can't be changed, as its samples keep their labels; derive a class whose "
                "dataset[i] returns other labels"
            )
        self._targets = value  # a subclass that makes its own samples may set them

    def column(self, name: str) -> AnyArray | list[Any]:
        """Returns one field of all samples without decoding images, to filter the samples or to split them into folds.

        Args:
            name: Any field that ``fields`` accepts, requested there or not, such as "path" or "json:caption".

        Returns:
            The values of the kind that ``fields`` gives the name: an array [N, ...] if they have a fixed size, else a
            list of N. For other names int64 [N] for "index", "width", "height", "orientation" and "row", else a list
            of N: text for "key" and "path", parsed values for "json", bytes for any other member; None for a sample
            without the member.

        Raises:
            ArgumentError: for a field that no sample has, or that is refused.
            DecodeError: for a sample that lacks the member or has another kind of it, naming it.
        """
        (plain,) = fields_of([name])
        for extra in self.extras:
            if isinstance(extra, MemberField) and extra.name == name:
                return extra.column(self.reader)
        self._check_known(plain.member)
        return plain.column(self.reader) if isinstance(plain, MemberField) else self.reader.column(name)

    def _check_extras(self) -> None:
        """Refuses targets and fields that no sample of a set has; warns of fields that are optional."""
        named = (extra for extra in self.extras if isinstance(extra, (NamedField, MemberField)))
        for extra in (*targets_in(self.extras), *named):
            if isinstance(extra, MemberField) and extra.kind.optional:
                for lack in self._lacks(extra.member):
                    warn(f"{lack}; each gets {extra.kind.fill!r}")
            else:
                self._check_known(extra.member)

    def _check_known(self, name: str) -> None:
        """Refuses a field that no sample of a set has."""
        for lack in self._lacks(name):
            raise ArgumentError(lack)

    def _lacks(self, name: str) -> Iterator[str]:
        """Yields, for each set that lacks a field, an error's text with the fields that it has."""
        for reader in self.reader.readers if isinstance(self.reader, JoinedReader) else [self.reader]:
            known = reader.field_names()
            if name not in known:
                hint = f"; it is a key of json: name it 'json:{name}'" if name in _keys(reader, known) else ""
                yield f"field {name!r} is in no sample of {reader.place}; it has {', '.join(known)}{hint}"


def _keys(reader: Reader, known: Collection[str]) -> Collection[str]:
    """Returns the keys of the first sample's json."""
    with contextlib.suppress(DecodeError):
        found = reader.field(0, "json") if "json" in known and len(reader) else None
        return found if isinstance(found, dict) else ()
    return ()


def keeps_samples(dataset: Any, base: type) -> bool:
    """Returns whether a dataset has the samples and the length of this base class, with neither overridden."""
    names = ("__getitem__", "__getitems__", "__len__")
    return all(getattr(type(dataset), name, None) is getattr(base, name, None) for name in names)


def applies_exif(exif_orientation: str) -> bool:
    """Returns True for "apply" and False for "ignore".

    Raises:
        ArgumentError: for any other value.
    """
    check_one_of("exif_orientation", exif_orientation, ("apply", "ignore"))
    return exif_orientation == "apply"


def check_stackable(samples: list[tuple[Any, ...]], recipe: Recipe | Views) -> None:
    """Raises a clearer error than torch's loader would if it stacked images of different sizes.

    Only torch's fetcher knows the loader's collate function, so this reads it from the frame of the caller's caller.
    Other callers, and loaders with their own collate function, get the samples as they are.

    Args:
        samples: (image, ...), or rows, of a batch that ``dataset.__getitems__``, the caller, is about to return.
        recipe: The dataset's recipe.

    Raises:
        ArgumentError: naming the op that the recipe lacks.
    """
    if isinstance(recipe, Views) or recipe.output_size is not None:
        return
    images = [image for sample in samples if isinstance(sample, tuple) for image in sample[:1]]
    if len({getattr(image, "shape", None) for image in images}) < 2:  # Pillow images have none
        return
    frame = sys._getframe(2)
    while type(asking := frame.f_locals.get("self")) is Subset and frame.f_back is not None:
        frame = frame.f_back
    if getattr(asking, "collate_fn", None) is default_collate:
        resizes = [op for op in recipe.ops if isinstance(op, Resize) and len(op.size or ()) < 2]
        which = f"{resizes[-1]} keeps each image's shape" if resizes else "the recipe leaves images at their sizes"
        raise ArgumentError(
            f"the images of a batch have different sizes: {which}. Put CenterCrop, RandomCrop or RandomResizedCrop "
            "after it, or Resize((height, width)), or use a collate_fn that accepts different sizes"
        )
