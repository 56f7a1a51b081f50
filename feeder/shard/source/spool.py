"""Scratch files for fields that are not in files: columns of a manifest, samples of an iterable."""

from __future__ import annotations

import hashlib
import os
from typing import Any

from feeder.shard.source.sample_table import StoredField
from feeder.shard.source.source import Container, Source
from feeder.system.files import atomic_file


class Spool:
    """Appends fields to a scratch file, one of the source's containers. It can be read once the context has ended.

    Args:
        source: The source of the fields' samples.
        path: The scratch file; it is overwritten.
    """

    def __init__(self, source: Source, path: str) -> None:
        self._source = source
        self._hash = hashlib.sha256()
        self._size = 0
        self._container = len(source.containers)
        self._writing = atomic_file(path)
        source.containers.append(Container(path, 0, 0, is_scratch=True))

    def __enter__(self) -> Spool:
        self._file = self._writing.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._writing.__exit__(*error)
        self._source.content_digest = self._hash.hexdigest()

    def add(self, name: str, data: bytes) -> StoredField:
        """Appends a field's bytes and returns their place."""
        field = StoredField(name, self._container, self._size, len(data))
        self._file.write(data)
        self._hash.update(name.encode("utf-8", "surrogateescape") + b"\0%d\0" % len(data) + data)
        self._size += len(data)
        return field

    def read(self, field: StoredField) -> bytes:
        """Reads the bytes of a field that was appended before."""
        self._file.flush()
        with open(self._file.name, "rb", buffering=0) as file:
            return os.pread(file.fileno(), field.length, field.offset)
