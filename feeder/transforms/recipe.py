"""A recipe: the ops for every image, and the draw of their parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from feeder.errors import ArgumentError
from feeder.order.random import Stream, uniform
from feeder.system.arrays import Float32s, Int32s, Size, Uint8s
from feeder.system.warning import warn
from feeder.transforms.arguments import DRAWN
from feeder.transforms.function import Lambda, Output
from feeder.transforms.geometry import RandomCrop
from feeder.transforms.iou_crop import RandomIoUCrop
from feeder.transforms.mixing import BatchOp
from feeder.transforms.op import FloatArray, IntArray, Op, Params, SizeBounds, Uniforms
from feeder.transforms.photometric import Grayscale
from feeder.transforms.sizes import BucketSize, ByEpoch, VariableSize
from feeder.transforms.values import Affine, Normalize, ToDtype, compose_affine

# Returns the boxes of N samples, float32 [K, 4] each, after the first ops; takes the ops, their draws and sizes [N, 2].
BoxesAfter = Callable[[tuple[Op, ...], tuple[Params, ...], IntArray], Sequence[Float32s]]

_ANY_BUCKET = 64, 64


@dataclass(frozen=True, init=False, repr=False)
class Compose(Op):
    """A sequence of ops.

    Args:
        transforms: The ops; a ``Compose`` among them stands for its ops.

    Raises:
        ArgumentError: if an element is no op, or an op is in a place where it can't be.
    """

    transforms: tuple[Op, ...]

    def __init__(self, transforms: Sequence[Op]) -> None:
        self._set(transforms=tuple(transforms))
        Recipe.of(self.transforms)

    def __repr__(self) -> str:
        return _listed(self, self.transforms)


@dataclass(frozen=True)
class Draws:
    """The drawn parameters of N samples.

    The boxes and the flip describe the recipe's base path: Pillow's
    ``image.crop(support).resize(base_size, filter, box=source - support's origin)``, then the flip.

    Attributes:
        image_size: int32 [N, 2], upright (height, width) of the images for which the parameters were drawn.
        source_box: float64 [N, 4], (left, top, right, bottom) in upright pixels: the area that maps onto the output.
        support_box: int32 [N, 4], (left, top, right, bottom): the pixels that the filter may read.
        base_size: int32 [N, 2], (height, width) after the base path.
        flip: uint8 [N], 1 where the output is mirrored left to right.
        output_size: int32 [N, 2], (height, width) after all ops.
        ops: The drawn parameters of every op of the recipe, by name, each with N rows.
        seed: Seed of the draws.
        epoch: Epoch of the draws.
        keys: int64 [N], keys of the draws.
        frame: int32 [N, 4], (left, top, width, height) of the area that the source box maps onto, in images of
            ``base_size``, whose border has the recipe's :attr:`Recipe.base_fill`. It is empty where only the border is
            left; left is -1 where a ``RandomCrop`` is larger than the image. None: that of the whole image.
        bicubic: uint8 [N], 1 where a drawn interpolation is bicubic; None: it is not drawn.
    """

    image_size: Int32s
    source_box: FloatArray
    support_box: Int32s
    base_size: Int32s
    flip: Uint8s
    output_size: Int32s
    ops: tuple[Params, ...]
    seed: int
    epoch: int
    keys: IntArray
    frame: Int32s | None = None
    bicubic: Uint8s | None = None

    def __len__(self) -> int:
        return len(self.flip)

    def take(self, rows: npt.ArrayLike | slice) -> Draws:
        """Returns the draws of some of the samples, by index array or slice."""
        chosen = rows if isinstance(rows, slice) else np.asarray(rows, np.int64)
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        arrays: dict[str, Any] = {
            name: value[chosen] for name, value in values.items() if isinstance(value, np.ndarray)
        }
        ops = tuple({name: values[chosen] for name, values in params.items()} for params in self.ops)
        return replace(self, **arrays, ops=ops)

    def head(self) -> Draws:
        """Returns the draws of :attr:`Recipe.head`, of a recipe with a :attr:`Recipe.tail`."""
        return replace(self, ops=self.ops[:-1], output_size=self.ops[-1]["size"].astype(np.int32))

    @cached_property
    def choices(self) -> FloatArray:
        """float64 [N], 0 to 1 (exclusive): a number for choices among a sample's other values, such as captions."""
        return uniform(self.seed, self.epoch, self.keys, Stream.CHOICE, 1)[:, 0]


@dataclass(frozen=True, repr=False)
class Recipe:
    """A checked sequence of ops.

    The ops up to :attr:`rest` are the base path: one source box, a flip and an output size describe them, so that a
    backend can run them in one pass.

    Attributes:
        ops: All ops, in order.
        pads: True if the base path may also have ops that put a border of one color around the image, see
            :attr:`framed`.
    """

    ops: tuple[Op, ...] = ()
    pads: bool = False

    @classmethod
    def of(cls, transform: Op | Recipe | Sequence[Op] | None) -> Recipe:
        """Returns the recipe of a transform.

        Args:
            transform: An op, a ``Compose``, a sequence of ops, a recipe, or None for no ops.

        Raises:
            ArgumentError: if an element is no op, or an op is in a place where it can't be.
        """
        if isinstance(transform, Recipe):
            return transform
        recipe = cls(tuple(_flatten(transform)))
        recipe.check()
        if not isinstance(transform, Compose):  # a Compose has warned when it was made
            recipe._warn_of_scales()
        return recipe

    def __repr__(self) -> str:
        return _listed(self, self.ops)

    def check(self) -> None:
        """Checks the places of the ops.

        Raises:
            ArgumentError: naming an op in a place where it can't be.
        """
        value_op: Op | None = None
        is_gray = False
        for op in self.ops[:-1]:
            if isinstance(op, Lambda) and not op.keeps_shape:
                raise ArgumentError(f"{op} may change an image's shape, so it must be the last op of the recipe")

        for op in self.ops:
            if is_gray and not _takes_gray(op):
                raise ArgumentError(
                    f"{op} takes three channels and stands after Grayscale(1): put it before, or use Grayscale(3)"
                )
            is_gray = is_gray or Recipe((op,)).channels == 1

            if value_op is not None and not op.on_arrays:
                raise ArgumentError(
                    f"{type(op).__name__} works on uint8 images and stands after {type(value_op).__name__}; "
                    f"put it before {type(value_op).__name__}"
                )
            if value_op is None and not op.on_images:
                raise ArgumentError(f"{op} works on floats; put it after ToDtype or Normalize")
            if isinstance(op, ToDtype) and op.dtype == "uint8" and value_op is not None:
                raise ArgumentError(
                    f"ToDtype('uint8') stands after {type(value_op).__name__}, but floats are not turned back into "
                    "uint8; leave it out"
                )
            if value_op is None and isinstance(op, Normalize) and max(op.mean) > 1.0:
                raise ArgumentError(
                    f"{op} has a mean for pixels of 0 to 255, but without ToDtype before it images are first scaled to "
                    "0.0-1.0; put ToDtype(torch.float32) before it, or divide mean and std by 255"
                )
            if isinstance(op, (ToDtype, Normalize)) and not (isinstance(op, ToDtype) and op.dtype == "uint8"):
                value_op = op

    def _warn_of_scales(self) -> None:
        """Warns of a mean for pixels of 0 to 255 after they were scaled to 0.0-1.0."""
        scaled = False
        for op in self.ops:
            if isinstance(op, Normalize):
                if scaled and max(op.mean) > 1.0:
                    warn(
                        f"{op} has a mean for pixels of 0 to 255, but ToDtype(scale=True) or ToTensor before it has "
                        "scaled them to 0.0-1.0; divide mean and std by 255, or leave the scaling out",
                    )
                return  # after it pixels have another scale
            scaled = scaled or (isinstance(op, ToDtype) and op.scale and op.dtype != "uint8")

    @cached_property
    def _variable(self) -> tuple[VariableSize, ...]:
        return tuple(size for op in self.ops for size in vars(op).values() if isinstance(size, VariableSize))

    @cached_property
    def _made(self) -> dict[tuple[Size | None, int], Recipe]:
        return {}

    @property
    def is_variable(self) -> bool:
        """True if the size of some op changes from batch to batch; :meth:`at` has the recipe of one batch."""
        return bool(self._variable)

    @property
    def has_bucket(self) -> bool:
        """True if some op has the size of a batch's bucket."""
        return any(isinstance(size, BucketSize) for size in self._variable)

    @cached_property
    def phases(self) -> tuple[int, ...]:
        """The epochs at which some op gets another size, ascending; 0 is the first."""
        return tuple(sorted({0, *(epoch for each in self.by_epoch for epoch, _ in each.sizes)}))

    @property
    def by_epoch(self) -> tuple[ByEpoch, ...]:
        """The sizes that change with the epoch, in the order of the ops."""
        return tuple(size for size in self._variable if isinstance(size, ByEpoch))

    def at(self, bucket: Size | None, epoch: int) -> Recipe:
        """Returns the recipe of one batch, in which all sizes are numbers.

        Args:
            bucket: (height, width) of the batch's bucket; of no effect where no op has a bucket's size.
            epoch: 0 to 2**32-1.

        Raises:
            ArgumentError: if an op has a bucket's size, and there is none.
        """
        if not self._variable:
            return self
        key = bucket if self.has_bucket else None, max(first for first in self.phases if first <= epoch)
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = Recipe(tuple(op.at(*key) for op in self.ops))
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_made"}

    @cached_property
    def base_length(self) -> int:
        """Number of ops in the base path.

        Raises:
            ArgumentError: if the size of some op changes from batch to batch.
        """
        if self._variable:
            raise ArgumentError(f"{self._variable[0]!r} is no size by itself; Recipe.at(bucket, epoch) has the size")
        return self._base[0]

    @property
    def base_fill(self) -> tuple[int, int, int]:
        """The color, 0-255, of the border that the base path puts around an image."""
        return self._base[1] or (0, 0, 0)

    @cached_property
    def _base(self) -> tuple[int, tuple[int, int, int] | None]:
        if self.tail is not None:
            return self.head._base
        fused = 0
        extent = SizeBounds()
        resized, fill = False, None
        for op in self.ops:
            if op.resizes and (resized or fill is not None):
                break
            if not op.fuses(extent):
                if not self.pads or op.border is None or fill not in (None, op.border):
                    break
                fill = op.border
            resized = resized or op.resizes
            extent = op.extent(extent)
            fused += 1
        # The other ops can join the base path only all together: an affine map of the pixels and mirroring commute.
        if all(op.on_arrays and (isinstance(op, (ToDtype, Normalize)) or op.fuses(extent)) for op in self.ops[fused:]):
            fused = len(self.ops)
        return fused, fill

    @cached_property
    def crops_first(self) -> bool:
        """True if the base path crops images before it resizes them, so that some of their rows may be enough."""
        if self._variable:  # it depends on no size above a pixel
            return any(self.at(_ANY_BUCKET, epoch).crops_first for epoch in self.phases)
        for op in self.ops:
            if op.crops or op.resizes or not op.fuses(SizeBounds()):
                return op.crops and (op.fuses(SizeBounds()) or (self.pads and op.border is not None))
        return False

    @cached_property
    def base_filter(self) -> str:
        """The interpolation of the base path: "bilinear", also without a resize and where it is drawn, or "bicubic"."""
        resizes = (op for op in self.ops[: self.base_length] if op.resizes)
        found = next((getattr(op, "interpolation", "bilinear") for op in resizes), "bilinear")
        return "bilinear" if found == DRAWN else found

    @cached_property
    def framed(self) -> Recipe:
        """The same ops with a base path that :attr:`pads`, for backends that can do this in one pass."""
        return self if self.pads else replace(self, pads=True)

    @property
    def is_base_path(self) -> bool:
        """True if the source box, flip, output size and :attr:`affine` describe the whole recipe."""
        return self.base_length == len(self.ops)

    @property
    def rest(self) -> tuple[Op, ...]:
        """The ops after the base path, whose input is uint8 images of :attr:`base_size`."""
        return self.ops[self.base_length :]

    @cached_property
    def base_size(self) -> Size | None:
        """(height, width) after the base path, or None if it depends on the image."""
        return _fixed_size(self.ops[: self.base_length])

    @cached_property
    def output_size(self) -> Size | None:
        """(height, width) after all ops, or None if it depends on the image or its bucket.

        Where it changes with the epoch, the size with the most pixels.
        """
        if self.has_bucket:
            return None
        sizes = [self.at(None, epoch)._output_size for epoch in self.phases]
        fixed = [size for size in sizes if size is not None]
        return max(fixed, key=lambda size: size[0] * size[1]) if len(fixed) == len(sizes) else None

    @property
    def _output_size(self) -> Size | None:
        output = self.tail_output
        return output.size if output is not None and output.size is not None else _fixed_size(self.ops)

    @property
    def tail(self) -> Lambda | None:
        """The last op, if it is a function that may change an image's shape or dtype."""
        last = self.ops[-1] if self.ops else None
        return last if isinstance(last, Lambda) and not last.keeps_shape else None

    @cached_property
    def head(self) -> Recipe:
        """The recipe without :attr:`tail`."""
        return self if self.tail is None else replace(self, ops=self.ops[:-1])

    @cached_property
    def tail_output(self) -> Output | None:
        """The images that :attr:`tail` makes, found by a call on made ones; None without it.

        Raises:
            ArgumentError: if it fails on them, or makes no images of one shape.
        """
        if self.tail is None:
            return None
        dtype = "uint8" if self.head.output_dtype == "uint8" else "float32"
        return self.tail.probe(dtype, self.channels, None if self._variable else self.head.output_size)

    @property
    def leading_shape(self) -> tuple[int, ...]:
        """The output's dimensions before height and width: (3,), unless :attr:`tail` makes others."""
        return (self.channels,) if self.tail_output is None else self.tail_output.leading

    @property
    def channels(self) -> int:
        """Number of channels before :attr:`tail`: 1 after ``Grayscale(1)``, else 3.

        Backends make three, of which the first is the output.
        """
        return 1 if any(isinstance(op, Grayscale) and op.num_output_channels == 1 for op in self.ops) else 3

    @cached_property
    def draws_from_boxes(self) -> bool:
        """True if an op's draws depend on the sample's boxes."""
        return any(isinstance(op, RandomIoUCrop) for op in self.ops)

    @property
    def views(self) -> tuple[Recipe, ...]:
        """The recipe alone: it makes one view of each image; see :class:`feeder.transforms.Views`."""
        return (self,)

    @cached_property
    def output_dtype(self) -> str:
        """Name of the output's dtype: "uint8", "float16", "bfloat16" or "float32"; or what :attr:`tail` makes."""
        if self.tail_output is not None:
            return self.tail_output.dtype
        dtype = "uint8"
        for op in self.ops:
            if isinstance(op, ToDtype):
                dtype = op.dtype
            elif isinstance(op, Normalize) and dtype == "uint8":
                dtype = "float32"
        return dtype

    @property
    def storage_dtype(self) -> np.dtype[np.generic]:
        """The numpy dtype that holds the output; bfloat16 is held as its bits in uint16."""
        return np.dtype("uint16" if self.output_dtype == "bfloat16" else self.output_dtype)

    @cached_property
    def affine(self) -> Affine | None:
        """(scale, bias), float32 [3] each: output = pixel (0-255) * scale + bias. None if pixels stay uint8."""
        return None if self.output_dtype == "uint8" else compose_affine(self.ops, is_float=False)

    def draw(
        self,
        seed: int,
        epoch: int,
        sample_ids: npt.ArrayLike,
        sizes: npt.ArrayLike,
        boxes: BoxesAfter | None = None,
    ) -> Draws:
        """Draws the parameters of N samples: a pure function of (seed, epoch, sample id), the image's size and boxes.

        Args:
            seed: 0 to 2**64-1.
            epoch: 0 to 2**32-1.
            sample_ids: integers [N].
            sizes: integers [N, 2], upright (height, width) in pixels.
            boxes: Gives those of each sample after some ops; needed only if :attr:`draws_from_boxes`.
        """
        if self._variable:
            return self.at(None, epoch).draw(seed, epoch, sample_ids, sizes, boxes)

        ids = np.asarray(sample_ids, np.int64)
        image_size = np.maximum(np.asarray(sizes, np.int64).reshape(-1, 2), 1)
        if len(ids) != len(image_size):
            raise ArgumentError(f"sample_ids and sizes must be of one length, got {len(ids)} and {len(image_size)}")

        base = _Base(image_size, self.pads)
        current = image_size
        drawn: list[Params] = []

        for stream, op in enumerate(self.ops):
            uniforms = Uniforms(seed, epoch, ids, stream)
            if isinstance(op, RandomIoUCrop) and boxes is not None:
                now = boxes(self.ops[:stream], tuple(drawn), image_size)
                params, current = op.draw_from(uniforms, current, now)
            else:
                params, current = op.draw(uniforms, current)
            drawn.append(params)
            if stream < self.base_length:
                base.apply(op, params)

        if self.tail_output is not None and self.tail_output.size is not None:
            current = np.broadcast_to(np.array(self.tail_output.size, np.int64), current.shape)
        return Draws(
            image_size=image_size.astype(np.int32),
            output_size=current.astype(np.int32),
            ops=tuple(drawn),
            seed=seed,
            epoch=epoch,
            keys=ids,
            **base.drawn(),
        )

    def redrawn(self, draws: Draws) -> Draws:
        """Returns draws of a recipe of the same ops, as this one's base path has them."""
        base = _Base(draws.image_size.astype(np.int64), self.pads)
        for op, params in zip(self.ops[: self.base_length], draws.ops, strict=False):
            base.apply(op, params)
        return replace(draws, **base.drawn())

    def draw_rest(self, seed: int, epoch: int, sample_ids: npt.ArrayLike) -> tuple[Params, ...]:
        """Draws only for the ops of :attr:`rest`, as :meth:`draw` does, without the images' sizes.

        Args:
            seed: 0 to 2**64-1.
            epoch: 0 to 2**32-1.
            sample_ids: integers [N].

        Raises:
            ArgumentError: if :attr:`base_size` depends on the image.
        """
        if self.base_size is None:
            raise ArgumentError("the size after the base path depends on the image; draw with the images' sizes")
        ids = np.asarray(sample_ids, np.int64)
        current = np.broadcast_to(np.array(self.base_size, np.int64), (len(ids), 2))
        drawn: list[Params] = []
        for stream in range(self.base_length, len(self.ops)):
            params, current = self.ops[stream].draw(Uniforms(seed, epoch, ids, stream), current)
            drawn.append(params)
        return tuple(drawn)


class _Base:
    """The boxes and the flip of N samples while the ops of the base path are applied to them."""

    def __init__(self, sizes: IntArray, pads: bool) -> None:
        whole = np.concatenate([np.zeros_like(sizes), sizes[:, ::-1]], axis=1)
        self._source: FloatArray = whole.astype(np.float64)
        self._support: IntArray = whole
        self._size = sizes  # the image's, at (left, top) in the canvas
        self._start = np.zeros_like(sizes)
        self._canvas = sizes
        self._flip = np.zeros(len(sizes), np.bool_)
        self._pads = pads
        self._hidden = np.zeros(len(sizes), np.bool_)
        self._too_small = np.zeros(len(sizes), np.bool_)
        self._resized = False
        self._bicubic: Uint8s | None = None

    def drawn(self) -> dict[str, Any]:
        """Returns the fields of :class:`Draws` that describe the base path."""
        frame = None
        if self._pads:
            frame = np.concatenate([self._start, self._size[:, ::-1]], axis=1).astype(np.int32)
            frame[self._hidden] = 0
            frame[self._too_small, 0] = -1
        return {
            "source_box": self._source,
            "support_box": self._support.astype(np.int32),
            "base_size": self._canvas.astype(np.int32),
            "flip": self._flip.astype(np.uint8),
            "frame": frame,
            "bicubic": self._bicubic,
        }

    def apply(self, op: Op, params: Params) -> None:
        if "top" in params and "padding" not in params:
            self._crop(op, params)
        if "resized_height" in params:
            self._size = self._canvas = np.stack([params["resized_height"], params["resized_width"]], axis=1)
            self._start = np.zeros_like(self._size)
            self._resized = True
            self._bicubic = params.get("bicubic")
        if "padding" in params:
            before, after = params["padding"][:, :2], params["padding"][:, 2:]
            self._start = self._start + before
            self._canvas = self._canvas + (before + after)[:, ::-1]
            if "top" in params:
                self._crop(op, params)
        if "flip" in params:
            self._flip = self._flip ^ params["flip"]
            right = self._canvas[:, 1] - self._start[:, 0] - self._size[:, 1]
            left = np.where(params["flip"], right, self._start[:, 0])
            self._start = np.stack([left, self._start[:, 1]], axis=1)

    def _crop(self, op: Op, params: Params) -> None:
        if self._pads and isinstance(op, RandomCrop):
            self._too_small |= (self._canvas < op.size).any(axis=1)
        size = np.stack([params["height"], params["width"]], axis=1)
        window = np.stack([params["left"], params["top"]], axis=1)
        begin, end = window, window + size[:, ::-1]
        if self._pads:  # the part of the window in the image, or a pixel where there is none
            last = self._start + self._size[:, ::-1]
            self._hidden |= ((begin >= last) | (end <= self._start)).any(axis=1)
            begin = np.clip(begin, self._start, last - 1)
            end = np.clip(end, begin + 1, last)
        cropped, start = end - begin, begin - self._start

        # A window chosen after a flip is counted from the other side.
        start[:, 0] = np.where(self._flip, self._size[:, 1] - start[:, 0] - cropped[:, 0], start[:, 0])
        scale = (self._source[:, 2:] - self._source[:, :2]) / self._size[:, ::-1]
        origin = self._source[:, :2]
        self._source = np.concatenate([origin + start * scale, origin + (start + cropped) * scale], axis=1)
        if not self._resized:
            self._support = np.rint(self._source).astype(np.int64)
        self._size = cropped[:, ::-1]
        self._start = begin - window
        self._canvas = size


def _listed(recipe: Recipe | Compose, ops: Sequence[Op]) -> str:
    """Formats ops, a line each, as torchvision's ``Compose`` does."""
    lines = "".join(f"    {line}\n" for op in ops for line in f"{op!r},".splitlines())
    return f"{type(recipe).__name__}(\n{lines})" if ops else f"{type(recipe).__name__}()"


def _flatten(transform: object) -> list[Op]:
    if transform is None:
        return []
    if isinstance(transform, Compose):
        return [op for part in transform.transforms for op in _flatten(part)]
    if isinstance(transform, Op):
        return [transform]
    if isinstance(transform, (list, tuple)):
        return [op for part in transform for op in _flatten(part)]
    if isinstance(transform, BatchOp):
        raise ArgumentError(
            f"{transform} works on assembled batches, not on images; give it to DataLoader(mix=...), or several in a "
            "list, of which each batch gets one"
        )
    if isinstance(reason := getattr(transform, "why_alone", None), str):  # Views has such a reason
        raise ArgumentError(reason)
    found = " ".join(repr(transform).split())  # torchvision's Compose has a line for each op
    raise ArgumentError(
        f"expected an op of feeder.transforms, got {found}; its ops have torchvision v2's names and arguments, "
        "and Lambda takes any function of an image"
    )


def _takes_gray(op: Op) -> bool:
    """Returns whether an op does the same to one channel as to three equal ones."""
    if isinstance(op, Normalize):
        return len({*op.mean}) == len({*op.std}) == 1
    return not (isinstance(op, Lambda) and op.keeps_shape)


def _fixed_size(ops: tuple[Op, ...]) -> Size | None:
    extent = SizeBounds()
    for op in ops:
        extent = op.extent(extent)
    return extent.minimum if extent.fixed else None
