"""The folders of a cache: one for each remote set, for this user alone."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import urllib.parse

from feeder.errors import ArgumentError
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.store.url import Url
from feeder.system.files import TEMPORARY_SUFFIX, default_cache

MARK = "mirror.json"  # in each mirror's folder, and in no set's
_NAME_CHARACTERS = 60
# Variables that decide as whom, and through what, a fetcher speaks to a store. AWS_ALLOW_HTTP is an option by then.
_PREFIXES = ("AWS_", "AZURE_", "GOOGLE_", "HF_")
_VARIABLES = ("ALL_PROXY", "HOME", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_DIR", "SSL_CERT_FILE")


def mirror_folder(url: Url, index: str, cache_dir: str | os.PathLike[str] | None) -> str:
    """Returns the folder that mirrors a set, made if it is missing.

    Args:
        url: The set's place.
        index: Name of the set's header; several headers of the same tars have a mirror each.
        cache_dir: The cache; None: :func:`default_cache`.

    Raises:
        ArgumentError: if it can't be made, or is another user's.
    """
    cache = os.path.abspath(default_cache() if cache_dir is None else os.fspath(cache_dir))
    name = re.sub(r"[^A-Za-z0-9._-]", "_", url.name)[:_NAME_CHARACTERS]
    place = url.identity() if index == INDEX_NAME else f"{url.identity()} {index}"
    folder = os.path.join(cache, f"{name}-{hashlib.sha256(place.encode()).hexdigest()[:16]}")
    try:
        os.makedirs(cache, exist_ok=True)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise PermissionError(1, "it is another user's, or others may write into it")
        _mark(folder, url)
    except OSError as error:
        raise ArgumentError(f"{folder}: can't be used as a cache: {error.strerror}; name another cache_dir") from error
    return folder


def _mark(folder: str, url: Url) -> None:
    """Makes the folder's mark, if it is missing. Of several processes one succeeds, as its salt must be one for all."""
    mark = os.path.join(folder, MARK)
    if not os.path.exists(mark):
        temporary = f"{mark}.{os.urandom(4).hex()}{TEMPORARY_SUFFIX}"
        host = urllib.parse.urlsplit(url.service).netloc.rpartition("@")[2]
        found = {"version": 1, "url": str(url), "service": host, "salt": os.urandom(16).hex()}
        try:
            with open(temporary, "x", encoding="utf-8") as file:
                json.dump(found, file)
            with contextlib.suppress(FileExistsError):
                os.link(temporary, mark)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


def identity(folder: str, *, allow_http: bool, allow_private: bool) -> str:
    """Returns a digest of all by which this process would speak to the store of a mirror: credentials and options.

    It is salted, as a fetcher gets it on its command line, which anybody on the machine may read.

    Args:
        folder: The mirror's folder.
        allow_http: True if http without encryption is allowed.
        allow_private: True if redirects to private networks are allowed.

    Raises:
        ArgumentError: if the folder's mark is damaged.
    """
    path = os.path.join(folder, MARK)
    try:
        with open(path, "rb") as file:
            salt = str(json.load(file)["salt"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ArgumentError(
            f"{path}: is damaged; delete {folder}, which is a cache, or name another cache_dir"
        ) from None
    names = sorted(name for name in os.environ if name.upper().startswith(_PREFIXES) or name.upper() in _VARIABLES)
    values = [(name, os.environ[name]) for name in names if name != "AWS_ALLOW_HTTP"]
    return hashlib.sha256(json.dumps([salt, allow_http, allow_private, values]).encode()).hexdigest()[:32]


def refuse_mirror(folder: str) -> None:
    """Raises ArgumentError for a mirror's folder that is named as a set: parts of its files are missing."""
    mark = os.path.join(folder, MARK)
    if os.path.exists(mark):
        with open(mark, "rb") as file:
            url = json.load(file)["url"]
        raise ArgumentError(f"{folder}: is the cache of {url}, and parts of the set are missing in it; name that URL")
