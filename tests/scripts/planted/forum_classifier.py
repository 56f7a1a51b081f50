import multiprocessing
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

device = torch.device("cuda")
transform = transforms.Compose(
    [
        transforms.Resize((1024, 1024)),  # expect: resized-twice
        transforms.Resize(224),
        transforms.CenterCrop(224),
        transforms.ToTensor(),
    ]
)


class Pets(Dataset):
    def __init__(self, names):
        self.names = names

    def __len__(self):
        return len(self.names)

    def __getitem__(self, at):
        image, label = open_pet(self.names[at])
        return transform(image).to(device), torch.tensor(label).cuda()  # expect: device-in-dataset, device-in-dataset


def evaluate(model, loader):
    model.eval()
    right = 0
    for images, labels in loader:
        right += (model(images).argmax(1) == labels).sum().item()  # expect: no-grad
    return right


model = nn.Linear(10, 10).to(device)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
losses, total = [], 0
workers = 2 * multiprocessing.cpu_count()
for epoch in range(30):
    loader = DataLoader(  # expect: loader-in-epoch
        Pets(names()),
        batch_size=32,
        shuffle=True,
        pin_memory=True,
        num_workers=os.cpu_count() * 4,  # expect: too-many-workers
    )
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)  # expect: kept-graph
        total += loss  # expect: kept-graph
    held = DataLoader(Pets(others()), 32, pin_memory=True, num_workers=workers)  # expect: loader-in-epoch, too-many-workers
    evaluate(model, held)
