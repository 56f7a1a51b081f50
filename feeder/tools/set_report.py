"""The contents of a shard set."""

from __future__ import annotations

import collections
import os
from dataclasses import dataclass, field
from textwrap import indent
from typing import Any

import numpy as np

from feeder.decoders.packed import codebook_id
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.manifest import Manifest
from feeder.shard.format.set_index import SetIndex, field_name
from feeder.shard.write.set_copy import SetCopy
from feeder.system.arrays import AnyArray, Float32s
from feeder.system.text import count, printable
from feeder.tools.terminal import columns, size, table, wrap

_PERCENTILES = (0, 5, 50, 95, 100)
_HISTOGRAM_ROWS = 10
_BAR = 24
DIGITS = 12  # binary, of counted numbers: the lengths of any number of images take little memory


@dataclass(frozen=True)
class Report:
    """The contents of a shard set.

    Attributes:
        path: The folder or index file.
        samples, shards, bytes: Totals.
        settings: Settings of ``feeder shard``; None for tars from elsewhere.
        rejected: Number of rejected inputs; None for tars from elsewhere.
        fields: Samples by field.
        orientations: Samples by EXIF orientation.
        unlabelled: Samples without a label, or without any target.
        targets: Least and largest number of each target.
        classes: (name, count) by label.
        image_bytes, width_px, height_px: minimum, 5 %, median, 95 %, maximum.
        codebooks: Ids of the codebooks of its packed images.
        taken_down: Number of samples that were taken down, in whose places others stand.
    """

    path: str
    samples: int
    shards: int
    bytes: int
    settings: dict[str, Any] | None
    rejected: int | None
    fields: dict[str, int]
    orientations: dict[str, int]
    unlabelled: int
    targets: dict[str, tuple[float, float]]
    classes: list[tuple[str, int]]
    image_bytes: list[int]
    width_px: list[int]
    height_px: list[int]
    codebooks: list[str] = field(default_factory=list)
    taken_down: int = 0


def open_set(path: str) -> SetIndex:
    """Opens the index of a shard set's folder, or an index file.

    Raises:
        FormatError: if there is none, or it is damaged.
    """
    return SetCopy(path, path).index()


def inspect(place: str | SetCopy) -> Report:
    """Reads index and manifest, the index of one shard after the other.

    Args:
        place: A shard set's folder, an index file, or an open set.

    Raises:
        FormatError: if index or manifest is missing or damaged.
    """
    copy = place if isinstance(place, SetCopy) else SetCopy(place, place)
    index = copy.index()
    manifest = Manifest.read(os.path.dirname(index.path)) if os.path.basename(index.path) == INDEX_NAME else None

    found = _read(index)
    names = index.classes or []
    every = sorted({*found.labels, *range(len(names))})
    return Report(
        path=copy.shown,
        samples=len(index),
        shards=index.header.shards,
        bytes=index.header.size_bytes,
        settings=manifest.settings if manifest else None,
        rejected=manifest.rejected if manifest else None,
        fields={field_name(index, number): rows for number, rows in found.fields.items()},
        orientations={str(k): found.orientations[k] for k in sorted(found.orientations)},
        unlabelled=found.unlabelled,
        targets={
            name: (float(low), float(high)) if low <= high else (0.0, 0.0)
            for name, low, high in zip(index.targets, *found.target_ranges, strict=True)
        },
        classes=[(names[k] if k < len(names) else str(k), found.labels[k]) for k in every],
        image_bytes=found.length.percentiles(),
        width_px=found.width.percentiles(),
        height_px=found.height.percentiles(),
        codebooks=[codebook_id(codebook).hex() for codebook in index.codebooks],
        taken_down=index.header.info.taken_down,
    )


def render(report: Report) -> str:
    """Returns the report as text for a terminal of 60 columns or more."""
    shards = count(report.shards, "shard")
    lines = [printable(report.path), f"  samples     {report.samples:,} in {shards}, {size(report.bytes)}"]
    if report.rejected is not None:
        lines.append(f"  rejected    {report.rejected:,}" + (" (see rejected.jsonl)" if report.rejected else ""))
    if report.taken_down:
        lines.append(f"  taken down  {report.taken_down:,}, in whose places others stand")
    fields = [f"{printable(name)} {number:,}" for name, number in report.fields.items()]
    lines.append(_listed("  fields      ", fields))
    if report.codebooks:
        lines.append(_listed("  codebooks   ", report.codebooks))
    if set(report.orientations) - {"1"}:
        lines.append(_listed("  orientation ", [f"{k}: {v:,}" for k, v in report.orientations.items()]))
    if report.settings:
        lines.append(
            _listed("  settings    ", [printable(f"{k}={v}") for k, v in report.settings.items() if v is not None])
        )

    rows = {"image bytes": report.image_bytes, "width, px": report.width_px, "height, px": report.height_px}
    cells = [[name, *(f"{value:,}" for value in row)] for name, row in rows.items()]
    lines += ["", indent(table([["", "min", "5 %", "median", "95 %", "max"], *cells]), "  ")]

    if report.targets:
        ranges = [f"{printable(name)} {low:g} to {high:g}" for name, (low, high) in report.targets.items()]
        lines += ["", _listed("  targets     ", ranges)]
        if report.unlabelled:
            lines.append(f"  {count(report.unlabelled, 'sample')} without a target")
    elif report.classes and report.unlabelled == report.samples:
        names = [printable(name) for name, _ in report.classes[:_HISTOGRAM_ROWS]]
        further = len(report.classes) - len(names)
        names += [f"and {further:,} more"] if further else []
        lines += ["", "  no sample has a label", _listed("  classes     ", names)]
    elif report.classes or report.unlabelled:
        classes = count(len(report.classes), "class", "classes")
        lines += ["", f"  {classes}, {count(report.unlabelled, 'sample')} without a label"]
        lines += _histogram(report.classes)
    return "\n".join(lines)


class _Distribution:
    """Counts of whole numbers by their first 12 binary digits, and the least and the largest of them."""

    def __init__(self) -> None:
        self._counts = collections.Counter[int]()
        self._least = 1 << 64
        self._largest = 0

    def add(self, numbers: AnyArray) -> None:
        """Counts numbers, int [N] from 0 on."""
        if len(numbers):
            self._least = min(self._least, int(numbers.min()))
            self._largest = max(self._largest, int(numbers.max()))
            further = np.maximum(np.frexp(numbers)[1] - DIGITS, 0)
            _count(self._counts, numbers >> further << further)

    def percentiles(self) -> list[int]:
        """Returns the numbers at the percentiles, the nearest that there is; zeros if there is none."""
        if not self._counts:
            return [0] * len(_PERCENTILES)
        values = np.array(sorted(self._counts))
        ends = np.cumsum([self._counts[value] for value in values.tolist()])
        ranks = np.rint((int(ends[-1]) - 1) * np.array(_PERCENTILES) / 100)
        found = values[np.searchsorted(ends, ranks, side="right")].tolist()
        return [self._least, *(max(value, self._least) for value in found[1:-1]), self._largest]


@dataclass
class _Found:
    """Counts of what an index has of all samples, whose number they don't grow with.

    Attributes:
        fields: Samples by the numbers of fields.
        orientations, labels: Samples by their values.
        unlabelled: As :class:`Report` has it.
        target_ranges: Least and largest number of each target, float32 [2, K]; infinity and minus infinity for none.
        length, width, height: Bytes and pixels of the images.
    """

    target_ranges: Float32s
    fields: collections.Counter[int] = field(default_factory=collections.Counter)
    orientations: collections.Counter[int] = field(default_factory=collections.Counter)
    labels: collections.Counter[int] = field(default_factory=collections.Counter)
    unlabelled: int = 0
    length: _Distribution = field(default_factory=_Distribution)
    width: _Distribution = field(default_factory=_Distribution)
    height: _Distribution = field(default_factory=_Distribution)


def _read(index: SetIndex) -> _Found:
    counts = len(index.targets)
    found = _Found(np.array([[np.inf] * counts, [-np.inf] * counts], np.float32))
    fields = ["field", "member_field"]
    targets = ["target"] if counts else []
    for shard in index.checked_columns([*fields, *targets, "label", "orientation", "length", "width", "height"]):
        for name in fields:
            _count(found.fields, shard[name])
        _count(found.orientations, shard["orientation"])
        _count(found.labels, shard["label"][shard["label"] >= 0])
        if counts:
            target = shard["target"]
            found.unlabelled += int(np.isnan(target).all(axis=1).sum())
            low, high = found.target_ranges
            low[:] = np.fmin(low, np.fmin.reduce(target, axis=0, initial=np.inf))
            high[:] = np.fmax(high, np.fmax.reduce(target, axis=0, initial=-np.inf))
        else:
            found.unlabelled += int((shard["label"] < 0).sum())
        found.length.add(shard["length"])
        found.width.add(shard["width"])
        found.height.add(shard["height"])
    return found


def _count(counts: collections.Counter[int], values: AnyArray) -> None:
    for value, rows in zip(*(each.tolist() for each in np.unique(values, return_counts=True)), strict=True):
        counts[value] += rows


def _histogram(classes: list[tuple[str, int]]) -> list[str]:
    """Returns a line for each class; for the largest and smallest ones only if there are too many."""
    ranked = sorted(classes, key=lambda item: -item[1])
    shown: list[tuple[str, int] | None] = list(ranked)
    if len(ranked) > _HISTOGRAM_ROWS:
        half = _HISTOGRAM_ROWS // 2
        shown = [*ranked[:half], None, *ranked[-half:]]
    most = max((count for _, count in ranked), default=0) or 1
    bar = min(_BAR, columns() - 46)
    lines = []
    for row in shown:
        if row is None:
            lines.append(f"    ... {len(ranked) - _HISTOGRAM_ROWS:,} more")
            continue
        name, count = row
        text = printable(name)
        label = text if len(text) <= 30 else text[:27] + "..."
        lines.append(f"    {label:30} {count:>9,} {'#' * round(bar * count / most)}".rstrip())
    return lines


def _listed(label: str, items: list[str]) -> str:
    """Returns a label and its items, in lines of the terminal's width."""
    return "\n".join(wrap(", ".join(items), columns(), first=label, indent=" " * len(label)))
