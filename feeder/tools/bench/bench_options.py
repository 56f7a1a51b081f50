"""Options of ``feeder bench``, and one job for a rival."""

from __future__ import annotations

from dataclasses import dataclass

from feeder.errors import ArgumentError
from feeder.system.checks import check_int, check_positive
from feeder.system.cores import cores
from feeder.tools.presets import preset

# Time for buffers and caches to settle after the first batch, as a share of the run.
SETTLE = 0.2


@dataclass(frozen=True)
class BenchOptions:
    """Options of a benchmark.

    Attributes:
        preset: "train": RandomResizedCrop and horizontal flip; "val": Resize and CenterCrop.
        dtype: "float32", normalized, or "uint8".
        image_size: Height and width of the output, pixels.
        batch_size: Images in a batch; all of them where there are fewer.
        workers: Numbers of worker processes (for DALI: threads) to measure; empty for :func:`default_workers`.
        seconds: Duration of a run.
        repeats: Number of runs of each rival, in turn.
        backend: feeder's decode backend.
        peers: True to measure the other loaders too; False for feeder alone, and the reference that checks it.
    """

    preset: str = "train"
    dtype: str = "float32"
    image_size: int = 224
    batch_size: int = 64
    workers: tuple[int, ...] = ()
    seconds: float = 2.0
    repeats: int = 5
    backend: str = "auto"
    peers: bool = True

    def __post_init__(self) -> None:
        preset(self.preset, self.dtype, self.image_size)  # checks the three
        for name in ("batch_size", "repeats"):
            check_int(name, getattr(self, name), 1)
        if any(count < 0 for count in self.workers) or len(set(self.workers)) < len(self.workers):
            raise ArgumentError(f"workers must be different numbers, at least 0, got {self.workers}")
        check_positive("seconds", self.seconds)


@dataclass(frozen=True)
class RivalTask:
    """One job for a rival.

    Attributes:
        path: A shard set, or a class-per-folder tree.
        folder: The same images as files, for torch's loader, and for DALI in place of packed ones; None for ``path``.
        options: The options, with a ``batch_size`` of at most the number of images.
        workers: Number of worker processes or threads.
        in_order: True for every image once, in stored order; False for an endless shuffle.
    """

    path: str
    folder: str | None
    options: BenchOptions
    workers: int
    in_order: bool = False


def default_workers() -> tuple[int, ...]:
    """Returns the powers of two up to the number of usable cores, and that number."""
    usable = cores().usable
    return tuple(sorted({1 << i for i in range(usable.bit_length()) if 1 << i <= usable} | {usable}))
