"""Files of encoded images: those that count as images, limits on their size, a reader, and the columns of a table that
name them."""

from __future__ import annotations

import errno
import itertools
import os
import re
import shlex
import stat
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from feeder.decoders.image_header import IMAGE_EXTENSIONS, is_image_field
from feeder.decoders.packed import is_packed
from feeder.system.files import open_regular, scan_folder
from feeder.system.text import count

# Three float32 channels of the largest image that can be decoded, 89 million pixels.
MAX_FILE_BYTES = 1 << 30

# Smaller files are read without a check of their first bytes; photos are nearly always smaller.
LARGE_BYTES = 16 << 20
# Errors of a path. Any other, such as too many open files, a lack of memory or a lost server, is the machine's: samples
# below the path must not be lost to it.
UNREADABLE = frozenset({errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG})
_NO_FILE = UNREADABLE | {errno.EINVAL, errno.ENOENT, errno.ENOTDIR}
START_BYTES = 12
# First bytes of the formats that can be decoded, as Pillow knows them.
_START = re.compile(
    rb"\xff\xd8|\x89PNG|RIFF....WEBP|BM....\0\0\0\0|GIF8|(II|MM)(\*\0|\0\*|\+\0|\0\+)|P[1-6fF]\s|....ftypavi", re.DOTALL
)
# Images hardly compress, and labels and headers not this much; a file of zeros shrinks a thousandfold.
UNPACKED_TIMES = 100
# Formats that feeder does not decode, though such a file claims to be an image.
_OTHER_IMAGE_EXTENSIONS = {"cr2", "dng", "heic", "heif", "ico", "j2k", "jp2", "jxl", "nef", "psd", "tga"}
_ANY_IMAGE_EXTENSIONS = IMAGE_EXTENSIONS | _OTHER_IMAGE_EXTENSIONS
_FILE_EXTENSIONS = IMAGE_EXTENSIONS - {"fpk"}  # files that are decoded as they are

# Folders of systems, file servers and tools, which hold thumbnails, copies and deleted files.
_SYSTEM_FOLDERS = frozenset(
    {
        "#recycle",
        "#snapshot",
        "$recycle.bin",
        "@eadir",
        "@recycle",
        "@tmp",
        "__macosx",
        "__pycache__",
        "lost+found",
        "network trash folder",
        "recycler",
        "system volume information",
        "temporary items",
    }
)
# ``._a.jpg`` is what macOS writes beside a.jpg on other systems' disks, and ``.#a.jpg`` an editor's lock.
_UNFINISHED = re.compile(
    r"\.([_#~]|nfs[0-9a-f]{8}|fuse_hidden).*|#.*#|~\$.*|.*(~|\.(!qb|!ut|aria2|bak|crdownload|download|filepart|old|opdownload|orig|part|partial|swp|te?mp))",
    re.IGNORECASE | re.DOTALL,
)
# Limits of the search for the columns of a table that name files.
_LOOKED_UP = 5  # values of a column
_MOST_FOLDERS = 64  # beside a table
_SUFFIXES = ("", ".jpg", ".png", ".jpeg", ".JPG", ".JPEG", ".PNG", ".webp", ".avif", ".tif", ".tiff", ".bmp", ".gif")


def check_size(descriptor: int, offset: int, length: int, *, max_bytes: int = MAX_FILE_BYTES) -> None:
    """Checks, before memory is allocated for an image, that it is not too large and, if large, begins like an image.

    Args:
        descriptor: An open file.
        offset: Start of the image, bytes.
        length: Size of the image that an index or a header claims, bytes.
        max_bytes: The largest size allowed.

    Raises:
        OSError: if its first bytes can't be read.
        ValueError: if it is too large, or not an image.
    """
    check_length(length, max_bytes)
    if length > LARGE_BYTES:
        check_start(os.pread(descriptor, START_BYTES, offset))


def check_length(length: int, max_bytes: int, field: str = "") -> None:
    """Raises ValueError if an image or another field is too large to be read; it names the field if it is given."""
    if length > max_bytes:
        what = f"{field}: " if field and not is_image_field(field) else ""
        raise ValueError(f"{what}{length:,} bytes are more than the {max_bytes:,} that an image or field may have")


def check_start(head: bytes) -> None:
    """Checks that the first bytes of a large image are those of one.

    Raises:
        ValueError: if they are not.
    """
    if not _START.match(head) and not is_packed(head):
        raise ValueError(f"not an image: starts with {head[:8]!r}")


def read_image(path: str, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Reads an image file.

    Args:
        path: The file.
        max_bytes: The largest size allowed.

    Raises:
        OSError: if it can't be read, or is not a regular file.
        ValueError: as :func:`check_size` does.
        MemoryError: naming the file.
    """
    descriptor = open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        check_size(descriptor, 0, size, max_bytes=max_bytes)
        data = os.read(descriptor, size)
        while len(data) < size and (more := os.read(descriptor, size - len(data))):  # a server may return less
            data += more
        return data
    except MemoryError:
        raise MemoryError(f"{path}: not enough memory for its {size:,} bytes") from None
    except OSError as error:  # an error of a descriptor has no file name
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(descriptor)


def file_status(folder: str, path: str) -> os.stat_result:
    """Returns the status of an image's file, given by its path in a folder.

    Raises:
        ValueError: with the reason why it can't be a sample.
        OSError: for an error of the machine.
    """
    try:
        status = os.stat(os.path.join(folder, path))
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        is_missing = isinstance(error, FileNotFoundError)
        raise ValueError(f"not found in {folder}" if is_missing else f"unreadable: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("not a regular file")
    return status


def looks_like_image(path: str | bytes) -> bool:
    """Returns whether a file's name claims that it is an image."""
    return os.fsdecode(path).rpartition(".")[2].lower() in _ANY_IMAGE_EXTENSIONS


def has_other_extension(path: str) -> bool:
    """Returns whether a file's name has an extension that is no image's, such as ``.txt``, and not ``.0001``."""
    return not looks_like_image(path) and bool(re.fullmatch(r"\.[a-zA-Z][a-zA-Z0-9]*", os.path.splitext(path)[1]))


def is_image_file(path: str) -> bool:
    """Returns whether a file can be decoded, by its name or else by its first bytes; False if it has none to read.

    Raises:
        OSError: for an error of the machine.
    """
    if os.path.splitext(path)[1][1:].lower() in _FILE_EXTENSIONS:
        return True
    if has_other_extension(path):
        return False
    try:
        with open(path, "rb", buffering=0, opener=open_regular) as file:
            return bool(_START.match(file.read(START_BYTES)))
    except OSError as error:
        if error.errno in _NO_FILE:
            return False
        raise


def left_out(name: str, *, is_folder: bool = False) -> str | None:
    """Returns the kind of a folder that is no class and holds no samples, or of a file that is no image and no member,
    by its name; None for any other."""
    if is_folder:
        is_system = name.startswith(".") or name.lower() in _SYSTEM_FOLDERS
        return "hidden or system folder" if is_system else None
    return "unfinished, backup or system file" if _UNFINISHED.fullmatch(name) else None


def left_out_notes(root: str, found: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns a note on each kind of files and folders that were left out.

    Args:
        root: The folder.
        found: Their paths by kind, see :func:`left_out`.
    """
    return [
        f"{root}: left out {count(len(paths), kind)}, such as {min(paths)}: rename or convert those that are wanted"
        for kind, paths in found.items()
    ]


def unpacked_limit(packed_bytes: int, least_bytes: int) -> int:
    """Returns the bytes that a file of ``packed_bytes`` may unpack to, at least ``least_bytes``."""
    return max(least_bytes, UNPACKED_TIMES * packed_bytes)


class ImageFiles(NamedTuple):
    """Files that a column of a table names.

    Attributes:
        column: The column.
        root: Folder that its values start from.
        suffix: Appended to them.
    """

    column: str
    root: str
    suffix: str

    def options(self) -> str:
        """Returns the options of ``feeder shard`` that name it."""
        suffix = f" --suffix {self.suffix}" if self.suffix else ""
        return f"--path-column {shlex.quote(self.column)} --image-root {shlex.quote(self.root)}{suffix}"


def image_files(
    rows: Sequence[Mapping[str, Any]], folders: Iterable[str], suffixes: Sequence[str] = _SUFFIXES
) -> list[ImageFiles]:
    """Finds the columns most of whose first values are files.

    Args:
        rows: The first rows of a table.
        folders: Folders that the values may start from. If a column's values are files in the first of them, the
            others don't count for it.
        suffixes: What may be missing at the end of the values; of several the first one counts.

    Returns:
        For each such column one place of its files, or more, in the order of the columns.
    """
    found: list[ImageFiles] = []
    for column in dict.fromkeys(itertools.chain.from_iterable(rows)):
        known = [row[column] for row in rows if type(row.get(column)) in (int, str) and row[column] != ""]
        values = [str(value) for value in known[:_LOOKED_UP]]

        for number, folder in enumerate(folders):
            suffix = next((each for each in suffixes if _are_files(folder, values, each)), None)
            if suffix is not None:
                found.append(ImageFiles(column, folder, suffix))
                if number == 0:
                    break
    return found


def folders_beside(folder: str) -> list[str]:
    """Returns a table's folder and the folders in it, of which class folders may be too many."""
    with scan_folder(folder) as entries:
        below = sorted(each.path for each in entries if each.is_dir() and not left_out(each.name, is_folder=True))
    return [folder, *below] if len(below) <= _MOST_FOLDERS else [folder]


def _are_files(folder: str, values: Sequence[str], suffix: str) -> bool:
    paths = [os.path.join(folder, value + suffix) for value in values]
    return 2 * sum(os.path.isfile(path) and not has_other_extension(path) for path in paths) > len(paths)
