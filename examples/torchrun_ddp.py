"""Plain DistributedDataParallel under torchrun. Only the data loading is feeder's.

torchrun --nproc-per-node 2 examples/torchrun_ddp.py DIR [--epochs 3] [--size 224]
"""

from __future__ import annotations

import argparse
import gc
import os
from typing import Any

import torch.distributed.nn  # before the process group is made, which its default arguments would keep alive
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from feeder import DataLoader, ShardDataset, transforms


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dir", help="a folder that `feeder shard` wrote")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="of each process")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--size", type=int, default=224)
    return parser.parse_args()


def train(args: argparse.Namespace, device: torch.device) -> None:
    recipe = transforms.Compose(
        [
            transforms.RandomResizedCrop(args.size),
            transforms.RandomHorizontalFlip(),
            transforms.ToDtype(torch.float32, scale=True),
            transforms.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        ]
    )
    torch.manual_seed(0)
    dataset = ShardDataset(args.dir, transform=recipe)
    # As with torch's loader. Without a sampler (shuffle=True, and loader.set_epoch below) feeder splits epochs by rank
    # itself, and a state_dict() of the loader resumes on any number of ranks.
    sampler: DistributedSampler[Any] = DistributedSampler(dataset)
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=args.batch_size,
        sampler=sampler,
        num_workers=args.workers,
        pin_memory=device.type == "cuda",
    )
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 7, stride=4),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(32, len(dataset.classes or [])),
    ).to(device)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2, device=device)
        for images, labels in loader:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(parallel(images), labels)
            loss.backward()
            optimizer.step()
            total[0] += loss.detach() * len(labels)
            total[1] += len(labels)
        distributed.all_reduce(total)
        if distributed.get_rank() == 0:
            print(f"epoch {epoch}: {int(total[1])} samples, loss {total[0] / total[1]:.6f}")


def main() -> None:
    args = arguments()
    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if has_gpu else "gloo")
    train(args, device)
    gc.collect()  # frees the model, which holds the group, whose threads must end before the interpreter does
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
