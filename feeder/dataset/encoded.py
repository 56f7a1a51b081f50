"""An image that a dataset of any kind leaves to the loader, which reads, decodes and augments whole batches."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch.utils.data._utils import collate as torch_collate

from feeder.dataset.decoding import noted
from feeder.dataset.folder_reader import MACHINE_ERRORS
from feeder.dataset.target_values import TargetValue, boxes_of, target_values
from feeder.decoders.decode import check_recipe, different_sizes_of, drawn_seed, header, thread_decoder
from feeder.decoders.decoder import View
from feeder.decoders.image_header import clipped_warning
from feeder.decoders.registry import Dali
from feeder.errors import ArgumentError, DecodeError
from feeder.shard.source.image_file import read_image
from feeder.system.warning import warn
from feeder.transforms import BoundingBoxes, Draws, KeyPoints, Mask, Recipe
from feeder.transforms.targets import Target
from feeder.transforms.torchvision_recipes import are_same, objects_in, recipe_of

_KNOWN_RECIPES = 256
# Keys: the id of the transform, and the kinds of its targets. The values keep the transform, and so its id, alive.
_known: dict[tuple[int, tuple[Target, ...]], tuple[tuple[Any, ...], Recipe, tuple[TargetValue, ...]]] = {}


class Encoded:
    """An encoded image in a sample, for :class:`feeder.DataLoader` to read, decode and augment with its batch.

    The ``__getitem__`` of a map-style dataset returns it where it opened an image: alone or in tuples, lists and dicts,
    several in a sample. In the batch the images of one place are a tensor [N, 3, H, W], uint8 0-255, or of the dtype
    of the recipe's ToDtype or Normalize; or of the shape and dtype that its last function makes. EXIF orientation is
    applied.

    Random ops draw by (seed, epoch, index): the loader's ``seed``, its epoch, and the index that the dataset was asked
    for; an index that is no integer counts by its text. Each image of a sample draws for itself. A sampler that may
    give an index twice in an epoch (any but torch's sequential, distributed and shuffling ones) has its samples drawn
    also by their place in this rank's epoch, so that each time is another crop.

    torch's own DataLoader takes it too: the images are drawn from torch's random state there, which differs between
    workers and epochs. So they are for an iterable dataset, with torch's ``default_collate``.

    Args:
        data: The path of an image's file, or its bytes: JPEG, PNG, WebP, ..., or an ``.npy`` of uint8 [H, W, 3] or
            [H, W].
        transform: The ops on the image, as :class:`feeder.ShardDataset` takes them, or torchvision's ``Compose``; make
            it once, outside of ``__getitem__``. Two views of an image are two Encoded.
        targets: Pairs of a declaration and a value, such as ``[(T.BoundingBoxes(), {"boxes": ..., "labels": ...})]``,
            which the geometry of the transform moves with the image. In the sample ``(image, *targets)`` then stands in
            its place. A value is what the member of a shard has, see :class:`feeder.transforms.Mask` and its
            neighbours: its path or bytes; or the numbers of a mask, [H, W] as an array, tensor or Pillow image; or the
            object of boxes or keypoints, of lists, arrays or tensors. A batch has tensors [N, H, W] of masks, and lists
            of N dicts of the others.

    Raises:
        ArgumentError: for data that is neither, an op in a wrong place, or targets that it can't be done to.
    """

    __slots__ = ("data", "kinds", "recipe", "targets")

    def __init__(
        self,
        data: str | os.PathLike[str] | bytes | bytearray | memoryview,
        transform: Any = None,
        *,
        targets: Iterable[tuple[Target, Any]] = (),
    ) -> None:
        self.data: str | bytes = data if isinstance(data, (str, bytes)) else _path_or_bytes(data)
        kinds, self.targets = _kinds_and_values(targets) if targets else ((), ())
        recipe, checked = _recipe_of(transform, kinds)
        self.recipe = recipe
        self.kinds = checked

    if not TYPE_CHECKING:  # a type checker would take it for every name

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"feeder.Encoded has no {name!r}, as the loader decodes it later: give it all that is done to the "
                "image as transform=; Encoded(...).decode() is a tensor"
            )

    def __repr__(self) -> str:
        shown = repr(self.data) if isinstance(self.data, str) else f"<{len(self.data):,} bytes>"
        return f"Encoded({shown}, {self.recipe!r})"

    def open(self) -> OpenedImage:
        """Reads the image and its header, and its targets.

        Raises:
            DecodeError: if one of them can't be read, or is none; without a name.
        """
        data = _read(self.data) if isinstance(self.data, str) else self.data
        orientation, size = header(data)
        given = []
        for kind, value in zip(self.kinds, self.targets, strict=True):
            try:
                plain = _plain(value)
            except DecodeError as error:
                raise DecodeError(f"its target {os.fsdecode(value)!r} {error.reason}") from None
            given.append(kind.given(plain, orientation))
        return OpenedImage(data, self.recipe, orientation, size, self.kinds, given)

    def named(self, error: DecodeError, sample: str) -> DecodeError:
        """Returns an error with the names of the file and the sample in it."""
        if isinstance(self.data, bytes):
            return error.at(key=sample)
        return DecodeError(f"{error.reason}, in {sample}", key=self.data)

    def name(self, sample: str) -> str:
        """Returns the name of the file, or else of the sample."""
        return self.data if isinstance(self.data, str) else f"the image of {sample}"

    def decode(self) -> Any:
        """Decodes the image alone, to look at it: [3, H, W], drawn from torch's random state; or ``(image, *targets)``.

        Raises:
            DecodeError: if it can't be decoded.
        """
        pixels, targets = _drawn([self])
        return (pixels[0], *targets[0]) if self.kinds else pixels[0]


class OpenedImage(NamedTuple):
    """An image that was read.

    Attributes:
        data: The encoded image.
        recipe: The ops on it.
        orientation: EXIF orientation to apply, 1-8.
        size: Upright (height, width), pixels.
        kinds: Of its targets.
        given: The targets, as they were read.
    """

    data: bytes
    recipe: Recipe
    orientation: int
    size: tuple[int, int]
    kinds: tuple[TargetValue, ...]
    given: list[Any]


class Group(NamedTuple):
    """Images that were made together.

    Attributes:
        rows: Their places among the given images.
        pixels: [K, 3, H, W], of the recipe's ``output_dtype``.
    """

    rows: list[int]
    pixels: torch.Tensor


def decode_opened(
    images: Sequence[OpenedImage],
    keys: Sequence[int],
    seed: int,
    epoch: int,
    options: tuple[str | Dali, str, int],
    empty: Callable[[tuple[int, ...], torch.dtype], torch.Tensor | None] | None = None,
) -> tuple[list[Group], list[DecodeError | None], list[tuple[Any, ...]]]:
    """Decodes and augments images, those of one recipe and output size in one call.

    Args:
        images: N images.
        keys: Keys of their draws, 0 to 2**63-1.
        seed: 0 to 2**64-1.
        epoch: 0 to 2**32-1.
        options: Backend, fidelity and threads, see :func:`feeder.decoders.decode.thread_decoder`.
        empty: Returns memory for all N images, if they are of one recipe and size, or None; None: ordinary memory.

    Returns:
        The images in groups; N entries, None or the error of an image whose pixels are undefined; and the targets of
        each image.
    """
    groups: list[Group] = []
    errors: list[DecodeError | None] = [None] * len(images)
    targets: list[tuple[Any, ...]] = [()] * len(images)
    for recipe, rows in _by_recipe(images):
        recipe, kinds = recipe.at(None, epoch), images[rows[0]].kinds
        decoder = thread_decoder(recipe, *options)
        sizes = np.array([images[row].size for row in rows], np.int32)
        boxes = boxes_of(recipe, kinds, [*zip(*(images[row].given for row in rows), strict=True)], sizes)
        draws = recipe.draw(seed, epoch, [keys[row] for row in rows], sizes, boxes)

        for some in _by_size(draws.output_size.tolist()):
            height, width = draws.output_size[some[0]].tolist()
            shape, dtype = (len(some), *recipe.leading_shape, height, width), getattr(torch, recipe.output_dtype)
            pixels = empty(shape, dtype) if empty is not None and len(some) == len(images) else None
            if pixels is None:
                pixels = torch.empty(shape, dtype=dtype, device="cpu")
            array = (pixels.view(torch.uint16) if dtype is torch.bfloat16 else pixels).numpy()

            group = Group([rows[place] for place in some], pixels)
            chosen = [images[row] for row in group.rows]
            drawn = draws if len(some) == len(draws) else draws.take(some)
            orientations = np.array([image.orientation for image in chosen], np.uint8)
            result = decoder.decode([image.data for image in chosen], orientations, [View(recipe, drawn, array)])

            groups.append(group)
            for row, error in zip(group.rows, result.errors, strict=True):
                errors[row] = error
            if noted(result.clipped, result.slow):
                warn(clipped_warning(result.clipped))

        for place, row in enumerate(rows if kinds else ()):
            try:
                targets[row] = _moved(images[row], draws, place)
            except DecodeError as error:
                errors[row] = error
    return groups, errors, targets


def _moved(image: OpenedImage, draws: Draws, row: int) -> tuple[Any, ...]:
    """Returns an image's targets by its row of the draws, as a sample has them."""
    found = [kind.sample(kind.finish(value, draws, row)) for kind, value in zip(image.kinds, image.given, strict=True)]
    return tuple(_Annotations(each) if isinstance(each, dict) else each for each in found)


def _by_recipe(images: Sequence[OpenedImage]) -> list[tuple[Recipe, list[int]]]:
    """Returns the recipes, each with the places of its images of the same kinds of targets."""
    found: list[tuple[Recipe, list[int]]] = []
    for row, image in enumerate(images):
        for recipe, rows in found:
            if (recipe is image.recipe or recipe == image.recipe) and images[rows[0]].kinds == image.kinds:
                rows.append(row)
                break
        else:
            found.append((image.recipe, [row]))
    return found


def _by_size(sizes: list[list[int]]) -> list[list[int]]:
    """Returns the places of the images of each (height, width)."""
    found: dict[tuple[int, ...], list[int]] = {}
    for place, size in enumerate(sizes):
        found.setdefault(tuple(size), []).append(place)
    return list(found.values())


def _path_or_bytes(data: Any) -> str | bytes:
    if isinstance(data, os.PathLike):
        return os.fsdecode(data)
    with contextlib.suppress(TypeError):
        view = memoryview(data)
        if view.itemsize == view.ndim == 1:
            return bytes(view)
    raise ArgumentError(
        f"feeder.Encoded takes the path of an image's file, or its bytes, got {type(data).__name__}: give it the file "
        "instead of opening it, or io.BytesIO(...).getvalue()"
    )


def _read(path: str) -> bytes:
    try:
        return read_image(path)
    except OSError as error:
        if error.errno in MACHINE_ERRORS:
            raise
        raise DecodeError(f"can't be read: {error.strerror}") from None
    except ValueError as error:
        raise DecodeError(str(error)) from None


def _kinds_and_values(targets: Iterable[Any]) -> tuple[tuple[Target, ...], tuple[Any, ...]]:
    pairs = [*targets]
    for place, pair in enumerate(pairs):
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], (BoundingBoxes, KeyPoints, Mask))):
            raise ArgumentError(
                f"targets[{place}] must be a pair such as (T.Mask(), mask), of a T.Mask, T.BoundingBoxes or "
                f"T.KeyPoints and its value, got {str(pair)[:60]!r}; another image is another feeder.Encoded"
            )
    return tuple(kind for kind, _ in pairs), tuple(value for _, value in pairs)


def _plain(value: Any) -> Any:
    """Returns a target's value as :meth:`TargetValue.given` takes it."""
    if isinstance(value, Mapping):
        return {name: _listed_numbers(each) for name, each in value.items()}
    if isinstance(value, (str, os.PathLike)):
        return _read(os.fsdecode(value))
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    return bytes(value) if isinstance(value, (bytes, bytearray, memoryview)) else np.asarray(value)


def _listed_numbers(value: Any) -> Any:
    """Returns an array, tensor or tuple as a list; anything else as it is."""
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value


def _recipe_of(transform: Any, kinds: tuple[Target, ...]) -> tuple[Recipe, tuple[TargetValue, ...]]:
    """Returns the checked recipe of a transform with its targets, made once for each object."""
    objects = objects_in(transform)
    known = _known.get((id(transform), kinds))
    if known is not None and are_same(objects, known[0]):
        return known[1:]

    recipe = recipe_of(transform)
    if not kinds:
        check_recipe(recipe.at(None, 0))
    named = {f"targets[{place}]": kind for place, kind in enumerate(kinds)}
    targets = cast(tuple[TargetValue, ...], target_values(named, recipe))
    if len(_known) == _KNOWN_RECIPES:
        _known.clear()
    _known[id(transform), kinds] = objects, recipe, targets
    return recipe, targets


class _Annotations(dict[str, Any]):
    """Boxes or keypoints of a sample; a batch has a list of them, as their numbers differ."""


def _listed(samples: Sequence[Any], *, collate_fn_map: Any = None) -> list[dict[str, Any]]:
    return [dict(each) for each in samples]


def _drawn_batch(images: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    """Returns the batch of some images, [N, 3, H, W], drawn from torch's random state; also in torch's own loader."""
    pixels, targets = _drawn(images)
    if not any(image.kinds for image in images):
        return pixels
    return [pixels, *torch_collate.collate(targets, collate_fn_map=collate_fn_map)]


def _drawn(images: Sequence[Any]) -> tuple[torch.Tensor, list[tuple[Any, ...]]]:
    """Returns images [N, 3, H, W] and the targets of each, drawn from torch's random state."""
    opened = []
    for row, image in enumerate(images):
        if not isinstance(image, Encoded):
            raise ArgumentError(
                f"the samples of a batch differ: one has a feeder.Encoded where another has a {type(image).__name__}"
            )
        try:
            opened.append(image.open())
        except DecodeError as error:
            raise image.named(error, _place(row)) from None

    groups, errors, targets = decode_opened(opened, range(len(opened)), drawn_seed(), 0, ("auto", "fast", 1))
    for row, found in enumerate(errors):
        if found is not None:
            raise images[row].named(found, _place(row))

    if len(groups) == 1:
        return groups[0].pixels, targets
    rows = {row: pixels for group in groups for row, pixels in zip(group.rows, group.pixels, strict=True)}
    made = [rows[row] for row in range(len(rows))]
    check_sizes(made, lambda row: images[row].name(_place(row)))
    return torch.stack(made), targets


def check_sizes(images: Sequence[torch.Tensor], name: Callable[[int], str]) -> None:
    """Refuses images [3, H, W] of different sizes.

    Args:
        images: The images.
        name: Returns the name of one.

    Raises:
        ArgumentError: naming two of them.
    """
    for row, image in enumerate(images):
        if image.shape != images[0].shape:
            raise different_sizes_of((name(0), *images[0].shape[1:]), (name(row), *image.shape[1:]))


def _place(row: int) -> str:
    return f"sample {row} of the batch"


# A place that torch documents for further types.
torch_collate.default_collate_fn_map |= {Encoded: _drawn_batch, _Annotations: _listed}
