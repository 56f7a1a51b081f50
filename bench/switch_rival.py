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
from types import ModuleType
from typing import Any

import torch

from bench.recipe_rivals import serve
from bench.switch_scripts.training import parse
from bench.task_feeds.setting import finds_torchvision

__all__ = ["AS_IT_IS", "EDITS", "FOLDER", "SHARDS", "changed_lines", "load", "main", "source"]

SCRIPTS = Path(__file__).parent / "switch_scripts"
AS_IT_IS, FOLDER, SHARDS = "as it is", "feeder, the same files", "feeder, shards"
_WARM_BATCHES = 3
_IMPORT = ("import torch\n", "import feeder\nimport torch\n")


def _converted(loader: str) -> tuple[str, str]:
    """Returns the edit that converts a loader before it is returned."""
    end = f"    return {loader}\n"
    return end, f"    {loader} = feeder.from_torch({loader})\n{end}"


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
        ("torch.utils.data.DataLoader(", "feeder.DataLoader("),
    ),
}
EDITS["timm_train"] = {FOLDER: (_IMPORT, _converted("loader"))}


def source(script: str, variant: str) -> str:
    """Returns the text of a script with a variant's edit.

    Raises:
        ValueError: if a line that the edit replaces does not stand in the script once.
    """
    text = (SCRIPTS / f"{script}.py").read_text()
    for old, new in EDITS[script].get(variant, ()) if variant != AS_IT_IS else ():
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


def main() -> int:
    script, variant, workers, data, made, image_size, batch_size = sys.argv[1:]
    finds_torchvision()
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
