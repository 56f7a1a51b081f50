"""Samples of a map-style dataset with :class:`feeder.Encoded` in them: decoded and augmented batch by batch.

Note [Draws of any dataset]
    The loader's index sampler is a :class:`DrawnSampler`, and each index that torch's iterators take from it a
    :class:`DrawnIndex`, which brings seed, epoch and place to the worker. So what is drawn depends neither on
    the worker nor on the batch's size, and a worker that replaces another draws the same. The state has seed and epoch.
"""

from __future__ import annotations

import hashlib
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.utils.data._utils import collate as torch_collate

from feeder.dataset.decoding import Replaced, current_counts
from feeder.dataset.encoded import Encoded, OpenedImage
from feeder.decoders.decode import sample_id
from feeder.errors import ArgumentError, DecodeError
from feeder.loader.device.nested import map_tensors, tensors_in
from feeder.loader.options import ImageOptions
from feeder.order.sample_order import substitute

_SUBSTITUTES = 16
_LARGEST_KEY = (1 << 63) - 1
# Odd, so that no two places of an index share a key.
_IMAGE_STEP = 0xBF58476D1CE4E5B9
_PLACE_STEP = 0x9E3779B97F4A7C15


class DrawnIndex(NamedTuple):
    """An index sampler's output, and what the draws of its images follow from.

    Attributes:
        index: The output: the indices of a batch, or of one sample.
        seed: 0 to 2**64-1.
        epoch: 0 to 2**32-1.
        first: Place of its first sample in this rank's epoch; None: no index comes twice.
    """

    index: Any
    seed: int
    epoch: int
    first: int | None

    def __str__(self) -> str:  # in errors
        return str(self.index)


class ImageDraws:
    """The seed and the epochs of one loader's draws.

    Args:
        seed: The loader's seed, 0 to 2**64-1; None: it follows from the random state at the first epoch, which stays as
            it is.
        generator: The loader's generator; None: torch's default one.

    Attributes:
        next_epoch: The next iterator's epoch.
    """

    def __init__(self, seed: int | None, generator: torch.Generator | None) -> None:
        self._given = seed
        self._seed = seed
        self._generator = generator
        self.next_epoch = 0

    def begin(self) -> tuple[int, int]:
        """Begins an epoch; returns its seed and number."""
        if self._seed is None:
            state = (torch.default_generator if self._generator is None else self._generator).get_state()
            digest = hashlib.blake2b(state.numpy().tobytes(), digest_size=8).digest()
            self._seed = int.from_bytes(digest, "little")
        epoch, self.next_epoch = self.next_epoch, self.next_epoch + 1
        return self._seed, epoch

    def resume(self, state: dict[str, int]) -> tuple[int, int]:
        """Returns to an epoch of a state, ``seed`` and ``epoch``; a seed that was given stays."""
        if self._given is None:
            self._seed = state["seed"]
        self.next_epoch = state["epoch"]
        return self.begin()


@dataclass(eq=False)
class DrawnSampler:
    """An index sampler of torch's, of a loader whose dataset may leave images to it; see Note [Draws of any dataset].

    Args:
        sampler: The index sampler.
        draws: The loader's draws.
    """

    sampler: Any
    draws: ImageDraws

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.sampler)


@dataclass(eq=False, slots=True)
class _Row:
    """An image of a batch, for torch's ``default_collate``.

    Args:
        image: [3, H, W].
        whole: [N, 3, H, W], the images of this place in all samples of the batch; None: they are not together.
        name: Its name in errors.
    """

    image: torch.Tensor
    whole: torch.Tensor | None
    name: str


def _collate_rows(rows: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    """Returns the images of one place, [N, 3, H, W], without a copy if they are together."""
    from feeder.dataset.encoded import check_sizes

    for row in rows:
        if not isinstance(row, _Row):
            raise ArgumentError(
                f"the samples of a batch differ: one has a feeder.Encoded where another has a {type(row).__name__}"
            )
    whole = rows[0].whole
    if whole is not None and len(whole) == len(rows) and all(row.whole is whole for row in rows):
        return whole
    images = [row.image for row in rows]
    check_sizes(images, lambda row: rows[row].name)
    return collate_fn_map[torch.Tensor](images, collate_fn_map=collate_fn_map)


torch_collate.default_collate_fn_map[_Row] = _collate_rows


@dataclass
class _Sample:
    """A sample that is being made.

    Attributes:
        value: As the dataset gave it.
        index: Its index.
        key: Key of its draws.
        encoded: Its images.
        opened: The same, read.
        made: The same, decoded.
        targets: Those of each.
        error: The reason why one of them can't be; None: all can.
    """

    value: Any
    index: Any
    key: int
    encoded: list[Encoded]
    opened: list[OpenedImage] = field(default_factory=list)
    made: list[Any] = field(default_factory=list)
    targets: list[tuple[Any, ...]] = field(default_factory=list)
    error: DecodeError | None = None

    @property
    def name(self) -> str:
        return f"dataset[{self.index!r}]"

    def open(self) -> None:
        """Reads its images."""
        for image in self.encoded:
            try:
                self.opened.append(image.open())
            except DecodeError as error:
                self.error = image.named(error, self.name)
                return

    def take_place_of(self, bad: _Sample) -> None:
        """Puts its images where those of a bad sample are, as far as they are together with the batch's others."""
        for place, (old, new) in enumerate(zip(bad.made, self.made, strict=False)):
            if isinstance(old, _Row) and old.whole is not None and old.image.shape == new.image.shape:
                old.image.copy_(new.image)
                self.made[place] = old


@dataclass(eq=False)
class EncodedSamples:
    """Stands in for a map-style dataset at torch's fetcher: its samples, with all images made.

    Args:
        dataset: The dataset.
        options: The way to make them.
        is_stacked: True if torch's ``default_collate`` puts the samples together: images are then for it alone. False:
            they are tensors [3, H, W].
        empty: Returns memory for a batch of that shape and dtype, or None.
    """

    dataset: Any
    options: ImageOptions
    is_stacked: bool
    empty: Callable[[tuple[int, ...], torch.dtype], torch.Tensor | None] | None = None
    _has_images: bool = field(default=False, init=False)

    def __getitem__(self, drawn: DrawnIndex) -> Any:
        return self._finished([self.dataset[drawn.index]], [drawn.index], drawn)[0]

    def __getitems__(self, drawn: DrawnIndex) -> list[Any]:
        samples: list[Any] = self._finished(self._samples(drawn.index), drawn.index, drawn)
        return samples

    def _samples(self, indices: Any) -> Any:
        several = getattr(self.dataset, "__getitems__", None)
        return [self.dataset[i] for i in indices] if several is None else several(indices)

    def _finished(self, values: Any, indices: Any, drawn: DrawnIndex) -> Any:
        """Returns samples with their images made."""
        module = sys.modules.get("feeder.dataset.encoded")  # without it no sample has one
        found = [] if module is None else [[*tensors_in(value, module.Encoded)] for value in values]
        if not any(found):
            self._check_used()
            return values

        self._has_images = True
        if len(values) != len(indices):
            raise ArgumentError(
                f"__getitems__ gave {len(values)} samples for {len(indices)} indices, and the draws of feeder.Encoded "
                "follow from the index: return one sample for each"
            )
        samples = []
        for row, (value, index, encoded) in enumerate(zip(values, indices, found, strict=True)):
            place = None if drawn.first is None else drawn.first + row
            samples.append(_Sample(value, index, _key(index, place), encoded))
        self._make(samples, drawn)
        if any(sample.error is not None for sample in samples):
            samples = [sample if sample.error is None else self._substitute(sample, drawn) for sample in samples]
        return [_with_images(sample, module.Encoded) for sample in samples]  # type: ignore[union-attr]

    def _make(self, samples: list[_Sample], drawn: DrawnIndex) -> None:
        """Reads and decodes the images of samples, those of one place together."""
        from feeder.dataset.encoded import decode_opened

        for sample in samples:
            sample.open()
        for place in range(max(len(sample.encoded) for sample in samples)):
            some = [sample for sample in samples if sample.error is None and len(sample.opened) > place]
            opened = [sample.opened[place] for sample in some]
            keys = [(sample.key + place * _IMAGE_STEP) & _LARGEST_KEY for sample in some]
            is_whole = self.is_stacked and len(some) == len(samples)
            options = self.options.backend, self.options.fidelity, self.options.threads
            groups, errors, targets = decode_opened(
                opened, keys, drawn.seed, drawn.epoch, options, self.empty if is_whole else None
            )

            images: dict[int, Any] = {}
            for rows, pixels in groups:
                whole = pixels if is_whole and len(rows) == len(some) else None
                for row, image in zip(rows, pixels.unbind(), strict=True):
                    name = some[row].encoded[place].name(some[row].name)
                    images[row] = _Row(image, whole, name) if self.is_stacked else image
            for row, (sample, error) in enumerate(zip(some, errors, strict=True)):
                sample.made.append(images[row])
                sample.targets.append(targets[row])
                if error is not None:
                    sample.error = sample.encoded[place].named(error, sample.name)

    def _substitute(self, bad: _Sample, drawn: DrawnIndex) -> _Sample:
        """Returns the sample in the place of a bad one.

        Raises:
            DecodeError: of the bad one, if samples are not skipped, or if no substitute can be decoded.
        """
        from feeder.dataset.encoded import Encoded

        error = bad.error
        assert error is not None
        if not self.options.skip:
            raise error

        for attempt in range(_SUBSTITUTES):
            other = substitute(bad.key, attempt, len(self.dataset), drawn.seed, drawn.epoch)
            value = self._samples([other])[0]
            sample = _Sample(value, other, other, [*tensors_in(value, Encoded)])
            self._make([sample], drawn)
            if sample.error is None:
                sample.take_place_of(bad)
                counts = current_counts()
                if counts is not None:
                    counts.substitutions.append(Replaced(bad.index, error.key, error.reason, other))
                return sample
        raise DecodeError(f"{error.reason}; none of its {_SUBSTITUTES} substitutes can be decoded", key=error.key)

    def _check_used(self) -> None:
        """Refuses options for images that the samples don't have."""
        if self._has_images or not self.options.given:
            return
        names = self.options.given
        are, them = ("is", "it") if len(names) == 1 else ("are", "them")
        raise ArgumentError(
            f"{', '.join(names)} {are} for feeder's datasets, and for images that a dataset returns as feeder.Encoded, "
            f"which these samples lack. Leave {them} out; torch.manual_seed(), generator= or a sampler decides about "
            "the order here"
        )


def _with_images(sample: _Sample, kind: type) -> Any:
    pairs = zip(sample.made, sample.targets, strict=True)
    made = iter([(image, *targets) if targets else image for image, targets in pairs])
    return map_tensors(sample.value, lambda _: next(made), kind)


def _key(index: Any, place: int | None) -> int:
    """Returns the key of a sample's draws, 0 to 2**63-1."""
    try:
        number = operator.index(index)
    except TypeError:
        number = sample_id(str(index))
    return (number + (0 if place is None else (place + 1) * _PLACE_STEP)) & _LARGEST_KEY
