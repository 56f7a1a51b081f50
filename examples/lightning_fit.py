"""Trains a small classifier with PyTorch Lightning. Only the data loading is feeder's.

python examples/lightning_fit.py DIR [--epochs 3] [--devices 2] [--size 224] [--out RUN] [--resume CHECKPOINT]
"""

from __future__ import annotations

import argparse
from typing import Any

import pytorch_lightning as lightning
import torch

from feeder import DataLoader, ShardDataset, transforms


class Classifier(lightning.LightningModule):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Conv2d(3, 32, 7, stride=4),
            torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(32, classes),
        )

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.net(images), labels)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dir", help="a folder that `feeder shard` wrote")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--out", default="lightning-run", help="folder for checkpoints")
    parser.add_argument("--resume", help="a checkpoint to resume from")
    args = parser.parse_args()

    recipe = transforms.Compose(
        [
            transforms.RandomResizedCrop(args.size),
            transforms.RandomHorizontalFlip(),
            transforms.ToDtype(torch.float32, scale=True),
            transforms.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        ]
    )
    dataset = ShardDataset(args.dir, transform=recipe)
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=args.batch_size, shuffle=True, num_workers=args.workers, seed=0
    )
    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        devices=args.devices,
        strategy="ddp" if args.devices > 1 else "auto",
        use_distributed_sampler=False,  # feeder splits epochs by rank itself, and resumes on any number of devices
        default_root_dir=args.out,
        logger=False,
        enable_progress_bar=False,
    )
    model = Classifier(len(dataset.classes or []))
    trainer.fit(model, loader, ckpt_path=args.resume)
    if trainer.is_global_zero:
        print(f"epochs {trainer.current_epoch}, steps {trainer.global_step}, ", end="")
        print(f"loss {trainer.callback_metrics['loss']:.6f}")


if __name__ == "__main__":
    main()
