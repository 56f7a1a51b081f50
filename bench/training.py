"""Training on feeder's pixels beside torchvision's: test accuracies of a small ResNet, with the same seeds.

The data are the photos of the scikit-image wheel that are free of rights. Each is cut into tiles of 64x64, saved as
JPEG, and a tile's class is its photo, as in the protocols of texture classification. Every fourth tile is for the test.
Held equal: tiles, recipe, model, first weights of a seed, schedule, steps, batches. Each contestant trains and tests on
its own pixels, with its own order of samples and its own draws. Contestants take turns, seed by seed, in one thread.
The results do not depend on the machine's load.

torch              its DataLoader, Pillow and torchvision's v2 transforms
files ... packed   feeder's DataLoader on the files as they are, on seekable and on packed shards

    pip install --no-deps --target PACKAGES scikit-image==0.26.0
    python -m bench.training --photos PACKAGES/skimage/data [--seeds 3] [--steps 400] [--batch-size 32] [--json OUT]

accuracy           share of the test's tiles that are classed right, by seed, with mean and standard deviation
above_torch        difference of the means to torch's
limit              the largest difference that is within seed noise: 2.5 standard deviations between seeds, pooled over
                   all contestants. (Of three seeds: Student's t at 5 %, shared among four comparisons. Packed shards
                   have the pixels, order and draws of seekable ones, so their runs are the same.)
"""

from __future__ import annotations

import functools
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn
from torch.nn import functional

import feeder
from bench.smoke import arguments
from bench.task_feeds.setting import finds_torchvision
from feeder import transforms
from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.tools.bench.result_file import interleave, save, spread
from feeder.tools.terminal import table

__all__ = ["main", "markdown", "summary"]

PHOTOS = (  # in the public domain or CC0, or without known restrictions, as skimage.data says of each
    *("astronaut", "brick", "camera", "cell", "chelsea", "clock_motion", "coffee", "coins"),
    *("grass", "gravel", "hubble_deep_field", "ihc", "retina", "rocket"),
)
TILE, SIZE = 64, 32
MOST = 100  # tiles of a photo
TORCH = "torch"
ENCODINGS = {"files": None, "seekable": "seekable", "packed": "packed"}
DEVIATIONS = 2.5
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]


def cut(photos: list[Path], out: Path) -> dict[str, int]:
    """Writes each photo's tiles to out/train/NAME and out/test/NAME, and returns the numbers of tiles of both."""
    counts = {"train": 0, "test": 0}
    for path in photos:
        with Image.open(path) as file:
            image = file.copy()
        corners = [
            (x, y) for y in range(0, image.height - TILE + 1, TILE) for x in range(0, image.width - TILE + 1, TILE)
        ]
        random.Random(0).shuffle(corners)
        for number, (x, y) in enumerate(corners[:MOST]):
            part = "test" if number % 4 == 0 else "train"
            folder = out / part / path.stem
            folder.mkdir(parents=True, exist_ok=True)
            tile = image.crop((x, y, x + TILE, y + TILE))
            tile.save(folder / f"{number:03d}.jpg", quality=90, subsampling="4:2:0")
            counts[part] += 1
    return counts


def recipe(T: Any, is_training: bool) -> Any:
    """Returns the recipe, of feeder.transforms or torchvision.transforms.v2."""
    first = [T.Resize((SIZE, SIZE))]
    last: list[Any] = []
    if is_training:
        first = [T.RandomResizedCrop(SIZE, scale=(0.25, 1.0)), T.RandomHorizontalFlip()]
        first += [T.ColorJitter(0.4, 0.4, 0.4), T.RandAugment(2, 9)]
        last = [T.RandomErasing(0.25)]
    return T.Compose([*first, T.ToImage(), T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD), *last])


class Tiles(torch.utils.data.Dataset):
    """The tiles of a folder with a folder for each class, read with Pillow."""

    def __init__(self, folder: Path, transform: Callable[[Any], Any]) -> None:
        classes = sorted(folder.iterdir())
        self._files = [(path, label) for label, each in enumerate(classes) for path in sorted(each.iterdir())]
        self._transform = transform

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, i: int) -> Any:
        path, label = self._files[i]
        with Image.open(path) as file:
            return self._transform(file.convert("RGB")), label


def torch_batches(made: Path, is_training: bool, seed: int, batch_size: int) -> Batches:
    from torchvision.transforms import v2

    random.seed(seed)
    torch.manual_seed(seed)
    tiles = Tiles(made / ("train" if is_training else "test"), recipe(v2, is_training))
    return torch.utils.data.DataLoader(tiles, batch_size, shuffle=is_training, drop_last=is_training)


def feeder_batches(
    made: Path, is_training: bool, seed: int, batch_size: int, *, encode: str | None, fidelity: str
) -> Batches:
    folder = made / ("train" if is_training else "test")
    transform = recipe(transforms, is_training)
    dataset: Any
    if encode is None:
        dataset = feeder.FolderDataset(str(folder), transform)
    else:
        shards = made / f"{folder.name}-{encode}"
        if not shards.exists():
            shard(str(folder), str(shards), ShardOptions(encode=EncodeOptions(encode)))
        dataset = feeder.ShardDataset(str(shards), transform)
    options: Any = {"shuffle": is_training, "drop_last": is_training, "seed": seed, "fidelity": fidelity}
    return feeder.DataLoader(dataset, batch_size, **options)


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut, of half the size."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self._body = nn.Sequential(
            nn.Conv2d(channels, out, 3, 2, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self._shortcut = nn.Conv2d(channels, out, 1, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self._body(x) + self._shortcut(x))


def resnet(classes: int) -> nn.Module:
    """Returns a ResNet of six layers."""
    stem = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    blocks = [Block(32, 64), Block(64, 128)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))


def endless(batches: Batches) -> Any:
    while True:
        yield from batches


def trained(batches: Callable[..., Batches], made: Path, seed: int, steps: int, batch_size: int) -> float:
    """Returns the test accuracy, 0-1, after some steps of SGD with a one-cycle schedule."""
    began = time.perf_counter()
    torch.manual_seed(seed)
    model = resnet(len(list((made / "train").iterdir())))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, 0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, steps)
    for images, labels in islice(endless(batches(made, True, seed, batch_size)), steps):
        loss = functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()

    model.eval()
    right = total = 0
    with torch.no_grad():
        for images, labels in batches(made, False, seed, batch_size):
            right += int((model(images).argmax(1) == labels).sum())
            total += len(labels)
    print(f"  seed {seed}: {time.perf_counter() - began:.0f} s", flush=True)
    return right / total


def summary(accuracies: dict[str, list[float]]) -> dict[str, Any]:
    """Returns means and deviations of accuracies by seed, and which are within seed noise of torch's."""
    means = {name: statistics.mean(values) for name, values in accuracies.items()}
    pooled = math.sqrt(statistics.mean(map(statistics.variance, accuracies.values())))
    limit = DEVIATIONS * pooled
    above = {name: mean - means[TORCH] for name, mean in means.items() if name != TORCH}
    return {
        "accuracy": {
            name: {**spread(values), "mean": means[name], "deviation": statistics.stdev(values)}
            for name, values in accuracies.items()
        },
        "pooled_deviation": pooled,
        "limit": limit,
        "above_torch": above,
        "beyond_seed_noise": [name for name, difference in above.items() if abs(difference) > limit],
    }


def markdown(result: dict[str, Any]) -> str:
    """Returns the passage of docs/transforms.md, in per cent."""
    lines = ["| pixels of | accuracy by seed, % | mean | difference from torch |", "|---|---|---:|---:|"]
    for name, found in result["accuracy"].items():
        label = "torch and torchvision" if name == TORCH else f"feeder, {name}"
        seeds = ", ".join(f"{100 * value:.1f}" for value in found["all"])
        difference = "" if name == TORCH else f"{100 * result['above_torch'][name]:+.1f}"
        lines.append(f"| {label} | {seeds} | {100 * found['mean']:.1f} | {difference} |")
    limit = f"{100 * result['limit']:.1f} are within seed noise, {DEVIATIONS} pooled deviations of a seed"
    return "\n".join([*lines, "", f"Differences of up to {limit}."])


def main() -> int:
    smoke: dict[str, Any] = {"photos": "", "seeds": 2, "steps": 2, "batch_size": 8}
    options = arguments(__doc__, "training", smoke, photos=None, seeds=3, steps=400, batch_size=32)
    if not finds_torchvision():
        if not options.smoke:
            raise SystemExit("expected torchvision: make env")
        save("training", {"skipped": "torchvision is not installed"}, options.json)
        return 0
    if options.smoke:
        photos = sorted((Path(options.smoke) / "images").rglob("*.jpg"))[:2]
    else:
        found = {path.stem: path for path in Path(options.photos).iterdir()}
        photos = [found[name] for name in PHOTOS]

    torch.set_num_threads(1)
    batches: dict[str, Callable[..., Batches]] = {TORCH: torch_batches}
    for name, encode in ENCODINGS.items():
        for fidelity in ("fast", "exact"):
            batches[f"{name}, {fidelity}"] = functools.partial(feeder_batches, encode=encode, fidelity=fidelity)
    with tempfile.TemporaryDirectory(prefix="feeder-training-") as made:
        tiles = cut(photos, Path(made))
        seeds = {name: iter(range(options.seeds)) for name in batches}

        def run(name: str) -> float:
            return trained(batches[name], Path(made), next(seeds[name]), options.steps, options.batch_size)

        accuracies = interleave({name: functools.partial(run, name) for name in batches}, options.seeds)
    result = {"tiles": tiles, "classes": len(photos), **summary(accuracies)}
    rows = [["contestant", "mean, %", "deviation", "above torch"]]
    for name, each in result["accuracy"].items():
        figures = each["mean"], each["deviation"], result["above_torch"].get(name, 0.0)
        rows.append([name, *(f"{100 * value:.2f}" for value in figures)])
    print(table(rows))
    print(f"within seed noise up to {100 * result['limit']:.2f}; beyond it: {result['beyond_seed_noise'] or 'none'}")
    print(f"written to {save('training', result, options.json)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
