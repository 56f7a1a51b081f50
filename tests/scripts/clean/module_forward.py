import torch
from torch import nn
from torch.utils.data import DataLoader


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        batch, width = x.shape
        mask = torch.ones(batch, width, device=x.device, dtype=x.dtype)
        positions = torch.arange(x.size(1), device=x.device)
        return self.layer(x * mask + positions) if int(x.shape[0]) else x


def run(loader, model, optimizer):
    for x in loader:
        x = x.cuda(non_blocking=True)
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x).sum()
        loss.backward()
        optimizer.step()


net = Net().cuda()
run(DataLoader(rows(), num_workers=3, pin_memory=True), net, torch.optim.SGD(net.parameters(), 1e-3))
