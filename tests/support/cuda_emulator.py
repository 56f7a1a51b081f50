"""The CUDA kernels on the CPU: compiled from their source as C++, run thread after thread in three orders."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feeder.decoders.packed import codebook_id
from tests.support.gil import FREE_THREADED

__all__ = ["KERNELS", "Decoded", "Image", "add_codebook", "compiled", "decode", "planes", "preloaded"]

KERNELS = Path(__file__).parents[2] / "kernels"
# All that the emulator needs, of which libjpeg is no part.
_SOURCES = (
    *("cuda/emulator.cc", "cuda/joined.cc", "cuda/plan.cc", "cpu/boxes.cc", "cpu/simd.cc", "cpu/view_groups.cc"),
    *(f"cpu/jpeg/{name}.cc" for name in ("bands", "header", "huffman", "planes", "segments")),
    *(f"cpu/packed/{name}.cc" for name in ("codebook", "packed_file")),
    *(f"cpu/resize/{name}.cc" for name in ("axis_tables", "coefficients", "frame")),
    *(f"cpu/resize/filter_{level}.cc" for level in ("portable", "avx2", "avx512")),
)
# Without the flags of each SIMD level, whose vectors then are several of SSE2, with the same values. Undefined
# behaviour is an illegal instruction, for which no library is needed: gdb shows where.
_FLAGS = (
    *("-std=c++20", "-O1", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wno-psabi"),
    *("-ffp-contract=off", "-fno-strict-aliasing", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"),
    # AddressSanitizer's library has to be loaded before Python is, see preloaded().
    *(("-fsanitize=address", "-g") if os.environ.get("FEEDER_EMULATOR_ADDRESS") else ()),
)
_TYPES = {"uint8": 0, "float32": 1, "float16": 2, "bfloat16": 3}


class Image(NamedTuple):
    """An encoded image and its view.

    Attributes:
        data: A JPEG or packed JPEG, or the rows of one.
        box: left, top, right, bottom in upright pixels; source and support box.
        source: The source box, where it differs.
        first_row: See ``_native.decode_batch``.
        orientation: EXIF, 1-8.
        flip: Mirror the output.
    """

    data: bytes
    box: tuple[int, int, int, int]
    source: tuple[float, float, float, float] | None = None
    first_row: int = -1
    orientation: int = 1
    flip: bool = False


class Decoded(NamedTuple):
    """N images as the kernels left them.

    Attributes:
        taken: bool [N], False where an image is left to the CPU.
        faults: uint32 [N], the reason why a kernel left it; 0 where the host did.
        out: [N, 3, H, W], or [N, H, W, 3] for channels last; valid where taken.
        planes: uint8 [rows, columns] for each component of the first image, its samples of the box.
    """

    taken: npt.NDArray[np.bool_]
    faults: npt.NDArray[np.uint32]
    out: npt.NDArray[Any]
    planes: list[npt.NDArray[np.uint8]]


class _Request(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("length", ctypes.c_uint64),
        ("source_box", ctypes.c_double * 4),
        ("support_box", ctypes.c_int32 * 4),
        ("first_row", ctypes.c_int32),
        ("orientation", ctypes.c_int32),
        ("flip", ctypes.c_int32),
    )


def compiled(name: str, sources: Sequence[str]) -> Path:
    """Compiles sources of the kernels to a shared library, unless these have been compiled before.

    Args:
        name: The library's name.
        sources: Paths in the kernels' folder.
    """
    headers = sorted(KERNELS.glob("cuda/*.h")) + sorted(KERNELS.glob("cpu/**/*.h"))
    digest = hashlib.sha256(" ".join(_FLAGS).encode())
    for path in (*headers, *(KERNELS / name for name in sources)):
        digest.update(path.read_bytes())
    folder = KERNELS.parent / "build" / "cuda-emulator"
    built = folder / f"{name}-{digest.hexdigest()[:16]}.so"
    if not built.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"{built.name}.{os.getpid()}"
        compiler = os.environ.get("CXX", "g++")
        objects = [folder / f"{part.name}.{number}.o" for number in range(len(sources))]
        running = []
        command = [compiler, *_FLAGS, "-I", str(KERNELS)]
        try:
            for source, target in zip(sources, objects, strict=True):
                running.append(subprocess.Popen([*command, "-c", str(KERNELS / source), "-o", str(target)]))
                if len(running) == 2:
                    assert running.pop(0).wait(300) == 0, f"{name} does not compile"
            for process in running:
                assert process.wait(300) == 0, f"{name} does not compile"
            subprocess.run([compiler, "-shared", "-o", str(part), *map(str, objects)], check=True)
            part.replace(built)
        finally:
            for target in objects:
                target.unlink(missing_ok=True)
    return built


def preloaded() -> dict[str, str] | None:
    """Returns the environment of a Python in which memory of the emulator, and of the bytes that it gets, is guarded.

    None: the compiler's AddressSanitizer has no library that could be loaded, or Python is free-threaded: it then takes
    memory that AddressSanitizer does not watch.
    """
    if FREE_THREADED:
        return None
    compiler = os.environ.get("CXX", "g++")
    library = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    if not Path(library).is_absolute():
        return None
    options = {"ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc", "FEEDER_EMULATOR_ADDRESS": "1"}
    return {**os.environ, **options, "LD_PRELOAD": library}


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(compiled("emulator", _SOURCES)))
    library.feeder_emulate.restype = library.feeder_add_codebook.restype = ctypes.c_int
    return library


def add_codebook(codebook: bytes) -> None:
    """Makes a codebook known to the emulator."""
    assert _library().feeder_add_codebook(codebook_id(codebook), codebook, ctypes.c_uint64(len(codebook)))


def _pointer(array: npt.NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def decode(
    images: Sequence[Image],
    size: tuple[int, int],
    *,
    dtype: str = "uint8",
    channels_last: bool = False,
    scale: Sequence[float] = (1.0, 1.0, 1.0),
    bias: Sequence[float] = (0.0, 0.0, 0.0),
    with_planes: bool = False,
) -> Decoded:
    """Decodes images to (H, W), in three orders of threads, which must agree.

    Raises:
        AssertionError: if orders differ, which is a race, or a read of memory that nobody wrote.
    """
    requests = (_Request * len(images))()
    for request, image in zip(requests, images, strict=True):
        request.file, request.length = image.data, len(image.data)
        request.source_box[:] = image.source or image.box
        request.support_box[:] = image.box
        request.first_row, request.orientation, request.flip = image.first_row, image.orientation, image.flip
    count, (height, width) = len(images), size
    taken, faults = np.zeros(count, np.bool_), np.zeros(count, np.uint32)
    stored = {"bfloat16": "uint16"}.get(dtype, dtype)
    out = np.zeros((count, height, width, 3) if channels_last else (count, 3, height, width), stored)
    factors, offsets = np.array(scale, np.float32), np.array(bias, np.float32)
    left, top, right, bottom = images[0].box
    samples = np.zeros(12 * (right - left + 8) * (bottom - top + 8) if with_planes else 0, np.uint8)
    shapes = np.zeros((3, 2), np.int32)
    differs = _library().feeder_emulate(
        requests, count, *map(ctypes.c_uint32, (height, width, _TYPES[dtype], channels_last)),
        *map(_pointer, (factors, offsets, taken, faults, out)), _pointer(samples) if with_planes else None,
        _pointer(shapes),
    )  # fmt: skip
    assert not differs, "orders of threads differ"
    found, at = [], 0
    for rows, columns in shapes.tolist():
        if rows:
            found.append(samples[at : at + rows * columns].reshape(rows, columns))
            at += rows * columns
    return Decoded(taken, faults, out, found)


def planes(data: bytes, box: tuple[int, int, int, int], **options: Any) -> list[npt.NDArray[np.uint8]] | None:
    """Returns the planes of a box as ``_native.jpeg_planes`` does; None for an image that is left to the CPU."""
    decoded = decode([Image(data, box, **options)], (2, 2), with_planes=True)
    return decoded.planes if decoded.taken[0] else None
