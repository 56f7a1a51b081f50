"""Options of a loader, as values that its parts take in place of the loader itself."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.utils.data

from feeder.decoders.decoder import MAX_PIXELS, check_options
from feeder.decoders.registry import Dali, check_name
from feeder.errors import ArgumentError
from feeder.loader.service_options import Service
from feeder.order.buckets import Buckets
from feeder.order.sample_order import Shuffle
from feeder.order.skip import Skip
from feeder.system.checks import check_int, check_one_of, check_positive
from feeder.transforms import BatchOp
from feeder.transforms.mixing import check_mix
from feeder.transforms.pad_to_batch import PadToBatch

DEFAULT_PREFETCH = 2  # torch's
SAMPLER_OF_A_FRAMEWORK = (
    "A framework that put the sampler there is to leave the loader as it is: Lightning does with "
    "use_distributed_sampler=False, with overfit_batches if shuffle=False, and in predict() if it gets an iterable "
    "around the loader"
)
DEFAULT_COLLATES = (None, torch.utils.data.default_collate)
_MEMORY_FORMATS = (torch.contiguous_format, torch.channels_last)


@dataclass(frozen=True)
class ToDevice:
    """A device that batches go to, and the way there.

    Args:
        device: "cuda", "cuda:N" or "cpu".
        prefetch: Number of batches that are copied to the device before the caller asks for them, 0 or more.
        static_buffers: True puts every batch at the same addresses, as CUDA graphs need it, and so **overwrites the
            batch before**. Where "dali" decodes on the GPU, its threads use CUDA during a capture: pass
            torch.cuda.graph ``capture_error_mode="thread_local"``.

    Raises:
        ArgumentError: for an argument out of its range. The loader raises it for a device that is not there.
    """

    device: str | torch.device
    prefetch: int = 2
    static_buffers: bool = False

    def __post_init__(self) -> None:
        check_int("ToDevice(prefetch=...)", self.prefetch, 0)

    def target(self) -> torch.device:
        """Returns the device; a GPU with its number.

        Raises:
            ArgumentError: if there is no such device here.
        """
        given = self.device
        try:
            found = torch.device(given)
        except (RuntimeError, TypeError) as error:
            raise ArgumentError(
                f"device must be a torch device such as 'cuda' or 'cpu', or a feeder.ToDevice, got {given!r}: {error}"
            ) from None
        if found.type == "cpu":
            return found
        if found.type != "cuda":
            raise ArgumentError(f"device must be 'cuda', 'cuda:N' or 'cpu', got {given!r}")
        if not torch.cuda.is_available():
            raise ArgumentError(f"device={given!r}, but torch finds no CUDA device here; use device=None")
        return torch.device("cuda", torch.cuda.current_device() if found.index is None else found.index)


@dataclass(frozen=True)
class WorkerOptions:
    """Options of a loader's workers.

    Args:
        threads: Number of threads that the backend may use in each worker. They read and decode the samples of one part
            together, are kept from part to part, and end with their worker: if one of them hangs or crashes, the worker
            is replaced. More than about 8 gain nothing. "auto" is as many as keep the cores of this rank busy, 8 at
            most. Together with ``num_workers="auto"``, which counts threads as cores, it is 1 up to 8 cores, and with
            more the least of 2, 4 and 8 with which 8 workers have all cores busy. None: "auto" with
            ``num_workers="auto"``, else 1.
        numa_node: Number of the NUMA node that the fast path's workers stay on, and that the memory of their batches is
            on. "auto" is the node of the GPU ``device``, on a host of several nodes where NVML (extra ``nvml``) or
            the kernel tells it; else nothing is bound, and pages are on the node of the thread that allocates them.
            What this process is bound to already is kept to. None binds nothing.
        hang_timeout_s: A worker that has work and stays silent for longer is replaced, like one that died. None: 300
            on the fast path; never on torch's, where a batch may take any time.
        memory_limit_bytes: Upper limit of the shared memory for batches, which are then 2 for each worker unless
            ``prefetch_factor`` says otherwise; None: half of the available memory.

    Raises:
        ArgumentError: for an argument out of its range.
    """

    threads: int | Literal["auto"] | None = None
    numa_node: int | Literal["auto"] | None = "auto"
    hang_timeout_s: float | None = None
    memory_limit_bytes: int | None = None

    def __post_init__(self) -> None:
        if (isinstance(self.threads, str) and self.threads != "auto") or (
            isinstance(self.threads, int) and self.threads < 1
        ):
            raise ArgumentError(f"WorkerOptions(threads=...) must be 'auto', or 1 or more, got {self.threads!r}")
        if isinstance(self.numa_node, str) and self.numa_node != "auto":
            raise ArgumentError(f"numa_node must be 'auto', None or the number of a node, got {self.numa_node!r}")
        check_positive("hang_timeout_s", self.hang_timeout_s, or_none=True)

    @property
    def threads_now(self) -> int:
        """Number of threads: 1 until "auto" or None is replaced."""
        return self.threads if isinstance(self.threads, int) else 1


@dataclass(frozen=True)
class Metrics:
    """The server of a loader's figures.

    Args:
        port: Serves :meth:`feeder.DataLoader.stats` to Prometheus on this TCP port, at ``/metrics``, until the loader
            is closed; 0 takes a free one, see :attr:`feeder.DataLoader.metrics_url`. Loaders of one process may share a
            port: the label ``loader`` tells them apart. None: no server. Needs the extra ``metrics``.
        address: The address to listen on; "0.0.0.0" is open to other machines.

    Raises:
        ArgumentError: for a port that is none.
    """

    port: int | None = None
    address: str = "127.0.0.1"

    def __post_init__(self) -> None:
        if self.port is not None and not 0 <= self.port < 1 << 16:
            raise ArgumentError(f"metrics must be a port of 0 to 65535 or a feeder.Metrics, got {self.port!r}")


@dataclass(frozen=True)
class ImageOptions:
    """Options of the images that a dataset of any kind leaves to the loader, see :class:`feeder.Encoded`.

    Attributes:
        backend, fidelity: See :class:`feeder.DataLoader`.
        threads: Threads of the decoder in each worker.
        skip: True replaces samples with a bad image by others; False raises.
        given: Names of the loader's given options that are for such images alone.
        device: The device that batches go to; None: they stay where they are made.

    Raises:
        ArgumentError: for a backend that does not decode them.
    """

    backend: str | Dali
    fidelity: str
    threads: int
    skip: bool
    given: tuple[str, ...]
    device: dataclasses.InitVar[torch.device | None]

    def __post_init__(self, device: torch.device | None) -> None:
        check_options(MAX_PIXELS, self.threads, self.fidelity)
        name = "dali" if isinstance(self.backend, Dali) else self.backend
        check_name(name)
        if name == "cuda" or (name == "dali" and device is not None and device.type == "cuda"):
            raise ArgumentError(
                f"backend {name!r} decodes on a GPU for feeder's own datasets only. What other datasets return as "
                "feeder.Encoded the workers decode: take backend='cpu', 'pillow', or 'dali' without device='cuda'"
            )


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """Options of a loader, as its parts take them.

    A loader makes them anew for each epoch. Workers and slots that outlive an epoch keep those that they have.

    Attributes:
        batch_size: Samples of a batch; None: a batch sampler decides, or there are no batches.
        batch_sampler: The explicit sampler's batches; None: feeder's own order.
        collate_fn: The user's function; None, also in place of torch's: batches are ``(images, labels, *fields)``.
        prefetch_is_given: True if the caller gave ``prefetch_factor``; False if it is torch's default.
        timeout: Longest wait for a batch, seconds; 0: no limit.
        workers: Options of the workers: a number of threads, and no ``hang_timeout_s`` for no limit.
        device: Options of the way to the device.
        shuffle: The way to shuffle, in feeder's own order.
        follows_state: True if a state decides between a full shuffle and lanes, as ``shuffle=True`` leaves it open.
        images: Options of :class:`feeder.Encoded`; None: the loader takes none.

        The others are the arguments of their names, see :class:`feeder.DataLoader`.

    Raises:
        ArgumentError: if one of them is bad.
    """

    batch_size: int | None = 1
    batch_sampler: Any = None
    num_workers: int = 0
    collate_fn: Callable[[list[Any]], Any] | None = None
    drop_last: bool = False
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None
    prefetch_factor: int | None = None
    prefetch_is_given: bool = False
    persistent_workers: bool = False

    rank: int | None = None
    world_size: int | None = None
    skip: Skip | None = None
    mix: BatchOp | Sequence[BatchOp] | None = None
    sizes: Buckets | PadToBatch | None = None
    memory_format: torch.memory_format = torch.contiguous_format
    backend: str | Dali = "auto"
    fidelity: str = "fast"
    on_error: str = "raise"
    snapshot_every_n_steps: int | None = 1
    service: Service | None = None

    workers: WorkerOptions
    device: DeviceOptions
    shuffle: Shuffle = False
    follows_state: bool = False
    images: ImageOptions | None = None

    def __post_init__(self) -> None:
        if (self.rank is None) != (self.world_size is None):
            given = f"rank={self.rank}, world_size={self.world_size}"
            raise ArgumentError(f"give rank and world_size together, got {given}")
        if self.ranks is not None and not 0 <= self.ranks[0] < self.ranks[1]:
            raise ArgumentError(f"rank must be 0 to world_size - 1, got rank {self.rank} of {self.world_size}")

        check_mix(self.mix)
        if not isinstance(self.sizes, (Buckets, PadToBatch, type(None))):
            raise ArgumentError(f"sizes must be a feeder.Buckets or a feeder.PadToBatch, got {self.sizes!r}")
        check_one_of("memory_format", self.memory_format, _MEMORY_FORMATS)
        check_one_of("on_error", self.on_error, ("raise", "skip"))
        if self.service is not None and self.prefetch_factor is not None and self.prefetch_factor < 1:
            raise ArgumentError(f"prefetch_factor must be 1 or more, got {self.prefetch_factor}")

    @property
    def ranks(self) -> tuple[int, int] | None:
        """Rank and world size, if they are given."""
        return None if self.rank is None or self.world_size is None else (self.rank, self.world_size)

    @property
    def buckets(self) -> Buckets | None:
        """The buckets; None without."""
        return self.sizes if isinstance(self.sizes, Buckets) else None

    @property
    def pad(self) -> PadToBatch | None:
        """The padding; None without."""
        return self.sizes if isinstance(self.sizes, PadToBatch) else None

    @property
    def channels_last(self) -> bool:
        """True for images in torch's channels_last memory format."""
        return self.memory_format == torch.channels_last

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
        stream: Returns the stream of the copies; None: there is none, as without a GPU.
        put: Copies a batch on the device to addresses that never change, and returns it there; None: each batch has
            memory of its own.
        pin_memory: Whether batches on the host are page-locked.
    """

    target: torch.device | None = None
    ahead: int = 2
    stream: Callable[[], Any] = lambda: None
    put: Callable[[Any], Any] | None = None
    pin_memory: bool = False


class Fixed:
    """An argument of a loader that can't be changed after the loader was made. Its value is in ``vars(loader)``, where
    frameworks that make a loader anew look for it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, loader: object | None, owner: type | None = None) -> Any:
        if loader is None:
            return self
        if self._name not in vars(loader):
            raise AttributeError(f"this loader has no {self._name!r} before DataLoader.__init__() was called")
        return vars(loader)[self._name]

    def __set__(self, loader: object, value: Any) -> None:
        if self._name in vars(loader):
            raise change_refusal(self._name)
        vars(loader)[self._name] = value  # a derived class's own, before DataLoader's


def change_refusal(name: str) -> ArgumentError:
    """Returns the error for a change of an argument that can't be changed."""
    return ArgumentError(f"{name} can't be changed after the loader was made; give it to another one")


def copy_stream(device: torch.device | None) -> Callable[[], Any]:
    """Returns a function that returns a CUDA stream, the same one each time; None for any device but a GPU. The first
    call makes it: that takes hundreds of MiB of the GPU."""
    is_gpu = device is not None and device.type == "cuda"
    return functools.cache(lambda: torch.cuda.Stream(device) if is_gpu else None)  # type: ignore[no-untyped-call]
