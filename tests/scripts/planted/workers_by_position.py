"""Loaders whose workers are given by position, or counted from the cores that are given."""

import os

import torch
from torch.utils.data import DataLoader
from my_data import Photos

cores = len(os.sched_getaffinity(0))
dataset = Photos("train")
model = torch.nn.Linear(10, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
many = DataLoader(dataset, 64, True, None, None, os.cpu_count() * 4, pin_memory=True)  # expect: too-many-workers
more = DataLoader(dataset, 64, num_workers=len(os.sched_getaffinity(0)) * 4, pin_memory=True)  # expect: too-many-workers
most = DataLoader(dataset, 64, num_workers=3 * cores, pin_memory=True)  # expect: too-many-workers
right = DataLoader(dataset, 64, num_workers=len(os.sched_getaffinity(0)), pin_memory=True)

for epoch in range(90):
    for images, labels in DataLoader(dataset, 64, True, num_workers=8, pin_memory=True):  # expect: loader-in-epoch
        loss = model(images.cuda(non_blocking=True)).sum()
        loss.backward()
        optimizer.step()

for epoch in range(90):
    loader = DataLoader(dataset, 64, True, None, None, 8, None, True)  # expect: loader-in-epoch
    for step, (images, labels) in enumerate(loader):
        loss = model(images.cuda(non_blocking=True)).sum()
        loss.backward()
        optimizer.step()
