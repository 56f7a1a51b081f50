"""Options of a loader, as values that its parts take in place of the loader itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.utils.data

from feeder.errors import ArgumentError
from feeder.order.buckets import Buckets
from feeder.order.sample_order import Shuffle, goes_by_shard
from feeder.order.skip import Skip
from feeder.transforms import BatchOp
from feeder.transforms.mixing import check_mix
from feeder.transforms.pad_to_batch import PadToBatch

__all__ = [
    "DEFAULT_COLLATES",
    "DEFAULT_PREFETCH",
    "SAMPLER_OF_A_FRAMEWORK",
    "CopyStream",
    "DeviceOptions",
    "EpochOptions",
    "FixedOptions",
    "checked_device",
]

DEFAULT_PREFETCH = 2  # torch's
SAMPLER_OF_A_FRAMEWORK = (
    "A framework that put the sampler there is to leave the loader as it is: Lightning does with "
    "use_distributed_sampler=False, with overfit_batches if shuffle=False, and in predict() if it gets an iterable "
    "around the loader"
)
DEFAULT_COLLATES = (None, torch.utils.data.default_collate)
_ON_BOTH_PATHS = ("shuffle", "follows_state", "batch_sampler", "collate_fn", "worker_init_fn")


@dataclass(frozen=True)
class FixedOptions:
    """Options of the fast path that can't change once a loader was made.

    Attributes:
        shuffle: The way to shuffle, in feeder's own order.
        follows_state: True if a state decides between a full shuffle and lanes, as ``shuffle=True`` leaves it open.
        seed: Seed of order and augmentation, 0 to 2**64-1; None: not given.
        backend, fidelity, on_error, channels_last, mix, gpu_memory_limit_bytes, hw_decoder_load, worker_init_fn: See
            :class:`feeder.DataLoader`.
        buckets, pad, service, service_only: See :class:`feeder.DataLoader`.
        batch_sampler: The explicit sampler's batches; None: feeder's own order.
        collate_fn: The user's function; None, also in place of torch's: batches are ``(images, labels, *fields)``.

    Raises:
        ArgumentError: if one of them is bad.
    """

    shuffle: Shuffle = False
    follows_state: bool = False
    seed: int | None = None
    backend: str = "auto"
    fidelity: str = "fast"
    on_error: str = "raise"
    channels_last: bool = False
    mix: BatchOp | Sequence[BatchOp] | None = None
    gpu_memory_limit_bytes: int | None = None
    hw_decoder_load: float | None = None
    buckets: Buckets | None = None
    pad: PadToBatch | None = None
    batch_sampler: Any = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    worker_init_fn: Callable[[int], None] | None = None
    service: str | None = None
    service_only: bool = False

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "skip"):
            raise ArgumentError(f"on_error must be 'raise' or 'skip', got {self.on_error!r}")
        if self.seed is not None:
            if not isinstance(self.seed, (int, np.integer)):
                raise ArgumentError(f"seed must be an integer, 0 to 2**64-1, got {self.seed!r}")
            object.__setattr__(self, "seed", int(self.seed))
        if self.collate_fn in DEFAULT_COLLATES:
            object.__setattr__(self, "collate_fn", None)
        check_mix(self.mix)
        for name, kind in (("buckets", Buckets), ("pad", PadToBatch)):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise ArgumentError(f"{name} must be a feeder.{kind.__name__}, got {value!r}")

    def for_the_fast_path(self) -> list[str]:
        """Returns the names of the given options that torch's path does not have."""
        names = [field.name for field in dataclasses.fields(self) if field.name not in _ON_BOTH_PATHS]
        given = [name for name in names if getattr(self, name) != getattr(FixedOptions, name)]
        return [f"shuffle={type(self.shuffle).__name__}(...)", *given] if goes_by_shard(self.shuffle) else given


@dataclass(frozen=True)
class EpochOptions:
    """Options that are read anew for each epoch. Workers and slots that outlive an epoch keep those that they have.

    Attributes:
        batch_size: Samples of a batch; None: a batch sampler decides, or there are no batches.
        num_workers, drop_last, prefetch_factor, persistent_workers, multiprocessing_context, memory_limit_bytes,
            worker_threads, numa_node, snapshot_every_n_steps: See :class:`feeder.DataLoader`.
        prefetch_is_given: True if the caller gave ``prefetch_factor``; False if it is torch's default.
        timeout_s: Longest wait for a batch; 0: no limit.
        hang_timeout_s: Longest silence of a worker that has work; None: no limit.
        rank, world_size: As given; None: from torch.distributed or the environment.
        skip: What epochs leave out; None: nothing.
        device: Options of the way to the device.

    Raises:
        ArgumentError: if one of them is bad.
    """

    batch_size: int | None
    num_workers: int
    drop_last: bool
    prefetch_factor: int | None
    prefetch_is_given: bool
    persistent_workers: bool
    timeout_s: float
    hang_timeout_s: float | None
    multiprocessing_context: Any
    memory_limit_bytes: int | None
    worker_threads: int
    numa_node: int | str | None
    snapshot_every_n_steps: int | None
    rank: int | None
    world_size: int | None
    device: DeviceOptions
    skip: Skip | None = None

    def __post_init__(self) -> None:
        if self.worker_threads < 1:
            raise ArgumentError(f"worker_threads must be 1 or more, got {self.worker_threads}")
        if isinstance(self.numa_node, str) and self.numa_node != "auto":
            raise ArgumentError(f"numa_node must be 'auto', None or the number of a node, got {self.numa_node!r}")
        if self.hang_timeout_s is not None and self.hang_timeout_s <= 0:
            raise ArgumentError(f"hang_timeout_s must be more than 0 seconds, got {self.hang_timeout_s}")
        if (self.rank is None) != (self.world_size is None):
            given = f"rank={self.rank}, world_size={self.world_size}"
            raise ArgumentError(f"give rank and world_size together, got {given}")
        if self.ranks is not None and not 0 <= self.ranks[0] < self.ranks[1]:
            raise ArgumentError(f"rank must be 0 to world_size - 1, got rank {self.rank} of {self.world_size}")

    @property
    def ranks(self) -> tuple[int, int] | None:
        """Rank and world size, if they are given."""
        return None if self.rank is None or self.world_size is None else (self.rank, self.world_size)

    @property
    def ahead(self) -> int:
        """Batches that workers make ahead of the caller, at most."""
        return max(1, (self.prefetch_factor or 1) * self.num_workers)


@dataclass(frozen=True)
class DeviceOptions:
    """Options of the way of batches to a device.

    Attributes:
        target: The device that batches go to; None: they stay where they are made.
        ahead: Batches that are copied before the caller asks for them, 0 or more.
        stream: The stream of the copies.
        put: Copies a batch on the device to addresses that never change, and returns it there; None: each batch has
            memory of its own.
        pin_memory: Whether batches on the host are page-locked.
    """

    target: torch.device | None = None
    ahead: int = 2
    stream: CopyStream | None = None
    put: Callable[[Any], Any] | None = None
    pin_memory: bool = False

    def __post_init__(self) -> None:
        if self.ahead < 0:
            raise ArgumentError(f"prefetch_to_device must be 0 or more, got {self.ahead}")
        if self.put is not None and self.target is None:
            raise ArgumentError("static_buffers=True is for batches on a device; set device='cuda'")


class CopyStream:
    """A CUDA stream that is made when it is first used: that takes hundreds of MiB of the GPU.

    Args:
        device: The GPU; any other device has no streams.
    """

    def __init__(self, device: torch.device | None) -> None:
        self._device = device
        self._stream: Any = None

    def get(self) -> Any:
        """Returns the stream, the same one each time; None without a GPU."""
        if self._stream is None and self._device is not None and self._device.type == "cuda":
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        return self._stream


def checked_device(device: str | torch.device | None) -> torch.device | None:
    """The device that batches are to be on; a GPU with its number.

    Raises:
        ArgumentError: if there is no such device here.
    """
    if device is None:
        return None
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ArgumentError(f"device must be a torch device such as 'cuda' or 'cpu', got {device!r}: {error}") from None
    if found.type == "cpu":
        return found
    if found.type != "cuda":
        raise ArgumentError(f"device must be 'cuda', 'cuda:N' or 'cpu', got {device!r}")
    if not torch.cuda.is_available():
        raise ArgumentError(f"device={device!r}, but torch finds no CUDA device here; use device=None")
    return torch.device("cuda", torch.cuda.current_device() if found.index is None else found.index)
