"""The base of a recipe's ops: declared arguments, and the draw of parameters for a batch of samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple, NoReturn

import numpy as np

from feeder.order.random import philox, uniform
from feeder.system.arrays import AnyArray, Float64s, Int64s, Uint64s
from feeder.transforms.arguments import BASE_FILTERS, DRAWN, check_probability
from feeder.transforms.sizes import VariableSize

if TYPE_CHECKING:
    from typing_extensions import Self

IntArray = Int64s
FloatArray = Float64s

# An op's drawn parameters by name; every array has one row per sample.
Params = dict[str, AnyArray]


class SizeBounds(NamedTuple):
    """Facts about the images' size that hold for every image.

    Attributes:
        minimum: Smallest (height, width) in pixels.
        fixed: True if every image has exactly that size.
    """

    minimum: tuple[int, int] = (1, 1)
    fixed: bool = False


class Drawn(NamedTuple):
    """An op's drawn parameters and the sizes of its output, int64 [N, 2] (height, width)."""

    params: Params
    sizes: IntArray


@dataclass
class Uniforms:
    """The uniform numbers of one op for N samples: a pure function of (seed, epoch, sample id, stream)."""

    seed: int
    epoch: int
    sample_ids: IntArray
    stream: int

    def __call__(self, count: int, rows: IntArray | None = None) -> FloatArray:
        """Returns the first ``count`` numbers of every sample, or of those in ``rows``: float64 [N, count] in [0, 1).

        A longer draw starts with the numbers of a shorter one.
        """
        sample_ids = self.sample_ids if rows is None else self.sample_ids[rows]
        return uniform(self.seed, self.epoch, sample_ids, self.stream, count)

    def inner(self, number: int) -> Uniforms:
        """Returns the numbers of an op inside this one; recipes have fewer than 1,024 ops."""
        return replace(self, stream=self.stream + 1024 * (number + 1))

    def keys(self) -> Uint64s:
        """Returns a 64-bit seed per sample, for ops that need a number per pixel: uint64 [N].

        The seeds share their words with the first two uniform numbers, so an op uses either keys or later numbers.
        """
        words = philox(self.seed, self.epoch, self.sample_ids, self.stream, 1).astype(np.uint64)
        keys: Uint64s = words[:, 0] << np.uint64(32) | words[:, 1]
        return keys


class Op:
    """One step of a recipe. Ops are frozen dataclasses with torchvision v2's names, arguments and defaults.

    Class attributes:
        on_images: True if the op may stand before ``ToDtype`` and ``Normalize``, where images are uint8.
        on_arrays: True if the op may stand after them, where images are floats.
        draws_from_size: True if the random parameters depend on the image's size: torchvision v2 refuses such an op for
            images of different sizes in one call.
        crops: True if the op may leave out rows of its input.
        resizes: True if the op changes the image's scale; only one such op fits in a source box.
        border: Color of an op that only crops, and pads with this color; None for others.
    """

    on_images = True
    on_arrays = False
    draws_from_size = False
    crops = False
    resizes = False
    border: tuple[int, int, int] | None = None

    def _set(self, **fields: object) -> None:
        """Sets the fields of a frozen dataclass while it is made."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __call__(self, *images: object) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} is a declaration that datasets and loaders carry out: give it to "
            "ShardDataset(path, transform=...) and take the image from dataset[i] or from a loader"
        )

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        """Draws the op's parameters for N samples.

        Args:
            uniforms: The op's random numbers.
            sizes: int64 [N, 2], (height, width) of the op's input images.
        """
        return Drawn({}, sizes)

    @property
    def inner_ops(self) -> tuple[Op, ...]:
        """The ops that this one contains, in order."""
        return ()

    def at(self, bucket: tuple[int, int] | None, epoch: int) -> Self:
        """Returns the op with variable sizes replaced by those of a batch; see :meth:`VariableSize.at`."""
        sizes = {name: size.at(bucket, epoch) for name, size in vars(self).items() if isinstance(size, VariableSize)}
        if not sizes:
            return self
        op = object.__new__(type(self))
        op.__dict__.update(vars(self) | sizes)
        return op

    def extent(self, extent: SizeBounds) -> SizeBounds:
        """Returns the output's extent for an input's."""
        return extent

    def fuses(self, extent: SizeBounds) -> bool:
        """Returns whether a source box, a flip and an output size can express the op.

        Such an op has parameters of these names only: ``top, left, height, width`` (crop to this window),
        ``resized_height, resized_width`` (then resize to this, bilinear), ``flip``.
        """
        return False


class ResizeOp(Op):
    """An op that may crop the image and then resizes it, by its ``interpolation``."""

    resizes = True
    interpolation: str

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        resized = self.resized(uniforms, sizes)
        return Drawn({"resized_height": resized[:, 0], "resized_width": resized[:, 1]}, resized)

    def resized(self, uniforms: Uniforms, sizes: IntArray) -> IntArray:
        """Returns the output's sizes, int64 [N, 2] (height, width), of an op that does not crop."""
        raise NotImplementedError

    def fuses(self, extent: SizeBounds) -> bool:
        return self.interpolation in (*BASE_FILTERS, DRAWN)


@dataclass(frozen=True, init=False)
class ProbabilityOp(Op):
    """An op that changes an image with probability ``p``, always in the same way.

    Class attributes:
        drawn_name: Name of the drawn parameter: bool [N], True where the image is changed.
    """

    p: float
    drawn_name: ClassVar[str] = "change"

    def __init__(self, p: float = 0.5) -> None:
        self._set(p=check_probability(p))

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        return Drawn({self.drawn_name: uniforms(1)[:, 0] < self.p}, sizes)
