"""The files that a pattern names."""

from __future__ import annotations

import glob
import os

import braceexpand

from feeder.errors import SourceError
from feeder.shard.source.class_folders import unlistable


def fixed_start(pattern: str) -> str:
    """Returns the start of a brace pattern or a glob that all matches have; a plain path as it is."""
    return pattern.partition("{")[0].partition("*")[0]


def expand_pattern(pattern: str) -> list[str]:
    """Lists the files that a brace pattern, a glob or a plain path names, in order.

    Args:
        pattern: The pattern, of tars or of tables.

    Raises:
        SourceError: if it names none, or something other than local files.
    """
    if pattern.startswith("pipe:"):
        raise SourceError(f"{pattern}: nothing is executed; name files, or a URL such as s3://bucket/train-000.tar")
    try:
        is_brace = "{" in pattern and not os.path.exists(pattern)
        paths = list(braceexpand.braceexpand(pattern)) if is_brace else [pattern]
        paths = [match for path in paths for match in ([path] if os.path.exists(path) else _glob(path) or [path])]
    except OSError as error:
        raise unlistable(error.filename, error) from None
    kind = os.path.splitext(pattern)[1][1:].lower() or "tar"
    missing = next((path for path in paths if not os.path.isfile(path)), None)
    if missing or not paths:
        raise SourceError(
            f"{pattern}: no {kind} at {missing or pattern}; expected files, such as 'train-{{000..009}}.{kind}'"
        )
    if len(set(paths)) != len(paths):
        raise SourceError(f"{pattern}: names the same {kind} twice")
    return paths


def _glob(pattern: str) -> list[str]:
    """Matches of a pattern, sorted. glob itself passes over folders that it can't list.

    Raises:
        OSError: for such a folder.
    """
    folder = os.path.dirname(pattern)
    for path in _glob(folder) if glob.has_magic(folder) else [folder]:
        if os.path.isdir(path or "."):
            os.scandir(path or ".").close()
    return sorted(glob.glob(pattern))
