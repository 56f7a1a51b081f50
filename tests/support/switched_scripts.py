"""Runs bench/switch_scripts as they are and with their edits: ``... with_torchvision switched_scripts.py FOLDER``.

FOLDER/results.json has, for each script and variant, the counts of labels and the loader's path.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch

import feeder
from bench.switch_rival import AS_IT_IS, EDITS, SHARDS, load
from bench.switch_scripts.training import parse, train
from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from tests.support.images import encode, pixels

SCRIPTS = tuple(script for script in EDITS if script != "timm_train")  # timm is no package of the tests
_CLASSES = 4
_SAMPLES = 16


def main(folder: Path) -> None:
    files, shards = folder / "files", folder / "shards"
    for number in range(_SAMPLES):
        path = files / f"class{number % _CLASSES}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(pixels(number, 90, 70)))
    shard(str(files), str(shards), ShardOptions(encode=EncodeOptions("seekable")))

    results: dict[str, Any] = {}
    for script in SCRIPTS:
        for variant in (AS_IT_IS, *EDITS[script]):
            data = shards if variant == SHARDS else files
            args = parse(None, [str(data), "--size", "56", "--batch-size", "4", "--workers", "0"])
            loader = load(script, variant, folder).make_loader(args)
            seen = train(args, loader)
            results[f"{script}, {variant}"] = {
                "labels": sorted(seen.items()),
                "path": getattr(loader, "path", None),
            }
    os.chdir(folder)
    for sign, code in json.loads((folder / "code.json").read_text()).items():
        results[sign] = train_by(sign, code)
    (folder / "results.json").write_text(json.dumps(results))


def train_by(sign: str, code: str) -> str:
    """Runs a block of the page on switching, trains an epoch with its loader, and returns the loader's path."""
    from torchvision.datasets import CocoDetection, ImageFolder, wrap_dataset_for_transforms_v2
    from torchvision.transforms import v2

    images = [{"id": i, "file_name": f"class0/{4 * i}.jpg", "height": 70, "width": 90} for i in range(4)]
    boxes = [{"id": i, "image_id": i, "category_id": 0, "bbox": [1, 2, 30, 20]} for i in range(4)]
    listed = {"images": images, "annotations": boxes, "categories": [{"id": 0, "name": "0"}]}
    Path("instances.json").write_text(json.dumps(listed))
    to_float = v2.Compose([v2.ToImage(), v2.Resize((24, 24)), v2.ToDtype(torch.float32, scale=True)])
    names: dict[str, Any] = {
        **{"feeder": feeder, "T": feeder.transforms, "torch": torch, "transform": to_float, "transforms": to_float},
        **{
            "CocoDetection": CocoDetection,
            "ImageFolder": ImageFolder,
            "collate": lambda batch: [*zip(*batch, strict=True)],
        },
        "wrap_dataset_for_transforms_v2": wrap_dataset_for_transforms_v2,
    }
    code = code.replace('"val2017", "instances_val2017.json"', '"files", "instances.json"').replace(
        '"train"', '"files"'
    )
    try:
        _RUNS[sign](code, names)
    except ModuleNotFoundError as error:
        return f"no {error.name}"
    path: str = names["loader"].path
    return path


def _detection(code: str, names: dict[str, Any]) -> None:
    exec(code, names)
    ((images, targets),) = names["loader"]
    assert [image.shape for image in images] == 4 * [(3, 24, 24)]
    assert all(target["boxes"].shape == (1, 4) and target["boxes"][0, 2] < 24 for target in targets)


def _readme(code: str, names: dict[str, Any]) -> None:
    exec(code, names)
    names["loader"] = names["train_loader"]
    assert sum(len(labels) for _, labels in names["loader"]) == _SAMPLES


def _parts(code: str, names: dict[str, Any]) -> None:
    from torchvision.transforms import v2

    crop = v2.Compose([v2.ToImage(), v2.CenterCrop(16), v2.ToDtype(torch.float32, scale=True)])
    names["crop"] = crop
    exec(code, names)
    loaders = [feeder.DataLoader(names[part], 4) for part in ("train", "valid")]
    shapes = [{images.shape[1:] for images, _ in loader} for loader in loaders]
    assert shapes == [{(3, 24, 24)}, {(3, 16, 16)}]
    names["loader"] = loaders[0]


def _ultralytics(code: str, names: dict[str, Any]) -> None:
    """Their classes have this shape: samples of path and label, transforms that the dataset makes."""

    class ClassificationDataset:
        def __init__(self, root: str, args: Any, augment: bool, prefix: str, names: Any) -> None:
            files = sorted(Path(root).rglob("*.jpg"))
            self.samples = [[str(path), number % _CLASSES, None, None] for number, path in enumerate(files)]
            self.torch_transforms = args

        def __len__(self) -> int:
            return len(self.samples)

    class ClassificationTrainer:
        args = names["transform"]
        data: ClassVar[Any] = {"names": {}}

    names |= {"ClassificationDataset": ClassificationDataset, "ClassificationTrainer": ClassificationTrainer}
    exec(code, names)
    dataset = names["Trainer"]().build_dataset("files")
    batches = list(torch.utils.data.DataLoader(dataset, 4))
    assert {(batch["img"].shape, batch["img"].dtype) for batch in batches} == {((4, 3, 24, 24), torch.float32)}
    assert torch.cat([batch["cls"] for batch in batches]).tolist() == [k % _CLASSES for k in range(_SAMPLES)]
    names["loader"] = feeder.DataLoader(dataset, 4)


def _lightning(code: str, names: dict[str, Any]) -> None:
    import pytorch_lightning

    names["pytorch_lightning"] = pytorch_lightning
    exec(code, names)
    seen: list[int] = []

    class Module(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3 * 24 * 24, _CLASSES)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            seen.extend(batch[1].tolist())
            return torch.nn.functional.cross_entropy(self.layer(batch[0].flatten(1)), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    options: dict[str, Any] = {"accelerator": "cpu", "max_epochs": 1, "enable_checkpointing": False, **quiet}
    trainer = pytorch_lightning.Trainer(**options)
    trainer.fit(Module(), names["Images"]())
    assert sorted(seen) == sorted(i % _CLASSES for i in range(_SAMPLES))
    names["loader"] = trainer.train_dataloader


def _accelerate(code: str, names: dict[str, Any]) -> None:
    import accelerate

    model = torch.nn.Linear(3 * 24 * 24, _CLASSES)
    names |= {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1)}
    names["accelerator"] = accelerate.Accelerator(cpu=True)
    exec(code, names)
    for images, labels in names["loader"]:
        loss = torch.nn.functional.cross_entropy(names["model"](images.flatten(1)), labels)
        names["accelerator"].backward(loss)
        names["optimizer"].step()


def _transformers(code: str, names: dict[str, Any]) -> None:
    import datasets
    import transformers

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3 * 24 * 24, _CLASSES)

        def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> Any:
            return {"loss": torch.nn.functional.cross_entropy(self.layer(pixel_values.flatten(1)), labels)}

    rows = {"image": sorted(map(str, Path("files").rglob("*.jpg"))), "label": [i % 4 for i in range(_SAMPLES)]}
    names["dataset"] = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
    names["transformers"] = transformers
    exec(code, names)
    arguments = transformers.TrainingArguments(
        "run", num_train_epochs=1, use_cpu=True, save_strategy="no", report_to=[]
    )
    trainer = names["ImageTrainer"](Model(), arguments, train_dataset=names["train"])
    assert trainer.train().global_step == _SAMPLES // 4
    names["loader"] = trainer.get_train_dataloader()


_RUNS: dict[str, Callable[[str, dict[str, Any]], None]] = {
    "wrap_dataset_for": _detection,
    "from_torch(train_loader)": _readme,
    "ClassificationTrainer": _ultralytics,
    "random_split": _parts,
    "LightningDataModule": _lightning,
    "accelerator": _accelerate,
    "transformers": _transformers,
}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
