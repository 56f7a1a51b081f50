"""The labels of the samples of tars."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from feeder.errors import SourceError
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.manifest import Manifest
from feeder.shard.format.open_index import open_index
from feeder.shard.source.image_file import LARGE_BYTES
from feeder.shard.source.labels import LABEL_BYTES, LabelColumn, label_text, target_number
from feeder.shard.source.sample_table import StoredField
from feeder.shard.source.source import Source
from feeder.shard.source.table_file import ManifestColumns
from feeder.system.text import count


class TarLabels:
    """The labels of the samples of tars: from the ``cls`` field, or from keys of ``json``.

    Args:
        source: The source of the samples.
        pattern: Its name in messages.
        columns: Keys of the samples' ``json`` with the label or the targets.
        folder: Folder with the manifest and the index of a shard set, if the tars are one's.
    """

    def __init__(self, source: Source, pattern: str, columns: ManifestColumns, folder: str) -> None:
        self._manifest = Manifest.read(folder)
        header = os.path.join(folder, INDEX_NAME)
        is_set = self._manifest is not None and os.path.isfile(header)
        if is_set and columns.label is None and not columns.targets and columns.has_labels:
            own = open_index(header).targets
            columns = columns if own == ("cls",) else replace(columns, targets=own)
        self._source = source
        self._pattern = pattern
        self._columns = columns
        key = columns.label
        place = f"{pattern}: the cls field" if key is None else f"{pattern}: {key!r} of the json field"
        remedy = "name a key of the samples' json that has the label with --label-column, or give --no-labels"
        self._column = LabelColumn(place, remedy)
        self._target = array("f")
        self._found = 0
        self._unreadable = array("q")  # samples whose ``cls`` field is not text

    def take(self, pread: Callable[[int, int], bytes], stored: dict[str, StoredField]) -> int:
        """Takes the label of a tar's next sample and returns its code.

        Args:
            pread: Returns bytes of the tar: takes their number and their offset.
            stored: The sample's fields.

        Raises:
            ValueError: for a target that is not a number.
        """
        columns, field = self._columns, stored.get("cls")
        if not columns.has_labels:
            return -1
        if not columns.label and not columns.targets:
            if field is None:
                return self._column.add(None)
            text = label_text(pread(min(field.length, LABEL_BYTES + 1), field.offset))
            if text is None:
                self._unreadable.append(len(self._source.table))
            self._found += 1
            return self._column.add(text)
        row = _json_row(pread, stored.get("json"))
        self._found += any(name in row for name in (columns.label, *columns.targets))
        self._target.extend([target_number(row.get(name), f"{name!r} of the json field") for name in columns.targets])
        return self._column.add(row.get(columns.label)) if columns.label else -1

    def finish(self) -> dict[int, str]:
        """Gives the samples their labels, once all are known.

        Returns:
            Reason for the rejection, by sample, for those whose label is damaged or odd.

        Raises:
            SourceError: if no sample has the requested keys, or for a value that can't be a label.
        """
        source, columns = self._source, self._columns
        if not columns.has_labels:
            return {}

        samples, manifest = len(source.table), self._manifest
        known = manifest.classes if manifest else None
        asked = [name for name in (columns.label, *columns.targets) if name]
        if asked and samples and not self._found:
            raise SourceError(f"{self._pattern}: no sample has {' or '.join(map(repr, asked))} in a json field")

        if columns.targets:
            numbers = np.array(self._target, np.float32).reshape(samples, len(columns.targets))
            source.table.set_targets(columns.targets, numbers)
            return {}

        found = self._column.finish(None if asked else known)
        reasons = source.take_labels(found, columns.label or "cls")
        source.replaces_cls = bool(asked) and found.labels is not None
        if found.labels is not None and known is not None and not asked:
            source.classes = known

        what = "the cls field" if not asked else f"{asked[0]!r} of the json field"
        missing = found.missing
        if missing < samples:
            reasons |= dict.fromkeys(self._unreadable, "its label is binary or too long")
            missing -= len(self._unreadable)
        elif self._unreadable:
            unread = count(len(self._unreadable), "cls field")
            source.notes.append(f"{self._pattern}: {unread} without a label, as they are binary or too long")

        if found.example is not None:
            kind = "class names" if found.classes is not None else "float32 targets"
            source.notes.append(f"{self._pattern}: labels are {kind}, as {what} holds {found.example!r}")
        if samples and missing == samples:
            source.notes.append(f"{self._pattern}: no sample has a label in {what}")
        elif missing:
            source.notes.append(f"{self._pattern}: {count(missing, 'sample')} without a label in {what}")

        return reasons


def _json_row(pread: Callable[[int, int], bytes], field: StoredField | None) -> dict[str, Any]:
    """Parses a ``json`` field; empty if the sample has none, or if it is not an object.

    Raises:
        ValueError: if it is not JSON, or too large, or nested too deeply.
    """
    if field is None:
        return {}
    if field.length > LARGE_BYTES:  # before memory is allocated for it
        raise ValueError(f"its json has {field.length:,} bytes, more than {LARGE_BYTES:,}")
    try:
        row = json.loads(pread(field.length, field.offset))
    except RecursionError:
        raise ValueError("its json is nested too deeply") from None
    return row if isinstance(row, dict) else {}
