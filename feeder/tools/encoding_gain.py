"""The gain that another encoding of a dataset's images would bring, measured on some of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from feeder import _native
from feeder.decoders.cpu_decoder import CpuDecoder
from feeder.decoders.decoder import View
from feeder.decoders.device.fused import split_for_device
from feeder.decoders.packed import add_codebooks, codebook_id
from feeder.tools.thresholds import NOTICEABLE_WAIT

if TYPE_CHECKING:
    from feeder.dataset.base import FeederDataset

__all__ = ["EncodingGain", "encoding_gains"]

_IMAGES = 32
_PASSES = 5


@dataclass(frozen=True)
class EncodingGain:
    """The gain of an encoding.

    Attributes:
        encoding: "seekable" or "packed".
        decode: Time of decoding a sample with it, relative to the present time; less than 1.
        size: Bytes of the images with it, relative to the present bytes.
    """

    encoding: str
    decode: float
    size: float

    def __str__(self) -> str:
        return (
            f"{self.encoding} shards would decode {1 / self.decode:.1f} times as fast from whole files, with "
            f"{self.size:.2f} times the bytes (feeder shard --encode {self.encoding})"
        )


def encoding_gains(
    dataset: FeederDataset, *, seed: int = 0, fidelity: str = "fast", on_device: bool = False
) -> list[EncodingGain]:
    """Measures how other encodings would change the time of decoding, on some of the dataset's images.

    Args:
        dataset: The dataset. Its recipe gives the crops.
        seed: Seed of the crops.
        fidelity: Fidelity of the decoding.
        on_device: True if a device runs the recipe's last ops.

    Returns:
        The encodings with a noticeable gain. There is none for images that are not JPEGs or can't be encoded so.
    """
    reader = dataset.reader
    ids = np.unique(np.linspace(0, len(reader) - 1, _IMAGES).astype(np.int64))
    encoded = reader.read(ids)
    buffers = [b"" if error else bytes(each) for each, error in zip(encoded.buffers, encoded.errors, strict=True)]
    jpegs = {row: buffer for row, buffer in enumerate(buffers) if buffer.startswith(b"\xff\xd8")}
    if len(jpegs) < len(ids) / 2:
        return []

    gains = []
    decoder = CpuDecoder(fidelity=fidelity)
    for encoding, encode in _encoders(list(jpegs.values())).items():
        others = {row: other for row, jpeg in jpegs.items() if (other := encode(jpeg)) is not None}
        if len(others) < len(ids) / 2:
            continue
        rows = np.array(list(others))
        views = _views(dataset, seed, on_device, ids[rows], encoded.sizes[rows])
        if views is None:
            return []

        both = [jpegs[row] for row in others], list(others.values())
        times: tuple[list[Any], list[Any]] = ([], [])
        for _ in range(_PASSES):
            for images, spent in zip(both, times, strict=True):
                result = decoder.decode(images, encoded.orientations[rows], views)
                assert result.spent_ns is not None
                spent.append(result.spent_ns[:, 0])
        # Each image's best pass: what interrupts a pass on a busy machine meets few images of it.
        now, then = (int(np.min(spent, axis=0).sum()) for spent in times)
        before, after = (sum(map(len, images)) for images in both)
        gains.append(EncodingGain(encoding, then / max(1, now), after / before))
    return [gain for gain in gains if gain.decode < 1 - NOTICEABLE_WAIT]


def _encoders(jpegs: Sequence[bytes]) -> dict[str, Callable[[bytes], bytes | None]]:
    """Returns functions that encode a JPEG; of one that an encoding does not support they return None."""

    def or_none(encode: Callable[[bytes], bytes]) -> Callable[[bytes], bytes | None]:
        def encoded(jpeg: bytes) -> bytes | None:
            try:
                return encode(jpeg)
            except _native.Unsupported:
                return None

        return encoded

    codebook = _native.train_codebook(jpegs)
    add_codebooks([codebook])
    return {
        "seekable": or_none(lambda jpeg: _native.transcode(jpeg, keep_metadata=True)),
        "packed": or_none(lambda jpeg: _native.pack(jpeg, codebook_id(codebook), hashlib.sha256(jpeg).digest())),
    }


def _views(dataset: FeederDataset, seed: int, on_device: bool, ids: Any, sizes: Any) -> list[View] | None:
    """Returns the views of samples in the first epoch; None for a recipe whose output has no size of its own."""
    views = []
    for number, recipe in enumerate(dataset.recipe.views):
        recipe = recipe if recipe.has_bucket else recipe.at(None, 0)
        size = recipe.output_size
        if size is None or recipe.draws_from_boxes:
            return None
        draws = recipe.draw(seed, 0, ids + number * len(dataset.reader), sizes)
        if on_device and (split := split_for_device(recipe)) is not None:
            recipe, draws = split.cpu, split.draws(draws)
        views.append(View(recipe, draws, np.empty((len(ids), 3, *size), recipe.storage_dtype)))
    return views
