"""The folders of a cache: one for each remote set, for this user alone."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat

from feeder.errors import ArgumentError
from feeder.shard.store.url import Url
from feeder.system.files import atomic_file

__all__ = ["MARK", "default_cache", "mirror_folder", "refuse_mirror"]

MARK = "mirror.json"  # in each mirror's folder, and in no set's
_NAME_CHARACTERS = 60


def default_cache() -> str:
    """Returns the cache's folder where none is named."""
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "feeder")


def mirror_folder(url: Url, cache_dir: str | os.PathLike[str] | None) -> str:
    """Returns the folder that mirrors a set, made if it is missing.

    Args:
        url: The set's place.
        cache_dir: The cache; None: :func:`default_cache`.

    Raises:
        ArgumentError: if it can't be made, or is another user's.
    """
    cache = os.path.abspath(default_cache() if cache_dir is None else os.fspath(cache_dir))
    name = re.sub(r"[^A-Za-z0-9._-]", "_", url.name)[:_NAME_CHARACTERS]
    folder = os.path.join(cache, f"{name}-{hashlib.sha256(url.identity().encode()).hexdigest()[:16]}")
    try:
        os.makedirs(cache, exist_ok=True)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise PermissionError(1, "it is another user's, or others may write into it")
        mark = os.path.join(folder, MARK)
        if not os.path.exists(mark):
            with atomic_file(mark) as file:
                file.write(json.dumps({"version": 1, "url": str(url), "service": url.service}).encode())
    except OSError as error:
        raise ArgumentError(f"{folder}: can't be used as a cache: {error.strerror}; name another cache_dir") from error
    return folder


def refuse_mirror(folder: str) -> None:
    """Raises ArgumentError for a mirror's folder that is named as a set: parts of its files are missing."""
    mark = os.path.join(folder, MARK)
    if os.path.exists(mark):
        with open(mark, "rb") as file:
            url = json.load(file)["url"]
        raise ArgumentError(f"{folder}: is the cache of {url}, and parts of the set are missing in it; name that URL")
