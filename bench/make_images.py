"""Makes JPEGs that decode like photos: about 500x375 pixels, a natural image's spectrum, near 100 KB at quality 90.

Photos have a power spectrum that falls with about the square of the frequency, busy and quiet areas, and colors
that vary far less than brightness. So their size and decode time are in the range of ImageNet's.

    python bench/make_images.py FOLDER [--count 300] [--classes 10] [--seed 0]
"""

from __future__ import annotations

import argparse
import functools
import shutil
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

__all__ = ["encode_image", "make_image", "make_images"]

FIELD_PX = 1024
QUALITY = 90
SIZES = ((500, 375), (500, 375), (500, 375), (500, 333), (375, 500), (333, 500), (500, 400), (440, 330), (600, 450))
# Standard deviations of Y, Cb, Cr in levels, near the mean of ImageNet's photos.
CONTRAST = (55.0, 12.0, 10.0)


@functools.lru_cache(maxsize=2)
def _fields(seed: int) -> np.ndarray:
    """Returns noise with a spectrum of 1/f^1.4 (smooth) and 1/f^0.7 (texture): float32 [2, 6, F, F], deviation 1.

    Images are cut from these fields, as a Fourier transform for each image would take most of the time. The fields are
    periodic, so a cut may start anywhere.
    """
    rng = np.random.default_rng([seed, 0])
    fy, fx = np.fft.fftfreq(FIELD_PX)[:, None], np.fft.rfftfreq(FIELD_PX)[None, :]
    frequency = np.hypot(fy, fx)
    frequency[0, 0] = np.inf  # no mean
    # No wavelengths beyond a photo's width, within which they would be nearly constant.
    frequency = np.maximum(frequency, 1 / 500)
    fields = np.empty((2, 6, FIELD_PX, FIELD_PX), np.float32)
    for kind, exponent in enumerate((1.4, 0.7)):
        for i in range(fields.shape[1]):
            spectrum = np.fft.rfft2(rng.standard_normal((FIELD_PX, FIELD_PX), np.float32)) / frequency**exponent
            field = np.fft.irfft2(spectrum, (FIELD_PX, FIELD_PX))
            fields[kind, i] = field / field.std()
    return fields


def _cut(rng: np.random.Generator, field: np.ndarray, height: int, width: int) -> np.ndarray:
    top, left = rng.integers(0, FIELD_PX, 2)
    rows = np.arange(top, top + height) % FIELD_PX
    columns = np.arange(left, left + width) % FIELD_PX
    cut = field[rows[:, None], columns[None, :]]
    return cut[:, ::-1] if rng.random() < 0.5 else cut


def make_image(index: int, *, seed: int = 0) -> np.ndarray:
    """Returns the image of that number: uint8 RGB [H, W, 3], the same for the same seed."""
    rng = np.random.default_rng([seed, 1, index])
    fields = _fields(seed)
    width, height = SIZES[rng.integers(len(SIZES))]
    roughness = rng.gamma(1.4, 0.17)
    # Texture comes in patches, like grass, fur and walls.
    patches = np.exp(0.8 * _cut(rng, fields[0, rng.integers(6)], height, width))
    planes = np.empty((height, width, 3), np.float32)
    for channel, contrast in enumerate(CONTRAST):
        smooth = _cut(rng, fields[0, rng.integers(6)], height, width)
        texture = _cut(rng, fields[1, rng.integers(6)], height, width) * patches
        planes[..., channel] = (smooth + roughness * texture) * (contrast * rng.uniform(0.6, 1.3))
        planes[..., channel] += (rng.normal(120, 25), *rng.normal(128, 6, 2))[channel]
    y, cb, cr = planes[..., 0], planes[..., 1] - 128, planes[..., 2] - 128
    rgb = np.stack((y + 1.402 * cr, y - 0.344136 * cb - 0.714136 * cr, y + 1.772 * cb), axis=-1)
    return np.clip(np.rint(rgb), 0, 255).astype(np.uint8)


def encode_image(index: int, path: Path, *, seed: int = 0) -> None:
    """Writes the image of that number as a JPEG of quality 90; two thirds without chroma subsampling, as ImageNet."""
    Image.fromarray(make_image(index, seed=seed)).save(path, quality=QUALITY, subsampling=2 if index % 3 == 2 else 0)


def make_images(folder: Path, *, count: int = 300, classes: int = 10, seed: int = 0) -> None:
    """Fills a new folder with JPEGs in class folders.

    Args:
        folder: New folder, which appears complete or not at all.
        count: Number of images, spread evenly over the classes.
        classes: Number of class folders.
        seed: The same seed gives the same files, as long as numpy and Pillow stay the same.

    Raises:
        FileExistsError: There is such a folder.
        ValueError: A count below 1.
    """
    if count < 1 or classes < 1:
        raise ValueError(f"count and classes must be at least 1, got {count} and {classes}")
    if folder.exists():
        raise FileExistsError(f"{folder} exists already: remove it, or name another folder")
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for label in range(min(classes, count)):
        (unfinished / f"class-{label:02d}").mkdir(parents=True)
    for index in range(count):
        encode_image(index, unfinished / f"class-{index % classes:02d}" / f"{index:05d}.jpg", seed=seed)
    unfinished.rename(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    started = time.perf_counter()
    try:
        make_images(args.folder, count=args.count, classes=args.classes, seed=args.seed)
    except (FileExistsError, ValueError) as error:
        print(f"make_images: {error}", file=sys.stderr)
        return 2
    size_kb = sum(path.stat().st_size for path in args.folder.rglob("*.jpg")) / 1024
    print(
        f"{args.count} images in {args.folder}, {size_kb / args.count:.0f} KB each, "
        f"made in {time.perf_counter() - started:.1f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
