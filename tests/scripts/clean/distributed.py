import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
train_set, val_set = make_datasets()
train_sampler = DistributedSampler(train_set, shuffle=True)
val_sampler = DistributedSampler(val_set, shuffle=False)
train_loader = DataLoader(train_set, 64, sampler=train_sampler, num_workers=6, pin_memory=True)
val_loader = DataLoader(val_set, 64, sampler=val_sampler, num_workers=6, pin_memory=True)
model = DDP(Net().cuda(local_rank), device_ids=[local_rank])
opt = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(30):
    train_sampler.set_epoch(epoch)
    for step, (x, y) in enumerate(train_loader):
        x, y = x.cuda(local_rank, non_blocking=True), y.cuda(local_rank, non_blocking=True)
        opt.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        if step % 20 == 0 and dist.get_rank() == 0:
            print(loss.item())
    with torch.inference_mode():
        for x, y in val_loader:
            out = model(x.cuda())
            print(out.argmax(1).cpu().numpy())
