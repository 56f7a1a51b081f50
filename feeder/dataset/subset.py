"""Torch's subsets and concatenations of feeder datasets, as one feeder dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from feeder.dataset.base import FeederDataset, keeps_samples
from feeder.dataset.joined_reader import JoinedReader
from feeder.dataset.reader import Reader
from feeder.dataset.shard_reader import ShardReader
from feeder.dataset.subset_reader import SubsetReader, leaves
from feeder.errors import ArgumentError
from feeder.system.arrays import Int64s
from feeder.system.text import count


def as_feeder(dataset: Any, *, stored_order: bool = False) -> FeederDataset | None:
    """Returns a dataset's samples as a feeder dataset.

    That works for a feeder dataset, torch's ``Subset`` of one, and torch's ``ConcatDataset`` of several with equal
    recipes and fields. For any other dataset, and for subclasses that override ``dataset[i]`` or the length, it returns
    None.

    Args:
        dataset: Any dataset.
        stored_order: True to order samples as they are stored, False as in the ``Subset``.

    Raises:
        IndexError: if the ``Subset`` has a sample that its dataset lacks.
        ArgumentError: if its indices are not integers.
    """
    if isinstance(dataset, FeederDataset):
        return dataset.snapshot() if dataset.is_mixture or keeps_samples(dataset, FeederDataset) else None
    if isinstance(dataset, ConcatDataset):
        return _concatenated(dataset, stored_order)
    whole = as_feeder(dataset.dataset) if isinstance(dataset, Subset) and keeps_samples(dataset, Subset) else None
    if whole is None:
        return None
    _refuse_mixture(whole)
    ids = _subset_ids(dataset.indices, len(whole))
    if isinstance(whole.reader, SubsetReader):
        ids, reader = whole.reader.ids[ids], whole.reader.whole
    else:
        reader = whole.reader
    return FeederDataset(SubsetReader(reader, np.sort(ids) if stored_order else ids), whole.recipe, whole.extras)


def followed(dataset: Any, before: FeederDataset, *, stored_order: bool) -> FeederDataset:
    """Returns a dataset's samples as :func:`as_feeder` does, by the recipe that the dataset has now.

    Torch's loader would take new indices and datasets, too; order and workers rest on the old ones.

    Args:
        dataset: The dataset.
        before: Its samples as they were; returned as they are if the recipe is the same.
        stored_order: See :func:`as_feeder`.

    Raises:
        ArgumentError: if a Subset has other indices, or another dataset.
    """
    now = as_feeder(dataset, stored_order=stored_order)
    if now is before:
        return before
    changed = f"of the {type(dataset).__name__} were changed after the loader was made; make another loader"
    if now is None:
        raise ArgumentError(f"the samples {changed}")
    ids, known = given_ids(now.reader), given_ids(before.reader)
    if ids is not known and (ids is None or known is None or not np.array_equal(ids, known)):
        raise ArgumentError(f"the indices {changed}")
    if list(map(id, joined_in(now.reader))) != list(map(id, joined_in(before.reader))):
        raise ArgumentError(f"the datasets {changed}")
    return before if now.recipe == before.recipe and now.extras == before.extras else now


def given_ids(reader: Reader) -> Int64s | None:
    """Returns the samples' ids in the whole dataset, int64 [N]; None if these are all."""
    return reader.ids if isinstance(reader, SubsetReader) else None


def readers_of(dataset: Any) -> list[Reader]:
    """Returns the readers of all single sets that a dataset has samples of, ``Subset`` and ``ConcatDataset`` of feeder
    datasets included."""
    if isinstance(dataset, ConcatDataset):
        return [reader for each in dataset.datasets for reader in readers_of(each)]
    if isinstance(dataset, Subset):
        return readers_of(dataset.dataset)
    return leaves(dataset.reader) if isinstance(dataset, FeederDataset) else []


def remote_of(readers: Sequence[Reader]) -> list[ShardReader]:
    """Returns the readers of remote shard sets among some, such as :func:`readers_of` or :func:`leaves`."""
    return [reader for reader in readers if isinstance(reader, ShardReader) and reader.is_remote]


def differing_dataset(dataset: ConcatDataset[Any]) -> tuple[int, str] | None:
    """Finds the first dataset of a ``ConcatDataset`` that can't be joined with those before it.

    Returns:
        Its number, and "samples" if it is not a feeder dataset, else how it differs from the first: "transform",
        "fields" or "kind of labels". None if all can be joined.
    """
    first: FeederDataset | None = None
    for number, each in enumerate(dataset.datasets):
        found = as_feeder(each)
        if found is None:
            return number, "samples"
        _refuse_mixture(found)
        first = first or found
        if found.recipe != first.recipe:
            return number, "transform"
        if found.extras != first.extras:
            return number, "fields"
        if found.reader.label_dtype != first.reader.label_dtype:
            return number, "kind of labels"
    return None


def _concatenated(dataset: ConcatDataset[Any], stored_order: bool) -> FeederDataset | None:
    """Returns the samples of a ``ConcatDataset``; None if they can't be joined. See :func:`as_feeder`."""
    if not keeps_samples(dataset, ConcatDataset) or differing_dataset(dataset) is not None:
        return None
    datasets = [found for each in dataset.datasets if (found := as_feeder(each)) is not None]

    readers: list[Reader] = []  # each once, as a reader's buffers are valid only until it reads again
    for each in datasets:
        readers += [reader for reader in joined_in(each.reader) if all(reader is not other for other in readers)]

    # The ids of each dataset's samples among those of all readers, one reader after the other.
    starts = {id(reader): start for reader, start in zip(readers, np.cumsum([0, *map(len, readers)]), strict=False)}
    chosen = []
    for each in datasets:
        ids = np.concatenate([np.arange(len(reader)) + starts[id(reader)] for reader in joined_in(each.reader)])
        chosen.append(ids[each.reader.ids] if isinstance(each.reader, SubsetReader) else ids)

    joined: Reader = readers[0] if len(readers) == 1 else JoinedReader(readers)
    ids = np.concatenate(chosen)
    if len(ids) != len(joined) or (ids != np.arange(len(ids))).any():
        joined = SubsetReader(joined, np.sort(ids) if stored_order else ids)
    return FeederDataset(joined, datasets[0].recipe, datasets[0].extras)


def _refuse_mixture(dataset: FeederDataset) -> None:
    if dataset.is_mixture:
        raise ArgumentError("a Mixture can't be part of a Subset or ConcatDataset: take these of its sources")


def joined_in(reader: Reader) -> list[Reader]:
    """Returns the readers that a dataset's reader takes samples from."""
    whole = reader.whole if isinstance(reader, SubsetReader) else reader
    return whole.readers if isinstance(whole, JoinedReader) and not whole.own_index else [whole]


def _subset_ids(indices: Any, size: int) -> Int64s:
    """Returns the indices of a ``Subset`` of a dataset of ``size`` samples as int64 [N], each in [0, size)."""
    try:
        found = np.asarray(indices)
    except ValueError as error:  # lists of different lengths, such as both sides of a split
        raise ArgumentError(f"the indices of a Subset must be integers in one row: {error}") from None
    if found.size and (found.ndim != 1 or found.dtype.kind not in "iu"):
        raise ArgumentError(
            f"the indices of a Subset must be integers in one row, got {found.dtype} of shape {found.shape}"
            + ("; for a mask, use np.flatnonzero(mask)" if found.dtype.kind == "b" else "")
        )
    ids = np.array(found, np.int64)
    outside = ids[(ids < -size) | (ids >= size)]
    if outside.size:
        raise IndexError(f"sample {outside[0]} of a Subset is out of range: its dataset has {count(size, 'sample')}")
    ids[ids < 0] += size
    return ids
