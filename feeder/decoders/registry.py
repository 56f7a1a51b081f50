"""Finds a decode backend by name."""

from __future__ import annotations

import contextlib
import functools
import logging
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from feeder.decoders.decoder import MAX_PIXELS, Decoder, check_options
from feeder.errors import KERNELS_COMMAND, ArgumentError, BackendError
from feeder.system.checks import check_int, check_number
from feeder.transforms import Recipe, Views

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# Another package adds a backend by an entry point "name = module:factory" in this group. The factory takes
# `threads`, `max_pixels` and `fidelity` as `get_decoder` does and returns a `feeder.decoders.decoder.Decoder`.
ENTRY_POINT_GROUP = "feeder.decoders"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Dali:
    """The decode backend "dali", with options for a GPU.

    Args:
        hw_decoder_load: Share of a batch's JPEGs that are left to the hardware JPEG engine of the GPU, 0 to 1. Try
            which is best: less with more ``num_workers``, the number of CPU threads that decode the rest. None: DALI's
            default, 0.65.
        memory_limit_bytes: Upper limit of the memory for decoded images of full size on the GPU. Larger batches are
            decoded in parts, and a batch is decoded ahead only where both fit. Finished batches and the decoder's own
            memory are not counted. None: no limit.

    Raises:
        ArgumentError: for an argument out of its range.
    """

    hw_decoder_load: float | None = None
    memory_limit_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.hw_decoder_load is not None:
            check_number("Dali(hw_decoder_load=...)", self.hw_decoder_load, 0, 1)
        check_int("Dali(memory_limit_bytes=...)", self.memory_limit_bytes, 1, or_none=True)


_KERNELS = f"install its kernels: {KERNELS_COMMAND}, which `make wheel` makes in a clone"
# The class of each backend, and the remedy where it can't be imported.
BUILT_IN = {
    "cpu": ("feeder.decoders.cpu_decoder:CpuDecoder", _KERNELS),
    "cuda": ("feeder.decoders.cuda.cuda_decoder:CudaDecoder", _KERNELS),
    "dali": ("feeder.decoders.dali.dali_decoder:DaliDecoder", "install it: pip install 'feeder-data[dali-cuda13]'"),
    "pillow": ("feeder.decoders.pillow.pillow_decoder:PillowDecoder", "install it: pip install pillow"),
}

# "auto" takes the first backend that is installed and can run the recipe. All ranks have the same packages and the
# same recipe, so all choose alike; nothing is measured.
_AUTO = ("cpu", "pillow")
_AUTO_ON_CUDA = ("dali", *_AUTO)
_ON_CUDA = ("cuda", "dali")


def decoder_names() -> tuple[str, ...]:
    """Returns the names of all known backends, sorted, installed or not."""
    return tuple(sorted({*BUILT_IN, *(point.name for point in _entry_points())}))


def available_decoders(recipe: Recipe | Views | None = None) -> tuple[str, ...]:
    """Returns the names of the backends that can be made here, and can run a recipe if one is given, sorted."""
    found = []
    for name in decoder_names():
        with contextlib.suppress(BackendError):
            get_decoder(name, recipe)
            found.append(name)
    return tuple(found)


def check_name(name: str) -> None:
    """Raises ArgumentError if a name is neither "auto" nor that of a known backend, installed or not."""
    if name != "auto" and name not in BUILT_IN and name not in decoder_names():
        raise ArgumentError(f"backend must be 'auto' or one of {', '.join(decoder_names())}, got {name!r}")


def get_decoder(
    name: str | Dali = "auto",
    recipe: Recipe | Views | tuple[Recipe, ...] | None = None,
    *,
    threads: int = 1,
    max_pixels: int = MAX_PIXELS,
    fidelity: str = "fast",
    device: str = "cpu",
) -> Decoder:
    """Makes a backend. A backend named explicitly never falls back to another.

    Args:
        name: "cpu", "pillow", "dali", "cuda", the name of an installed entry point, or "auto": the first of these that
            is installed and can run the recipe: "dali" where the batches are wanted on a CUDA device, the native
            backend "cpu", "pillow". :class:`Dali` is "dali" with options.
        recipe: The recipe, the views, or several recipes that the backend must be able to run.
        threads: Number of threads for one batch.
        max_pixels: Larger images are refused.
        fidelity: "fast", "exact" for Pillow's pixels to about one level, or "draft", which decodes at half or quarter
            size what becomes smaller still, where the backend can.
        device: Destination of the batches: "cpu", or a CUDA device. "dali" and "cuda" decode on a GPU.

    Raises:
        ArgumentError: if there is no backend of that name.
        BackendError: if it is not installed, with the remedy, or can't run the recipe.
    """
    check_options(max_pixels, threads, fidelity)
    options: dict[str, Any] = {"threads": threads, "max_pixels": max_pixels, "fidelity": fidelity}

    if name != "auto":
        if isinstance(name, Dali):
            options["options"] = name
            name = "dali"
        if name in _ON_CUDA:
            options["device"] = device
        decoder = _make(name, options)
        recipes = () if recipe is None else recipe if isinstance(recipe, tuple) else recipe.views
        for each in recipes:
            decoder.check(each)
        return decoder

    reasons = []
    candidates = _AUTO_ON_CUDA if device.startswith("cuda") else _AUTO
    for candidate in candidates:
        try:
            decoder = get_decoder(candidate, recipe, device=device, **options)
        except BackendError as error:
            reasons.append(str(error))
            continue
        why = "".join(f"; {reason}" for reason in reasons)
        passed_over = "dali" in candidates and candidate != "dali" and dali_is_installed()
        level = logging.WARNING if passed_over else logging.INFO
        _log.log(level, "backend 'auto' is '%s', the first of %s to run here%s", candidate, ", ".join(candidates), why)
        return decoder
    raise BackendError("no backend can run this recipe: " + "; ".join(reasons))


def dali_is_installed() -> bool:
    """Returns whether NVIDIA DALI is installed, without importing it; it may still not fit this machine."""
    try:
        return find_spec("nvidia.dali") is not None
    except ModuleNotFoundError:
        return False


def _make(name: str, options: dict[str, Any]) -> Decoder:
    """Returns the backend.

    Raises:
        ArgumentError: if there is none of that name.
        BackendError: if it can't be made, with the remedy.
    """
    check_name(name)
    if name in BUILT_IN:
        target, remedy = BUILT_IN[name]
        load: Callable[[], Any] = functools.partial(pkgutil.resolve_name, target)
    else:
        point = next(point for point in _entry_points() if point.name == name)
        load, remedy = point.load, f"repair or remove the package {point.dist.name if point.dist else point.value!r}"
    try:
        decoder: Decoder = load()(**options)
    except (ImportError, AttributeError) as error:
        raise BackendError(f"backend {name!r} is not installed ({error}); {remedy}") from None
    return decoder


def _entry_points() -> tuple[EntryPoint, ...]:
    from importlib.metadata import entry_points  # reads the metadata of every package: not for backends of feeder

    return tuple(entry_points(group=ENTRY_POINT_GROUP))
