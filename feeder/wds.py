"""feeder's decoding in pipelines of the webdataset library, in its own workers.

Note [Passes over a pipeline]
    webdataset tells the functions in ``.map`` and ``.decode`` nothing of the epoch, and those in ``.decode`` nothing of
    the sample either. Both are in webdataset's generator that calls them: each pass over a pipeline makes another one,
    which reads from its variable ``data`` and has the sample in ``sample``. So passes are told apart by ``data``, if it
    is a generator: these are used once, and a weak reference to one ends with its pass. Otherwise they are told apart
    by the frame. They are counted for each worker in shared memory, as a DataLoader makes new workers for each epoch.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections import OrderedDict
from types import FrameType, GeneratorType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import get_worker_info

from feeder.decoders.decode import check_backend, check_recipe, decode_batch, thread_decoder
from feeder.decoders.decoder import MAX_PIXELS, check_options
from feeder.decoders.image_header import is_image_field
from feeder.decoders.registry import check_name
from feeder.errors import ArgumentError, DecodeError
from feeder.system.checks import check_int
from feeder.transforms import Recipe
from feeder.transforms.torchvision_recipes import recipe_of

__all__ = ["ImageDecoder", "decoder"]

_MOST_WORKERS = 4095
_MOST_FRAMES = 2  # they hold on to what a pass had read ahead


def decoder(
    transform: Any,
    *,
    field: str | None = None,
    seed: int = 0,
    epoch: int = 0,
    backend: str = "cpu",
    fidelity: str = "fast",
) -> ImageDecoder:
    """Returns a function for ``.map`` or ``.decode`` of a webdataset pipeline that decodes and augments images.

    An image becomes what :func:`feeder.decode` makes of it with the sample's ``__key__`` as its id. The epoch is the
    number of passes that the worker began before this one, as webdataset's ``detshuffle`` counts it; the count goes on
    where a DataLoader makes new workers for each epoch. A resampled pipeline needs ``.with_epoch(n)``: without it there
    is one pass that never ends.

    Behind ``.listed(n)``, ``.map`` makes a batch of each list of samples, which takes much less time than to collate
    them: a dict with the images as [N, 3, H, W] under the first sample's field, and the other fields as webdataset's
    ``.batched(n)`` collates them. An image that can't be decoded is an error for its whole list.

    Packed images, whose codebooks a pipeline passes over, become JPEGs first, by ``.map(feeder.packed_decoder(SET))``.

    Args:
        transform: The ops on every image, feeder's or torchvision's, as :class:`feeder.ShardDataset` takes them.
        field: The image's field in a sample, such as "jpg", or several separated by semicolons, of which each sample
            has one; None: the only image in a sample, by its extension.
        seed: Of the augmentation, 0 to 2**64-1.
        epoch: The epoch of the first pass.
        backend: The decode backend: "cpu", "pillow", "dali", "auto" or another package's.
        fidelity: "fast", "exact" for pixels within a level of Pillow's, or "draft" for less work where JPEGs become
            much smaller, see :class:`feeder.DataLoader`.

    Raises:
        ArgumentError: for an op in a wrong place, or another argument outside its range.
    """
    recipe = recipe_of(transform)
    check_recipe(recipe.at(None, 0))
    check_int("seed", seed, 0, (1 << 64) - 1)
    check_int("epoch", epoch, 0, (1 << 32) - 1)

    check_name(backend)
    check_backend(backend)
    check_options(MAX_PIXELS, 1, fidelity)
    if not isinstance(field, (str, type(None))):
        raise ArgumentError(f"field must be the name of an image's field, such as 'jpg', got {field!r}")

    return ImageDecoder(recipe, field, seed, epoch, (backend, fidelity))


class ImageDecoder:
    """Decodes the images of samples; made by :func:`decoder`."""

    def __init__(self, recipe: Recipe, field: str | None, seed: int, epoch: int, options: tuple[str, str]) -> None:
        self._recipe = recipe
        self._seed = seed
        self._first_epoch = epoch
        self._options = options  # backend and fidelity
        self._fields = None if field is None else field.split(";")
        # Passes begun by each worker; entry 0 is of processes that are no worker.
        self._passes = torch.zeros(1 + _MOST_WORKERS, dtype=torch.int64, device="cpu")
        self._passes.share_memory_()  # type: ignore[no-untyped-call]
        self._forget()

    def _forget(self) -> None:
        self._epochs: WeakKeyDictionary[GeneratorType[Any, Any, Any], int] = WeakKeyDictionary()
        self._frames: OrderedDict[FrameType, int] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_epochs", "_frames")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def __call__(self, sample: Any, data: bytes | None = None) -> Any:
        """Decodes an image, as ``.map`` or ``.decode`` asks for it, or several.

        Args:
            sample: A sample or a list of N samples, from ``.map``; or a field's name after a dot, from ``.decode``.
            data: None, or the field's bytes.

        Returns:
            The sample, with the image as a tensor [3, H, W]; or a batch, with the images as a tensor [N, 3, H, W]; or
            the tensor alone, or None for a field that is no image.

        Raises:
            DecodeError: for a sample without an image, or with one that can't be decoded, naming the sample.
            ArgumentError: for a sample with several images, or samples of a list that differ in their fields.
        """
        caller = _caller()

        if data is not None:
            name = sample.removeprefix(".")
            if not self._is_image(name):
                return None
            whole = caller.f_locals["sample"]
            self._check_alone(whole, name)
            return self._decode([whole], [data], caller)[0]

        samples = sample if isinstance(sample, list) else [sample]
        for each in samples:
            _check_sample(each)
        names = [self._image_field(each) for each in samples]
        images = self._decode(samples, [each[name] for each, name in zip(samples, names, strict=True)], caller)

        if samples is sample:
            return {names[0]: images, **_collated(samples, names)}
        return {**sample, names[0]: images[0]}

    def _is_image(self, name: str) -> bool:
        return is_image_field(name) if self._fields is None else name in self._fields

    def _image_field(self, sample: dict[str, Any]) -> str:
        name = next((name for name in self._fields or sample if name in sample and self._is_image(name)), None)
        if name is None:
            wanted = "" if self._fields is None else f" {' or '.join(self._fields)}"
            fields = ", ".join(name for name in sample if not name.startswith("__"))
            raise _at(DecodeError(f"has no image{wanted}; its fields are {fields}"), sample)
        self._check_alone(sample, name)
        return name

    def _check_alone(self, sample: dict[str, Any], name: str) -> None:
        if self._fields is None:
            others = [other for other in sample if other != name and is_image_field(other)]
            if others:
                raise ArgumentError(
                    f"sample {sample['__key__']!r} has several images, {', '.join(sorted([name, *others]))}: name one, "
                    f"decoder(..., field={name!r})"
                )

    def _decode(self, samples: list[dict[str, Any]], images: list[Any], caller: FrameType) -> torch.Tensor:
        for sample, image in zip(samples, images, strict=True):
            if not isinstance(image, bytes):
                raise ArgumentError(
                    f"sample {sample['__key__']!r} has an image that is decoded already, of type "
                    f"{type(image).__name__}: use feeder's decoder in place of webdataset's, .decode() without 'pil'"
                )

        def at(error: DecodeError, row: int) -> DecodeError:
            return _at(error, samples[row])

        def name(row: int) -> str:
            return f"sample {samples[row]['__key__']!r}"

        epoch = self._epoch(caller)
        recipe = self._recipe.at(None, epoch)
        decoder = thread_decoder(recipe, *self._options)
        ids = [sample["__key__"] for sample in samples]
        return decode_batch(decoder, recipe, images, ids, self._seed, epoch, at, name)

    def _epoch(self, caller: FrameType) -> int:
        """Returns the epoch of the pass that this frame of webdataset's makes; see Note [Passes over a pipeline]."""
        data = caller.f_locals.get("data")
        known: Any = self._epochs if isinstance(data, GeneratorType) else self._frames
        at = data if isinstance(data, GeneratorType) else caller
        if at not in known:
            worker = get_worker_info()
            place = 0 if worker is None else 1 + worker.id
            known[at] = self._first_epoch + int(self._passes[place])
            self._passes[place] += 1
            while len(self._frames) > _MOST_FRAMES:
                self._frames.popitem(last=False)
        epoch: int = known[at]
        return epoch


def _caller() -> FrameType:
    """Returns the frame of webdataset's generator that makes the pass; see Note [Passes over a pipeline]."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_flags & inspect.CO_GENERATOR and frame.f_globals["__name__"] == "webdataset.filters":
            return frame
        frame = frame.f_back
    raise ArgumentError(
        "a function that feeder.wds.decoder returned works in .map and .decode of a webdataset pipeline; elsewhere "
        "call feeder.decode([data], transform, ids=[key], epoch=epoch)"
    )


def _check_sample(sample: Any) -> None:
    if not isinstance(sample, dict):
        raise ArgumentError(
            f"feeder's decoder takes whole samples, dicts with their key, and got {type(sample).__name__}: give it to "
            ".map or .decode, not to .map_dict or .map_tuple, and before .to_tuple"
        )
    if "__key__" not in sample:
        raise ArgumentError(
            "a sample has no __key__, which feeder draws by: put feeder's decoder before the stage that drops it, such "
            "as .rename(keep=False)"
        )
    if isinstance(sample.get("__key__"), (list, tuple)):
        raise ArgumentError(
            "feeder's decoder got a batch that .batched(n) has collated: put .listed(n) in place of .batched(n), and "
            "the decoder makes the batch"
        )


def _collated(samples: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    """Returns the fields beside the images, collated as webdataset does it."""
    from webdataset.filters import default_collation_fn

    rows = []
    for sample, image in zip(samples, names, strict=True):
        rows.append({name: value for name, value in sample.items() if name != image})
    for row in rows:
        if different := sorted(row.keys() ^ rows[0].keys()):
            raise ArgumentError(
                f"samples {rows[0]['__key__']!r} and {row['__key__']!r} of a batch differ in their fields: one lacks "
                f"{', '.join(different)}; drop it before"
            )
    columns = default_collation_fn([tuple(row[name] for name in rows[0]) for row in rows])
    return dict(zip(rows[0], columns, strict=True))


def _at(error: DecodeError, sample: dict[str, Any]) -> DecodeError:
    return error.at(key=sample["__key__"], shard=os.path.basename(sample.get("__url__", "")) or None)
