"""Packed images in pipelines of the webdataset library."""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import Any

from feeder.decoders.packed import add_codebooks, decode_packed, is_packed_field
from feeder.errors import DecodeError, FormatError, NotFoundError
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.open_index import open_index
from feeder.shard.store.open_store import open_store
from feeder.shard.store.store import download
from feeder.shard.store.url import is_remote, local_path


class PackedDecoder:
    """Replaces the packed images in samples; made by :func:`packed_decoder`."""

    def __init__(self, codebooks: tuple[bytes, ...]) -> None:
        self._codebooks = codebooks
        add_codebooks(codebooks)

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedDecoder, (self._codebooks,)

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Returns the sample with the original JPEG as "jpg" where it has a packed one as "fpk".

        Raises:
            DecodeError: if it is damaged, or of another set, naming the sample.
        """
        unpacked = {}
        for name, value in sample.items():
            if is_packed_field(name):
                name = f"{name[: -len('fpk')]}jpg"
                try:
                    value = decode_packed(value, self._codebooks)
                except DecodeError as error:
                    shard = os.path.basename(sample.get("__url__", "")) or None
                    raise error.at(key=sample.get("__key__", ""), shard=shard) from None
            unpacked[name] = value
        return unpacked


def packed_decoder(path: str | os.PathLike[str]) -> PackedDecoder:
    """Returns a function for ``.map`` of a webdataset pipeline that turns packed images into the original JPEGs.

    ``wds.WebDataset(urls).map(feeder.packed_decoder("images-shards")).decode("pil")``

    Args:
        path: The shard set's folder, its index, which has the codebooks, or the URL of a set in a store, of which the
            index's header is read.

    Raises:
        FormatError: if there is no index, or it is damaged.
        StoreError: if the store can't be read.
    """
    name = os.fspath(path)
    if not is_remote(name):
        name = local_path(name)
        return PackedDecoder(open_index(os.path.join(name, INDEX_NAME) if os.path.isdir(name) else name).codebooks)

    store = open_store(name)
    with tempfile.TemporaryDirectory(prefix="feeder-set-") as folder:
        copy = os.path.join(folder, INDEX_NAME)
        with contextlib.suppress(NotFoundError):
            download(store, store.size(INDEX_NAME), copy)
        try:
            return PackedDecoder(open_index(copy).codebooks)
        except FormatError as error:
            raise FormatError(str(error).replace(folder, str(store.url).rstrip("/"))) from None
