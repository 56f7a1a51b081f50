import os

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms

device = torch.device("cuda")
transform = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor()])
smaller = transforms.Compose([transforms.Resize(224), transforms.ToTensor(), transforms.Resize(448)])


def run(model, loader, optimizer=None):
    model.train(optimizer is not None)
    outputs = []
    with torch.set_grad_enabled(optimizer is not None):
        for images, labels in loader:
            outputs.append(model(images.to(device, non_blocking=True)).detach())
    return outputs


def score(model, loader):
    model.eval()
    return [model(images.to(device)).argmax(1) for images, _ in loader]


def predict(model, loader):
    model.eval()
    with torch.inference_mode():
        for images, _ in loader:
            yield model(images.to(device))


for fold in range(5):
    loaders = {}
    for split in ("train", "val"):
        loaders[split] = DataLoader(photos(fold, split), 64, pin_memory=True, num_workers=min(8, os.cpu_count()))
    loader = DataLoader(photos(fold, "all"), 64, pin_memory=True, num_workers=os.cpu_count() // 2)
    model = nn.Linear(10, 10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(3):
        losses, total = [], 0.0
        for images, labels in loader:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            parts = nn.functional.cross_entropy(model(images), labels), model(images).square().mean()
            loss = parts[0]
            loss += parts[1]
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            total += loss.item()
    model.eval()
    with torch.no_grad():
        result = score(model, loaders["val"])
        for images, labels in loaders["val"]:
            model(images.to(device))
