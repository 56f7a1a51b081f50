"""The folders and stores that a server reads sets from, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from feeder.dataset.folder_reader import FOLDER_EXTENSIONS, FolderReader
from feeder.dataset.shard_reader import ShardReader
from feeder.errors import ArgumentError
from feeder.shard.cache.mirror import open_mirror
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.store.store import TIMEOUT_S
from feeder.shard.store.url import Url, is_remote, local_path

__all__ = ["Roots"]


class Roots:
    """Folders and URLs below which sets may be read.

    A local path counts after its links were followed. A URL is opened with the region, the endpoint and the
    credentials of the server's own, and never with a client's.

    Args:
        roots: The folders and URLs.
        cache_dir: Cache of remote sets; None: the default.

    Raises:
        ArgumentError: if there is none, or one is no folder.
    """

    def __init__(self, roots: Sequence[str | os.PathLike[str]], cache_dir: str | None = None) -> None:
        if not roots:
            raise ArgumentError("expected at least one folder or URL below which the service may read sets (--root)")
        self._cache_dir = cache_dir
        self._urls = [Url.parse(os.fspath(each)) for each in roots if is_remote(os.fspath(each))]
        self._folders = []
        for each in roots:
            if not is_remote(os.fspath(each)):
                folder = os.path.realpath(local_path(os.fspath(each)))
                if not os.path.isdir(folder):
                    raise ArgumentError(f"{folder}: expected a folder below which the service may read sets (--root)")
                self._folders.append(folder)

    def open_set(
        self, kind: Literal["shards", "folder"], path: str, version: int | None, exif: bool
    ) -> ShardReader | FolderReader:
        """Opens a set below a root.

        Args:
            kind: Kind of the set.
            path: Path of a folder or an index, or a URL of shards.
            version: Version of a shard set; None: the newest.
            exif: True to apply EXIF orientation.

        Raises:
            ArgumentError: if it lies below no root.
        """
        if is_remote(path):
            if kind == "folder":
                raise ArgumentError(f"{path}: expected a folder of images on the nodes")
            url = self._url(path)
            mirror = open_mirror(url, cache_dir=self._cache_dir, cache_bytes=None, allow_http=None, timeout_s=TIMEOUT_S)
            index = os.path.join(mirror.folder, mirror.options.index)
            return ShardReader(index, exif=exif, version=version, mirror=mirror)
        found = os.path.realpath(path)
        if not any(_is_below(found, folder) for folder in self._folders):
            raise ArgumentError(f"{path}: lies below no folder that the service was started for (--root)")
        if kind == "folder":
            return FolderReader.scan(found, FOLDER_EXTENSIONS, exif=exif)
        index = os.path.join(found, INDEX_NAME) if os.path.isdir(found) else found
        return ShardReader(index, exif=exif, version=version)

    def _url(self, text: str) -> str:
        """Returns a set's URL with the options of the root that it lies below."""
        url = Url.parse(text)
        for root in self._urls:
            is_below = url.prefix == root.prefix or url.prefix.startswith(root.prefix + "/" if root.prefix else "")
            if (url.scheme, url.place) == (root.scheme, root.place) and is_below:
                options = [f"{name}={value}" for name in ("region", "endpoint") if (value := getattr(root, name))]
                return str(url) + ("?" + "&".join(options) if options else "")
        raise ArgumentError(f"{url}: lies below no URL that the service was started for (--root)")


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
