"""The process of one contestant of bench/switch.py: the loader of a script, as it is or with its edit.

    python -m bench.switch_rival SCRIPT VARIANT WORKERS DATA IMAGE_SIZE BATCH_SIZE

It answers as bench/recipe_rivals.py does.
"""

from __future__ import annotations

import difflib
import importlib.util
import itertools
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from bench.recipe_rivals import serve
from bench.switch_scripts.training import parse
from bench.task_feeds.setting import finds_torchvision

__all__ = [
    "AS_IT_IS",
    "DALI",
    "EDITS",
    "FOLDER",
    "NEEDS_WORKERS",
    "RIVALS",
    "SHARDS",
    "changed_lines",
    "load",
    "main",
    "source",
]

SCRIPTS = Path(__file__).parent / "switch_scripts"
AS_IT_IS, FOLDER, SHARDS = "as it is", "feeder, the same files", "feeder, shards"
DALI = "DALI, the same files"
_WARM_BATCHES = 3
_IMPORT = ("import torch\n", "import feeder\nimport torch\n")


def _converted(loader: str) -> tuple[str, str]:
    """Returns the edit that converts a loader before it is returned."""
    end = f"    return {loader}\n"
    return end, f"    {loader} = feeder.from_torch({loader})\n{end}"


_COMPOSE = """    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(args.size),
            transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(0.4, 0.4, 0.4),
            transforms.ToTensor(),
            transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )
"""
_PROXY = """import numpy as np
import torch
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.pytorch.experimental import proxy


@pipeline_def
def pipeline(size):
    data = fn.external_source(name="images", no_copy=True)
    images = fn.decoders.image_random_crop(data, random_area=[0.08, 1.0])
    images = fn.resize(images, size=[size, size], interp_type=types.INTERP_LINEAR, antialias=True)
    brightness, contrast, saturation = (fn.random.uniform(range=[0.6, 1.4]) for _ in range(3))
    images = fn.color_twist(images, brightness=brightness, contrast=contrast, saturation=saturation)
    return fn.crop_mirror_normalize(
        images,
        mirror=fn.random.coin_flip(),
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
    )
"""

# By script and variant, what a person replaces by what.
EDITS: dict[str, dict[str, tuple[tuple[str, str], ...]]] = {
    script: {
        FOLDER: (_IMPORT, _converted(loader)),
        SHARDS: (
            _IMPORT,
            (f"{module}.ImageFolder(", "feeder.ShardDataset("),
            _converted(loader),
        ),
    }
    for script, module, loader in (
        ("imagenet", "datasets", "train_loader"),
        ("torchvision_reference", "torchvision.datasets", "data_loader"),
        ("mae", "datasets", "data_loader_train"),
    )
}
EDITS["dino"] = {
    FOLDER: (
        _IMPORT,
        (
            "    return data_loader\n",
            "    views = [transform.global_transfo1, transform.global_transfo2]"
            " + [transform.local_transfo] * transform.local_crops_number\n"
            "    data_loader = feeder.from_torch(data_loader, transform=feeder.transforms.Views(views))\n"
            "    return data_loader\n",
        ),
    ),
}
EDITS["own_dataset"] = {
    FOLDER: (
        _IMPORT,
        (
            'self.transform(Image.open(self.paths[i]).convert("RGB"))',
            "feeder.Encoded(self.paths[i], transform=self.transform)",
        ),
    ),
}
EDITS["timm_train"] = {FOLDER: (_IMPORT, _converted("loader"))}

# What DALI has for the same purpose: its torchvision module, and its proxy for datasets of one's own.
RIVALS: dict[str, dict[str, tuple[tuple[str, str], ...]]] = {
    "imagenet": {
        DALI: (
            (
                "from torchvision import datasets, transforms\n",
                "from nvidia.dali.experimental import torchvision as transforms\nfrom torchvision import datasets\n",
            ),
            (
                "mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]",
                "mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375]",
            ),
            ("transforms.ToTensor()", "transforms.PILToTensor()"),
        ),
    },
    "own_dataset": {
        DALI: (
            ("import torch\nfrom PIL import Image\nfrom torchvision import transforms\n", _PROXY),
            (
                'self.transform(Image.open(self.paths[i]).convert("RGB"))',
                "self.transform(np.fromfile(self.paths[i], np.uint8))",
            ),
            (
                _COMPOSE,
                "    images = pipeline(args.size, batch_size=args.batch_size, num_threads=1, device_id=None)\n"
                "    server = proxy.DALIServer(images)\n"
                "    server.start_thread()\n",
            ),
            ("Photos(args.data, transform)", "Photos(args.data, server.proxy)"),
            ("torch.utils.data.DataLoader(dataset", "proxy.DataLoader(server, dataset"),
        ),
    },
}
NEEDS_WORKERS = {("own_dataset", DALI)}


def source(script: str, variant: str) -> str:
    """Returns the text of a script with a variant's edit.

    Raises:
        ValueError: if a line that the edit replaces does not stand in the script once.
    """
    text = (SCRIPTS / f"{script}.py").read_text()
    for old, new in (EDITS[script] | RIVALS.get(script, {})).get(variant, ()):
        if text.count(old) != 1:
            raise ValueError(f"{script}.py has {old!r} {text.count(old)} times")
        text = text.replace(old, new)
    return text


def changed_lines(script: str, variant: str) -> int:
    """Returns how many lines a person writes for the edit."""
    before, after = (source(script, each).splitlines() for each in (AS_IT_IS, variant))
    return sum(line.startswith("+ ") for line in difflib.ndiff(before, after))


def load(script: str, variant: str, folder: Path) -> ModuleType:
    """Writes a script with its edit to a folder, and imports it from there, as its workers can."""
    name = f"{script}_{''.join(filter(str.isalnum, variant))}"
    path = folder / f"{name}.py"
    path.write_text(source(script, variant))
    sys.path.append(str(folder))
    return importlib.import_module(name)


def _without_cuda() -> None:
    """Has DALI do without what it takes of a torch with CUDA, also where all is on the CPU: marks and a stream."""
    import nvidia.dali.types

    if not torch.cuda.is_available():
        nothing: Any = SimpleNamespace(rangePushA=len, rangePop=int, markA=len)
        torch.cuda.nvtx._nvtx = nothing
        nvidia.dali.types._get_default_stream_for_array = lambda _: None


def main() -> int:
    script, variant, workers, data, made, image_size, batch_size = sys.argv[1:]
    finds_torchvision()
    if variant == DALI:
        _without_cuda()
    torch.set_num_threads(1)
    given = [data, "--size", image_size, "--batch-size", batch_size, "--workers", workers]
    loader = load(script, variant, Path(made)).make_loader(parse(None, given))
    batches = (batch for _ in itertools.count() for batch in loader)
    for _ in range(_WARM_BATCHES):
        count(next(batches))
    print("ready " + json.dumps({}), flush=True)
    serve(batches, count)
    return 0


def count(batch: Any) -> int:
    """Returns the number of images of a batch; views count as one."""
    labels = batch["label"] if isinstance(batch, dict) else batch[1]
    return len(labels)


if __name__ == "__main__":
    sys.exit(main())
