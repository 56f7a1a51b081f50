"""The process of one contestant of bench/decode.py.

    python bench/decode_rivals.py NAME FOLDER [--pillow-simd DIR]

It prepares its work and writes "ready". Each line of its input is a number of seconds, which it answers with a line of
JSON: images, seconds and CPU seconds (of all its threads) of a run of at least that long, in whole passes through the
folder. The line "stages DIR" asks for the stages of the native decode of the files in DIR instead.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import math
import random
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["CODEBOOK_NAME", "RIVALS", "main"]

CODEBOOK_NAME = "codebook"  # beside the folder of packed images

BATCH = 64
EPOCH_PASSES = 40  # of feeder's loader through a set: epochs of a few images are mostly their start
STAGE_PASSES = 7  # the least of these counts, as on a busy machine the wall clock includes the work of others
SIZE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def _paths(folder: str) -> list[str]:
    return sorted(str(path) for path in Path(folder).rglob("*") if path.is_file())


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def torch_pillow(folder: str) -> Callable[[], int]:
    """Runs a plain torch DataLoader with Pillow and torchvision's ops, without workers: its best on one core."""
    import torch
    from PIL import Image

    torch.set_num_threads(1)
    paths = _paths(folder)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))

    def crop(width: int, height: int) -> tuple[int, int, int, int]:
        for _ in range(10):
            area = width * height * random.uniform(0.08, 1.0)
            ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                left, top = random.randint(0, width - w), random.randint(0, height - h)
                return left, top, left + w, top + h
        return 0, 0, width, height

    class Images(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, index: int) -> torch.Tensor:
            with open(paths[index], "rb") as file:
                image = Image.open(file).convert("RGB")
            image = image.crop(crop(*image.size)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
            if random.random() < 0.5:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
            return pixels.to(torch.float32).div(255).sub_(mean).div_(std)

    loader = torch.utils.data.DataLoader(Images(), batch_size=BATCH, shuffle=True)
    return lambda: sum(len(batch) for batch in loader)


def _dali(folder: str, graph: Callable[[Any, Any], Any]) -> Callable[[], int]:
    from nvidia.dali import fn, pipeline_def, types

    paths = _paths(folder)

    @pipeline_def(batch_size=BATCH, num_threads=1, device_id=None)
    def pipeline() -> Any:
        encoded, _ = fn.readers.file(files=paths, random_shuffle=True, name="reader")
        return graph(fn, encoded)

    built = pipeline()
    built.build()
    del types

    def run() -> int:
        images = 0
        while images < len(paths):
            (batch,) = built.run()
            images += len(batch)
        return images

    return run


def _normalize(fn: Any, images: Any, **options: Any) -> Any:
    from nvidia.dali import types

    mean, std = [255 * value for value in MEAN], [255 * value for value in STD]
    return fn.crop_mirror_normalize(
        images, dtype=types.FLOAT, output_layout="CHW", crop=(SIZE, SIZE), mean=mean, std=std, **options
    )


def dali(folder: str) -> Callable[[], int]:
    """DALI on the CPU: crop while decoding, resize, then mirror and normalize."""

    def graph(fn: Any, encoded: Any) -> Any:
        images = fn.decoders.image_random_crop(
            encoded, device="cpu", random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3], num_attempts=10
        )
        images = fn.resize(images, size=(SIZE, SIZE), interp_type=_linear(), antialias=True)
        return _normalize(fn, images, mirror=fn.random.coin_flip())

    return _dali(folder, graph)


def dali_validation(folder: str) -> Callable[[], int]:
    """DALI on the CPU, validation: decode, shorter side to 256, center crop."""

    def graph(fn: Any, encoded: Any) -> Any:
        images = fn.decoders.image(encoded, device="cpu")
        images = fn.resize(images, resize_shorter=256, interp_type=_linear(), antialias=True)
        return _normalize(fn, images)

    return _dali(folder, graph)


def _linear() -> Any:
    from nvidia.dali import types

    return types.INTERP_LINEAR


def _recipe(validation: bool, output: str = "float32") -> Any:
    from feeder import transforms

    geometry = (
        [transforms.Resize(256), transforms.CenterCrop(SIZE)]
        if validation
        else [transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip()]
    )
    return transforms.Recipe.of([*geometry, transforms.Normalize(MEAN, STD)] if output == "float32" else geometry)


def feeder_loader(
    folder: str, validation: bool = False, output: str = "float32", *, repeats: int = 1, backend: str = "cpu"
) -> Any:
    """Returns feeder's DataLoader, without workers, over a shard set whose images come so many times in an epoch."""
    from torch.utils.data import ConcatDataset

    from feeder.dataset.shards import ShardDataset
    from feeder.loader.dataloader import DataLoader

    dataset = ShardDataset(folder, _recipe(validation, output))
    return DataLoader(ConcatDataset([dataset] * repeats), BATCH, shuffle=True, seed=0, backend=backend)


def tensorflow(folder: str) -> Callable[[], int]:
    """tf.data: decode_and_crop_jpeg, resize, flip, uint8; its resize does not antialias, so it does less."""
    import tensorflow as tf

    paths = _paths(folder)

    def image(path: Any) -> Any:
        data = tf.io.read_file(path)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(data),
            tf.zeros([1, 0, 4], tf.float32),
            area_range=(0.08, 1.0),
            aspect_ratio_range=(3 / 4, 4 / 3),
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.stack([begin[0], begin[1], size[0], size[1]])
        pixels = tf.image.resize(tf.image.decode_and_crop_jpeg(data, window, channels=3), (SIZE, SIZE))
        return tf.cast(tf.image.random_flip_left_right(pixels), tf.uint8)

    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    batches = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths)).map(image).batch(BATCH)
    batches = batches.with_options(options)
    return lambda: sum(len(batch) for batch in batches)


def turboloader(folder: str) -> Callable[[], int]:
    """TurboLoader's fused path: a tar of JPEGs, antialiased random crops, flips, normalized float32."""
    from turboloader import DataLoader, ImageNetNormalize

    paths = _paths(folder)
    tar = Path(folder).parent / "turboloader.tar"
    with tarfile.open(tar, "w") as archive:
        for path in paths:
            archive.add(path, Path(path).name)
    loader = DataLoader(
        str(tar),
        batch_size=BATCH,
        shuffle=True,
        transform=ImageNetNormalize(),
        image_size=SIZE,
        output_format="pytorch",
        antialias=True,
        train_aug=True,
    )

    def run() -> int:
        images = 0
        for batch, _ in loader:
            if tuple(batch.shape[1:]) != (3, SIZE, SIZE) or str(batch.dtype).rpartition(".")[2] != "float32":
                raise SystemExit(f"turboloader gave {tuple(batch.shape)} of {batch.dtype}")
            images += len(batch)
        if images != len(paths):
            raise SystemExit(f"turboloader gave {images} of {len(paths)} images")
        return images

    return run


def _feeder(
    folder: str, validation: bool = False, output: str = "float32", level: str | None = None
) -> Callable[[], int]:
    import torch

    from feeder import _native

    torch.set_num_threads(1)
    if level is not None and not _native.set_simd_level(level):
        raise SystemExit(f"this CPU has no {level}")
    loader = feeder_loader(folder, validation, output, repeats=EPOCH_PASSES)
    count = len(loader.dataset) // EPOCH_PASSES

    def endless() -> Iterator[int]:
        while True:
            for images, _ in loader:
                yield len(images)

    batches = endless()

    def run() -> int:
        images = 0
        while images < count:
            images += next(batches)
        return images

    return run


def _each(folder: str, function: Callable[[bytes], Any]) -> Callable[[], int]:
    paths = _paths(folder)

    def run() -> int:
        for path in paths:
            function(_read(path))
        return len(paths)

    return run


def libjpeg(folder: str) -> Callable[[], int]:
    """Runs the yardstick: libjpeg-turbo decodes whole images to RGB, and nothing more."""
    from feeder import _native

    return _each(folder, _native.libjpeg_decode)


def transcode(folder: str) -> Callable[[], int]:
    """The lossless transcode of the sharder."""
    from feeder import _native

    return _each(folder, lambda data: _native.transcode(data, keep_metadata=True))


def pack(folder: str) -> Callable[[], int]:
    """The packing of the sharder, with the hash of each file; with a codebook of these images."""
    from feeder import _native
    from feeder.decoders.packed import add_codebooks, codebook_id

    codebook = _native.train_codebook([_read(path) for path in _paths(folder)])
    add_codebooks([codebook])
    number = codebook_id(codebook)

    def packed(data: bytes) -> None:
        with contextlib.suppress(_native.Unsupported):
            _native.pack(data, number, hashlib.sha256(data).digest())

    return _each(folder, packed)


def cut_packed(folder: str) -> Callable[[], int]:
    """JPEGs of the crops of packed images, as workers make them for DALI; from memory."""
    from feeder import _native
    from feeder.dataset.shards import ShardDataset

    reader, recipe = ShardDataset(folder).reader, _recipe(False)
    ids = np.arange(len(reader))
    read = reader.read(ids)
    images = [bytes(buffer) for buffer in read.buffers]

    epochs = itertools.count()

    def run() -> int:
        windows = recipe.draw(0, next(epochs), ids, read.sizes).support_box.tolist()
        for data, window in zip(images, windows, strict=True):
            _native.cut(data, tuple(window), -1)
        return len(images)

    return run


def entropy(folder: str, libjpeg: bool = False) -> Callable[[], int]:
    """Runs only the entropy decoding of whole images, of the files that feeder's own decoder takes."""
    from feeder import _native

    def is_ours(path: str) -> bool:
        try:
            return _native.entropy_decode(_read(path)) > 0
        except _native.Unsupported:
            return False

    images = [_read(path) for path in _paths(folder) if is_ours(path)]

    def run() -> int:
        for data in images:
            _native.entropy_decode(data, libjpeg=libjpeg)
        return len(images)

    return run


RIVALS: dict[str, Callable[[str], Callable[[], int]]] = {
    "torch": torch_pillow,
    "torch-simd": torch_pillow,
    "dali": dali,
    "dali-validation": dali_validation,
    "feeder-seekable": _feeder,
    "feeder-packed": _feeder,
    "feeder-packed-uint8": lambda folder: _feeder(folder, output="uint8"),
    "feeder-packed-avx2": lambda folder: _feeder(folder, level="avx2"),
    "feeder-packed-portable": lambda folder: _feeder(folder, level="portable"),
    "feeder-keep": _feeder,
    "feeder-raw": _feeder,
    "feeder-validation": lambda folder: _feeder(folder, True),
    "feeder-uint8": lambda folder: _feeder(folder, output="uint8"),
    "feeder-avx2": lambda folder: _feeder(folder, level="avx2"),
    "feeder-portable": lambda folder: _feeder(folder, level="portable"),
    "tensorflow": tensorflow,
    "turboloader": turboloader,
    "entropy-seekable": entropy,
    "entropy-seekable-libjpeg": lambda folder: entropy(folder, True),
    "entropy-keep": entropy,
    "entropy-keep-libjpeg": lambda folder: entropy(folder, True),
    "libjpeg": libjpeg,
    "transcode": transcode,
    "pack": pack,
    "cut-packed": cut_packed,
}


def stages(folder: str, crop_px: int | None = None) -> dict[str, float]:
    """Returns microseconds per image of each stage of the native decode; with one crop size for all if given."""
    from feeder import _native
    from feeder.decoders.image_header import image_info

    recipe = _recipe(False)
    scale, bias = recipe.affine
    out = np.empty((BATCH, 3, SIZE, SIZE), np.float32)
    totals: dict[str, float] = {}
    files = [_read(path) for path in _paths(folder)]
    sizes = np.array([(info.height_px, info.width_px) for info in map(image_info, files)])
    order = np.random.default_rng(0).permutation(len(files))
    images = 0
    for start in range(0, len(files), BATCH):
        batch = order[start : start + BATCH]
        buffers, draws = [files[row] for row in batch], recipe.draw(0, 0, batch, sizes[batch])
        rows = np.arange(len(buffers))
        support = draws.support_box.copy()
        if crop_px is not None:
            rows = np.flatnonzero((draws.image_size >= crop_px).all(axis=1))
            support[:, :2] = (draws.image_size[:, ::-1] - crop_px) // 2
            support[:, 2:] = support[:, :2] + crop_px
        n = len(rows)
        chosen = [buffers[row] for row in rows]
        least: dict[str, float] = {}
        for _ in range(STAGE_PASSES):
            times: dict[str, int] = {}
            _native.decode_batch(
                chosen,
                support[rows].astype(np.float64),
                support[rows],
                draws.flip[rows],
                np.ones(n, np.uint8),
                out[:n],
                layout="nchw",
                dtype="float32",
                scale=scale,
                bias=bias,
                times=times,
            )
            least = {name: min(value, least.get(name, math.inf)) for name, value in times.items()}
        images += n
        for name, nanoseconds in least.items():
            totals[name] = totals.get(name, 0.0) + nanoseconds
    return {name.removesuffix("_ns"): total / images / 1000 for name, total in totals.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=sorted(RIVALS))
    parser.add_argument("folder")
    parser.add_argument("--pillow-simd", metavar="DIR")
    args = parser.parse_args()
    if args.pillow_simd:
        sys.path.insert(0, args.pillow_simd)
        import PIL

        if "post" not in PIL.__version__:
            raise SystemExit(f"{args.pillow_simd} holds Pillow {PIL.__version__}, not pillow-simd")
    run = RIVALS[args.name](args.folder)
    run()
    print("ready", flush=True)
    for line in sys.stdin:
        if line.startswith("stages "):
            folder = line.removeprefix("stages ").rstrip("\n")
            print(json.dumps({"all": stages(folder), "crop of 320x320": stages(folder, 320)}), flush=True)
            continue
        images, started, cpu_started = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - started < float(line):
            images += run()
        used = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu_started}
        print(json.dumps({"images": images, **used}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
