"""SimCLR from scratch on CIFAR-10, two views per image. Takes 9 min per epoch on an A100, is that normal?"""
import math
import os
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import ImageFilter
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms

os.environ["CUDA_VISIBLE_DEVICES"] = "0"
temperature = 0.5
n_cpu = os.cpu_count()


class GaussianBlur:
    def __init__(self, sigma=(0.1, 2.0)):
        self.sigma = sigma

    def __call__(self, x):
        return x.filter(ImageFilter.GaussianBlur(radius=random.uniform(*self.sigma)))


class TwoViews:
    def __init__(self, base):
        self.base = base

    def __call__(self, x):
        return self.base(x), self.base(x)


augment = transforms.Compose([
    transforms.Resize(256),  # expect: resized-twice
    transforms.RandomResizedCrop(32, scale=(0.2, 1.0)),
    transforms.RandomHorizontalFlip(),
    transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
    transforms.RandomGrayscale(p=0.2),
    transforms.RandomApply([GaussianBlur()], p=0.5),
    transforms.ToTensor(),
])
train_data = datasets.CIFAR10("data", train=True, transform=TwoViews(augment), download=True)
memory_data = datasets.CIFAR10("data", train=True, transform=transforms.ToTensor())
train_loader = DataLoader(train_data, batch_size=512, shuffle=True, drop_last=True, num_workers=n_cpu * 4)  # expect: too-many-workers, pin-memory, python-images
memory_loader = DataLoader(memory_data, batch_size=512)  # expect: num-workers, pin-memory, python-images


class SimCLR(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.f = models.resnet18(num_classes=512)
        self.g = nn.Sequential(nn.ReLU(), nn.Linear(512, dim))

    def forward(self, x):
        h = self.f(x)
        return h, F.normalize(self.g(h), dim=-1)


def nt_xent(z1, z2):
    z = torch.cat([z1, z2])
    sim = z @ z.t() / temperature
    sim.fill_diagonal_(-math.inf)
    n = len(z1)
    target = torch.cat([torch.arange(n, 2 * n), torch.arange(n)]).cuda()
    return F.cross_entropy(sim, target)


def train(net, optimizer, epoch):
    net.train()
    total_loss, total_num = 0.0, 0
    for (pos_1, pos_2), _ in train_loader:
        pos_1, pos_2 = pos_1.cuda(), pos_2.cuda()  # expect: blocking-copy, blocking-copy
        _, out_1 = net(pos_1)
        _, out_2 = net(pos_2)
        loss = nt_xent(out_1, out_2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total_num += len(pos_1)
        total_loss += loss * len(pos_1)  # expect: kept-graph
    return total_loss / total_num


def knn_features(net):
    net.eval()
    features, labels = [], []
    for x, y in memory_loader:
        feature, out = net(x.cuda())  # expect: no-grad
        features.append(F.normalize(feature, dim=1))
        labels.append(y)
    return torch.cat(features), torch.cat(labels)


if __name__ == "__main__":
    model = SimCLR().cuda()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-6)
    for epoch in range(1, 201):
        print(epoch, train(model, opt, epoch))
        if epoch % 25 == 0:
            bank, bank_labels = knn_features(model)
            torch.save((bank, bank_labels), f"bank_{epoch}.pt")
