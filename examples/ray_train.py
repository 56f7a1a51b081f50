"""Trains with Ray Train: each worker has a loader of feeder's, which gives it its part of every batch.

    pip install 'feeder-data[ray]' 'ray[train]'
    python examples/ray_train.py DIR --out runs [--num-workers 2] [--address HOST:PORT] [--service feeder]

DIR and the folder of --out must be at the same place on all nodes. When a worker or its node dies, Ray starts the
workers anew from the last checkpoint, and the loader goes on with exactly the batch that followed it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
from torch import distributed

from feeder import DataLoader, ShardDataset, transforms


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dir", help="a folder that `feeder shard` wrote")
    parser.add_argument("--out", required=True, type=Path, help="folder for checkpoints")
    parser.add_argument("--name", default="ray-train", help="of the run, in that folder")
    parser.add_argument("--address", help="of the Ray cluster; without one Ray looks for it, or starts one here")
    parser.add_argument("--num-workers", type=int, default=2, help="processes that train")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="of the whole job")
    parser.add_argument("--loader-workers", type=int, default=2, help="of each process")
    parser.add_argument("--service", help="name of an input service, which `feeder serve` starts")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--checkpoint-every", type=int, default=100, help="steps")
    return parser.parse_args()


def train(args: dict[str, Any]) -> None:
    """Trains in one worker."""
    recipe = transforms.Compose(
        [
            transforms.RandomResizedCrop(args["size"]),
            transforms.RandomHorizontalFlip(),
            transforms.ToDtype(torch.float32, scale=True),
            transforms.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        ]
    )
    dataset, device = ShardDataset(args["dir"], transform=recipe), ray.train.torch.get_device()
    loader: DataLoader[Any] = DataLoader(  # rank and world size are those of torch.distributed, which Ray has begun
        dataset,
        args["batch_size"] // distributed.get_world_size(),
        shuffle=True,
        drop_last=True,
        num_workers=args["loader_workers"],
        persistent_workers=args["loader_workers"] > 0,
        seed=0,
        device=device if device.type == "cuda" else None,
        service=args["service"],
    )
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 7, stride=4),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(32, len(dataset.class_to_idx or {})),  # Ray takes .classes for torch.classes, and can't send it
    )
    model = ray.train.torch.prepare_model(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step, epoch, total = 0, 0, torch.zeros(2, device=device)  # of losses, and of batches
    stateful: dict[str, Any] = {"model": net, "optimizer": optimizer, "loader": loader}

    def report() -> None:
        """Reports the mean loss of the epoch as far as it has come, with a checkpoint that all workers write."""
        sums, rank = total.clone(), distributed.get_rank()
        distributed.all_reduce(sums)
        metrics = {"epoch": epoch, "step": step, "loss": float(sums[0] / sums[1])}
        with tempfile.TemporaryDirectory() as folder:
            if rank == 0:
                state = {name: each.state_dict() for name, each in stateful.items()}
                torch.save(state | {"epoch": epoch, "step": step}, f"{folder}/state.pt")
            torch.save(total, f"{folder}/total-{rank}.pt")
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))

    last = ray.train.get_checkpoint()
    if last is not None:
        with last.as_directory() as folder:
            state = torch.load(f"{folder}/state.pt", map_location=device, weights_only=True)
            total = torch.load(f"{folder}/total-{distributed.get_rank()}.pt", map_location=device, weights_only=True)
        for name, each in stateful.items():
            each.load_state_dict(state[name])
        step, epoch = state["step"], state["epoch"]
    while epoch < args["epochs"]:
        if loader.state_dict()["consumed"] == 0:
            total.zero_()
        for images, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            total += torch.stack([loss.detach(), torch.ones_like(loss)])
            step += 1
            if step % args["checkpoint_every"] == 0:
                report()
        epoch += 1
        report()
    loader.close()


def main() -> None:
    args = arguments()
    if args.batch_size % args.num_workers:
        raise SystemExit(f"--batch-size {args.batch_size} does not divide into {args.num_workers} equal parts")
    ray.init(address=args.address, log_to_driver=False)
    if args.service is not None and "@" not in args.service and not args.service.startswith("file:"):
        args.service += f"@{ray.get_runtime_context().gcs_address}"
    use_gpu = ray.cluster_resources().get("GPU", 0) >= args.num_workers
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config=vars(args) | {"dir": os.path.abspath(args.dir) if "://" not in args.dir else args.dir},
        scaling_config=ray.train.ScalingConfig(num_workers=args.num_workers, use_gpu=use_gpu),
        torch_config=ray.train.torch.TorchConfig(backend="nccl" if use_gpu else "gloo"),
        run_config=ray.train.RunConfig(
            name=args.name,
            storage_path=str(args.out.absolute()),
            failure_config=ray.train.FailureConfig(max_failures=10),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
        ),
    )
    result = trainer.fit()
    metrics = result.metrics or {}
    print(f"epochs {metrics['epoch']}, steps {metrics['step']}, loss {metrics['loss']:.6f}")
    print(f"checkpoint {result.checkpoint.path}" if result.checkpoint else "no checkpoint")


if __name__ == "__main__":
    main()
