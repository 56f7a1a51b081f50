"""The contents of a shard set, and their verification."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from textwrap import indent
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feeder.errors import FormatError
from feeder.order.batch_scores import BatchScores, batch_scores
from feeder.order.lanes import Lanes
from feeder.order.sample_order import Order, Shuffle, Window
from feeder.shard.format.index import Index
from feeder.shard.format.index_builder import row_data
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.manifest import MANIFEST_NAME, Manifest, matches_checksum
from feeder.shard.source.image_file import MAX_FILE_BYTES
from feeder.system.cores import cores
from feeder.system.files import file_sha256, open_regular
from feeder.system.progress import Progress
from feeder.system.text import count, printable
from feeder.tools.terminal import size, table, wrap

__all__ = ["Damage", "Report", "inspect", "open_index", "render", "verify"]

_PERCENTILES = (0, 5, 50, 95, 100)
_HISTOGRAM_ROWS = 10
_RANKS, _BATCH = 8, 256
_WINDOWS = (1024, 8192, 65536)
_BAR = 24


class Damage(NamedTuple):
    """A damaged file or sample of a shard set.

    Attributes:
        shard: Name of the damaged file.
        sample: Key of the damaged sample; None if the whole file is damaged.
        reason: The damage, with the expected value.
    """

    shard: str
    sample: str | None
    reason: str


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

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        return asdict(self)


def open_index(path: str) -> Index:
    """Opens the index of a shard set's folder, or an index file.

    Raises:
        FormatError: if there is none, or it is damaged.
    """
    return Index(os.path.join(path, INDEX_NAME) if os.path.isdir(path) or not os.path.exists(path) else path)


def inspect(path: str) -> Report:
    """Reads index and manifest.

    Args:
        path: A shard set's folder, or an index file.

    Raises:
        FormatError: if index or manifest is missing or damaged.
    """
    index = open_index(path)
    index.check()
    manifest = Manifest.read(os.path.dirname(index.path)) if os.path.basename(index.path) == INDEX_NAME else None
    labels = np.asarray(index.label)
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
    orientations = dict(zip(*(a.tolist() for a in np.unique(index.orientation, return_counts=True)), strict=True))
    return Report(
        path=path,
        samples=len(index),
        shards=len(index.shards),
        bytes=sum(shard.size_bytes for shard in index.shards),
        settings=manifest.settings if manifest else None,
        rejected=manifest.rejected if manifest else None,
        fields=members,
        orientations={str(k): v for k, v in orientations.items()},
        unlabelled=int(unlabelled.sum()),
        targets=_ranges(index),
        classes=[(names[k] if k < len(names) else str(k), known.get(k, 0)) for k in every],
        image_bytes=_percentiles(index.length),
        width_px=_percentiles(index.width),
        height_px=_percentiles(index.height),
        window_scores=_window_scores(index),
        batch_scores=_batch_scores(index),
    )


def render(report: Report) -> str:
    """Returns the report as text for a terminal of 80 columns."""
    shards = count(report.shards, "shard")
    lines = [printable(report.path), f"  samples     {report.samples:,} in {shards}, {size(report.bytes)}"]
    if report.rejected is not None:
        lines.append(f"  rejected    {report.rejected:,}" + (" (see rejected.jsonl)" if report.rejected else ""))
    fields = [f"{printable(name)} {number:,}" for name, number in report.fields.items()]
    lines.append(_listed("  fields      ", fields))
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


def verify(path: str, *, workers: int | None = None, progress: Progress | None = None) -> list[Damage]:
    """Reads every shard again and compares it with its checksums.

    Args:
        path: A shard set's folder, or an index file.
        workers: Number of threads; None for one per core.
        progress: Advanced with every shard.

    Returns:
        All damage, by shard and sample.

    Raises:
        FormatError: if index or manifest is missing or damaged.
    """
    progress = progress or Progress()
    index = open_index(path)
    folder = os.path.dirname(index.path)
    manifest = Manifest.read(folder) if os.path.basename(index.path) == INDEX_NAME else None
    damages: list[Damage] = []
    if manifest:
        with open(os.path.join(folder, MANIFEST_NAME), "rb") as file:
            if not matches_checksum(file.read()):
                damages.append(Damage(MANIFEST_NAME, None, "its bytes do not match its checksum; restore it"))
    if manifest and (found := file_sha256(index.path)) != manifest.index["sha256"]:
        damages.append(Damage(INDEX_NAME, None, f"SHA-256 is {found}, {MANIFEST_NAME} says {manifest.index['sha256']}"))
    if manifest and [s.name for s in index.shards] != [s.name for s in manifest.shards]:
        shards = count(len(index.shards), "shard")
        damages.append(Damage(INDEX_NAME, None, f"lists {shards}, {MANIFEST_NAME} lists {len(manifest.shards)}"))
        return damages
    damages += _verify_index(index)
    if not index.has_checksums and not manifest:
        progress.note(f"{index.path}: an older index, which has no checksums of its own; `feeder index` adds them")
    # Rows are in the order of their shards, unless the index is damaged.
    order = np.argsort(index.shard, kind="stable")
    starts = np.searchsorted(index.shard[order], np.arange(len(index.shards) + 1))

    def check(number: int) -> list[Damage]:
        checksum = manifest.shards[number].sha256 if manifest else None
        return _verify_shard(index, number, order[starts[number] : starts[number + 1]].tolist(), checksum)

    progress.begin(len(index), sum(shard.size_bytes for shard in index.shards), 0, 0)
    with ThreadPoolExecutor(workers or cores().usable) as pool:
        for number, found_damages in enumerate(pool.map(check, range(len(index.shards)))):
            damages += found_damages
            progress.advance(int(starts[number + 1] - starts[number]), index.shards[number].size_bytes)
    progress.end()
    return damages


def _verify_index(index: Index) -> list[Damage]:
    """Compares the index with its checksums, and looks for invalid numbers, orientations and overlapping texts."""
    name, last = os.path.basename(index.path), len(index) - 1
    damages = [
        Damage(name, None, f"the bytes of column {column!r} do not match their checksum")
        for column in index.damaged_columns()
    ]

    def add(rows: npt.NDArray[np.int64], reason: Callable[[int], str]) -> None:
        damages.extend(Damage(name, index.key(i), reason(i)) for i in rows.tolist())

    add(
        np.flatnonzero(index.shard >= len(index.shards)),
        lambda i: f"names shard {index.shard[i]}, the index has {len(index.shards)}",
    )
    add(
        np.flatnonzero(index.field >= len(index.fields)),
        lambda i: f"names field {index.field[i]}, the index has {len(index.fields)}",
    )
    add(
        np.flatnonzero((index.orientation < 1) | (index.orientation > 8)),
        lambda i: f"has orientation {index.orientation[i]}, expected 1 to 8",
    )
    for column in ("key_start", "path_start", "member_start", "row_start"):
        starts = index.column(column)
        add(
            np.flatnonzero(starts[1:] < starts[:-1]),
            lambda i, column=column: f"ends before it starts in column {column}",  # type: ignore[misc]
        )
    numbers = index.column("member_field")
    for row in np.flatnonzero(numbers >= len(index.fields)).tolist():
        i = int(np.searchsorted(index.column("member_start"), row, side="right")) - 1
        reason = f"names field {numbers[row]}, the index has {len(index.fields)}"
        damages.append(Damage(name, index.key(min(max(i, 0), last)), reason))
    return damages


def _verify_shard(index: Index, number: int, rows: list[int], checksum: str | None) -> list[Damage]:
    name, expected_bytes = index.shards[number]
    path = index.shard_path(number)
    damages = []
    try:
        with open(path, "rb", opener=open_regular) as file:
            found_bytes = os.fstat(file.fileno()).st_size
        if found_bytes != expected_bytes:
            damages.append(Damage(name, None, f"has {found_bytes} bytes, expected {expected_bytes}"))
        elif checksum is not None:
            found = file_sha256(path)
            if found == checksum:
                return []
            damages.append(Damage(name, None, f"SHA-256 is {found}, expected {checksum}"))
        with open(path, "rb", opener=open_regular) as file:
            for i in rows:
                try:
                    parts = index.parts(i)
                except FormatError:
                    continue  # _verify_index has reported it
                crc = 0
                stored_rows = index.row_data(i)
                for _, offset, length in parts:
                    if length > MAX_FILE_BYTES:
                        reason = f"has a field of {length:,} bytes, more than the {MAX_FILE_BYTES:,} that can be loaded"
                        damages.append(Damage(name, index.key(i), reason))
                        break
                    data = os.pread(file.fileno(), length, offset) if offset + length <= found_bytes else b""
                    if len(data) != length:
                        reason = f"needs {length} bytes at byte {offset}, the shard ends at {found_bytes}"
                        damages.append(Damage(name, index.key(i), reason))
                        break
                    crc = zlib.crc32(data, crc)
                    if stored_rows and row_data(data) not in (stored_rows, b""):
                        reason = "has wrong places for the rows of the image: rebuild it with `feeder index`"
                        damages.append(Damage(os.path.basename(index.path), index.key(i), reason))
                    stored_rows = b""  # of the image only, which comes first
                else:
                    if crc != int(index.crc32[i]):
                        offset = int(index.offset[i])
                        damages.append(Damage(name, index.key(i), f"its bytes changed (image at byte {offset})"))
    except OSError as error:
        damages.append(Damage(name, None, f"can't be read: {error.strerror}"))
    return damages


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
    counts = index.shard_counts()
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
