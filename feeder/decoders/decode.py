"""Encoded images to a batch of pixels, for pipelines other than feeder's loader."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from feeder.decoders.decoder import Buffer, Decoder, View
from feeder.decoders.image_header import clipped_warning, image_info
from feeder.decoders.raw import is_raw, raw_pixels
from feeder.decoders.registry import Dali, get_decoder
from feeder.errors import ArgumentError, DecodeError
from feeder.system.arrays import AnyArray, Int32s, Int64s, Size, Uint8s
from feeder.system.warning import warn
from feeder.transforms import Draws, Recipe
from feeder.transforms.targets import check_targets
from feeder.transforms.torchvision_recipes import recipe_of

if TYPE_CHECKING:
    import torch

_local = threading.local()  # a decoder is for one thread at a time


def decode(
    images: Iterable[Buffer],
    transform: Any,
    *,
    ids: Iterable[int] | Iterable[str] | None = None,
    seed: int | None = None,
    epoch: int = 0,
    out: torch.Tensor | None = None,
    backend: str = "cpu",
    threads: int = 1,
    fidelity: str = "fast",
) -> torch.Tensor:
    """Decodes and augments encoded images, to the pixels that the loader gives for the same (seed, epoch, sample id).

    EXIF orientation is applied. Several threads and processes may call it at the same time.

    Args:
        images: N encoded images (JPEG, PNG, WebP, ...), or .npy files of uint8 [H, W, 3] or [H, W]: bytes, or buffers
            such as a bytearray, a memoryview or an array of uint8. An .npy file has no orientation.
        transform: The ops on every image, as :class:`feeder.ShardDataset` takes them. After them all images must be of
            one size.
        ids: N sample ids, by which random ops draw: integers from 0 to 2**63-1, or keys, which count as
            :func:`sample_id` of them. In a feeder dataset a sample's id is its number. None: each call draws anew, from
            torch's random state, which torch seeds for each worker of a DataLoader; with a ``seed``, by the places in
            ``images``.
        seed: Of the augmentation, 0 to 2**64-1. None: 0 with ``ids``, else drawn from torch's random state.
        epoch: Of the augmentation, 0 to 2**32-1.
        out: A contiguous CPU tensor of the result's shape and dtype to fill; None makes one.
        backend: The decode backend: "cpu", "pillow", "dali", "auto" or another package's.
        threads: Number of threads that the backend may use.
        fidelity: "fast", "exact" for pixels within a level of Pillow's, or "draft" for less work where JPEGs become
            much smaller, see :class:`feeder.DataLoader`.

    Returns:
        [N, 3, H, W] on the CPU: uint8 0-255, or the dtype of the recipe's ToDtype or Normalize. It is ``out`` if that
        was given.

    Raises:
        DecodeError: for an image that can't be decoded, by its place, ``images[3]``; ``out`` is then undefined.
        ArgumentError: for arguments that don't fit each other, images of different sizes, or an op in a wrong place.
        BackendError: for a backend that is not installed, or can't run the recipe.
    """
    recipe = recipe_of(transform).at(None, epoch)
    check_recipe(recipe)
    decoder = thread_decoder(recipe, backend, fidelity, threads)

    if seed is None:
        seed = 0 if ids is not None else drawn_seed()
    name = "images[{}]".format
    return decode_batch(decoder, recipe, images, ids, seed, epoch, lambda error, i: error.at(key=name(i)), name, out)


def decode_batch(
    decoder: Decoder,
    recipe: Recipe,
    images: Iterable[Buffer],
    ids: Iterable[int] | Iterable[str] | None,
    seed: int,
    epoch: int,
    at: Callable[[DecodeError, int], DecodeError],
    name: Callable[[int], str],
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Decodes as :func:`decode` does.

    Args:
        decoder: This thread's, see :func:`thread_decoder`.
        recipe, images, ids, seed, epoch, out: See :func:`decode`.
        at: Returns an error with the name of its image filled in, given the image's place in ``images``.
        name: Returns that name alone.
    """
    from feeder.decoders.tensors import as_tensor

    buffers = _buffers(images)
    orientations, sizes = _headers(buffers, at)
    draws = recipe.draw(seed, epoch, _ids(ids, len(buffers)), sizes)
    shape = (len(buffers), *recipe.leading_shape, *_output_size(recipe, draws, name))
    pixels = np.empty(shape, recipe.storage_dtype) if out is None else _array(out, shape, recipe)

    result = decoder.decode(buffers, orientations, [View(recipe, draws, pixels)])
    for row, error in enumerate(result.errors):
        if error is not None:
            raise at(error, row)
    if result.clipped:
        warn(clipped_warning(result.clipped))
    return as_tensor(pixels, recipe.output_dtype) if out is None else out


def check_recipe(recipe: Recipe) -> None:
    """Raises ArgumentError for a recipe that can't be done to images alone, naming the op."""
    if recipe.draws_from_boxes:
        raise ArgumentError(
            "RandomIoUCrop draws from a sample's boxes, and here are images alone: leave it out, or use "
            "feeder.DataLoader, whose dataset takes targets={'boxes.json': T.BoundingBoxes()}"
        )
    check_targets(recipe, ())


def sample_id(key: str) -> int:
    """Returns a key's id for :func:`decode`, 0 to 2**63-1: the same in every process, on every machine and for ever.

    Args:
        key: Any text that names one sample, such as WebDataset's key or a path.
    """
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def thread_decoder(recipe: Recipe, backend: str | Dali, fidelity: str, threads: int = 1) -> Decoder:
    """Returns this thread's decoder for these options; to find one by name takes longer than to decode ten images."""
    check_backend(backend)
    options = backend, threads, fidelity, os.getpid()
    made: dict[tuple[object, ...], Decoder] = _local.__dict__.setdefault("decoders", {})
    if options not in made:
        made[options] = get_decoder(backend, recipe, threads=threads, fidelity=fidelity)
    made[options].check(recipe)
    return made[options]


def check_backend(backend: str | Dali) -> None:
    """Raises ArgumentError for the name of a backend that makes no CPU tensors."""
    if backend == "cuda":
        raise ArgumentError("backend 'cuda': decode gives CPU tensors; use 'cpu', 'pillow' or 'dali'")


def _buffers(images: Iterable[Buffer]) -> list[bytes]:
    if isinstance(images, (bytes, bytearray, memoryview, str)):
        raise ArgumentError(f"images must be a list of encoded images, got one {type(images).__name__}; write [image]")
    buffers = []
    for row, image in enumerate(images):
        if not isinstance(image, bytes):
            try:
                view = memoryview(image)
            except TypeError:
                kind = type(image).__name__
                raise ArgumentError(f"images[{row}] must be the bytes of an image's file, got {kind}") from None
            if view.itemsize != 1:
                raise ArgumentError(f"images[{row}] must be a buffer of bytes, got one of {view.format!r} {view.shape}")
            image = bytes(view)
        buffers.append(image)
    return buffers


def _headers(buffers: Sequence[bytes], at: Callable[[DecodeError, int], DecodeError]) -> tuple[Uint8s, Int32s]:
    """Returns the orientations, uint8 [N], and the upright (height, width), int32 [N, 2], of images."""
    orientations = np.ones(len(buffers), np.uint8)
    sizes = np.ones((len(buffers), 2), np.int32)
    for row, data in enumerate(buffers):
        try:
            orientations[row], sizes[row] = header(data)
        except DecodeError as error:
            raise at(error, row) from None
    return orientations, sizes


def header(data: bytes) -> tuple[int, Size]:
    """Returns an encoded image's EXIF orientation to apply, 1-8, and its upright (height, width).

    Raises:
        DecodeError: if it is no image.
    """
    try:
        if is_raw(data):
            height, width = raw_pixels(data).shape[:2]
            return 1, (height, width)
        info = image_info(data)
    except (ValueError, DecodeError) as error:
        raise DecodeError(str(error)) from None
    return info.orientation, info.upright_size


def drawn_seed() -> int:
    """Draws a seed from torch's random state, 0 to 2**64-1."""
    import torch

    return int(torch.empty((), dtype=torch.int64, device="cpu").random_()) % (1 << 64)


def _ids(ids: Iterable[int] | Iterable[str] | None, count: int) -> Int64s:
    if ids is None:
        return np.arange(count)
    if isinstance(ids, (str, bytes)):
        raise ArgumentError(f"ids must be a list of ids, got one {type(ids).__name__}; write [id]")
    numbers = np.asarray([sample_id(each) if isinstance(each, str) else each for each in ids])
    if numbers.shape != (count,):
        raise ArgumentError(f"ids must have one for each of the {count} images, got {list(numbers.shape)}")
    if count == 0:
        return np.arange(0)
    if numbers.dtype.kind not in "iu" or numbers.min() < 0 or numbers.max() >= 1 << 63:
        raise ArgumentError(f"ids must be integers from 0 to 2**63-1, or keys (str), got {numbers.tolist()[:3]}")
    return numbers.astype(np.int64)


def _output_size(recipe: Recipe, draws: Draws, name: Callable[[int], str]) -> Size:
    """Returns the (height, width) that all images have after their draws."""
    sizes = draws.output_size
    if not len(sizes):
        if recipe.output_size is None:
            raise ArgumentError("no images: the size after this transform depends on the image, so there is none")
        return recipe.output_size
    other = np.flatnonzero((sizes != sizes[0]).any(axis=1))
    if len(other):
        row = int(other[0])
        raise different_sizes_of((name(0), *sizes[0].tolist()), (name(row), *sizes[row].tolist()))
    height, width = sizes[0].tolist()
    return height, width


def different_sizes_of(first: tuple[str, int, int], other: tuple[str, int, int]) -> ArgumentError:
    """Returns the error for two images of a batch that have different sizes.

    Args:
        first, other: Name, height and width of an image after the transform.
    """
    return ArgumentError(
        f"{other[0]} has another size than {first[0]} after the transform, {other[1]}x{other[2]} and "
        f"{first[1]}x{first[2]} (height x width): a batch has one. End the transform with CenterCrop, RandomCrop, "
        "RandomResizedCrop or Resize((height, width))"
    )


def _array(out: torch.Tensor, shape: tuple[int, ...], recipe: Recipe) -> AnyArray:
    """Returns the array on the memory of ``out``, of the recipe's ``storage_dtype``."""
    import torch

    dtype = getattr(torch, recipe.output_dtype)
    if not isinstance(out, torch.Tensor):
        raise ArgumentError(f"out must be a torch.Tensor, got {type(out).__name__}; torch.from_numpy takes an array")
    if tuple(out.shape) != shape or out.dtype != dtype or out.device.type != "cpu" or not out.is_contiguous():
        order = "" if out.is_contiguous() else ", not contiguous"
        raise ArgumentError(
            f"out must be a contiguous {dtype} {list(shape)} on the CPU, got {out.dtype} {list(out.shape)} on "
            f"{out.device}{order}"
        )
    return (out.view(torch.uint16) if dtype is torch.bfloat16 else out).numpy()
