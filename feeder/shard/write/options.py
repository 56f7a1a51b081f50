"""What ``feeder shard`` is asked, what it says while it works, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from feeder.errors import ArgumentError
from feeder.shard.source.image_field import split_fields
from feeder.shard.source.image_file import MAX_FILE_BYTES
from feeder.shard.source.table_file import ManifestColumns
from feeder.shard.write.encode import EncodeOptions
from feeder.text import count

__all__ = ["REJECTED_NAME", "ShardOptions", "ShardSummary"]

REJECTED_NAME = "rejected.jsonl"


@dataclass(frozen=True)
class ShardOptions:
    """How to shard.

    Attributes:
        seed: Seed of the permutation, 0 to 2**64-1.
        shuffle: Whether to permute the samples at all.
        shard_size_bytes: A shard is closed before it would grow past this size.
        samples_per_shard: Instead of a size, how many inputs go into a shard.
        workers: Threads, each on a shard of its own; None for the cores and one more. Does not change the result.
        max_bad: Share of inputs that may be rejected, 0 to 1, files that never claimed to be images apart.
        encode: What happens to the images' bytes.
        dali_index: Whether to write DALI's index files beside the shards.
        columns: Which columns of a manifest, or keys of the tars' json, mean what.
        max_file_bytes: Larger files, and fields of tars, are rejected unread; 1 to 2**30, as nothing larger can be
            loaded.
        skip_unreadable: Whether unreadable folders, and files that the disk can't give back, are rejected; they end
            the run otherwise. Not one of the settings that a resumed run must share.
        image_field: Of tars and iterables, the field that holds the image; None chooses it by the names of the fields.
    """

    seed: int = 0
    shuffle: bool = True
    shard_size_bytes: int = 256 << 20
    samples_per_shard: int | None = None
    workers: int | None = None
    max_bad: float = 0.01
    encode: EncodeOptions = field(default_factory=EncodeOptions)
    dali_index: bool = False
    columns: ManifestColumns = field(default_factory=ManifestColumns)
    skip_unreadable: bool = False
    image_field: str | None = None
    max_file_bytes: int = MAX_FILE_BYTES

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 1 << 64:
            raise ArgumentError(f"seed must be 0 to 2**64-1, got {self.seed}")
        if self.shard_size_bytes < 1:
            raise ArgumentError(f"shard_size_bytes must be at least 1, got {self.shard_size_bytes}")
        if self.image_field is not None:
            split_fields(self.image_field)
        if self.samples_per_shard is not None and self.samples_per_shard < 1:
            raise ArgumentError(f"samples_per_shard must be at least 1, got {self.samples_per_shard}")
        if self.workers is not None and self.workers < 1:
            raise ArgumentError(f"workers must be at least 1, got {self.workers}")
        if not 1 <= self.max_file_bytes <= MAX_FILE_BYTES:
            raise ArgumentError(
                f"max_file_bytes must be 1 to {MAX_FILE_BYTES}, as nothing larger can be loaded, got "
                f"{self.max_file_bytes}"
            )
        if not 0 <= self.max_bad <= 1:
            raise ArgumentError(f"max_bad must be 0 to 1, got {self.max_bad}")

    def settings(self) -> dict[str, Any]:
        """The options that the result depends on."""
        return {
            "seed": self.seed,
            "shuffle": self.shuffle,
            "shard_size_bytes": self.shard_size_bytes if self.samples_per_shard is None else None,
            "samples_per_shard": self.samples_per_shard,
            "image_field": self.image_field,
            "max_file_bytes": self.max_file_bytes if self.max_file_bytes != MAX_FILE_BYTES else None,
        } | self.encode.settings()


@dataclass(frozen=True)
class ShardSummary:
    """What a run did.

    Attributes:
        out: The output folder.
        kind: What the source was.
        inputs: Inputs found.
        samples: Samples in the shard set.
        rejected: Inputs rejected; with ``samples`` they add up to ``inputs``.
        bad: Rejected inputs that claimed to be images.
        unreadable_folders: Rejected inputs that are unreadable folders.
        encoded: Samples by what was done to their image.
        clipped: Samples whose image loses range when it is decoded, as it has more than 8 bits a sample.
        shards: Shards in the set.
        bytes: Bytes of all shards.
        classes: Number of class names; 0 if there are none.
        written_shards: Shards written by this run, the others being there already.
        written_samples: Samples in these.
        seconds: Wall time of this run.
        max_bad: The share of bad inputs that was allowed.
        notes: Lines of advice.
    """

    out: str
    kind: str
    inputs: int
    samples: int
    rejected: int
    bad: int
    encoded: dict[str, int]
    shards: int
    bytes: int
    classes: int
    written_shards: int
    written_samples: int
    seconds: float
    max_bad: float
    notes: list[str]
    unreadable_folders: int = 0
    clipped: int = 0

    @property
    def too_many_bad(self) -> str | None:
        """Why the run must be called failed though the set is complete; None if it need not."""
        if self.samples == 0:
            inputs = count(self.inputs, "input")
            return f"none of {inputs} could be sharded; see {self.out}/{REJECTED_NAME} for the reasons"
        share = self.bad / (self.samples + self.bad)
        if share <= self.max_bad:
            return None
        return (
            f"{self.bad} of {self.samples + self.bad} images ({share:.2%}) were rejected, more than --max-bad "
            f"{self.max_bad:.2%} allows; the others are in the shards, the reasons in {self.out}/{REJECTED_NAME}: "
            "mend the images and shard into a new folder, or accept the loss with a higher --max-bad"
        )

    @property
    def loss(self) -> str | None:
        """What was left out that may be missed; None if nothing was."""
        lost = [f"{self.bad:,} of {self.samples + self.bad:,} images"] if self.bad else []
        if self.unreadable_folders:
            lost.append(f"{self.unreadable_folders:,} unreadable folder" + "s" * (self.unreadable_folders > 1))
        return f"{' and '.join(lost)} left out, see {self.out}/{REJECTED_NAME}" if lost else None
