"""Trains a small classifier with Hugging Face Accelerate. Only the data loading is feeder's.

python examples/accelerate_loop.py DIR [--epochs 3] [--size 224] [--checkpoint FILE]
accelerate launch --num_processes 2 examples/accelerate_loop.py DIR
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch.distributed.nn  # before the process group is made, which its default arguments would keep alive
from accelerate import Accelerator
from accelerate.utils import set_seed

from feeder import DataLoader, ShardDataset, transforms


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dir", help="a folder that `feeder shard` wrote")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--checkpoint", help="file saved after every step, and resumed from if it exists")
    parser.add_argument("--max-steps", type=int, default=0, help="stop after this many steps")
    return parser.parse_args()


def train(accelerator: Accelerator, args: argparse.Namespace) -> None:
    recipe = transforms.Compose(
        [
            transforms.RandomResizedCrop(args.size),
            transforms.RandomHorizontalFlip(),
            transforms.ToDtype(torch.float32, scale=True),
            transforms.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        ]
    )
    set_seed(0)
    dataset = ShardDataset(args.dir, transform=recipe)
    # Not passed to prepare(), which would replace it by torch's loader: feeder splits by rank and feeds the device.
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        seed=0,
        device=accelerator.device,
    )
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 7, stride=4),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(32, len(dataset.classes or [])),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)

    epoch = step = 0
    if args.checkpoint and os.path.exists(args.checkpoint):
        saved = torch.load(args.checkpoint, map_location="cpu", weights_only=True)
        accelerator.unwrap_model(model).load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        epoch, step = saved["epoch"], saved["step"]
    loss = torch.full((), float("nan"), device=accelerator.device)
    while epoch < args.epochs:
        loader.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            if args.checkpoint:
                state = {"model": accelerator.unwrap_model(model).state_dict(), "optimizer": optimizer.state_dict()}
                state |= {"loader": loader.state_dict(), "epoch": epoch, "step": step}
                if accelerator.is_main_process:  # the file appears whole or not at all, even if this is killed
                    torch.save(state, f"{args.checkpoint}.unfinished")
                    os.replace(f"{args.checkpoint}.unfinished", args.checkpoint)
            if step == args.max_steps:
                return
        epoch += 1
    total = accelerator.reduce(loss.detach(), "mean")
    accelerator.print(f"epochs {epoch}, steps {step}, loss {total:.6f}")


def main() -> None:
    args = arguments()
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    train(accelerator, args)
    # The model first, as it holds the process group, whose threads must end before the interpreter does.
    accelerator.free_memory()
    accelerator.end_training()


if __name__ == "__main__":
    main()
