"""The exceptions that feeder raises on purpose, as one tree.

    FeederError
    ├── ArgumentError      a bad argument or option; also a ValueError
    ├── SourceError        the input dataset can't be read as a whole (one bad sample is not an error)
    │   └── ChoiceError    it may be read in several ways
    ├── ShardError         the output folder can't be written, or holds something else
    │   └── LockedError    another writer is at work on it
    ├── StoreError         an object store, or a URL, can't be read or written; names scheme, host, bucket and key
    │   ├── NotFoundError  there is no such object
    │   ├── ChangedError   the object is not the one that was read before
    │   ├── ConflictError  somebody else has written the object
    │   └── ListingError   the store can't list objects
    ├── FormatError        a shard set, index or manifest is damaged, or of an unknown version
    ├── BackendError       a decode backend is missing, or can't run the recipe
    ├── DecodeError        one sample can't be decoded; names its key, shard and offset
    ├── WorkerError        the worker pool stopped without finishing
    └── ServiceError       an input service can't be started or reached, or no server of it answers

Every message gives what was expected, what was found, where, and what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from feeder.system.text import printable

__all__ = [
    "KERNELS_COMMAND",
    "ArgumentError",
    "BackendError",
    "ChangedError",
    "ChoiceError",
    "ConflictError",
    "DecodeError",
    "FeederError",
    "FormatError",
    "ListingError",
    "LockedError",
    "NotFoundError",
    "ServiceError",
    "ShardError",
    "SourceError",
    "StoreError",
    "WorkerError",
    "stop_in_a_batch",
]

# Installs the native kernels from what `make wheel` makes in a clone; the name may be another's on a package index.
KERNELS_COMMAND = "pip install --force-reinstall --no-deps dist/feeder_data-*.whl"


class FeederError(Exception):
    """Base of every exception that feeder raises on purpose."""

    _lines: ClassVar[bool] = False  # True if the message may have several lines

    def __str__(self) -> str:
        return printable(super().__str__(), lines=self._lines)


class ArgumentError(FeederError, ValueError):
    """A bad argument or option."""


class SourceError(FeederError):
    """The input dataset can't be read as a whole."""


class ChoiceError(SourceError):
    """The input may be read in several ways; the message has a line with a command for each.

    Args:
        question: The first line of the message.
        ways: The options of each command, and the output folder that it gives; "" to give none.
        command: The command.
    """

    def __init__(self, question: str, ways: Sequence[tuple[str, str]], command: str = "feeder shard") -> None:
        super().__init__(question, ways, command)

    def __str__(self) -> str:
        question, ways, command = self.args
        commands = [f"  {command} {options}{out and f' --out {out}'}" for options, out in ways]
        return "\n".join(map(printable, (question, *commands)))


class ShardError(FeederError):
    """The output folder can't be written, or holds something else."""


class LockedError(ShardError):
    """Another writer is at work on the output folder."""


class StoreError(FeederError):
    """An object store, or a URL, can't be read or written."""


class NotFoundError(StoreError):
    """There is no such object."""


class ChangedError(StoreError):
    """An object is not the one that was read before."""


class ConflictError(StoreError):
    """Somebody else has written an object that was to be created or replaced."""


class ListingError(StoreError):
    """The store can't list objects."""


class FormatError(FeederError):
    """A shard set, index or manifest is damaged, or of an unknown version."""


class BackendError(FeederError):
    """A decode backend is missing, or can't run the recipe."""

    _lines = True  # another library's message, or a recipe


class DecodeError(FeederError):
    """One sample can't be decoded.

    Args:
        reason: The fault in the bytes.
        key: The sample's WebDataset key, or its path for an unsharded image.
        shard: The shard's file name, if there is one.
        offset_bytes: Start of the sample's encoded image in the shard.
    """

    def __init__(
        self, reason: str, *, key: str | None = None, shard: str | None = None, offset_bytes: int | None = None
    ) -> None:
        self.reason = reason
        self.key = key
        self.shard = shard
        self.offset_bytes = offset_bytes
        where = [f"sample {key!r}"] if key is not None else []
        if shard is not None:
            where.append(f"in {shard}" + (f" at byte {offset_bytes}" if offset_bytes is not None else ""))
        super().__init__(f"{' '.join(where)}: {reason}" if where else reason)

    def __reduce__(self) -> tuple[object, ...]:
        return _decode_error, (self.reason, self.key, self.shard, self.offset_bytes)

    def at(self, *, key: str, shard: str | None = None, offset_bytes: int | None = None) -> DecodeError:
        """Returns the same error with the sample's place filled in."""
        return DecodeError(self.reason, key=key, shard=shard, offset_bytes=offset_bytes)


def _decode_error(reason: str, key: str | None, shard: str | None, offset_bytes: int | None) -> DecodeError:
    return DecodeError(reason, key=key, shard=shard, offset_bytes=offset_bytes)


class WorkerError(FeederError):
    """The worker pool stopped without finishing."""

    _lines = True  # a traceback


class ServiceError(FeederError):
    """An input service can't be started or reached, or no server of it answers."""


def stop_in_a_batch(error: StopIteration) -> RuntimeError:
    """Returns the error to raise in place of a StopIteration from making a batch.

    A ``for`` loop would take the StopIteration as the end of the epoch.
    """
    result = RuntimeError(
        "StopIteration was raised while a batch was made, by the dataset, a transform or the collate_fn. A loop would "
        "take it as the end of the epoch; it probably comes from a next() without a default"
    )
    result.__cause__ = error
    return result
