"""Several views of each image, each by a recipe of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NoReturn

from feeder.errors import ArgumentError
from feeder.transforms.geometry import CORNERS, CenterCrop, CornerCrop, RandomHorizontalFlip
from feeder.transforms.op import Op
from feeder.transforms.recipe import Compose, Recipe
from feeder.transforms.sizes import ByEpoch
from feeder.transforms.torchvision_recipes import recipe_of


@dataclass(frozen=True, init=False, repr=False)
class Views:
    """Several views of each image, as self-supervised methods take them: SimCLR, MoCo, DINO.

    A batch's images are a list of tensors [N, 3, H, W], one for each view, in its own size, which may be a
    :class:`ByEpoch`, and dtype. The image is read once, and decoded once where that is cheaper. Each view has random
    draws of its own; two views of one recipe differ.

    Args:
        transforms: The recipe of each view: a ``Compose``, also torchvision's, an op, or a sequence of ops.
            ``[a] * 2 + [b] * 6`` makes two views by ``a`` and six by ``b``.

    Attributes:
        views: The checked recipes.

    Raises:
        ArgumentError: without a recipe, for ``Views`` inside, or naming the view whose size depends on the image.
    """

    views: tuple[Recipe, ...]
    has_bucket: ClassVar[bool] = False
    why_alone: ClassVar[str] = (
        "Views stands among other ops, or where one image of each sample is made; give it to a dataset by itself, with "
        "all ops in its recipes, or call decode once for each view with ids of its own"
    )

    def __init__(self, transforms: Sequence[Any]) -> None:
        if not isinstance(transforms, (list, tuple)) or not transforms:
            raise ArgumentError(f"Views takes a list of at least one recipe, got {transforms!r}")
        known: dict[int, Recipe] = {}  # a recipe that is listed several times is checked once
        for number, transform in enumerate(transforms):
            if isinstance(transform, Views):
                raise ArgumentError(f"view {number} of Views is a Views; list its recipes themselves")
            if id(transform) not in known:
                is_op = isinstance(transform, Op) and not isinstance(transform, Compose)
                known[id(transform)] = _fixed(recipe_of(transform), number, is_op)
        object.__setattr__(self, "views", tuple(known[id(transform)] for transform in transforms))

    @classmethod
    def five_crop(cls, size: Any, *, before: Sequence[Op] = (), after: Sequence[Op] = ()) -> Views:
        """Returns the corners and the middle of an image as five views, in the order of torchvision's ``FiveCrop``.

        Args:
            size: (height, width) of a crop in pixels; an int makes a square.
            before: Ops in front of the crops, such as ``Resize(256)``.
            after: Ops behind each crop, such as ``Normalize``.

        Raises:
            ArgumentError: if ``size`` is no size, or an op is in a place where it can't be.
        """
        crops = [*(CornerCrop(size, corner) for corner in CORNERS), CenterCrop(size)]
        return cls([[*before, crop, *after] for crop in crops])

    @classmethod
    def ten_crop(cls, size: Any, *, before: Sequence[Op] = (), after: Sequence[Op] = ()) -> Views:
        """Returns the views of :meth:`five_crop`, and then those of the image mirrored left to right."""
        mirrored = [*before, RandomHorizontalFlip(1.0)]
        made = (cls.five_crop(size, before=ops, after=after) for ops in (before, mirrored))
        return cls([view for views in made for view in views.views])

    def at(self, bucket: tuple[int, int] | None, epoch: int) -> Views:
        """Returns the views of one epoch, in which all sizes are numbers; see :meth:`Recipe.at`."""
        return Views([recipe.at(None, epoch) for recipe in self.views]) if self.is_variable else self

    @cached_property
    def is_variable(self) -> bool:
        """True if the size of some view changes with the epoch; see :meth:`at`."""
        return bool(self.by_epoch)

    @cached_property
    def phases(self) -> tuple[int, ...]:
        """The epochs at which some view gets another size, ascending; 0 is the first."""
        return tuple(sorted({0}.union(*(recipe.phases for recipe in self.views))))

    @property
    def by_epoch(self) -> tuple[ByEpoch, ...]:
        """The sizes that change with the epoch, view by view; see :attr:`Recipe.by_epoch`."""
        return tuple(size for recipe in self.views for size in recipe.by_epoch)

    @property
    def output_dtype(self) -> tuple[str, ...]:
        """Name of each view's dtype; see :attr:`Recipe.output_dtype`."""
        return tuple(recipe.output_dtype for recipe in self.views)

    def __call__(self, *images: object) -> NoReturn:
        raise TypeError(
            "Views is a declaration that datasets and loaders carry out: give it to ShardDataset(path, transform=...) "
            "and take the images from dataset[i] or from a loader"
        )

    def __repr__(self) -> str:
        lines = "".join(f"    {line}\n" for recipe in self.views for line in f"{recipe!r},".splitlines())
        return f"Views(\n{lines})"


def recipe_or_views(transform: Any) -> Recipe | Views:
    """Returns the recipe of a dataset's transform, which may be torchvision's, or its views.

    Raises:
        ArgumentError: for a transform that is neither.
    """
    return transform if isinstance(transform, Views) else recipe_of(transform)


def _fixed(recipe: Recipe, number: int, is_op: bool) -> Recipe:
    if recipe.has_bucket:
        raise ArgumentError(
            f"view {number} of Views has the size T.BUCKET, which is for one image of each sample; give a number, or "
            "T.ByEpoch"
        )
    if recipe.output_size is None:
        if is_op:
            raise ArgumentError(
                f"view {number} of Views is {recipe.ops[0]} alone, so its size depends on the image: each entry is the "
                "recipe of one view, with all its ops; write Views([[op, op, ...]] * 2) for two views by one recipe"
            )
        ops = ", ".join(map(repr, recipe.ops)) or "it has no ops"
        raise ArgumentError(
            f"the size of view {number} of Views depends on the image: {ops}; end its geometry with "
            "RandomResizedCrop, a crop, or Resize((height, width))"
        )
    return recipe
