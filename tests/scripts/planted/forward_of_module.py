import torch
from torch import nn
from torch.utils.data import DataLoader


class Attention(nn.Module):
    def forward(self, x):
        mask = torch.ones(x.shape[1], x.shape[1]).to(x.device)  # expect: cpu-then-move
        longest = x.abs().max().item()  # expect: sync-item
        return x @ mask / longest


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def forward(self, x):
        return self.attention(x)


def fit(model, loader, optimizer):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x.cuda(non_blocking=True)).mean()
        loss.backward()
        optimizer.step()


m = Model().cuda()
fit(m, DataLoader(texts(), num_workers=2, pin_memory=True), torch.optim.SGD(m.parameters(), 0.1))
