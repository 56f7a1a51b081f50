"""Trains a small detector on boxes, with images of their own sizes, padded in batches.

feeder shard images --annotations instances.json --out shards
python examples/detection.py shards [--epochs 3] [--size 480] [--classes 80]
python examples/detection.py . --plain    # torch's DataLoader and torchvision on images/ and instances.json

docs/image-sizes.md shows torchvision's detectors on such batches, with their own resize and padding switched off.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

import feeder
from feeder import transforms as T

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STRIDE = 16  # pixels of an image for each cell of the detector


class Coco(torch.utils.data.Dataset):
    """The plain version's dataset: images and boxes of COCO's JSON."""

    def __init__(self, folder: Path, transform: Any) -> None:
        coco = json.loads((folder / "instances.json").read_text())
        self.folder, self.transform = folder / "images", transform
        numbers = {category["id"]: i for i, category in enumerate(sorted(coco["categories"], key=lambda c: c["id"]))}
        self.images = coco["images"]
        self.boxes: dict[int, list[list[float]]] = {image["id"]: [] for image in self.images}
        self.labels: dict[int, list[int]] = {image["id"]: [] for image in self.images}
        for annotation in coco["annotations"]:
            self.boxes[annotation["image_id"]].append(annotation["bbox"])
            self.labels[annotation["image_id"]].append(numbers[annotation["category_id"]])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        from torchvision import tv_tensors

        image = self.images[i]
        with Image.open(self.folder / image["file_name"]) as file:
            pixels = tv_tensors.Image(file.convert("RGB"))
        boxes = torch.tensor(self.boxes[image["id"]]).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        canvas = pixels.shape[-2:]
        target = {
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=canvas),
            "labels": torch.tensor(self.labels[image["id"]], dtype=torch.int64),
        }
        return self.transform(pixels, target)


def padded(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor, list[Any]]:
    """The plain version's collate function: images top left in a batch, their sizes, and targets."""
    sizes = torch.tensor([image.shape[1:] for image, _ in samples])
    height, width = ((sizes.amax(dim=0) + 31) // 32 * 32).tolist()
    images = torch.zeros(len(samples), 3, height, width)
    for row, (image, _) in enumerate(samples):
        images[row, :, : image.shape[1], : image.shape[2]] = image
    return images, sizes, [target for _, target in samples]


def plain_loader(args: argparse.Namespace) -> Any:
    from torchvision.transforms import v2

    transform = v2.Compose(
        [
            v2.RandomHorizontalFlip(),
            v2.RandomShortestSize([args.size * 3 // 4, args.size], max_size=args.size * 5 // 3),
            v2.SanitizeBoundingBoxes(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    dataset = Coco(Path(args.dir), transform)
    return torch.utils.data.DataLoader(
        dataset, args.batch_size, shuffle=True, num_workers=args.workers, collate_fn=padded
    )


def loader(args: argparse.Namespace) -> Any:
    transform = T.Compose(
        [
            T.RandomHorizontalFlip(),
            T.RandomShortestSize([args.size * 3 // 4, args.size], max_size=args.size * 5 // 3),
            T.SanitizeBoundingBoxes(),
            T.ToDtype(torch.float32, scale=True),
        ]
    )
    dataset = feeder.ShardDataset(args.dir, transform, labels=False, targets={"boxes.json": T.BoundingBoxes("xyxy")})
    pad = feeder.PadToBatch(multiple=32)
    return feeder.DataLoader(dataset, args.batch_size, shuffle=True, num_workers=args.workers, sizes=pad, device=DEVICE)


class Detector(nn.Module):
    """Scores each cell of a grid, as the background or the class of a box with its center there, and finds the box.

    In the way of Redmon et al., "You only look once", 2016.
    """

    def __init__(self, classes: int, width: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, width), (width, width), (width, width), (width, 2 * width)):
            layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        context = [nn.Conv2d(2 * width, 2 * width, 5, padding=2), nn.ReLU()]
        self.layers = nn.Sequential(*layers, *context, nn.Conv2d(2 * width, 1 + classes + 4, 1))

    def forward(self, images: torch.Tensor, sizes: torch.Tensor, targets: list[Any]) -> dict[str, torch.Tensor]:
        """Returns the losses of classes and boxes.

        Args:
            images: float32 [N, 3, H, W], 0-1, sides multiples of 16; the area below and right of an image is padding.
            sizes: int64 [N, 2], height and width of each image.
            targets: N dicts of "boxes", float32 [K, 4] as left, top, right, bottom, and "labels", int64 [K].
        """
        found = self.layers(images).permute(0, 2, 3, 1)  # [N, rows, columns, scores and box]
        expected = torch.zeros(found.shape[:3], dtype=torch.int64, device=found.device)  # 0: background
        for row, (height, width) in enumerate(sizes.tolist()):
            expected[row, -(-height // STRIDE) :] = -1
            expected[row, :, -(-width // STRIDE) :] = -1
        box_loss, count = found.sum() * 0, 0
        for row, target in enumerate(targets):
            boxes = target["boxes"].to(found.device)
            centers = (boxes[:, :2] + boxes[:, 2:]) / 2
            x, y = (centers / STRIDE).long().clamp_(min=0).unbind(1)
            expected[row, y, x] = 1 + target["labels"].to(found.device)
            sides = torch.cat([centers - boxes[:, :2], boxes[:, 2:] - centers], dim=1) / STRIDE
            box_loss = box_loss + (found[row, y, x, -4:] - sides).abs().sum()
            count += len(boxes)
        scores = found[..., :-4].flatten(0, 2)
        return {
            "classes": nn.functional.cross_entropy(scores, expected.flatten(), ignore_index=-1),
            "boxes": box_loss / max(1, 4 * count),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "dir", help="a folder that `feeder shard` wrote; with --plain that of images/ and instances.json"
    )
    parser.add_argument("--plain", action="store_true", help="load by torch and torchvision")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--size", type=int, default=480, help="largest length of an image's shorter side")
    parser.add_argument("--classes", type=int, default=80)
    args = parser.parse_args()

    torch.manual_seed(0)
    batches = (plain_loader if args.plain else loader)(args)
    model = Detector(args.classes).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        total, boxes = torch.zeros(2, device=DEVICE), 0
        for batch in batches:
            images, (sizes, targets) = batch[0].to(DEVICE), batch[-2:]
            losses = model(images, sizes, targets)
            optimizer.zero_grad()
            (losses["classes"] + losses["boxes"]).backward()
            optimizer.step()
            total += torch.stack(list(losses.values())).detach()
            boxes += sum(len(target["boxes"]) for target in targets)
        of_classes, of_boxes = (total / len(batches)).tolist()
        print(f"epoch {epoch}: {boxes} boxes, loss of classes {of_classes:.4f}, of boxes {of_boxes:.4f}")


if __name__ == "__main__":
    main()
