"""A scan of a set's images and captions, which the user starts: damaged, grey and duplicate ones, and texts to search.

Note [Scan]
    What a scan finds is kept in a SQLite file in the user's cache folder, and nothing beside the set. The file is named
    after the set's place, its version and that one's contents, so that a set that was changed is scanned anew, and what
    was found before is removed. A scan that was stopped, or killed, goes on where it was. Images are duplicates if
    their stored bytes are equal: those with equal CRC-32 and length are read again and compared. Where there can be no
    file, findings are in memory, and go with the process.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import itertools
import json
import os
import sqlite3
import threading
import weakref
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from feeder import transforms as T
from feeder.dataset.taken_down import taken_down_of
from feeder.errors import DecodeError, FeederError
from feeder.tools.presets import open_dataset

__all__ = ["AT_ONCE", "Scan", "scan_path"]

_TABLES = """
CREATE TABLE IF NOT EXISTS done (samples INTEGER, is_whole INTEGER);
CREATE TABLE IF NOT EXISTS found (kind TEXT, id INTEGER, note TEXT, PRIMARY KEY (kind, id));
CREATE TABLE IF NOT EXISTS sums (crc INTEGER, length INTEGER, id INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS captions (id INTEGER PRIMARY KEY, text TEXT);
"""
AT_ONCE = 64
_LOOKED_AT_PX = 64
_GREY = 8  # levels between the channels of nearly all pixels
_MOST_FOUND = 1_000_000  # captions of one search


class Scan:
    """Findings of a scan of a set's images.

    Args:
        place: The set, or a folder of images.
        contents: Tells its present contents from all others.
        folder: Folder of the file; None: the user's cache.
        version: Number of the set's version.
        targets: Names of members such as "seg.png", whose files in a folder are no samples.

    Attributes:
        error: The error that ended the scan; empty without one.
        not_kept: The reason that findings go with the process; empty if they are kept.
    """

    def __init__(
        self,
        place: str,
        contents: str,
        folder: str | None = None,
        version: int = 1,
        targets: Sequence[str] = (),
    ) -> None:
        self._place = place
        self._version = version
        self._targets = targets
        self._path = scan_path(place, contents, folder, version)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_stopped = threading.Event()
        self.error = self.not_kept = ""
        try:
            self._file = _opened(self._path)
        except (OSError, sqlite3.Error) as error:
            self.not_kept = f"{self._path}: {getattr(error, 'strerror', None) or error}"
            self._file = sqlite3.connect(":memory:", check_same_thread=False)
            self._file.executescript(_TABLES)
        weakref.finalize(self, self._file.close).atexit = False

    @property
    def is_running(self) -> bool:
        """True while images are looked at."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def done(self) -> tuple[int, bool]:
        """Number of samples that were looked at, and True if that is all of them, and duplicates are known."""
        rows = self._rows("SELECT samples, is_whole FROM done")
        return (rows[0][0], bool(rows[0][1])) if rows else (0, False)

    def counts(self) -> dict[str, int]:
        """Number of samples of each kind that it looks for; those without captions only where there are any."""
        found = dict(self._rows("SELECT kind, count(*) FROM found GROUP BY kind"))
        has_captions = bool(self._rows("SELECT 1 FROM captions LIMIT 1"))
        kinds = ["damaged", "grey", "duplicate", *(["uncaptioned"] if has_captions else [])]
        return {kind: found.get(kind, 0) for kind in kinds}

    def of_kind(self, kind: str) -> npt.NDArray[np.int64]:
        """Returns the samples of a kind that it looks for, sorted."""
        rows = self._rows("SELECT id FROM found WHERE kind = ? ORDER BY id", kind)
        return np.array([i for (i,) in rows], np.int64)

    def notes(self, i: int) -> list[str]:
        """Returns what was found of a sample, in words."""
        return [note for (note,) in self._rows("SELECT note FROM found WHERE id = ? AND note <> ''", i)]

    def with_caption(self, text: str, first: int, end: int) -> list[int]:
        """Returns the samples from an id to before another whose captions have a text, in any case, sorted."""
        query = "SELECT id FROM captions WHERE id >= ? AND id < ? AND instr(text, ?) > 0 ORDER BY id LIMIT ?"
        return [i for (i,) in self._rows(query, first, end, text.lower(), _MOST_FOUND)]

    def start(self) -> None:
        """Goes on with the scan in a thread."""
        if not self.is_running and not self.done[1]:
            self._is_stopped.clear()
            self.error = ""
            self._thread = threading.Thread(target=self._run, name="feeder-scan", daemon=True)
            self._thread.start()

    def ask_to_stop(self) -> None:
        """Has the scan end after the samples that it looks at."""
        self._is_stopped.set()

    def stop(self) -> None:
        """Stops the scan, and waits for it; what was found stays."""
        self.ask_to_stop()
        if self._thread is not None:
            self._thread.join()

    def wait(self) -> None:
        """Waits for the end of the scan."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            # Not to a crop: only the rows below one are decoded.
            recipe = T.Compose([T.Resize((_LOOKED_AT_PX, _LOOKED_AT_PX))])
            dataset = open_dataset(self._place, recipe, version=self._version, targets=self._targets)
            names = [name for name in dataset.reader.field_names() if is_caption(name)]
            for first in range(self.done[0], len(dataset), AT_ONCE):
                if self._is_stopped.is_set():
                    return
                self.look_at(dataset, range(first, min(first + AT_ONCE, len(dataset))), names)
            self._compare(dataset)
        except FeederError as error:
            self.error = str(error)
        except (OSError, sqlite3.Error) as error:
            self.error = f"{self._path}: can't be written ({error}): make room there, and go on"

    def look_at(self, dataset: Any, ids: range, names: list[str]) -> None:
        """Decodes some samples, and keeps what is found of them."""
        reader = dataset.reader
        encoded = reader.read(np.array(ids))

        found: list[tuple[str, int, str]] = []
        captions: list[tuple[int, str]] = []
        gone = taken_down_of(reader, ids)  # what is there is another sample's

        sums = [
            (crc32(data), len(data), i)
            for data, i in zip(encoded.buffers, ids, strict=True)
            if len(data) and i not in gone
        ]

        for i in filter(lambda i: i not in gone, ids):
            try:
                pixels = dataset[i][0].numpy().astype(np.int16)
                if np.percentile(np.ptp(pixels, axis=0), 99) <= _GREY:
                    found.append(("grey", i, ""))
            except DecodeError as error:
                found.append(("damaged", i, error.reason))
            text = "\n".join(filter(None, (_caption(name, reader.member(i, name)) for name in names)))
            captions += [(i, text.lower())] if text else []
            found += [("uncaptioned", i, "")] if names and not text else []

        with self._lock, self._file:
            self._file.executemany("INSERT OR REPLACE INTO sums VALUES (?, ?, ?)", sums)
            self._file.executemany("INSERT OR REPLACE INTO found VALUES (?, ?, ?)", found)
            self._file.executemany("INSERT OR REPLACE INTO captions VALUES (?, ?)", captions)
            self._note(ids.stop, is_whole=False)

    def _compare(self, dataset: Any) -> None:
        """Compares the bytes of images that may be equal."""
        rows = self._rows(
            "SELECT crc, length, id FROM sums JOIN (SELECT crc, length FROM sums GROUP BY crc, length "
            "HAVING count(*) > 1) USING (crc, length) ORDER BY crc, length, id"
        )
        found = []
        for _, group in itertools.groupby(rows, key=lambda row: row[:2]):
            first: dict[bytes, int] = {}
            for *_, i in group:
                if self._is_stopped.is_set():
                    return
                (data,) = dataset.reader.read(np.array([i])).buffers
                earlier = first.setdefault(bytes(data), i)
                if earlier != i:
                    found.append(("duplicate", i, f"the same bytes as sample {earlier:,}"))
        with self._lock, self._file:
            self._file.executemany("INSERT OR REPLACE INTO found VALUES (?, ?, ?)", found)
            self._note(len(dataset), is_whole=True)

    def _note(self, samples: int, *, is_whole: bool) -> None:
        self._file.execute("DELETE FROM done")
        self._file.execute("INSERT INTO done VALUES (?, ?)", (samples, is_whole))

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._file.execute(query, values).fetchall()


def scan_path(place: str, contents: str, folder: str | None = None, version: int = 1) -> str:
    """Returns the path of the file for a set, see Note [Scan]."""
    if folder is None:
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        folder = os.path.join(cache, "feeder-browse")
    where, what = (hashlib.sha256(os.fsencode(text)).hexdigest()[:16] for text in (os.path.abspath(place), contents))
    return os.path.join(folder, f"{where}-{version}-{what}.sqlite")


def _opened(path: str) -> sqlite3.Connection:
    """Opens the file at a path, and removes those of other contents of the set.

    Raises:
        OSError, sqlite3.Error: if there can be none, or it is damaged.
    """
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    for other in glob.glob(f"{glob.escape(path.rpartition('-')[0])}-*"):
        if not other.startswith(path):
            os.unlink(other)
    file = sqlite3.connect(path, check_same_thread=False)
    try:
        os.chmod(path, 0o600)
        file.executescript(_TABLES)
    except BaseException:
        file.close()
        raise
    return file


def is_caption(name: str) -> bool:
    return name.endswith(("txt", "json")) or "caption" in name


def _caption(name: str, data: bytes | None) -> str:
    """Returns the caption in a member; empty without one."""
    text = "" if data is None else data.decode("utf-8", "replace")
    if name.endswith("json"):
        with contextlib.suppress(ValueError, RecursionError, AttributeError):
            value = json.loads(text)
            return "\n".join(str(value[key]) for key in ("caption", "text") if value.get(key))
        return ""
    return text.strip()
