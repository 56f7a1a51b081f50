"""The contents of a set as the page shows them: counts, choices of samples, one sample with all its members."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from feeder.dataset.base import FeederDataset
from feeder.dataset.shard_reader import ShardReader
from feeder.dataset.taken_down import all_taken_down, stand_in
from feeder.decoders.image_header import is_image_field
from feeder.errors import ArgumentError, DecodeError
from feeder.shard.store.url import is_remote
from feeder.system.arrays import AnyArray, Bools, Int32s, Int64s, Uint8s
from feeder.system.checks import check_one_of
from feeder.tools.browse.box_kinds import BOX_KINDS, BoxKinds
from feeder.tools.browse.kinds import KINDS, ORDERS, fits, is_unlabelled, order_of
from feeder.tools.browse.scores import read_scores
from feeder.tools.browse.text_search import AT_ONCE, TextSearch
from feeder.tools.presets import open_dataset

_SHOWN_CHARS = 20_000
_CHOICES = 8  # choices that are kept
_AT_ONCE = 1 << 14  # rows of the index: a quarter of the time that all at once take
COUNTED = 5_000_000  # samples: of a larger set labels and sizes are not read
MEASURED = 50_000  # images: of a larger folder sizes are not read, which takes some seconds for so many
_LIST_OF_NUMBERS = re.compile(r"\[\n\s*([^\[\]{}\"]*?)\n\s*\]")  # in indented JSON, where no text has a newline
_NUMBERS = ("index", "key", "orientation", "path", "row", "width", "height")


class SampleChoice(NamedTuple):
    """The samples that a page of the grid is of: those for which all of this holds.

    Attributes:
        label: A label; None for all.
        text: Text in the name of the class, key, path or, of a local set, caption, in any case; empty for all.
        kinds: Some of :data:`KINDS` of :mod:`feeder.tools.browse.kinds`.
        ids: Ids; empty for all.
        order: One of :attr:`SetView.orders`; empty for that of the set.
    """

    label: int | None = None
    text: str = ""
    kinds: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    order: str = ""

    @property
    def box_kinds(self) -> list[str]:
        """Its kinds of boxes."""
        return [kind for kind in self.kinds if kind in BOX_KINDS]


class ClassRow(NamedTuple):
    """A class of a set: its label and name, the number of its samples, and the id of the first one; -1 without any.

    Of a large set whose boxes alone have classes, the number is None.
    """

    label: int
    name: str
    number: int | None
    first: int


class Row(NamedTuple):
    """A sample in the grid, with its scores by name; ``notes`` says what is wrong with it."""

    id: int
    key: str
    path: str
    label: str
    notes: str
    scores: dict[str, str]


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
        scores: A table of numbers by sample, see :func:`read_scores`; None for none.

    Attributes:
        scores: The table's columns by name, float64 [N], with NaN for a sample without the number.
        texts: The names and captions, to be searched.

    Raises:
        FeederError: if one of them can't be opened.
    """

    def __init__(
        self, path: str, version: int | None = None, targets: Sequence[str] = (), scores: str | None = None
    ) -> None:
        self._version = version
        self._targets = tuple(targets)
        self.path = path
        self.dataset = self.open(None)
        self.reader: Any = self.dataset.reader
        self.lock = threading.RLock()
        self.chosen = functools.lru_cache(_CHOICES)(self._choose)
        self.texts = TextSearch(self.reader, self.lock, is_remote=is_remote(path))
        self._boxes = BoxKinds(self.reader, self.lock, is_remote=is_remote(path))
        self.scores = {} if scores is None else read_scores(scores, _keys(self.reader), len(self))

    def open(self, transform: Any) -> FeederDataset:
        """Opens the set once more, with a recipe."""
        return open_dataset(self.path, transform, version=self._version, targets=self._targets)

    def __len__(self) -> int:
        return len(self.dataset)

    @functools.cached_property
    def labels(self) -> AnyArray:
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
    def classes(self) -> list[ClassRow]:
        """The classes; empty for a set with targets."""
        labels = self.labels
        if labels.dtype != np.int64 or len(self) > COUNTED:
            return []
        if self.is_by_boxes:
            boxes, names = self._boxes.classes(), self.dataset.classes or []
            found = [[]] * len(names) if boxes is None else [boxes.get(label, []) for label in range(len(names))]
            return [
                ClassRow(label, names[label], None if boxes is None else len(ids), ids[0] if ids else -1)
                for label, ids in enumerate(found)
            ]
        counts = np.bincount(labels[labels >= 0], minlength=len(self.dataset.classes or []))
        firsts = np.full(len(counts), -1)
        labelled = np.flatnonzero(labels >= 0)[::-1]
        firsts[labels[labelled]] = labelled  # the last write counts, which is that of the first sample
        return [
            ClassRow(label, self.class_name(label), number, first)
            for label, (number, first) in enumerate(zip(counts.tolist(), firsts.tolist(), strict=True))
        ]

    @functools.cached_property
    def is_by_boxes(self) -> bool:
        """True for a set whose boxes have its classes, and whose samples have no labels."""
        are_there = self._boxes.are_there and self.dataset.classes is not None and len(self) <= COUNTED
        return are_there and self.labels.dtype == np.int64 and bool((self.labels < 0).all())

    @functools.cached_property
    def facts(self) -> dict[str, str]:
        """Counts and sizes, in a line each."""
        found = {"samples": f"{len(self):,}"}
        if isinstance(self.reader, ShardReader):
            index = self.reader.index
            found["shards"] = f"{index.header.shards:,}, {index.header.size_bytes / 1e6:,.1f} MB"
            found["version"] = str(index.header.info.version)
        if self.classes:
            found["classes"] = f"{len(self.classes):,}"
        heights, widths = self._stored[1].T
        for name, side in (("width", widths), ("height", heights)) if len(widths) else ():
            low, median, high = np.percentile(side, (0, 50, 100), method="nearest").tolist()
            found[name] = f"{low:,} to {high:,} pixels, median {median:,}"
        if len(self) > COUNTED:
            found["labels"] = f"not shown of more than {COUNTED:,} samples"
        elif not self._has_sizes:
            found["sizes"] = f"read of shards, and of a local folder of at most {MEASURED:,} images"
        found["members"] = ", ".join(name for name in self.reader.field_names() if name not in _NUMBERS)
        return {name: value for name, value in found.items() if value}

    @property
    def _has_sizes(self) -> bool:
        """True if sizes are in an index, or are read from the files of a folder."""
        if isinstance(self.reader, ShardReader):
            return len(self) <= COUNTED
        return len(self) <= MEASURED and not is_remote(self.path)

    @functools.cached_property
    def _stored(self) -> tuple[Uint8s, Int32s]:
        """Orientations, uint8 [N], and upright heights and widths, int32 [N, 2]; none of a set without sizes."""
        if not self._has_sizes:
            return np.empty(0, np.uint8), np.empty((0, 2), np.int32)
        orientations, sizes = np.empty(len(self), np.uint8), np.empty((len(self), 2), np.int32)
        with self.lock:
            self.reader.measure()
        for first in range(0, len(self), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            with self.lock:
                orientations[part], sizes[part] = self.reader.stored(np.arange(*part.indices(len(self))))
        return orientations, sizes

    @functools.cached_property
    def kinds(self) -> dict[str, int | None]:
        """Number of samples of those of :data:`KINDS` that the set tells; None of boxes that were not counted."""
        found = {kind: int(known.sum()) for kind in KINDS if (known := self._known(kind)) is not None}
        return {kind: number for kind, number in found.items() if number or kind != "gone"} | self._boxes.counts()

    @functools.cached_property
    def orders(self) -> dict[str, str]:
        """The orders that the set's index and the scores allow, with the words for them."""
        scores = ((name, end) for name in self.scores for end in ("lowest", "highest"))
        sizes = ORDERS if "small" in self.kinds else {}
        return sizes | {f"{end}:{name}": f"score: {name}, {end} first" for name, end in scores}

    def _known(self, kind: str) -> Bools | None:
        """Returns for each sample if it is of one of :data:`KINDS`; None if the set's index or folder does not tell."""
        if kind == "gone":
            with self.lock:
                gone = all_taken_down(self.reader)
            is_gone = np.zeros(len(self), bool)
            is_gone[gone] = True
            return is_gone
        if len(self) > COUNTED or kind in BOX_KINDS:
            return None
        if kind == "unlabelled":
            return None if self.is_by_boxes else is_unlabelled(self.labels)
        return fits(kind, *self._stored) if self._has_sizes else None

    def rows(self, choice: SampleChoice, first: int, most: int) -> tuple[list[Row], int | None]:
        """Returns samples for the grid, and the place from which to go on; None at the end.

        Args:
            choice: Which.
            first: Place among those that are chosen, but for the text, to begin at.
            most: Number of samples.

        Raises:
            ArgumentError: for a choice that the set can't make.
        """
        chosen = self.listed(choice)
        if not self.is_searched(choice):
            following = first + most if first + most < len(chosen) else None
            return [self.row(int(i)) for i in chosen[first : first + most]], following

        labels = [each.label for each in self.classes if choice.text and choice.text.lower() in each.name.lower()]
        is_of_class = np.isin(self.labels, labels) if labels else np.zeros(len(self), bool)
        search = self.texts.search(choice.text) if choice.text else None
        label = choice.label if self.is_by_boxes else None
        choose = None
        if choice.box_kinds or label is not None:
            choose = self._boxes.choose(choice.box_kinds, label)
        rows, end = list[Row](), min(first + self.texts.most, len(chosen))
        for start in range(first, end, AT_ONCE):
            part = chosen[start : min(start + AT_ONCE, end)]
            ids = np.arange(part.start, part.stop) if isinstance(part, range) else part  # asarray(range) is slow
            is_found = np.ones(len(ids), bool) if search is None else search(ids, is_of_class[ids])
            if choose is not None:
                places = np.flatnonzero(is_found)
                fits = choose(ids[places])
                is_found = is_found[: len(is_found) if len(fits) == len(places) else places[len(fits)]]
                is_found[places[: len(fits)]] = fits

            for row in np.flatnonzero(is_found).tolist():
                if len(rows) == most:
                    return rows, start + row
                rows.append(self.row(int(ids[row])))
            if len(is_found) < len(ids):
                return rows, start + len(is_found)
        return rows, end if end < len(chosen) else None

    def listed(self, choice: SampleChoice) -> range | Int64s:
        """Returns the ids of a choice, in its order, before its text and its kinds of boxes are looked for."""
        kinds = tuple(kind for kind in choice.kinds if kind not in BOX_KINDS)
        label = None if self.is_by_boxes else choice.label
        return self.chosen(choice._replace(text="", kinds=kinds, label=label))

    def is_searched(self, choice: SampleChoice) -> bool:
        """Returns True if the samples of a choice are looked for one after the other, so that their number is not
        known."""
        return bool(choice.text or choice.box_kinds or (self.is_by_boxes and choice.label is not None))

    def _choose(self, choice: SampleChoice) -> range | Int64s:
        """Returns the ids of a choice without a text and kinds of boxes, in its order."""
        for kind in choice.kinds:
            check_one_of("kind", kind, KINDS)
        if choice.order:
            check_one_of("order", choice.order, ORDERS | self.orders)
        if choice.label is not None and self.labels.dtype != np.int64:
            raise ArgumentError("this set has numbers as targets, and no classes to choose by")

        if not (choice.kinds or choice.ids or choice.order) and choice.label is None:
            return range(len(self))
        is_chosen = np.full(len(self), not choice.ids)
        is_chosen[[i for i in choice.ids if i < len(self)]] = True
        for kind in choice.kinds:
            known = self._known(kind)
            is_chosen &= False if known is None else known
        if choice.label is not None:
            is_chosen &= self.labels == choice.label
        end, _, score = choice.order.partition(":")
        if score and choice == SampleChoice(order=choice.order):
            return np.argsort(-self.scores[score] if end == "highest" else self.scores[score], kind="stable")
        if score:
            ordered = np.asarray(self.chosen(SampleChoice(order=choice.order)))  # is sorted once
            return np.asarray(ordered[is_chosen[ordered]])
        found = np.flatnonzero(is_chosen)
        if choice.order:
            if not self._has_sizes:
                raise ArgumentError("the sizes of this set's images are not known, so it can't be sorted by them")
            found = found[order_of(choice.order, self._stored[1][found])]
        return found

    def row(self, i: int) -> Row:
        """Returns a sample's names, and the one that stands in its place."""
        with self.lock:
            key, path = self.reader.field(i, "key") or "", self.reader.field(i, "path") or ""
        other = self.stand_in(i)
        notes = "" if other is None else f"taken down; sample {other:,} stands in"
        scores = {name: f"{values[i]:.6g}" for name, values in self.scores.items() if not np.isnan(values[i])}
        return Row(i, key, path, self.label_name(i), notes, scores)

    def stand_in(self, i: int) -> int | None:
        """Returns the sample that stands in the place of one that was taken down; None if that was not."""
        with self.lock:
            return stand_in(self.reader, i)

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


def _keys(reader: Any) -> Iterator[str]:
    """Yields the keys of all samples, shard by shard: in a tenth of the time that one by one take."""
    if not isinstance(reader, ShardReader):
        yield from (reader.field(i, "key") for i in range(len(reader)))
        return
    for own in map(reader.index.shard_index, range(reader.index.header.shards)):
        for row in range(own.samples):
            yield own.details(row).key.decode("utf-8", "surrogateescape")
