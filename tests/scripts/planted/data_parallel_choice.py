import torch
from torch.nn.parallel import DataParallel as DP
from torch.nn.parallel import DistributedDataParallel


def wrap(model, args):
    if args.distributed:
        return DistributedDataParallel(model, device_ids=[args.gpu])
    return DP(model)  # expect: data-parallel


def fit(loader, model, optimizer):
    for x in loader:
        with torch.autocast("cuda"):
            loss = model(x.cuda(non_blocking=True)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
