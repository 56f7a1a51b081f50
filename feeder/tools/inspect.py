"""The contents of a shard set."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from textwrap import indent
from typing import Any

import numpy as np
import numpy.typing as npt

from feeder.decoders.packed import codebook_id
from feeder.order.batch_scores import BatchScores, batch_scores
from feeder.order.lanes import Lanes
from feeder.order.sample_order import Order, Shuffle, Window
from feeder.shard.format.index import Index
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.manifest import Manifest
from feeder.shard.format.open_index import open_index
from feeder.shard.format.set_index import SetIndex
from feeder.system.text import count, printable
from feeder.tools.terminal import size, table, wrap

__all__ = ["Report", "inspect", "open_set", "render"]

_PERCENTILES = (0, 5, 50, 95, 100)
_HISTOGRAM_ROWS = 10
_RANKS, _BATCH = 8, 256
_WINDOWS = (1024, 8192, 65536)
_BAR = 24


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
        window_scores: Score of a windowed shuffle, by samples in the window: how far samples that are stored side by
            side are moved apart, from 0 for the stored order to 1 for a full shuffle. Windows of the whole set are left
            out.
        codebooks: Ids of the codebooks of its packed images.
        taken_down: Number of samples that were taken down, in whose places others stand.
        batch_scores: Scores of each way to shuffle, by its name, for 8 ranks with batches of 256; empty for a set with
            too few samples.
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
    window_scores: dict[int, float]
    batch_scores: dict[str, BatchScores]
    codebooks: list[str] = field(default_factory=list)
    taken_down: int = 0

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        return asdict(self)


def open_set(path: str) -> Index:
    """Opens the index of a shard set's folder, or an index file.

    Raises:
        FormatError: if there is none, or it is damaged.
    """
    return open_index(os.path.join(path, INDEX_NAME) if os.path.isdir(path) or not os.path.exists(path) else path)


def inspect(path: str) -> Report:
    """Reads index and manifest.

    Args:
        path: A shard set's folder, or an index file.

    Raises:
        FormatError: if index or manifest is missing or damaged.
    """
    index = open_set(path)
    index.check()
    manifest = Manifest.read(os.path.dirname(index.path)) if os.path.basename(index.path) == INDEX_NAME else None
    labels = index.column("label")
    values, counts = np.unique(labels[labels >= 0], return_counts=True)
    names = index.classes or (manifest.classes if manifest else None) or []
    unlabelled = np.isnan(index.column("target")).all(axis=1) if index.targets else labels < 0
    known = dict(zip(values.tolist(), counts.tolist(), strict=True))
    every = sorted({*known, *range(len(names))})
    members: dict[str, int] = {}
    for column in ("field", "member_field") if index.image_of is None else ("member_field",):
        for number, rows in zip(*np.unique(index.column(column), return_counts=True), strict=True):
            name = index.field_name(int(number))
            members[name] = members.get(name, 0) + int(rows)
    orientations = dict(
        zip(*(a.tolist() for a in np.unique(index.column("orientation"), return_counts=True)), strict=True)
    )
    return Report(
        path=path,
        samples=len(index),
        shards=index.shard_count,
        bytes=index.size_bytes,
        settings=manifest.settings if manifest else None,
        rejected=manifest.rejected if manifest else None,
        fields=members,
        orientations={str(k): v for k, v in orientations.items()},
        unlabelled=int(unlabelled.sum()),
        targets=_ranges(index),
        classes=[(names[k] if k < len(names) else str(k), known.get(k, 0)) for k in every],
        image_bytes=_percentiles(index.column("length")),
        width_px=_percentiles(index.column("width")),
        height_px=_percentiles(index.column("height")),
        window_scores=_window_scores(index),
        batch_scores=_batch_scores(index),
        codebooks=[codebook_id(codebook).hex() for codebook in index.codebooks],
        taken_down=index.header.info.taken_down if isinstance(index, SetIndex) else 0,
    )


def render(report: Report) -> str:
    """Returns the report as text for a terminal of 80 columns."""
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
    if report.window_scores:
        scores = [f"{window:,} samples {score:.2f}" for window, score in report.window_scores.items()]
        lines.append(_listed("  windows     ", [*scores, "(a full shuffle is 1)"]))
    if report.batch_scores:
        head = f"  distance of a batch's samples (a full shuffle is 1), {_RANKS} ranks x {_BATCH}"
        heads = ["shuffle", "a rank's batch", "all ranks'", "shards of a rank"]
        scored = [
            [name, f"{scores.rank:.2f}", f"{scores.job:.2f}", f"{100 * scores.shards:.3g} %"]
            for name, scores in report.batch_scores.items()
        ]
        lines += ["", head, indent(table([heads, *scored]), "  ")]
    rows = {"image bytes": report.image_bytes, "width, px": report.width_px, "height, px": report.height_px}
    cells = [[name, *(f"{value:,}" for value in row)] for name, row in rows.items()]
    lines += ["", indent(table([["", "min", "5 %", "median", "95 %", "max"], *cells]), "  ")]
    if report.targets:
        ranges = [f"{printable(name)} {low:g} to {high:g}" for name, (low, high) in report.targets.items()]
        lines += ["", _listed("  targets     ", ranges)]
        if report.unlabelled:
            lines.append(f"  {count(report.unlabelled, 'sample')} without a target")
    elif report.classes or report.unlabelled:
        classes = count(len(report.classes), "class", "classes")
        lines += ["", f"  {classes}, {count(report.unlabelled, 'sample')} without a label"]
        lines += _histogram(report.classes)
    return "\n".join(lines)


def _ranges(index: Index) -> dict[str, tuple[float, float]]:
    """Returns the least and largest number of each target; zeros for a target without numbers."""
    found = {}
    for k, name in enumerate(index.targets):
        numbers = index.column("target")[:, k]
        numbers = numbers[~np.isnan(numbers)]
        found[name] = (float(numbers.min()), float(numbers.max())) if len(numbers) else (0.0, 0.0)
    return found


def _percentiles(column: npt.NDArray[Any]) -> list[int]:
    if not len(column):
        return [0] * len(_PERCENTILES)
    return [int(v) for v in np.percentile(column, _PERCENTILES, method="nearest")]


def _window_scores(index: Index) -> dict[int, float]:
    sizes = index.shard_counts()
    windows = [window for window in _WINDOWS if window < len(index)]
    return {w: round(Order(len(index), 0, Window(w), sizes).neighbour_distance(), 4) for w in windows}


def _batch_scores(index: Index) -> dict[str, BatchScores]:
    """Returns the scores of each way to shuffle, if a step of all ranks is less than a part of the set."""
    counts = np.asarray(index.shard_counts())
    if len(index) <= _RANKS * _BATCH:
        return {}
    ways: dict[str, Shuffle] = {
        "shuffle=True": True,
        f"Window({Window().samples})": Window(),
        f"Lanes({Lanes().count})": Lanes(block=_BATCH),
    }
    sizes = counts[counts > 0]
    return {name: batch_scores(Order(len(index), 0, way, sizes), _BATCH, _RANKS) for name, way in ways.items()}


def _histogram(classes: list[tuple[str, int]]) -> list[str]:
    """Returns a line for each class; for the largest and smallest ones only if there are too many."""
    ranked = sorted(classes, key=lambda item: -item[1])
    shown: list[tuple[str, int] | None] = list(ranked)
    if len(ranked) > _HISTOGRAM_ROWS:
        half = _HISTOGRAM_ROWS // 2
        shown = [*ranked[:half], None, *ranked[-half:]]
    most = max((count for _, count in ranked), default=0) or 1
    lines = []
    for row in shown:
        if row is None:
            lines.append(f"    ... {len(ranked) - _HISTOGRAM_ROWS:,} more")
            continue
        name, count = row
        text = printable(name)
        label = text if len(text) <= 30 else text[:27] + "..."
        lines.append(f"    {label:30} {count:>9,} {'#' * round(_BAR * count / most)}".rstrip())
    return lines


def _listed(label: str, items: list[str]) -> str:
    """Returns a label and its items, with line breaks only between items."""
    text = ", ".join(item.replace(" ", "\xa0") for item in items)
    return "\n".join(wrap(text, first=label, indent=" " * len(label))).replace("\xa0", " ")
