# As the usual SimCLR and MoCo in one file.
import argparse
import math
import os
from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image
from torch.amp import GradScaler, autocast
from torch.utils.data import DataLoader, Dataset
from torchvision import models, transforms
from tqdm import tqdm


class PairFolder(Dataset):
    def __init__(self, root, transform):
        self.files = [os.path.join(root, name) for name in sorted(os.listdir(root))]
        self.transform = transform

    def __getitem__(self, index):
        img = Image.open(self.files[index]).convert("RGB")
        if self.transform is not None:
            im_1 = self.transform(img)
            im_2 = self.transform(img)
        return im_1, im_2

    def __len__(self):
        return len(self.files)


train_transform = transforms.Compose([
    transforms.RandomResizedCrop(96, scale=(0.2, 1.0)),
    transforms.RandomHorizontalFlip(p=0.5),
    transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
    transforms.RandomGrayscale(p=0.2),
    transforms.ToTensor(),
    transforms.Normalize([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]),
])
small_transform = transforms.Compose([transforms.RandomResizedCrop(48, scale=(0.05, 0.2)), transforms.ToTensor()])


class ModelMoCo(nn.Module):
    def __init__(self, dim=128, K=4096, m=0.99, T=0.1):
        super().__init__()
        self.K, self.m, self.T = K, m, T
        self.encoder_q = models.resnet18(num_classes=dim)
        self.encoder_k = models.resnet18(num_classes=dim)
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            param_k.data.copy_(param_q.data)
        self.register_buffer("queue", F.normalize(torch.randn(dim, K), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _momentum_update_key_encoder(self):
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            param_k.data = param_k.data * self.m + param_q.data * (1.0 - self.m)

    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys):
        ptr = int(self.queue_ptr)
        self.queue[:, ptr : ptr + keys.shape[0]] = keys.t()
        self.queue_ptr[0] = (ptr + keys.shape[0]) % self.K

    def contrastive_loss(self, im_q, im_k):
        q = F.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            k = F.normalize(self.encoder_k(im_k), dim=1)
        l_pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        l_neg = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
        logits = torch.cat([l_pos, l_neg], dim=1) / self.T
        labels = torch.zeros(logits.shape[0], dtype=torch.long).cuda()
        return F.cross_entropy(logits, labels), k

    def forward(self, im1, im2):
        self._momentum_update_key_encoder()
        loss_12, k2 = self.contrastive_loss(im1, im2)
        loss_21, k1 = self.contrastive_loss(im2, im1)
        loss = loss_12 + loss_21
        self._dequeue_and_enqueue(torch.cat([k1, k2], dim=0))
        return loss


def train(net, data_loader, train_optimizer, epoch, args):
    net.train()
    total_loss, total_num, train_bar = 0.0, 0, tqdm(data_loader)
    scaler = GradScaler("cuda")
    for im_1, im_2 in train_bar:
        im_1, im_2 = im_1.cuda(non_blocking=True), im_2.cuda(non_blocking=True)
        with autocast("cuda"):
            loss = net(im_1, im_2)
            loss = loss / args.accum
        train_optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(train_optimizer)
        scaler.update()
        total_num += data_loader.batch_size
        total_loss += loss.item() * data_loader.batch_size
        train_bar.set_description("Epoch: [{}/{}] Loss: {:.4f}".format(epoch, args.epochs, total_loss / total_num))
    return total_loss / total_num


def features(net, memory_data_loader):
    net.eval()
    feature_bank = []
    with torch.no_grad():
        for data, _ in tqdm(memory_data_loader, desc="Feature extracting"):
            feature = net(data.cuda(non_blocking=True))
            feature_bank.append(F.normalize(feature, dim=1))
    return torch.cat(feature_bank, dim=0).t().contiguous()


def adjust_learning_rate(optimizer, epoch, args):
    lr = args.lr * 0.5 * (1.0 + math.cos(math.pi * epoch / args.epochs))
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr


def get_loader(data, args, shuffle):
    workers = min(os.cpu_count(), args.batch_size if args.batch_size > 1 else 0, 8)
    return DataLoader(data, args.batch_size, shuffle=shuffle, num_workers=workers, pin_memory=True, drop_last=shuffle)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train MoCo")
    parser.add_argument("--lr", default=0.06, type=float)
    parser.add_argument("--epochs", default=200, type=int)
    parser.add_argument("--accum", default=1, type=int)
    parser.add_argument("--batch-size", default=512, type=int)
    args = parser.parse_args()
    train_loader = get_loader(PairFolder("stl/train", train_transform), args, True)
    memory_loader = get_loader(PairFolder("stl/train", small_transform), args, False)
    model = ModelMoCo().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, weight_decay=5e-4, momentum=0.9)
    results = {"train_loss": [], "bank": []}
    for epoch in range(1, args.epochs + 1):
        adjust_learning_rate(optimizer, epoch, args)
        results["train_loss"].append(train(model, train_loader, optimizer, epoch, args))
        results["bank"].append(features(model.encoder_q, memory_loader).mean().item())
