import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def main(rank, world_size):
    dataset, val_dataset = photos(), photos("val")
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank)  # expect: set-epoch
    val_sampler = DistributedSampler(val_dataset)
    loader = DataLoader(dataset, sampler=sampler, num_workers=4)
    val_loader = DataLoader(val_dataset, sampler=val_sampler, num_workers=4)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(10):
        train(model, loader, optimizer)


def train(model, loader, optimizer):
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
