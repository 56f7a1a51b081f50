"""Other libraries' datasets as feeder's: the samples are read natively, all else stays theirs."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from torch.utils.data import ConcatDataset, Subset

from feeder.dataset.base import FeederDataset
from feeder.dataset.foreign import ForeignReader, both_transforms, has_plain_targets, read_foreign, refuse_overridden
from feeder.dataset.foreign_sample import ForeignSample
from feeder.errors import ArgumentError
from feeder.transforms import Op, Recipe, Views, recipe_or_views
from feeder.transforms.torchvision_recipes import (
    Conversion,
    OpReport,
    are_same,
    convert,
    objects_in,
    takes_images_alone,
)

_JOINT = OpReport(
    "transforms",
    "python",
    "it changes image and target together",
    "boxes and masks of shards move natively, by targets=",
)


class ConvertedDataset(FeederDataset):
    """The samples of another library's dataset, as it has them when this is made.

    Attributes that feeder's datasets lack are theirs, and so are ``classes``, ``class_to_idx``, ``targets`` and
    ``transform``. Whoever sets ``transform``, here or there, changes the recipe of both: from the next sample on, and
    from a loader's next epoch.

    Args:
        theirs: Their dataset.
        transform: A recipe in place of theirs, feeder's or torchvision's; None: theirs.
        strict: True to refuse a recipe of which a part would run in Python.

    Raises:
        TypeError: if its samples would have to be guessed.
        ArgumentError: for a recipe that can't be converted.

    Attributes:
        theirs: Their dataset.
        given: The transform in place of theirs, or None.
    """

    reader: ForeignReader
    _objects: tuple[Any, ...] = ()  # the parts of the transform that was converted last; none yet
    _recipe: Recipe | Views = Recipe()

    def __init__(self, theirs: Any, transform: Any = None, *, strict: bool = False) -> None:
        self.given = transform
        self._strict = strict
        super().__init__(read_foreign(theirs), None, ())
        if transform is not None and self.reader.both is not None:
            raise ArgumentError(
                f"transform= can't take the place of the transforms of a {type(theirs).__name__}, which change targets "
                "too: give them to the dataset before it is wrapped"
            )
        self.theirs = theirs
        self._convert()

    @property
    def recipe(self) -> Recipe | Views:
        """The recipe, of the transform that the dataset has now."""
        self._convert()
        return self._recipe

    @recipe.setter
    def recipe(self, value: Any) -> None:
        self._recipe = value

    def _convert(self) -> None:
        """Converts the transform and the form of samples, unless that has been done for the transform as it is now."""
        # Their function of image and target together, if they have one, comes before their transform of images.
        both = None if self.given is not None else self.reader.both or both_transforms(self.theirs)
        source = self.transform if both is None else both
        objects = objects_in(source)
        if are_same(objects, self._objects):
            return

        gives_pillow, change_both = False, None
        if isinstance(source, (Op, Recipe, Views)):
            self._recipe = recipe_or_views(source)
        else:
            conversion = conversion_of(self.theirs, self.given)
            conversion.check(strict=self._strict)
            gives_pillow = conversion.gives_pillow
            change_both = both if _JOINT in conversion.lines else None
            self._recipe = Recipe.of(conversion.ops)

        change = getattr(self.theirs, "target_transform", None) if both is None else None
        reader = self.reader
        form = ForeignSample(
            reader.targets is not None or change is not None,
            change,
            gives_pillow,
            reader.row_names,
            reader.image_column,
            reader.change_rows,
            keeps_mode=reader.image_column is not None and gives_pillow and not self._recipe.views[0].ops,
            change_both=change_both,
        )
        self.extras = () if form.is_plain else (form,)
        self._objects = objects
        self._decoder = None

    @property
    def transform(self) -> Any:
        """Their transform, or the one that was given in its place. One that is set is converted again."""
        theirs = vars(self).get("theirs")
        return getattr(theirs, "transform", None) if self.given is None else self.given

    @transform.setter
    def transform(self, value: Any) -> None:
        if self.given is None:
            self.theirs.transform = value
        else:
            self.given = value
        self._convert()

    @property
    def classes(self) -> Any:
        return getattr(self.theirs, "classes", None)

    @property
    def class_to_idx(self) -> Any:
        return getattr(self.theirs, "class_to_idx", None)

    @property
    def targets(self) -> Any:
        """Their targets; of a dataset that has no such attribute an AttributeError."""
        return self.theirs.targets

    @targets.setter
    def targets(self, value: Any) -> None:
        raise self._unchanged("targets")

    if not TYPE_CHECKING:  # a type checker would take it for every name

        def __getattr__(self, name: str) -> Any:
            if "theirs" not in vars(self):  # unpickling looks for methods before attributes are set
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return getattr(self.theirs, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not hasattr(type(self), name) and name not in vars(self) and hasattr(vars(self).get("theirs"), name):
            raise self._unchanged(name)
        super().__setattr__(name, value)

    def _unchanged(self, name: str) -> AttributeError:
        return AttributeError(
            f"{name} can't be changed here, as the samples are those of the conversion: change it in the "
            f"{type(self.theirs).__name__}, and convert that again"
        )

    def snapshot(self) -> FeederDataset:
        return FeederDataset(self.reader, self.recipe, self.extras)


def conversion_of(dataset: Any, given: Any = None) -> Conversion:
    """Converts the transform of another library's dataset.

    Args:
        dataset: Their dataset.
        given: The transform in place of theirs; None: theirs.
    """
    both = both_transforms(dataset) if given is None else None
    if both is None:
        return convert(getattr(dataset, "transform", None) if given is None else given)
    if has_plain_targets(dataset) and takes_images_alone(both):
        return convert(both)
    return Conversion((), (_JOINT,), gives_pillow=False)


def converted(dataset: Any, transform: Any = None, *, strict: bool = False) -> Any:
    """Returns a dataset whose samples are feeder's: a :class:`ConvertedDataset`, or torch's ``Subset`` or
    ``ConcatDataset`` of these. One that is feeder's already is returned as it is.

    Args and errors are those of :class:`ConvertedDataset`.
    """
    if isinstance(dataset, FeederDataset):
        if transform is not None:
            raise ArgumentError(f"transform= is for datasets to convert; give it to the {type(dataset).__name__}")
        return dataset
    if not isinstance(dataset, Subset | ConcatDataset):
        return ConvertedDataset(dataset, transform, strict=strict)

    refuse_overridden(dataset, "torch")
    made: Any = copy.copy(dataset)
    if isinstance(dataset, Subset):
        made.dataset = converted(dataset.dataset, transform, strict=strict)
        return dataset if made.dataset is dataset.dataset else made
    made.datasets = [converted(each, transform, strict=strict) for each in dataset.datasets]
    return dataset if list(map(id, made.datasets)) == list(map(id, dataset.datasets)) else made
