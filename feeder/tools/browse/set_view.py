"""The contents of a set as the page shows them: counts, choices of samples, one sample with all its members."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feeder.dataset.base import FeederDataset
from feeder.dataset.shard_reader import ShardReader
from feeder.dataset.taken_down import all_taken_down, stand_in
from feeder.decoders.image_header import is_image_field
from feeder.errors import ArgumentError, DecodeError
from feeder.shard.format.set_index import SetIndex
from feeder.tools.browse.kinds import KINDS, is_of_size, is_unlabelled
from feeder.tools.presets import open_dataset

__all__ = ["CHOSEN", "COUNTED", "SEARCHED", "Row", "SampleChoice", "SetView", "ShownMember"]

_SHOWN_CHARS = 20_000
SEARCHED = 200_000  # samples a page: then the user searches on
CHOSEN = 20_000  # samples of a class or a kind a request, whose names are read one by one
_NAMES_AT_ONCE = 4096  # a tenth of the time that one by one take
_AT_ONCE = 1 << 14  # rows of the index: a quarter of the time that all at once take
COUNTED = 5_000_000  # samples: of a larger set labels and sizes are not read
_LIST_OF_NUMBERS = re.compile(r"\[\n\s*([^\[\]{}\"]*?)\n\s*\]")  # of indented JSON, whose texts have no newline
_NUMBERS = ("index", "key", "orientation", "path", "row", "width", "height")


class SampleChoice(NamedTuple):
    """The samples that a page of the grid is of.

    Attributes:
        label: A label; None for all.
        text: Text in key or path, in any case; empty for all.
        kind: One of :data:`KINDS` of :mod:`feeder.tools.browse.kinds`; empty for all.
    """

    label: int | None = None
    text: str = ""
    kind: str = ""


class Row(NamedTuple):
    """A sample in the grid; ``notes`` says what is wrong with it."""

    id: int
    key: str
    path: str
    label: str
    notes: str = ""


class ShownMember(NamedTuple):
    """A member of a sample.

    Attributes:
        name: Its name.
        size: Its size, bytes.
        text: Its text; None if it is none.
        is_picture: True for a further image, or a mask.
        problem: The reason if it can't be read; empty if it can.
    """

    name: str
    size: int
    text: str | None = None
    is_picture: bool = False
    problem: str = ""


class SetView:
    """A set to look at. Calls from several threads take turns where the readers need it.

    Of a set of more than five million samples, only what a page needs is read: it is shown without labels and counts.

    Args:
        path: A shard set's folder, an index file, a set's URL, or a folder of images.
        version: Number of the set's version; None: the newest.
        targets: Names of members such as "seg.png", whose files in a folder are no samples.

    Raises:
        FeederError: if it can't be opened.
    """

    def __init__(self, path: str, version: int | None = None, targets: Sequence[str] = ()) -> None:
        self._version = version
        self._targets = tuple(targets)
        self.path = path
        self.dataset = self.open(None)
        self.reader: Any = self.dataset.reader
        self.lock = threading.RLock()

    def open(self, transform: Any) -> FeederDataset:
        """Opens the set once more, with a recipe."""
        return open_dataset(self.path, transform, version=self._version, targets=self._targets)

    def __len__(self) -> int:
        return len(self.dataset)

    @functools.cached_property
    def labels(self) -> npt.NDArray[Any]:
        """Labels of all samples, int64 [N], or float32 [N] or [N, K]; of a large set -1."""
        if len(self) > COUNTED:
            return np.broadcast_to(np.int64(-1), len(self))
        with self.lock:
            return np.asarray(self.reader.labels())

    def label_name(self, i: int) -> str:
        """Returns a sample's label in words."""
        label = self.labels[i]
        if self.labels.dtype != np.int64:
            return ", ".join(f"{value:g}" for value in np.atleast_1d(label))
        return self.class_name(int(label))

    def class_name(self, label: int) -> str:
        """Returns the name of a class, or its number."""
        names = self.dataset.classes or []
        return "" if label < 0 else names[label] if label < len(names) else str(label)

    @functools.cached_property
    def classes(self) -> list[tuple[int, str, int]]:
        """Label, name and number of samples of each class; empty for a set with targets."""
        if self.labels.dtype != np.int64 or len(self) > COUNTED:
            return []
        counts = np.bincount(self.labels[self.labels >= 0], minlength=len(self.dataset.classes or []))
        return [(label, self.class_name(label), int(number)) for label, number in enumerate(counts)]

    @functools.cached_property
    def facts(self) -> dict[str, str]:
        """Counts and sizes, in a line each."""
        found = {"samples": f"{len(self):,}"}
        if isinstance(self.reader, ShardReader):
            index = self.reader.index
            found["shards"] = f"{index.shard_count:,}, {index.size_bytes / 1e6:,.1f} MB"
            found["version"] = str(index.version)
        if self.classes:
            found["classes"] = f"{len(self.classes):,}"
        heights, widths = self._stored[1].T
        for name, side in (("width", widths), ("height", heights)) if len(widths) else ():
            low, median, high = np.percentile(side, (0, 50, 100), method="nearest").tolist()
            found[name] = f"{low:,} to {high:,} pixels, median {median:,}"
        if len(self) > COUNTED:
            found["labels"] = f"not shown of more than {COUNTED:,} samples"
        found["members"] = ", ".join(name for name in self.reader.field_names() if name not in _NUMBERS)
        return {name: value for name, value in found.items() if value}

    @functools.cached_property
    def _stored(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
        """Orientations, uint8 [N], and upright heights and widths, int32 [N, 2]; of a folder or large set, none."""
        if not isinstance(self.reader, ShardReader) or len(self) > COUNTED:
            return np.empty(0, np.uint8), np.empty((0, 2), np.int32)
        orientations, sizes = np.empty(len(self), np.uint8), np.empty((len(self), 2), np.int32)
        for first in range(0, len(self), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            with self.lock:
                orientations[part], sizes[part] = self.reader.stored(np.arange(*part.indices(len(self))))
        return orientations, sizes

    @functools.cached_property
    def kinds(self) -> dict[str, int]:
        """Number of samples of those of :data:`KINDS` that the set's index or folder tells."""
        found = {kind: len(known) for kind in KINDS if (known := self._known(kind)) is not None}
        return {kind: number for kind, number in found.items() if number or kind != "gone"}

    def _known(self, kind: str) -> npt.NDArray[np.int64] | None:
        """Returns the samples of one of :data:`KINDS`; None if the set's index or folder does not tell them."""
        if kind == "gone":
            with self.lock:
                return all_taken_down(self.reader)
        if len(self) > COUNTED:
            return None
        if kind == "unlabelled":
            return np.flatnonzero(is_unlabelled(self.labels))
        if not isinstance(self.reader, ShardReader):
            return None
        orientations, sizes = self._stored
        return np.flatnonzero(is_of_size(kind, orientations, sizes))

    def rows(self, choice: SampleChoice, first: int, most: int) -> tuple[list[Row], int | None]:
        """Returns samples for the grid, and the id from which to go on; None at the end.

        Args:
            choice: Which.
            first: Id to begin at.
            most: Number of samples.

        Raises:
            ArgumentError: for a kind that there is not.
        """
        chosen = self._chosen(choice)
        if not choice.text:
            ids = range(first, len(self)) if chosen is None else chosen[np.searchsorted(chosen, first) :]
            following = int(ids[most]) if len(ids) > most else None
            return [self.row(int(i)) for i in ids[:most]], following
        wanted, found = choice.text.lower(), list[Row]()
        named, following = self._named(chosen, first)
        for i, key, path in named:
            if wanted in key.lower() or wanted in path.lower():
                if len(found) == most:
                    return found, i
                found.append(self._row(i, key, path))
        return found, following

    def previous(self, choice: SampleChoice, first: int, most: int) -> int | None:
        """Returns the id at which the page before one begins; None for the first page.

        Args:
            choice: Which samples, without a text: where pages of a search begin only the searches before tell.
            first: Id at which the page begins.
            most: Number of samples of a page.
        """
        chosen = self._chosen(choice)
        before = min(first, len(self)) if chosen is None else int(np.searchsorted(chosen, first))
        if before <= most:
            return 0 if before else None
        return before - most if chosen is None else int(chosen[before - most])

    def _chosen(self, choice: SampleChoice) -> npt.NDArray[np.int64] | None:
        """Returns the samples of a label and a kind, sorted; None for all."""
        if choice.kind and choice.kind not in KINDS:
            raise ArgumentError(f"kind must be one of {', '.join(KINDS)}, got {choice.kind!r}")
        if choice.label is None and not choice.kind:
            return None
        if choice.label is not None and self.labels.dtype != np.int64:
            raise ArgumentError("this set has numbers as targets, and no classes to choose by")
        if not choice.kind:
            return np.flatnonzero(self.labels == choice.label)
        found = self._known(choice.kind)
        found = np.zeros(0, np.int64) if found is None else found
        return found if choice.label is None else found[self.labels[found] == choice.label]

    def _named(
        self, chosen: npt.NDArray[np.int64] | None, first: int
    ) -> tuple[Iterator[tuple[int, str, str]], int | None]:
        """Returns the names of the samples of one request of a search, and the id from which the next one goes on."""
        if chosen is None:
            end = min(first + SEARCHED, len(self))
            return _names_of(self.reader, first, end, self.lock), end if end < len(self) else None
        ids = chosen[np.searchsorted(chosen, first) :]
        following = int(ids[CHOSEN]) if len(ids) > CHOSEN else None
        return ((i, *self._names(i)) for i in ids[:CHOSEN].tolist()), following

    def row(self, i: int) -> Row:
        """Returns a sample's names, and the one that stands in its place."""
        return self._row(i, *self._names(i))

    def _row(self, i: int, key: str, path: str) -> Row:
        other = self.stand_in(i)
        notes = "" if other is None else f"taken down; sample {other:,} stands in"
        return Row(i, key, path, self.label_name(i), notes)

    def stand_in(self, i: int) -> int | None:
        """Returns the sample that stands in the place of one that was taken down; None if that was not."""
        with self.lock:
            return stand_in(self.reader, i)

    def _names(self, i: int) -> tuple[str, str]:
        with self.lock:
            return self.reader.field(i, "key") or "", self.reader.field(i, "path") or ""

    def members(self, i: int) -> list[ShownMember]:
        """Returns a sample's members, with those that are text as text."""
        found = []
        image = self.reader.index.image_field(i) if isinstance(self.reader, ShardReader) else ""
        for name in self.reader.field_names():
            try:
                with self.lock:
                    data = None if name in _NUMBERS else self.reader.member(i, name)
            except DecodeError as error:
                found.append(ShownMember(name, 0, problem=error.reason))
                continue
            if data is not None:
                found.append(ShownMember(name, len(data), _text(name, data), is_image_field(name) and name != image))
        return found

    def upright_size(self, i: int) -> tuple[int, int] | None:
        """Returns the upright (height, width) of a sample's image, pixels; None if it can't be read."""
        with contextlib.suppress(DecodeError), self.lock:
            return self.reader.field(i, "height"), self.reader.field(i, "width")
        return None

    def numbers(self, i: int) -> dict[str, str]:
        """Returns what the set knows of a sample's image."""
        found = {}
        for name in ("width", "height", "orientation", "row"):
            if name in self.reader.field_names():
                with contextlib.suppress(DecodeError), self.lock:
                    found[name] = str(self.reader.field(i, name))
        return found


def _text(name: str, data: bytes) -> str | None:
    """Returns a member as text, JSON with one value or list of numbers a line; None if it is not text."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    if name.endswith("json"):
        with contextlib.suppress(ValueError, RecursionError):
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
            text = _LIST_OF_NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", text)
    if any(ord(each) < 32 and each not in "\t\r\n" for each in text[:_SHOWN_CHARS]):
        return None
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + " ..."


def _names_of(reader: Any, first: int, end: int, lock: AbstractContextManager[Any]) -> Iterator[tuple[int, str, str]]:
    """Yields id, key and path of samples; a name that is not known is empty.

    Args:
        reader: Reads the set.
        first: Id of the first sample.
        end: That after the last one's.
        lock: Is held while the set is read.
    """
    index = getattr(reader, "index", None)
    if not isinstance(index, SetIndex):
        for i in range(first, end):
            with lock:
                key, path = reader.field(i, "key") or "", reader.field(i, "path") or ""
            yield i, key, path
        return
    while first < end:
        shard = int(index.shards_of(np.array([first]))[0])
        start, stop = index.header.sample_range(shard)
        here = range(first, min(first + _NAMES_AT_ONCE, stop, end))
        rows = range(here.start - start, here.stop - start)
        with lock:
            own = index.shard_index(shard)
            names = [own.details(row)[:2] for row in rows]
        for i, (key, path) in zip(here, names, strict=True):
            yield i, key.decode("utf-8", "surrogateescape"), os.fsdecode(path)
        first = here.stop
