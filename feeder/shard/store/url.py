"""URLs of stores. What is shown of one holds no secret: userinfo and queries never leave this module."""

from __future__ import annotations

import os
import re
import urllib.parse
from dataclasses import dataclass, replace

from feeder.errors import ArgumentError

_SCHEMES = ("s3", "gs", "az", "hf", "http", "https")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_MISTYPED = re.compile(rf"({'|'.join(_SCHEMES)}):/", re.IGNORECASE)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]{1,5})?")
_ADDRESS = re.compile(r"(\[.*\]|[0-9.]+)(:[0-9]*)?")
_BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]{0,254}")
_REPOSITORY = re.compile(r"([A-Za-z0-9._-]{1,96}/[A-Za-z0-9._-]{1,96})(?:@(refs/[a-z]+/\w+|[^/]+))?(?:/(.+))?\Z")
_REGION = re.compile(r"[A-Za-z0-9-]{1,64}")
# In the order in which AWS's own tools and obstore take them.
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    "hf": ("HF_ENDPOINT",),
}
_ACCOUNTS = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")


def is_remote(text: str) -> bool:
    """Returns whether a text is a URL of something that is not a local file, or is meant to be: s3:/bucket is refused
    by :meth:`Url.parse`, which shows no secret of it."""
    match = _SCHEME.match(text) or _MISTYPED.match(text)
    return match is not None and match[1].lower() != "file"


def shown_place(text: str) -> str:
    """Returns a URL, or a pattern of URLs, without its query; a local path as it is."""
    return text.partition("?")[0] if is_remote(text) else text


def local_path(text: str) -> str:
    """Returns the path of a ``file://`` URL; any other text that is not remote is a path already.

    Raises:
        ArgumentError: if the URL names another machine's file.
    """
    if not text.lower().startswith("file://"):
        return text
    pieces = urllib.parse.urlsplit(text)
    if pieces.netloc not in ("", "localhost") or pieces.query or pieces.fragment:
        raise ArgumentError("a file:// URL names a path of this machine, as in file:///data/set; use the path itself")
    return urllib.parse.unquote(pieces.path)


@dataclass(frozen=True)
class Url:
    """The place of a set, a folder or an object in a store.

    Attributes:
        scheme: "s3", "gs", "az", "hf", "http" or "https".
        place: The bucket; for http(s) the host, with a port if there is one; for hf "datasets".
        prefix: The path in it, without slashes at its ends; may be empty.
        region: Region of the bucket; empty for the environment's.
        endpoint: Base URL of the service; empty for the scheme's own.
    """

    scheme: str
    place: str
    prefix: str = ""
    region: str = ""
    endpoint: str = ""

    @classmethod
    def parse(cls, text: str) -> Url:
        """Reads a URL that a user typed.

        Args:
            text: For example "s3://bucket/sets/imagenet?region=eu-west-1", "gs://bucket/set", "az://container/set",
                "hf://datasets/org/name@main/data" or "https://host/set". The query takes ``region`` and ``endpoint``,
                except in hf and http(s) URLs.

        Raises:
            ArgumentError: if it is not such a URL, or holds a secret.
        """
        scheme, separator, rest = text.partition("://")
        scheme = scheme.lower()
        if not separator or scheme not in _SCHEMES:
            shown = scheme[:20] + "://" if separator else repr(text)
            if not separator and (":" in text or "@" in text):  # it may hold a name and a password
                start = scheme.partition(":")[0]
                shown = f"{start}:..." if start in _SCHEMES else "..."
            raise ArgumentError(
                f"{shown}: expected a URL that starts with s3://, gs://, az://, hf:// or https://, or a local path"
            )

        rest, _, query = rest.partition("?")
        place, _, path = rest.partition("/")
        if "@" in place:
            raise ArgumentError(
                f"{scheme}://...@{place.rpartition('@')[2]}: a URL must not hold a name or a password; give "
                "credentials by the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )

        shown = f"{scheme}://{place}"
        if not (_HOST if scheme in ("http", "https") else _BUCKET).fullmatch(place):
            expected = "a host" if scheme in ("http", "https") else "a bucket"
            # It may be a name and a password: those of AWS have slashes, which end the place.
            start = f"{scheme}://..." if ":" in place or "@" in rest else shown
            raise ArgumentError(f"{start}: expected {expected} after {scheme}://, and no name or password")

        if scheme in ("http", "https"):
            if _may_be_userinfo(place, path):
                raise ArgumentError(
                    f"{scheme}://...@{path.rpartition('@')[2]}: a URL must not hold a name or a password; if the @ is "
                    "one of the path, write it as %40"
                )
            place = place.lower()

        path = path.strip("/")
        check_key(path, shown) if path else None
        if scheme == "hf" and not (place == "datasets" and _REPOSITORY.match(path)):
            raise ArgumentError(
                f"{shown}/{path}: expected a dataset's repository, hf://datasets/ORG/NAME, with @REVISION and a path "
                "after it where needed"
            )
        if scheme in ("http", "https") and "#" in path:
            raise ArgumentError(f"{shown}/{path.partition('#')[0]}: a URL of a set has no fragment (#...)")
        if scheme in ("http", "https") and {".", ".."} & set(urllib.parse.unquote(path).split("/")):
            raise ArgumentError(f"{shown}: {path!r} leads out of a folder: servers take %2e%2e for ..")
        return cls(scheme, place, path, *_options(scheme, query, f"{shown}/{path}"))

    def __str__(self) -> str:
        return f"{self.scheme}://{self.place}" + (f"/{self.prefix}" if self.prefix else "")

    @property
    def name(self) -> str:
        """The last part of the path, or the bucket."""
        return self.prefix.rpartition("/")[2] or self.place

    def object(self, key: str) -> str:
        """Returns an object's URL to show: scheme, bucket and key, and the endpoint's host if it is not the default."""
        shown = f"{self}/{key}" if key else str(self)
        host = urllib.parse.urlsplit(self.service).netloc.rpartition("@")[2]
        return f"{shown} (at {host})" if host else shown

    @property
    def service(self) -> str:
        """Base URL of the service: the endpoint of the URL, or of the environment; empty for the scheme's own."""
        endpoint = self.endpoint or _first_set(_ENDPOINTS.get(self.scheme, ()))
        if not endpoint and self.scheme == "az" and (account := _first_set(_ACCOUNTS)):
            return f"https://{account}.blob.core.windows.net"
        return endpoint.rstrip("/")

    def repository(self) -> tuple[str, str, str]:
        """Returns repository, revision and path of an hf URL; the revision is "main" where none is named."""
        found = _REPOSITORY.match(self.prefix)
        assert found is not None
        return found[1], urllib.parse.unquote(found[2] or "main"), found[3] or ""

    def anywhere(self) -> Url:
        """Returns the URL with what the environment adds to it, for processes that may have another environment."""
        return replace(self, endpoint=self.service)

    def identity(self) -> str:
        """Returns a text that tells this place from any other, also from the same names at another endpoint."""
        return f"{self.service}|{self}" if self.service else str(self)

    def joined(self, key: str) -> Url:
        """Returns the URL of an object or a folder below this one.

        Raises:
            ArgumentError: if the key leads out of it.
        """
        check_key(key, str(self))
        prefix = f"{self.prefix}/{key}" if self.prefix else key
        return replace(self, prefix=prefix.strip("/"))

    def parent(self) -> Url:
        """Returns the URL of the folder that this lies in."""
        return replace(self, prefix=self.prefix.rpartition("/")[0])


def _may_be_userinfo(place: str, path: str) -> bool:
    """Returns whether what stands as host and path in an http(s) URL may be a name or a password with a slash in it,
    and the host after them: https://name:123/word@host, for example, has a host ``name`` and a port.

    Args:
        place: The host, with its port if there is one.
        path: The path.
    """
    return "@" in path and not _ADDRESS.fullmatch(place) and (":" in place or "." not in place)


def _first_set(names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := os.environ.get(name))), "")


def check_key(key: str, shown: str) -> None:
    """Checks that a key names an object below its URL, whoever interprets it: a store, a server or a file system.

    Args:
        key: The key, relative to the URL.
        shown: The URL, for the message.

    Raises:
        ArgumentError: if it is empty, has empty, "." or ".." parts, or control characters.
    """
    if any(part in ("", ".", "..") for part in key.split("/")) or any(ord(c) < 32 or ord(c) == 127 for c in key):
        raise ArgumentError(f"{shown}: {key!r} is not the name of an object below it")


def _options(scheme: str, query: str, shown: str) -> tuple[str, str]:
    """Returns region and endpoint of a query."""
    given = urllib.parse.parse_qsl(query, keep_blank_values=True)
    allowed = ("region", "endpoint") if scheme == "s3" else ("endpoint",) if scheme in ("gs", "az") else ()
    if query and (not given or any(name not in allowed for name, _ in given)):
        takes = f"takes only {' and '.join(allowed)}" if allowed else f"of {scheme}:// takes no options"
        raise ArgumentError(
            f"{shown}: the query {takes}. Credentials, tokens and signatures don't belong into a URL; give them by the "
            "environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    options = dict(given)
    region, endpoint = options.get("region", ""), options.get("endpoint", "")
    if region and not _REGION.fullmatch(region):
        raise ArgumentError(f"{shown}: region must be a name such as eu-west-1")
    if endpoint:
        base = re.fullmatch(r"https?://([^/?#]+)/?", endpoint)
        if base is None or not _HOST.fullmatch(base[1]):
            raise ArgumentError(f"{shown}: endpoint must be http(s)://HOST or http(s)://HOST:PORT, and nothing else")
    return region, endpoint.rstrip("/")
