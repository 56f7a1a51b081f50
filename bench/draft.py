"""The gain of fidelity="draft" on large photos, and its error: random crops to 224, flip, normalize, on one core.

Photos of 2000x1500 are made of the given ones: cropped to 4:3, enlarged (Lanczos), with grain, which an enlarged photo
lacks, and saved as JPEG of quality 90, 4:2:0. Held equal: photos, crops, output, one thread. Each encoding (original
bytes, seekable, packed) decodes with "fast" and "draft" in turn. The error is the difference from Pillow in levels of
0-255, of both, by the crop's ratio to its output, as in ``feeder parity``; it does not depend on the machine.

    python -m bench.draft --images IMAGES [--count 40] [--crops 4] [--width 2000] [--height 1500] [--repeats 9]
        [--json OUT]

images_per_cpu_s   crops an encoding and a fidelity decode in a second of CPU time
gain               of draft over fast, in the same turn
"""

from __future__ import annotations

import functools
import hashlib
import io
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bench.smoke import arguments
from feeder import _native
from feeder.decoders.cpu_decoder import CpuDecoder
from feeder.decoders.decoder import View
from feeder.decoders.packed import add_codebooks, codebook_id
from feeder.decoders.pillow.pillow_decoder import PillowDecoder
from feeder.tools.bench.result_file import interleave, save, spread
from feeder.tools.parity.differences import Differences, crop_ratio
from feeder.tools.terminal import table
from feeder.transforms import Normalize, RandomHorizontalFlip, RandomResizedCrop, Recipe

SIZE = 224
GRAIN = 4.0  # standard deviation, levels
BASE = (RandomResizedCrop(SIZE), RandomHorizontalFlip())
RECIPE = Recipe.of([*BASE, Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])


def photos(folder: Path, count: int, size: tuple[int, int]) -> list[bytes]:
    """Makes JPEGs of a size (width, height) of a folder's first images."""
    found = []
    for number, path in enumerate(sorted(folder.rglob("*.[jJ][pP]*[gG]"))[:count]):
        image = Image.open(path).convert("RGB")
        scale = min(image.width / size[0], image.height / size[1])
        box = (0, 0, int(scale * size[0]), int(scale * size[1]))
        large = np.asarray(image.resize(size, Image.Resampling.LANCZOS, box), np.float32)
        grain = np.random.default_rng(number).normal(0, GRAIN, (size[1], size[0], 1))
        buffer = io.BytesIO()
        Image.fromarray((large + grain).round().clip(0, 255).astype(np.uint8)).save(
            buffer, "jpeg", quality=90, subsampling="4:2:0"
        )
        found.append(buffer.getvalue())
    if not found:
        raise SystemExit(f"{folder}: no .jpg or .jpeg file in it")
    return found


class Contestant:
    """An encoding of the photos, decoded with a fidelity."""

    def __init__(self, files: list[bytes], draws: list[Any], fidelity: str) -> None:
        self._files, self._draws = files, draws
        self._decoder = CpuDecoder(fidelity=fidelity)
        self._out = np.empty((len(files), 3, SIZE, SIZE), np.float32)
        self._ones = np.ones(len(files), np.uint8)

    def images_per_cpu_s(self) -> float:
        started = time.process_time()
        for drawn in self._draws:
            if any(self._decoder.decode(self._files, self._ones, [View(RECIPE, drawn, self._out)]).errors):
                raise SystemExit("an image can't be decoded")
        return len(self._files) * len(self._draws) / (time.process_time() - started)


def errors(files: list[bytes], size: tuple[int, int], crops: int, fidelity: str) -> list[dict[str, Any]]:
    """Returns the differences from Pillow by bucket; of the last one the upper end is None."""
    recipe, found = Recipe.of(BASE), Differences()
    decoders = CpuDecoder(fidelity=fidelity), PillowDecoder()
    for i, data in enumerate(files):
        for crop in range(crops):
            drawn = recipe.draw(0, crop, np.array([i]), np.array([size[::-1]]))
            outputs = [np.zeros((1, 3, SIZE, SIZE), np.uint8) for _ in decoders]
            for decoder, out in zip(decoders, outputs, strict=True):
                if any(decoder.decode([data], np.ones(1, np.uint8), [View(recipe, drawn, out)]).errors):
                    raise SystemExit(f"{decoder.name} can't decode an image")
            found.add(outputs[1][0], outputs[0][0], crop_ratio(drawn.source_box[0], drawn.base_size[0]))
    return [
        {
            "low": figures.low,
            "high": None if math.isinf(figures.high) else figures.high,
            "images": figures.images,
            "mean": figures.mean,
            "percentile_999": figures.percentile_999,
            "max": figures.max,
            "bias": figures.bias,
        }
        for figures in found.figures()
    ]


def main() -> int:
    args = arguments(
        __doc__,
        "draft",
        smoke={"count": 2, "crops": 1, "width": 640, "height": 480, "repeats": 1},
        images=None,
        count=40,
        crops=4,
        width=2000,
        height=1500,
        repeats=9,
    )
    size = args.width, args.height
    kept = photos(Path(args.images), args.count, size)
    codebook = _native.train_codebook(kept)
    add_codebooks([codebook])
    encodings = {
        "keep": kept,
        "seekable": [_native.transcode(data, keep_metadata=True) for data in kept],
        "packed": [_native.pack(data, codebook_id(codebook), hashlib.sha256(data).digest()) for data in kept],
    }
    ids, sizes = np.arange(len(kept)), np.array([size[::-1]] * len(kept))
    draws = [RECIPE.draw(0, epoch, ids, sizes) for epoch in range(args.crops)]
    ratios = [crop_ratio(drawn.source_box[i], drawn.base_size[i]) for drawn in draws for i in range(len(kept))]
    contestants = {
        f"{name}-{fidelity}": Contestant(files, draws, fidelity)
        for name, files in encodings.items()
        for fidelity in ("fast", "draft")
    }
    for contestant in contestants.values():
        contestant.images_per_cpu_s()
    found = interleave(
        {name: functools.partial(each.images_per_cpu_s) for name, each in contestants.items()}, args.repeats
    )
    gains = {
        name: spread([a / b for a, b in zip(found[f"{name}-draft"], found[f"{name}-fast"], strict=True)])
        for name in encodings
    }
    levels = {fidelity: errors(kept, size, args.crops, fidelity) for fidelity in ("fast", "draft")}
    rates = {name: spread(values) for name, values in found.items()}
    rows = [["encoding", "fast, crops/CPU-s", "draft", "times"]]
    for name in encodings:
        rows.append([name, *(f"{rates[f'{name}-{fidelity}']['median']:.0f}" for fidelity in ("fast", "draft"))])
        rows[-1].append(f"{gains[name]['median']:.2f}")
    print(table(rows))
    shown = [["crop / output", "crops", "fast: mean, 99.9 %", "draft: mean, 99.9 %"]]
    for fast, draft in zip(levels["fast"], levels["draft"], strict=True):
        upper = "" if fast["high"] is None else f"{fast['high']:g}"
        shown.append([f"{fast['low']:g}-{upper}", str(fast["images"])])
        shown[-1] += [f"{each['mean']:.2f}, {each['percentile_999']:g}" for each in (fast, draft)]
    print(table(shown))
    result = {
        "images_per_cpu_s": rates,
        "gain": gains,
        "levels_from_pillow": levels,
        "share_of_crops_at_least": {str(ratio): float(np.mean(np.array(ratios) >= ratio)) for ratio in (2, 4)},
    }
    print(f"written: {save('draft', result, args.json)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
