# DDP is slower than a single GPU :( 4x 3090, torch 2.4
import argparse
import multiprocessing
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
import torchvision
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import transforms


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--data", default="/data/flowers")
    p.add_argument("--epochs", type=int, default=50)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--workers", type=int, default=multiprocessing.cpu_count() * 4)
    p.add_argument("--world-size", type=int, default=4)
    return p.parse_args()


def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    torch.cuda.set_device(rank)


class NpyFolder(torch.utils.data.Dataset):
    def __init__(self, root, rank, transform):
        self.paths = [os.path.join(root, f) for f in sorted(os.listdir(root))]
        self.rank = rank
        self.transform = transform

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        x = np.load(self.paths[i])
        x = torch.from_numpy(x).permute(2, 0, 1)
        x = self.transform(x)
        y = int(os.path.basename(self.paths[i]).split("_")[0])
        return x.to(self.rank), y  # expect: device-in-dataset


def main(rank, args):
    setup(rank, args.world_size)
    tf = transforms.Compose(
        [
            transforms.Resize(800, antialias=True),  # expect: resized-twice
            transforms.CenterCrop(700),
            transforms.Resize(size=(224, 224), antialias=True),
            transforms.ConvertImageDtype(torch.float32),
        ]
    )
    train_ds = NpyFolder(args.data + "/train", rank, tf)
    val_ds = NpyFolder(args.data + "/val", rank, tf)
    model = torchvision.models.resnet50(num_classes=102).to(rank)
    ddp_model = DDP(model, device_ids=[rank])
    opt = torch.optim.SGD(ddp_model.parameters(), lr=0.1 * args.world_size, momentum=0.9)

    train_sampler = DistributedSampler(train_ds, num_replicas=args.world_size, rank=rank, shuffle=True)  # expect: set-epoch
    train_loader = DataLoader(  # expect: pin-memory
        train_ds,
        batch_size=args.batch_size,
        sampler=train_sampler,
        num_workers=args.workers,  # expect: too-many-workers
    )
    val_loader = DataLoader(val_ds, batch_size=args.batch_size)  # expect: num-workers, pin-memory

    all_losses = []
    for epoch in range(args.epochs):
        ddp_model.train()
        epoch_loss = 0.0
        for i, data in enumerate(train_loader):
            inputs, labels = data
            labels = labels.to(rank)  # expect: blocking-copy
            opt.zero_grad()
            outputs = ddp_model(inputs)
            loss = F.cross_entropy(outputs, labels)
            loss.backward()
            opt.step()
            epoch_loss = epoch_loss + loss  # expect: kept-graph
            if rank == 0 and i % 10 == 0:
                print(f"[{epoch}, {i}] {loss.item():.3f}")
        all_losses.append(epoch_loss)
        if rank == 0:
            evaluate(ddp_model.module, val_loader, rank)
    dist.destroy_process_group()


def evaluate(net, loader, rank):
    net.eval()
    correct, total = 0, 0
    for data in loader:
        images, labels = data[0], data[1].to(rank)
        outputs = net(images)  # expect: no-grad
        _, predicted = torch.max(outputs.data, 1)
        total += labels.size(0)
        correct += (predicted == labels).sum().item()
    print(f"Accuracy: {100 * correct / total:.2f} %")


if __name__ == "__main__":
    args = parse_args()
    mp.spawn(main, args=(args,), nprocs=args.world_size, join=True)
