"""The labels of a source, which are class numbers, class names or targets. They are numbered once all are known."""

from __future__ import annotations

import itertools
import math
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from feeder.errors import ArgumentError, SourceError
from feeder.system.arrays import Float32s, Int64s
from feeder.system.text import BOM, count

LABEL_BYTES = 256
MAX_CLASSES = 1_000_000
# If at most this share of the samples has names where the others have numbers, the names are damage or mistakes.
_ODD_SHARE = 0.05
# Unlike float(), refuses 1_0, and 007, which is a name.
_NUMBER = re.compile(r"[+-]?(0|[1-9][0-9]*|(?=\.[0-9]))(\.[0-9]*)?([eE][+-]?[0-9]+)?")
_NOT_A_NUMBER = ("nan", "+nan", "-nan")
_LARGEST_LABEL = 2**63 - 1
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Numbering:
    """The labels of a source, or its targets.

    Attributes:
        labels: int64 [D], the class number of each of D codes, -1 for none; None if there are targets.
        targets: float32 [N], the samples' numbers if these are not classes, NaN for none; else None.
        classes: Class names by label; None if labels are numbers.
        missing: Number of samples without a label.
        example: A label, as written, that is not a class number, so that labels are names or targets; else None.
        odd: By code, the few labels that are not numbers where nearly all are; their samples have no label.
    """

    labels: Int64s | None
    targets: Float32s | None
    classes: list[str] | None
    missing: int
    example: str | None
    odd: dict[int, str]


def label_text(data: bytes) -> str | None:
    """Returns the label in a ``cls`` field; None if the field is too long for a label, or is not text."""
    try:
        text = data.decode("utf-8-sig").strip() if len(data) <= LABEL_BYTES else None
    except UnicodeDecodeError:
        return None
    return None if text is None or "\0" in text else text  # zeros are the mark of a damaged disk


class LabelColumn:
    """Collects the labels of samples. Takes 4 bytes of memory per sample, and one entry per distinct label.

    Integers from 0 are class numbers, and -1 means no label. If any label is another number, all are targets. If any is
    not a number, all are class names, which are numbered in sorted order; but a few names among many numbers are odd.

    Args:
        place: The labels' place, for errors.
        remedy: Advice for errors.
    """

    def __init__(self, place: str, remedy: str) -> None:
        self._place = place
        self._remedy = remedy
        self._codes: dict[str, int] = {}
        self._numbers = array("f")  # NaN for a label that is not a number
        self._names: dict[int, str] = {}  # by code, the labels that are not numbers
        self._named = 0  # samples with such a label
        self._fraction: str | None = None  # the first number that is not a class number, nor -1
        self._beyond: float | None = None  # the first number beyond float32
        self._has_all_codes = True
        self._missing = self._minus_ones = 0

    def add(self, value: Any) -> int:
        """Takes a sample's label and returns its code, -1 for none.

        Raises:
            SourceError: for a list or dict, or too many different labels.
        """
        text = _as_text(value)
        if text is None:
            raise SourceError(
                f"{self._place} holds {str(value)[:40]}; labels are numbers or class names: {self._remedy}"
            )

        number = as_number(text) if text else math.nan
        self._numbers.append(math.nan if number is None or _is_beyond_float32(number) else number)

        if not text:
            self._missing += 1
            return -1

        if number is None:
            self._named += 1
        elif number == -1:
            self._minus_ones += 1
        elif not math.isnan(number):
            if not is_class_number(number) and self._fraction is None:
                self._fraction = text
            if _is_beyond_float32(number) and self._beyond is None:
                self._beyond = number

        code = self._codes.get(text)
        if code is not None:
            return code

        if len(self._codes) >= MAX_CLASSES:
            if number is not None and self._fraction is not None:
                self._has_all_codes = False
                return -1  # all labels are known to be targets, which need no codes
            raise self._too_many()

        if number is None:
            self._names[len(self._codes)] = text
        return self._codes.setdefault(text, len(self._codes))

    def finish(self, classes: Sequence[str] | None = None) -> Numbering:
        """Numbers the labels, once all are known.

        Args:
            classes: Class names by label, for labels that are names; None takes the names that occur, sorted.

        Raises:
            SourceError: for a number that is too large, or a name that is not among ``classes``.
        """
        labelled = len(self._numbers) - self._missing - self._minus_ones
        are_odd = 0 < self._named <= _ODD_SHARE * labelled
        if self._names and not (are_odd and (classes is None or not set(self._codes).issubset(classes))):
            return self._by_name(classes)
        if self._beyond is not None:
            raise SourceError(f"{self._place} holds {self._beyond}, which is beyond float32; scale the column")
        targets = np.array(self._numbers, np.float32)
        missing = int(np.isnan(targets).sum()) - self._named
        if self._fraction is not None:
            return Numbering(None, targets, None, missing, self._fraction, self._names)
        found = [-1 if code in self._names else _class_number(text) for code, text in enumerate(self._codes)]
        outside = next((number for number in found if number > _LARGEST_LABEL), None)
        if outside is not None:
            raise SourceError(f"{self._place} holds the label {outside}; labels are 0 to 2**63-1: {self._remedy}")
        return Numbering(np.array(found, np.int64), None, None, missing + self._minus_ones, None, self._names)

    def finish_whole(self, classes: Sequence[str] | None) -> Numbering:
        """Does the same as :meth:`finish`, but raises for odd labels, as no sample can be left out.

        Raises:
            SourceError: as :meth:`finish` does, and for odd labels.
        """
        found = self.finish(classes)
        if found.odd:
            names = ", ".join(repr(text) for text in list(found.odd.values())[:3])
            raise SourceError(
                f"{self._place} holds {names}, {count(self._named, 'label')} of {len(self._numbers)}; the others are "
                f"numbers: fix {'it' if self._named == 1 else 'them'}, or name all classes with classes=[...]"
            )
        return found

    def _by_name(self, classes: Sequence[str] | None) -> Numbering:
        if not self._has_all_codes:
            raise self._too_many()
        texts = list(self._codes)
        has_label = np.array([as_number(text) != -1 for text in texts])
        names = sorted(itertools.compress(texts, has_label)) if classes is None else list(classes)
        numbers = np.where(has_label, name_numbers(texts, names), -1)
        if (unknown_ones := (numbers < 0) & has_label).any():
            unknown = texts[int(np.argmax(unknown_ones))]
            listed = count(len(names), "class", "classes")
            raise SourceError(f"{self._place} holds the class {unknown!r}, which is not in the list of {listed}")
        return Numbering(numbers, None, names, self._missing + self._minus_ones, next(iter(self._names.values())), {})

    def _too_many(self) -> SourceError:
        return SourceError(f"{self._place} holds more than {MAX_CLASSES} different labels: {self._remedy}")


def is_class_number(number: float) -> bool:
    """Returns whether a number can be a class number: an integer from 0 on."""
    return number >= 0 and float(number).is_integer()


def as_number(text: str) -> float | None:
    """Returns the number that a label spells, NaN included; None if it is not a number."""
    if _NUMBER.fullmatch(text):
        return float(text)
    return math.nan if text.lower() in _NOT_A_NUMBER else None


def target_number(value: Any, place: str) -> float:
    """Returns the number of a target; NaN for a gap.

    Raises:
        ValueError: if it is not a number.
        SourceError: if it is beyond float32.
    """
    text = _as_text(value)
    number = None if text is None else math.nan if not text else as_number(text)
    if number is None:
        raise ValueError(f"{place} holds {str(value)[:40]!r}, expected a number")
    if _is_beyond_float32(number):
        raise SourceError(f"{place} holds {number}, which is beyond float32; scale the column")
    return number


def check_classes(classes: Sequence[str]) -> list[str]:
    """Checks class names, and returns them as a list.

    Raises:
        ArgumentError: unless they are distinct texts.
    """
    names = [classes] if isinstance(classes, str) else list(classes)
    if isinstance(classes, str) or not all(isinstance(name, str) for name in names):
        raise ArgumentError(f"classes must be a sequence of names, got {str(classes)[:80]!r}")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ArgumentError(f"classes names {twice!r} twice; each class has one label")
    return names


def name_numbers(names: Sequence[str], wanted: Sequence[str]) -> Int64s:
    """Returns the place of each class name in ``wanted``, int64 [N]; -1 for a name that is not there."""
    places = {name: place for place, name in enumerate(wanted)}
    return np.array([places.get(name, -1) for name in names], np.int64)


def _as_text(value: Any) -> str | None:
    """Returns a label as text, "" for none; None if the value can't be a label."""
    if value is None or (isinstance(value, float) and math.isnan(value)):  # how pandas writes a gap
        return ""
    if isinstance(value, (dict, list)) or (isinstance(value, float) and math.isinf(value)):
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, bytes):  # as older writers of Parquet have text
        return label_text(value)
    return value.strip().removeprefix(BOM).strip() if isinstance(value, str) else str(value)


def _class_number(text: str) -> int:
    if text.lower() in _NOT_A_NUMBER:
        return -1
    return int(text) if text.isdecimal() else int(float(text))


def _is_beyond_float32(number: float) -> bool:
    return abs(number) > _LARGEST_FLOAT32  # NaN is not
