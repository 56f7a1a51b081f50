"""The folders and stores that a server reads from, and the modules whose functions it calls, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from feeder.dataset.folder_reader import FolderReader
from feeder.dataset.shard_reader import ShardReader
from feeder.errors import ArgumentError
from feeder.shard.cache.cache_mirror import FetchOptions, open_mirror
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.store.url import Url, is_remote, local_path
from feeder.system.files import confine, is_below
from feeder.system.named_functions import AllowedFunctions


class Roots:
    """Folders and URLs below which sets may be read.

    A local path counts after its links were followed. A URL is opened with the region, the endpoint and the
    credentials of the server's own, and never with a client's.

    Args:
        roots: The folders and URLs.
        cache_dir: Cache of remote sets; None: the default.
        modules: Names of the modules whose functions recipes and fields may call.

    Attributes:
        functions: The functions of these modules.

    Raises:
        ArgumentError: if there is none, or one is no folder.
    """

    def __init__(
        self,
        roots: Iterable[str | os.PathLike[str]],
        cache_dir: str | None = None,
        modules: Sequence[str] = (),
    ) -> None:
        self.functions = AllowedFunctions(modules)
        roots = list(roots)
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
        self._is_confined = False

    def confine(self) -> None:
        """Refuses, from now on and in this process, all other files, whatever links lie in sets."""
        confine(self._folders or [os.devnull])
        self._is_confined = True

    def open_folder(self, path: str, members: tuple[str, ...], *, exif: bool) -> FolderReader:
        """Opens a folder of images.

        Args:
            path: Its path.
            members: Names of members of its samples that are images, and no samples themselves.
            exif: True to apply EXIF orientation.

        Raises:
            ArgumentError: if it lies below no root, or in a store.
        """
        if is_remote(path):
            raise ArgumentError(f"{path}: expected a folder of images on the nodes")
        return FolderReader.scan(self.file(path), exif=exif, targets=members)

    def open_shards(self, path: str, **how: Any) -> ShardReader:
        """Opens shards.

        Args:
            path: Path of a folder or of an index, or the URL of shards.
            how: See :class:`feeder.dataset.shard_reader.ShardReader`.

        Raises:
            ArgumentError: if they lie below no root.
        """
        if is_remote(path):
            mirror = open_mirror(FetchOptions(self._url(path)), self._cache_dir)
            if self._is_confined:
                confine([mirror.folder])
            return ShardReader(os.path.join(mirror.folder, mirror.options.index), mirror=mirror, **how)
        found = self.file(path)
        index = os.path.join(found, INDEX_NAME) if os.path.isdir(found) else found
        return ShardReader(index, **how)

    def file(self, path: str) -> str:
        """Returns the path of a file or folder that may be read, after links were followed.

        Raises:
            ArgumentError: if it lies below no root.
        """
        found = os.path.realpath(path)
        if not any(is_below(found, folder) for folder in self._folders):
            raise ArgumentError(f"{path}: lies below no folder that the service was started for (--root)")
        return found

    def _url(self, text: str) -> str:
        """Returns a set's URL with the options of the root that it lies below."""
        url = Url.parse(text)
        for root in self._urls:
            is_below = url.prefix == root.prefix or url.prefix.startswith(root.prefix + "/" if root.prefix else "")
            if (url.scheme, url.place) == (root.scheme, root.place) and is_below:
                options = [f"{name}={value}" for name in ("region", "endpoint") if (value := getattr(root, name))]
                return str(url) + ("?" + "&".join(options) if options else "")
        raise ArgumentError(f"{url}: lies below no URL that the service was started for (--root)")
