"""The options of ``feeder shard``, and the summary of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from feeder.errors import ArgumentError
from feeder.shard.source.image_field import split_fields
from feeder.shard.source.image_file import MAX_FILE_BYTES
from feeder.shard.source.table_file import ManifestColumns
from feeder.shard.source.target_sources import TargetSources
from feeder.shard.write.encode import EncodeOptions
from feeder.system.checks import check_int, check_number, check_one_of
from feeder.system.text import count

ENGINES = ("local", "ray")
# Options that are settings of the set under their own names; see ShardOptions.settings().
_SETTINGS = ("seed", "shuffle", "shard_size_bytes", "samples_per_shard", "image_field", "max_file_bytes")

TAKEDOWN_NAME = "takedown.json"  # is there while samples are being taken down
REJECTED_NAME = "rejected.jsonl"


@dataclass(frozen=True)
class ShardOptions:
    """Options for sharding.

    Attributes:
        seed: Seed of the permutation, 0 to 2**64-1.
        shuffle: Permutes the samples.
        shard_size_bytes: A shard is closed before it would grow past this size.
        samples_per_shard: Number of inputs in a shard, in place of a size.
        workers: Number of shards that are written at a time; None for one more than cores, or for the cluster's cores.
            Does not change the result.
        max_bad: Share of inputs that may be rejected, 0 to 1, not counting files that never claimed to be images.
        encode: Options for encoding the images.
        columns: The purposes of a manifest's columns, or of the keys of tars' json.
        max_file_bytes: Larger files, and larger fields of tars, are rejected unread; 1 to 2**30, as nothing larger can
            be loaded.
        skip_unreadable: Rejects unreadable folders, and files that the disk fails to read; otherwise they end the run.
            A resumed run may differ in this.
        image_field: The field of tars and iterables that holds the image; None chooses it by the names of the fields.
        targets: The places of the boxes and masks of a folder of images.
        engine: "local" for threads of this process, or "ray" for the nodes of a Ray cluster. Does not change the
            result.
        address: For "ray": address of the cluster; None for the one that Ray finds by itself.
        class_folders: Takes the folders in a folder as classes, whatever layout their names are those of.
    """

    seed: int = 0
    shuffle: bool = True
    shard_size_bytes: int = 256 << 20
    samples_per_shard: int | None = None
    workers: int | None = None
    max_bad: float = 0.01
    encode: EncodeOptions = field(default_factory=EncodeOptions)
    columns: ManifestColumns = field(default_factory=ManifestColumns)
    skip_unreadable: bool = False
    image_field: str | None = None
    max_file_bytes: int = MAX_FILE_BYTES
    targets: TargetSources = field(default_factory=TargetSources)
    engine: str = "local"
    address: str | None = None
    class_folders: bool = False

    def __post_init__(self) -> None:
        check_int("seed", self.seed, 0, (1 << 64) - 1)
        check_int("shard_size_bytes", self.shard_size_bytes, 1)
        if self.image_field is not None:
            split_fields(self.image_field)
        check_int("samples_per_shard", self.samples_per_shard, 1, or_none=True)
        check_int("workers", self.workers, 1, or_none=True)
        check_int("max_file_bytes", self.max_file_bytes, 1, MAX_FILE_BYTES)
        check_one_of("engine", self.engine, ENGINES)
        if self.address is not None and self.engine != "ray":
            raise ArgumentError(f"address is for engine 'ray', got engine {self.engine!r}")
        if self.targets and self.encode.max_side is not None:
            raise ArgumentError("max_side would shrink the images, but not their boxes and masks; leave it out")
        check_number("max_bad", self.max_bad, 0, 1)

    def with_settings(self, settings: Mapping[str, Any]) -> ShardOptions:
        """Returns these options, but with the settings of a set, which :meth:`settings` gave."""
        own = {name: settings[name] for name in _SETTINGS}
        size_bytes = settings["shard_size_bytes"] or self.shard_size_bytes
        return replace(self, **own | {"shard_size_bytes": size_bytes}, encode=EncodeOptions.of_settings(settings))

    def settings(self) -> dict[str, Any]:
        """Returns the options that the shards depend on, as the manifest keeps them."""
        size_bytes = self.shard_size_bytes if self.samples_per_shard is None else None
        own = {name: getattr(self, name) for name in _SETTINGS}
        return own | {"shard_size_bytes": size_bytes} | self.encode.settings()


@dataclass(frozen=True)
class ShardSummary:
    """The result of a run.

    Attributes:
        out: The output folder.
        kind: The source's kind.
        inputs: Number of inputs found.
        samples: Number of samples in the shard set.
        rejected: Number of inputs rejected; with ``samples`` they add up to ``inputs``.
        bad: Number of rejected inputs that claimed to be images.
        unreadable_folders: Number of rejected inputs that are unreadable folders.
        encoded: Number of samples by what was done to their image.
        clipped: Number of samples whose image has more than 8 bits per channel, so that decoding clips it.
        shards: Number of shards in the set.
        bytes: Size of all shards.
        classes: Number of class names; 0 if there are none.
        written_shards: Number of shards that this run wrote; the others were there.
        written_samples: Number of samples in these.
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
        """The reason why the run counts as failed though the set is complete; None if there is none."""
        if self.samples == 0:
            inputs = count(self.inputs, "input")
            return f"none of {inputs} could be sharded; see {self.out}/{REJECTED_NAME} for the reasons"
        share = self.bad / (self.samples + self.bad)
        if share <= self.max_bad:
            return None
        return (
            f"{self.bad} of {self.samples + self.bad} images ({share:.2%}) were rejected, more than --max-bad "
            f"{self.max_bad:.2%} allows; the others are in the shards, the reasons in {self.out}/{REJECTED_NAME}: "
            "fix the images and shard into a new folder, or accept the loss with a higher --max-bad"
        )

    @property
    def loss(self) -> str | None:
        """The line on rejected images and unreadable folders; None if there are none."""
        lost = [f"{self.bad:,} of {self.samples + self.bad:,} images"] if self.bad else []
        if self.unreadable_folders:
            lost.append(f"{self.unreadable_folders:,} unreadable folder" + "s" * (self.unreadable_folders > 1))
        return f"{' and '.join(lost)} left out, see {self.out}/{REJECTED_NAME}" if lost else None
