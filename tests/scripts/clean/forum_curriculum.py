import torch
from torch import nn
from torch.utils.data import DataLoader, Subset
from torchvision import transforms as T

device = torch.device("cuda")
sizes = T.RandomChoice([T.Resize(256), T.Resize(192), T.Resize(128)])
pyramid = nn.ModuleList([T.Resize(224), T.Resize(112)])
model, outer = nn.Linear(4, 4).to(device), torch.zeros((), device=device)


class Batch:
    def __init__(self, fields):
        self.fields = fields

    def __getitem__(self, name):
        return self.fields[name].to(device)


def score(model, loader):
    model.eval()
    return [model(images.to(device)).argmax(1) for images, _ in loader]


@torch.no_grad()
def report(model, loader):
    total = 0
    for images, labels in loader:
        model.eval()
        total += (model(images.to(device)).argmax(1).cpu() == labels).sum()
    return total, score(model, loader)


for epoch in range(9):
    size, order = 128 + 8 * epoch, easy_first(epoch)
    loader = DataLoader(photos(size), 64, pin_memory=True, num_workers=4)
    eased = DataLoader(Subset(photos(224), order), 64, pin_memory=True, num_workers=4)
    total, meters = 0.0, []
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        outer += loss
        with torch.no_grad():
            total += loss
            meters.append(loss)
    outer.backward()

for train_at, val_at in folds():
    loader = DataLoader(Subset(photos(224), train_at), 64, pin_memory=True, num_workers=4)
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images.to(device, non_blocking=True)), labels)
        loss.backward()
        loss = loss.detach()
        outer += loss
