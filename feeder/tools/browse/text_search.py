"""The search for a text in the keys, paths and captions of a set's samples.

Note [Lines of names]
    Names are searched in blocks of 8,192 samples. A block is one array of bytes that has a line of JSON for each
    sample: a list with its key and path in lower case, which may go on with numbers. Those of a shard set are the lines
    of its index, see Note [Shard index], so that a million names are read in a fifth of a second. JSON has no raw
    newline or quotation mark within a text, so text that is escaped in the same way is found where a name has it. One
    that also fits the numbers or an escaped character is compared once more.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from json.encoder import encode_basestring
from typing import Any

import numpy as np

from feeder.errors import DecodeError, FormatError
from feeder.shard.format.set_index import SetIndex
from feeder.system.arrays import Bools, Int64s

NAMES = 1 << 20  # samples whose names one search reads at most, and that stay in memory: some 60 MB
FETCHED = 100_000  # samples that a search fetches, of a set in a store
CAPTIONS = 6_000  # the most that one search reads; a million of those that were read stay in memory
BLOCK = 1 << 13
AT_ONCE = 16 * BLOCK  # samples that are searched together
_CAPTION = "txt"
_TO_ESCAPE = re.compile(rb'[^ -~]|["\\]')
_NUMBERS = frozenset("0123456789-,[]")


class TextSearch:
    """The names and captions of a set, which stay in memory once they were read.

    Args:
        reader: Reads the set.
        lock: Is held while the set is read.
        is_remote: True for a set in a store: no caption is searched, and fewer names at a time.

    Attributes:
        most: Number of samples whose names one search reads at most.
        has_captions: True if captions are searched.
    """

    def __init__(self, reader: Any, lock: AbstractContextManager[Any], *, is_remote: bool) -> None:
        self._reader = reader
        self._lock = lock
        self._is_remote = is_remote
        self.most = FETCHED if is_remote else NAMES
        self.has_captions = _CAPTION in reader.field_names() and not is_remote
        self._block = functools.lru_cache(NAMES // BLOCK + 1)(self._read_block)
        self._captions: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._reader)

    def read_names(self) -> None:
        """Reads the names of a local set ahead of the first search, as many as stay in memory; damaged ones are told by
        the search itself."""
        if not self._is_remote:
            with contextlib.suppress(FormatError):
                for first in range(0, min(len(self), NAMES), BLOCK):
                    self._block(first // BLOCK)

    def search(self, wanted: str) -> Callable[[Int64s, Bools], Bools]:
        """Returns a function that looks for a text in the names and captions of samples.

        It takes ids, int64 [N], and for each of them if it is found by other means. It returns for each if it is found,
        bool [M], M <= N: it ends where it has read as many captions as one search reads.
        """
        wanted = wanted.lower()
        found = np.zeros(len(self), bool)
        searched = set[int]()
        left = CAPTIONS

        def search(ids: Int64s, is_found: Bools) -> Bools:
            nonlocal left
            blocks = [each for each in np.flatnonzero(np.bincount(ids // BLOCK)).tolist() if each not in searched]
            for block in blocks:
                found[block * BLOCK : (block + 1) * BLOCK] = self._hits(block, wanted)
            searched.update(blocks)

            is_found = is_found | found[ids]
            if not self.has_captions:
                return is_found
            numbers = ids.tolist()
            for row in np.flatnonzero(~is_found).tolist():
                caption = self._captions.get(numbers[row])
                if caption is None:
                    if not left:
                        return is_found[:row]
                    left -= 1
                    caption = self._read_caption(numbers[row])
                if wanted in caption:
                    is_found[row] = True
            return is_found

        return search

    def _read_caption(self, i: int) -> str:
        """Returns a sample's caption in lower case, empty where it has none or can't be read."""
        caption = ""
        with contextlib.suppress(DecodeError), self._lock:
            caption = bytes(self._reader.member(i, _CAPTION) or b"").decode("utf-8", "replace").lower()
        if len(self._captions) < NAMES:
            self._captions[i] = caption
        return caption

    def _hits(self, block: int, wanted: str) -> Bools:
        """Returns for each sample of a block if a text in lower case is in its names, bool [N]."""
        text = self._block(block)
        escaped = _escaped(wanted)[1:-1]
        if escaped not in text:
            return np.zeros(min(BLOCK, len(self) - block * BLOCK), bool)

        lines = text.split(b"\n")
        found = np.array([escaped in line for line in lines])
        if b"\\" in text or _NUMBERS.issuperset(wanted):
            for row in np.flatnonzero(found).tolist():
                with contextlib.suppress(RecursionError, TypeError, ValueError):  # reading the sample names the damage
                    found[row] = any(wanted in name for name in json.loads(lines[row])[:2])
        return found

    def _read_block(self, block: int) -> bytes:
        """Returns the lines of a block."""
        first, end = block * BLOCK, min((block + 1) * BLOCK, len(self))
        index = getattr(self._reader, "index", None)
        if not isinstance(index, SetIndex):
            return self._paths(first, end)

        parts = list[bytes]()
        while first < end:
            shard = int(index.header.locate(np.array([first]))[0][0])
            start, stop = index.header.sample_range(shard)
            rows = range(first - start, min(stop, end) - start)
            with self._lock:
                own = index.shard_index(shard)
            text = own.detail_lines(rows.start, rows.stop)
            if b"\\" in text:
                names = [own.details(row)[:2] for row in rows]
                text = b"\n".join(_line(os.fsdecode(key), os.fsdecode(path)) for key, path in names)
            parts.append(text.lower() if text.isascii() else text)
            first += len(rows)
        return b"\n".join(parts)

    def _paths(self, first: int, end: int) -> bytes:
        """Returns the lines of a part of a folder: the paths relative to it."""
        starts = self._reader.path_start[first : end + 1].tolist()
        data = self._reader.path_data[starts[0] : starts[-1]].tobytes()
        paths = [data[at - starts[0] : to - starts[0]] for at, to in itertools.pairwise(starts)]
        if _TO_ESCAPE.search(data):
            return b"\n".join(_line(os.fsdecode(path)) for path in paths)
        return b'["' + b'"]\n["'.join(paths).lower() + b'"]'


def _line(*names: str) -> bytes:
    """Returns the line of a sample with some names."""
    return b"[" + b",".join(_escaped(name.lower()) for name in names) + b"]"


def _escaped(text: str) -> bytes:
    """Returns a text as JSON, with its quotation marks."""
    return encode_basestring(text).encode("utf-8", "surrogatepass")
