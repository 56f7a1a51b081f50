"""Prints digests of all that a build of the native module makes of the JPEGs in a folder: builds compare by `diff`.

One line for each output, SIMD level and fidelity: planes and pixels of whole images and of crops, transcodes, statuses.
Messages are left out, as libjpeg-turbo words them differently in each version.

    python kernels/fuzz/make_corpus.py corpus
    diff <(python scripts/digest.py BEFORE/_native.*.so corpus) <(python scripts/digest.py AFTER/_native.*.so corpus)
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["main"]

SIZE = 48


def load(path: str) -> Any:
    """Imports the module from its file."""
    spec = importlib.util.spec_from_file_location("_native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def digest(parts: Iterator[bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.hexdigest()[:32]


def made(native: Any, make: Callable[[], Any]) -> bytes:
    """Returns the bytes of what a call returns, or the status of the file that it refuses."""
    try:
        result = make()
    except native.Unsupported as error:
        return f"status {int(error.status)}".encode()
    return b"".join(np.asarray(part).tobytes() for part in result) if isinstance(result, list) else bytes(result)


def decoded(native: Any, data: bytes, size: tuple[int, int], fidelity: str, dtype: str) -> Iterator[bytes]:
    """Returns status and pixels of the whole image and of a crop, upright and turned."""
    height, width = size
    for box in ((0, 0, width, height), (width // 5, height // 3, width - width // 7, height)):
        for orientation in (1, 6):
            left, top, right, bottom = box if orientation == 1 else (box[1], box[0], box[3], box[2])
            out = np.zeros((1, 3, SIZE, SIZE), dtype)
            boxes = np.array([[left, top, right, bottom]])
            affine = {} if dtype == "uint8" else {"scale": np.float32([0.017] * 3), "bias": np.float32([-2.1] * 3)}
            statuses, _ = native.decode_batch(
                [data], boxes.astype(np.float64), boxes.astype(np.int32), np.uint8([orientation == 6]),
                np.uint8([orientation]), out, layout="nchw", dtype=dtype, fidelity=fidelity, **affine,
            )  # fmt: skip
            yield statuses.tobytes() + out.tobytes()


def main() -> None:
    parser = argparse.ArgumentParser(description="Digests of all that a native module makes of JPEGs.")
    parser.add_argument("module")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    native = load(options.module)
    files = [path.read_bytes() for path in sorted(options.folder.rglob("*")) if path.is_file()]
    if not files:
        raise SystemExit(f"{options.folder} has no files")
    sizes = []
    for data in files:
        try:
            sizes.append(native.libjpeg_decode(data).shape[:2])
        except native.Unsupported:
            sizes.append((8, 8))
    print("files", len(files))
    print("transcode", digest(made(native, lambda d=d: native.transcode(d, keep_metadata=True)) for d in files))
    print("libjpeg", digest(made(native, lambda d=d: [native.libjpeg_decode(d)]) for d in files))
    for level in ("portable", "avx2", "avx512"):
        if not native.set_simd_level(level):
            continue
        planes = (
            made(native, lambda d=d, s=s: native.jpeg_planes(d, (0, 0, s[1], s[0])))
            for d, s in zip(files, sizes, strict=True)
        )
        print(level, "planes", digest(planes))
        for fidelity in ("fast", "exact"):
            for dtype in ("uint8", "float32"):
                pixels = (
                    part for d, s in zip(files, sizes, strict=True) for part in decoded(native, d, s, fidelity, dtype)
                )
                print(level, fidelity, dtype, digest(pixels))


if __name__ == "__main__":
    main()
