"""Samples decoded one by one, as ``dataset[i]`` gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from feeder.dataset.reader import Encoded, Reader
from feeder.errors import DecodeError

if TYPE_CHECKING:
    from feeder.decode.decoder import Decoder
    from feeder.transforms import Recipe

__all__ = ["decode_samples", "problem_of"]


def decode_samples(
    reader: Reader, recipe: Recipe, decoder: Decoder, fields: Sequence[str], seed: int, ids: npt.NDArray[np.int64]
) -> tuple[list[npt.NDArray[Any]], npt.NDArray[Any], list[list[Any]]]:
    """Reads, decodes and augments samples whose images may differ in size.

    Args:
        reader: The samples' encoded bytes.
        recipe: What is done to every image.
        decoder: The backend.
        fields: Names of the further fields.
        seed: Of the augmentation of this call; any integer.
        ids: int64 [N].

    Returns:
        N images [C, H, W] of the recipe's ``storage_dtype``, each in memory of its own; their labels [N]; and for each
        field a list of N values.

    Raises:
        DecodeError: for the first bad sample, naming it.
    """
    encoded = reader.read(ids)
    images = []
    for row, i in enumerate(ids.tolist()):
        problem = problem_of(encoded, row)
        if problem is None:
            one = slice(row, row + 1)
            draws = recipe.draw(seed % (1 << 64), 0, np.array([row]), encoded.sizes[one])
            image = np.empty((1, 3, *draws.output_size[0].tolist()), recipe.storage_dtype)
            problem = decoder.decode(encoded.buffers[one], encoded.orientations[one], recipe, draws, image)[0]
            images.append(image[0])
        if problem is not None:
            raise reader.at(problem, i)
    return images, encoded.labels, [[reader.field(i, name) for i in ids.tolist()] for name in fields]


def problem_of(encoded: Encoded, row: int) -> DecodeError | None:
    """Returns why a sample that was read can't be decoded; None if it may be."""
    if encoded.errors[row] is None and encoded.sizes[row].min() < 1:
        height, width = encoded.sizes[row].tolist()
        return DecodeError(f"the index gives its size as {width}x{height}; rebuild it with `feeder index`")
    return encoded.errors[row]
