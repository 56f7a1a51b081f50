"""Any Python function as an op."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from feeder.errors import ArgumentError
from feeder.system.arrays import AnyArray, Size
from feeder.system.checks import check_one_of
from feeder.transforms.op import Drawn, IntArray, Op, Uniforms

_PLACES = ("array", "pil", "tensor")
# (height, width) of made images, for a function whose input has no fixed size: a second pair if the first is too small.
_PROBES = ((480, 640), (640, 427)), ((1536, 2048), (2048, 1367))


class Output(NamedTuple):
    """The images that a function returns.

    Attributes:
        leading: The dimensions before height and width, such as (3,).
        dtype: Name of the dtype.
        size: (height, width); None for those of its input.
        is_pillow: True if they are Pillow's.
    """

    leading: tuple[int, ...]
    dtype: str
    size: Size | None
    is_pillow: bool


class _Scope(threading.local):
    """The states of the global generators, by name, where :func:`kept_generators` has begun."""

    states: dict[str, Any] | None = None


_scope = _Scope()


@contextlib.contextmanager
def kept_generators() -> Iterator[None]:
    """Leaves the global generators of ``random``, numpy and torch as they are now.

    To read and to set their states takes 60 us, to seed them 11. So a batch begins this once around all its images;
    one inside another does nothing, and without a function to call nothing is read.
    """
    if _scope.states is not None:
        yield
        return
    _scope.states = {}
    try:
        yield
    finally:
        states = _scope.states
        _scope.states = None
        if states:
            random.setstate(states["random"])
            np.random.set_state(states["numpy"])
        if "torch" in states:
            sys.modules["torch"].default_generator.set_state(states["torch"])


@contextlib.contextmanager
def keyed_generators(key: int) -> Iterator[None]:
    """Seeds the global generators by a key of 64 bits for the context; restores their states afterwards."""
    with kept_generators():
        _seed_generators(key)
        yield


def _seed_generators(key: int) -> None:
    """Seeds the global generators with a key of 64 bits, inside :func:`kept_generators`."""
    assert _scope.states is not None
    torch = sys.modules.get("torch")  # code that has not imported it does not draw from it
    if not _scope.states:
        _scope.states |= {"random": random.getstate(), "numpy": np.random.get_state()}
    if torch is not None and "torch" not in _scope.states:
        _scope.states["torch"] = torch.default_generator.get_state()

    # Before each call, though most functions draw nothing: a first draw can't be seen. Code holds bound methods of
    # these generators (`from random import random`), of C types, whose draws call nothing that could be replaced.
    random.seed(key)
    np.random.seed([key & 0xFFFFFFFF, key >> 32])
    if torch is not None:
        torch.default_generator.manual_seed(key)


@dataclass(frozen=True, init=False)
class Lambda(Op):
    """Calls a function on every image, in the worker.

    A module's function can be pickled; with a ``lambda`` or a local function, workers are forked. Its draws from the
    global generators of ``random``, numpy and torch are functions of (seed, epoch, sample) too: the same whatever the
    workers, the ranks or a resume. The calling process's own generators are left as they were.

    Args:
        lambd: Takes and returns an image. It may write to its argument, which is the batch's own memory where that
            saves a copy: keep a copy of what you keep. Its result may be an array, a tensor or a Pillow image.
        on: What it takes: "array" [3, H, W], "tensor" [3, H, W], both uint8, 0-255, or float32 after ``ToDtype`` or
            ``Normalize``; or "pil", an RGB image, before these.
        keeps_shape: False for a function whose result has another shape or dtype. It stands last, and is called on a
            made image once to find out which.

    Raises:
        ArgumentError: if it is no function, or ``on`` is something else.
    """

    lambd: Callable[[Any], Any]
    on: str
    keeps_shape: bool
    on_arrays = True

    def __init__(self, lambd: Callable[[Any], Any], *, on: str = "array", keeps_shape: bool = True) -> None:
        if not callable(lambd):
            raise ArgumentError(f"lambd must be a function of an image, got {lambd!r}")
        check_one_of("on", on, _PLACES)
        self._set(lambd=lambd, on=on, keeps_shape=bool(keeps_shape))

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        drawn: dict[str, AnyArray] = {"key": uniforms.keys()}
        return Drawn(drawn if self.keeps_shape else drawn | {"size": sizes}, sizes)

    def call(self, image: Any, key: int) -> AnyArray:
        """Calls the function.

        Args:
            image: An array [C, H, W], uint8 or float32, which may be written to; or a Pillow image.
            key: Of its draws, 0 to 2**64-1.

        Returns:
            An array of the function's result; bfloat16 is held as its bits in uint16.

        Raises:
            ArgumentError: if the result is no image, or one of another shape or dtype.
        """
        had_torch = "torch" in sys.modules
        with kept_generators():
            _seed_generators(key)
            result = self.lambd(self._given(image if had_torch else image.copy()))
            if not had_torch and "torch" in sys.modules:  # imported inside: its numbers were not keyed yet
                _seed_generators(key)
                result = self.lambd(self._given(image))

        found = _as_array(result)
        if self.keeps_shape:
            kept = _as_array(image)
            if found.shape != kept.shape or found.dtype != kept.dtype:
                raise ArgumentError(
                    f"the function of Lambda must return an array of {kept.dtype} {list(kept.shape)}, as it got, got "
                    f"{found.dtype} {list(found.shape)}; as the last op it may change them with keeps_shape=False"
                )
        return found

    def write(self, image: Any, key: int, out: AnyArray) -> None:
        """Calls the function of a recipe's tail, as :meth:`call` does, and writes its result.

        Args:
            image: See :meth:`call`.
            key: See :meth:`call`.
            out: Of the shape and dtype that :meth:`probe` has found.

        Raises:
            ArgumentError: if the result has others.
        """
        found = self.call(image, key)
        if found.shape != out.shape or found.dtype != out.dtype:
            raise ArgumentError(
                f"the function of Lambda returned {found.dtype} {list(found.shape)} for this image, and "
                f"{out.dtype} {list(out.shape)} for a made one; a batch needs one shape"
            )
        out[...] = found

    def _given(self, image: Any) -> Any:
        """Returns an image as the function takes it."""
        is_array = isinstance(image, np.ndarray)
        if self.on == "pil":
            from PIL import Image

            if not is_array:
                return image.copy()
            if image.dtype != np.uint8:
                raise ArgumentError("Lambda(on='pil') takes uint8 images; put it before ToDtype and Normalize")
            pixels = image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0))
            return Image.fromarray(pixels)
        array = np.ascontiguousarray(image) if is_array else np.array(_as_array(image), order="C")
        if self.on == "array":
            return array
        import torch

        return torch.from_numpy(array)

    def probe(self, dtype: str, channels: int, size: Size | None) -> Output:
        """Returns what the function makes of a made image.

        Args:
            dtype: "uint8" or "float32".
            channels: 1 or 3.
            size: (height, width) of its input; None if that differs from image to image.

        Raises:
            ArgumentError: if it fails, or if its result's shape follows neither from that size nor from its own.
        """
        pairs = _PROBES if size is None else ((size,),)
        for number, sizes in enumerate(pairs, start=1):
            try:
                found = [self._probed(dtype, (channels, *each)) for each in sizes]
                break
            except Exception as error:
                if number == len(pairs):
                    height, width = sizes[0]
                    raise ArgumentError(
                        f"the function {self.lambd!r} fails on a made image, {dtype} of {height}x{width} (height x "
                        f"width): {error}"
                    ) from error

        arrays = [_as_array(result) for result in found]
        shapes = {array.shape for array in arrays}
        leading = {array.shape[:-2] for array in arrays}
        keeps_size = all(array.shape[-2:] == each for array, each in zip(arrays, sizes, strict=True))
        if arrays[0].ndim < 2 or len(leading) > 1 or (len(shapes) > 1 and not keeps_size):
            listed = " and ".join(str(list(shape)) for shape in sorted(shapes))
            raise ArgumentError(
                f"the function {self.lambd!r} returns {listed}, and a batch needs one shape: [..., height, width] of a "
                "fixed size, or of its input's"
            )
        dtype = str(getattr(found[0], "dtype", arrays[0].dtype)).removeprefix("torch.")
        size = None if len(shapes) > 1 else arrays[0].shape[-2:]
        return Output(arrays[0].shape[:-2], dtype, size, hasattr(found[0], "getbands"))

    def _probed(self, dtype: str, shape: tuple[int, int, int]) -> Any:
        pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        made: AnyArray = pixels if dtype == "uint8" else pixels.astype(np.float32) / 255
        with kept_generators():
            _seed_generators(0)
            return self.lambd(self._given(made))


def _as_array(result: Any) -> AnyArray:
    """Returns the array of a function's result, [C, H, W] of a Pillow image."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(result, torch.Tensor):
        plain = result.detach().as_subclass(torch.Tensor)
        result = (plain.view(torch.uint16) if plain.dtype == torch.bfloat16 else plain).numpy()
    elif hasattr(result, "getbands"):  # Pillow's images have it
        pixels = np.asarray(result)
        result = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    if not isinstance(result, np.ndarray):
        views = "; for several views give transform=Views([...])" if isinstance(result, (list, tuple)) else ""
        raise ArgumentError(
            f"the function of Lambda must return an array, a tensor or an image, got {type(result)!r}{views}"
        )
    return result
