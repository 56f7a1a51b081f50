"""Other labels for a dataset's samples: from their json, by a list of class names, or by a function."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from feeder.dataset.folder_reader import FolderReader
from feeder.dataset.shard_reader import ShardReader
from feeder.errors import ArgumentError, SourceError
from feeder.shard.source.labels import LabelColumn, check_classes, label_text, name_numbers, target_number
from feeder.system.arrays import AnyArray
from feeder.system.text import count

TargetTransform = Callable[[Any], Any] | Mapping[Any, Any]
_EXAMINED = 100


def without_labels(reader: ShardReader) -> None:
    """Removes a reader's labels: -1 for all."""
    reader.relabel(np.full(len(reader), -1, np.int64), None)


def labels_from_json(reader: ShardReader, keys: str | Sequence[str], classes: Sequence[str] | None) -> None:
    """Takes labels from one key of the samples' ``json``, or targets from several.

    Raises:
        ArgumentError: if no sample has the keys, or a value can't be a label.
    """
    names = list(keys) if isinstance(keys, Sequence) and not isinstance(keys, str) else [keys]
    place = f"{reader.index.path}: labels={keys!r}"
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ArgumentError(f"labels must be True, False, or keys of the samples' json, got {keys!r}")
    rows = [row if isinstance(row, dict) else {} for row in reader.column("json")]
    known = sorted({str(name) for row in rows[:_EXAMINED] for name in row})
    missing = next((name for name in names if rows and not any(name in row for row in rows)), None)
    if missing is not None:
        raise ArgumentError(f"{place}: no sample's json has {missing!r}; the first have {', '.join(known) or 'none'}")
    try:
        if len(names) > 1:
            numbers = [[target_number(row.get(name), f"{place}: {name!r}") for name in names] for row in rows]
            reader.relabel(np.array(numbers, np.float32).reshape(len(rows), len(names)), None)
            return
        column = LabelColumn(place, "name another key")
        codes = np.array([column.add(row.get(names[0])) for row in rows], np.int64)
        found = column.finish_whole(None if classes is None else check_classes(classes))
    except (SourceError, ValueError) as error:
        raise ArgumentError(str(error)) from None
    if found.targets is not None:
        reader.relabel(found.targets, None)
    elif found.labels is not None:
        reader.relabel(np.append(found.labels, -1)[codes], found.classes)


def refuse_unread_labels(reader: ShardReader) -> None:
    """Refuses a set whose samples have ``cls`` fields, but no label.

    Raises:
        ArgumentError: naming the remedies.
    """
    if "cls" not in reader.index.fields or reader.label_dtype.base.kind == "f" or not len(reader):
        return
    if reader.max_label >= 0:
        return
    texts = (reader.field(i, "cls") for i in range(min(len(reader), _EXAMINED)))
    text = next((text for text in texts if text is not None and text.strip() not in (b"", b"-1")), None)
    if text is not None:
        raise ArgumentError(
            f"{reader.index.path}: no sample has a label, but cls fields, such as {text[:40]!r}: list these with "
            "classes=[...] if they are class names (`feeder index`, run again, numbers those of tars), or give "
            "labels='key' of the json, or labels=False"
        )


def name_classes(reader: ShardReader | FolderReader, classes: Sequence[str]) -> None:
    """Numbers the classes by a list of names. Labels that have no names are kept, and get the names of the list.

    Raises:
        ArgumentError: for a class with samples, or a label, that is not in the list.
    """
    wanted, names, largest = check_classes(classes), reader.classes, reader.max_label

    if reader.label_dtype.base.kind == "f":
        raise ArgumentError("classes= is for labels that are classes; this set's are float32 targets")

    if names is None and largest < 0 and isinstance(reader, ShardReader) and "cls" in reader.index.fields:
        column = LabelColumn(f"{reader.index.path}: the cls field", "")
        texts = [None if text is None else label_text(text) for text in reader.column("cls")]
        codes = np.array([column.add(text) for text in texts], np.int64)
        try:
            found = column.finish_whole(wanted)
        except SourceError as error:
            more = ", ..." if wanted[5:] else ""
            raise ArgumentError(f"{error}: {', '.join(map(repr, wanted[:5]))}{more}") from None
        if found.labels is None:
            raise ArgumentError("classes= is for labels that are classes; this set's cls fields hold other numbers")
        labels = np.append(found.labels, -1)[codes]
        if found.classes is None:
            _check_names(int(labels.max(initial=-1)), wanted)
        reader.relabel(labels, wanted)

    elif names is not None and names != wanted:
        places = name_numbers(names, wanted)
        if largest >= len(names):
            known = count(len(names), "class", "classes")
            raise ArgumentError(f"{reader.place}: has a label {largest}, but names of {known} only")
        labels = reader.labels()
        used = np.unique(labels[labels >= 0])
        lost = [names[label] for label in used.tolist() if places[label] < 0]
        if lost:
            raise ArgumentError(
                f"classes= lacks {lost[0]!r}" + (f" and {len(lost) - 1} more" if lost[1:] else "") + ", of which there "
                "are samples: add it, or leave its samples out with torch.utils.data.Subset"
            )
        reader.relabel(np.append(places, -1)[labels], wanted)
    else:
        _check_names(largest, wanted)
        reader.classes = wanted


def _check_names(largest: int, names: Sequence[str]) -> None:
    if largest >= len(names):
        raise ArgumentError(f"classes= has {count(len(names), 'name')}, but there is a label {largest}")


def share_classes(readers: Sequence[ShardReader | FolderReader], *, merge: bool, option: str = "classes") -> None:
    """Gives several sets the same classes, or refuses sets whose classes differ.

    Args:
        readers: The sets.
        merge: True numbers all names in the order in which they first appear; False requires equal classes.
        option: Name of the argument that asks for it.

    Raises:
        ArgumentError: naming the first class that differs, or a set without names to merge by.
    """
    for reader in readers:
        if merge and reader.classes is None:
            raise ArgumentError(f"{option}='merge' needs class names, and those of {reader.place} are not known")
        if not merge and reader.classes != readers[0].classes:
            raise ArgumentError(f"{_difference(reader, readers[0])}; classes='merge' numbers classes by their names")
    if merge:
        names = list(dict.fromkeys(name for reader in readers for name in reader.classes or ()))
        for reader in readers:
            name_classes(reader, names)


def _difference(reader: ShardReader | FolderReader, first: ShardReader | FolderReader) -> str:
    own, others = reader.classes, first.classes
    if own is None or others is None:
        unknown, known = (reader, first) if own is None else (first, reader)
        return f"the class names of {known.place} are known, those of {unknown.place} are not"
    pairs = enumerate(itertools.zip_longest(others, own))
    label, names = next((label, pair) for label, pair in pairs if pair[0] != pair[1])
    a, b = ("missing" if name is None else repr(name) for name in names)
    return f"class {label} is {a} in {first.place} and {b} in {reader.place}"


def transform_labels(readers: Sequence[ShardReader | FolderReader], change: TargetTransform) -> None:
    """Applies a function or mapping to the labels of one or more sets together, so that all are of one kind.

    Raises:
        ArgumentError: if the mapping lacks a label, or the results are not numbers or differ in shape.
    """
    if len({reader.label_dtype for reader in readers}) > 1:
        return  # joining them is an error
    ends = np.cumsum([len(reader) for reader in readers])
    labels = _transformed(np.concatenate([reader.labels() for reader in readers]), change)
    for reader, own in zip(readers, np.split(labels, ends[:-1]), strict=True):
        reader.relabel(own, reader.classes)


def _transformed(labels: AnyArray, change: TargetTransform) -> AnyArray:
    """Applies a function or mapping to labels, once for each label that occurs; -1 stays -1.

    Args:
        labels: int64 [N], or float32 [N] or [N, K].
        change: Takes an int, a float or a tuple of K floats; returns an integer, a float or a row of numbers.

    Returns:
        int64 [N], or float32 [N] or [N, K]. Unlabelled samples have NaN where the others have floats.
    """
    distinct, places = np.unique(labels, axis=0, return_inverse=True)
    is_class = labels.dtype.kind == "i"
    results: list[AnyArray | None] = []

    for value in distinct:
        key: Any = value.tolist() if value.ndim == 0 else tuple(value.tolist())
        if is_class and key < 0:
            results.append(None)
            continue
        if isinstance(change, Mapping) and key not in change:
            raise ArgumentError(f"target_transform has no entry for the label {key!r}; give one for each label")
        result = np.asarray(change[key] if isinstance(change, Mapping) else change(key))
        if result.dtype.kind not in "biuf" or result.ndim > 1:
            raise ArgumentError(
                f"target_transform must give a number or a row of numbers, got {str(result)[:80]!r} for label {key!r}"
            )
        results.append(result)

    found = [result for result in results if result is not None]
    if not found:
        return labels
    if len({result.shape for result in found}) > 1:
        shapes = sorted({str(list(result.shape)) for result in found})
        raise ArgumentError(f"target_transform must give equal shapes for all labels, got {' and '.join(shapes)}")

    stays_class = found[0].ndim == 0 and all(result.dtype.kind in "biu" for result in found)
    if stays_class:
        table = np.array([-1 if result is None else int(result) for result in results], np.int64)
    else:
        gap = np.full(found[0].shape, np.nan)
        table = np.stack([gap if result is None else result for result in results]).astype(np.float32)
    return table[places.reshape(-1)]
