"""Declares the targets that follow an image's geometry: masks, boxes and keypoints."""

from __future__ import annotations

from dataclasses import dataclass

from feeder.errors import ArgumentError
from feeder.system.checks import check_int, check_one_of
from feeder.transforms.augment import RandAugment, TimmRandAugment, TrivialAugmentWide
from feeder.transforms.augmix import AugMix
from feeder.transforms.autoaugment import AutoAugment
from feeder.transforms.function import Lambda
from feeder.transforms.iou_crop import RandomIoUCrop
from feeder.transforms.op import Op
from feeder.transforms.recipe import Recipe
from feeder.transforms.target_ops import SanitizeBoundingBoxes, SanitizeKeyPoints
from feeder.transforms.views import Views, recipe_or_views

_MASK_DTYPES = {"uint8": 255, "int32": 2**31 - 1}
_FORMATS = ("xyxy", "xywh", "cxcywh")
_CLAMPING_MODES = ("soft", "hard", None)
_CANVASES = ("stored", "upright", None)


@dataclass(frozen=True, init=False)
class Target:
    """A member of each sample that the geometry of the recipe moves with the image.

    Attributes:
        canvas: Pixels in which the member is given, where the image has an EXIF orientation other than 1: "stored" for
            those of the file, which are then turned with the image, "upright" for those of the image as it is seen;
            None refuses such images.
    """

    canvas: str | None

    def _set(self, **fields: object) -> None:
        """Sets the fields of a frozen dataclass while it is made."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        check_one_of("canvas", self.canvas, _CANVASES)


@dataclass(frozen=True, init=False)
class Mask(Target):
    """A segmentation mask: a PNG of the image's size that holds a class number per pixel.

    An 8-bit grayscale, bilevel or palette PNG gives its numbers or indices; one of 16 bits needs ``dtype=torch.int32``.
    Resizes take the nearest pixel, as torchvision's ``resize_mask``; ops on colors and RandomErasing leave it alone. A
    batch has it as a tensor [N, H, W], of the size of its images.

    Args:
        fill: Class number of area that an op brings in from outside the image, and of the padding of
            :class:`feeder.PadToBatch`.
        dtype: uint8 or int32, as a torch or numpy dtype or by name.
        canvas: See :class:`Target`.

    Raises:
        ArgumentError: for an argument outside its range.
    """

    fill: int
    dtype: str

    def __init__(self, fill: int = 0, dtype: object = "uint8", *, canvas: str | None = None) -> None:
        name = (getattr(dtype, "__name__", None) or str(dtype)).removeprefix("torch.")
        check_one_of("dtype of a Mask", name, _MASK_DTYPES)
        fill = check_int(f"fill of a Mask of {name}", fill, 0, _MASK_DTYPES[name])
        self._set(fill=fill, dtype=name, canvas=canvas)


@dataclass(frozen=True, init=False, repr=False)
class Image(Target):
    """Another image of each sample: the right one of a stereo pair, the next frame of a video.

    It is decoded as the sample's image is, by the same backend. A batch has it as a tensor [N, 3, H, W]; with
    :class:`Views` as a list of these, one for each view, as it has the samples' images.

    Args:
        draws: "same" does to it what is drawn for the sample's image, on colors too; for ops whose draws depend on the
            size, such as crops, both must have one size. "own" draws for it anew.
        transform: The ops on it, or its views; None for those on the sample's image. With the same draws, each op draws
            the random numbers of the op in the same place of the dataset's transform, view by view of as many: a
            ``RandomResizedCrop`` that differs in its size alone cuts the same window.

    Attributes:
        recipe: The checked ops or views; None for those on the sample's image.

    Raises:
        ArgumentError: for other draws, or a transform that is none.
    """

    draws: str
    recipe: Recipe | Views | None

    def __init__(self, draws: str = "same", transform: object = None) -> None:
        check_one_of("draws", draws, ("same", "own"))
        recipe = None if transform is None else recipe_or_views(transform)
        self._set(draws=draws, recipe=recipe, canvas=None)

    def __repr__(self) -> str:
        return f"Image(draws={self.draws!r}{'' if self.recipe is None else f', transform={self.recipe!r}'})"


@dataclass(frozen=True, init=False)
class BoundingBoxes(Target):
    """Boxes around objects: JSON ``{"boxes": [[4 numbers], ...], "labels": [int, ...], <further lists>}``.

    A batch has a list of N dicts: "boxes" float32 [K, 4] in ``format``, "labels" int64 [K], and the further lists,
    which must have K elements too; values that are no lists stay as they are. Boxes without labels are refused; if all
    are of one class, ``"labels": [0, ...]`` will do. Boxes are moved and clamped as in
    torchvision v2, and dropped, each with its elements of the lists, only by :class:`SanitizeBoundingBoxes`.

    Args:
        format: Of the four numbers, in pixels: "xyxy" (left, top, right, bottom), "xywh" (left, top, width, height) or
            "cxcywh" (center, width, height); also as torchvision's ``BoundingBoxFormat``.
        clamping_mode: "soft" or "hard" to cut boxes at the image's edges, which are the same for boxes that are not
            rotated; None to leave them.
        first_label: Added to the labels: 1 for torchvision's detectors, to which label 0 is the background.
        canvas: See :class:`Target`.

    Raises:
        ArgumentError: for an argument outside its range.
    """

    format: str
    clamping_mode: str | None
    first_label: int

    def __init__(
        self,
        format: object = "xyxy",
        clamping_mode: str | None = "soft",
        *,
        first_label: int = 0,
        canvas: str | None = None,
    ) -> None:
        name = str(getattr(format, "value", format)).lower()
        check_one_of("format", name, _FORMATS)
        check_one_of("clamping_mode", clamping_mode, _CLAMPING_MODES)
        first_label = check_int("first_label", first_label, 0, (1 << 31) - 1)
        self._set(format=name, clamping_mode=clamping_mode, first_label=first_label, canvas=canvas)


@dataclass(frozen=True, init=False)
class KeyPoints(Target):
    """Points: JSON ``{"keypoints": [[x, y], ...] or [[[x, y], ...], ...], <further lists>}``.

    A batch has a list of N dicts: "keypoints" float32 [K, 2] or, for K groups of P points, [K, P, 2], in pixels;
    "labels", if there are any, int64 [K]; and the further lists of K elements. Points are moved as in torchvision v2,
    which lets them leave the image: see :class:`ClampKeyPoints` and :class:`SanitizeKeyPoints`. Mirroring does not
    exchange left and right parts of a body.

    An empty list does not tell the number of points in a group. It gives [0, 2], or [0, P, 2] if the object also has
    ``"points_per_group": P``, as the shards of COCO's keypoints have.

    Args:
        canvas: See :class:`Target`.

    Raises:
        ArgumentError: for an argument outside its range.
    """

    def __init__(self, *, canvas: str | None = None) -> None:
        self._set(canvas=canvas)


def check_targets(recipe: Recipe, targets: tuple[Target, ...]) -> None:
    """Refuses a recipe with an op that can't be done to some targets, where torchvision v2 refuses it too.

    Raises:
        ArgumentError: naming the op and the target.
    """
    boxes = [target for target in targets if isinstance(target, BoundingBoxes)]
    for op in recipe.ops:
        for each in (op, *op.inner_ops):
            _check_op(each, targets)
            _check_has_work(each, targets)
        if isinstance(op, RandomIoUCrop) and len(boxes) != 1:
            raise ArgumentError(
                f"RandomIoUCrop draws from a sample's boxes, so it needs one T.BoundingBoxes among the targets; there "
                f"are {len(boxes)}"
            )


def _check_has_work(op: Op, targets: tuple[Target, ...]) -> None:
    """Refuses an op that drops targets where there are none of its kind: it would do nothing, in silence."""
    kinds: dict[type[Op], type[Target]] = {SanitizeBoundingBoxes: BoundingBoxes, SanitizeKeyPoints: KeyPoints}
    kind = kinds.get(type(op))
    if kind is not None and not any(isinstance(target, kind) for target in targets):
        raise ArgumentError(
            f"{type(op).__name__} is in the recipe, and there is no T.{kind.__name__} among the targets for it to drop "
            f"anything of: give the dataset targets={{'...json': T.{kind.__name__}()}}, or leave the op out"
        )


def _check_op(op: Op, targets: tuple[Target, ...]) -> None:
    name = type(op).__name__
    if targets and isinstance(op, (AugMix, AutoAugment, RandAugment, TimmRandAugment, TrivialAugmentWide)):
        raise ArgumentError(
            f"{name} can't be used with targets, as in torchvision v2: its augmentations move the image alone; give "
            "RandomAffine and ColorJitter, or RandomChoice of several ops, in its place"
        )
    if targets and isinstance(op, Lambda) and (not op.keeps_shape or getattr(op.lambd, "may_move", False)):
        raise ArgumentError(
            "a function that may move pixels or change an image's size can't be used with targets, which stay where "
            "they are; write the recipe with ops of feeder.transforms"
        )
    points = [type(target).__name__ for target in targets if not isinstance(target, Mask)]
    mode = getattr(op, "padding_mode", "constant")
    if points and mode != "constant":
        raise ArgumentError(
            f"{name}(padding_mode={mode!r}) can't be used with {points[0]}, as in torchvision v2; use "
            "padding_mode='constant'"
        )
