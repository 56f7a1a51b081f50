import logging

import torch
import wandb
from torch.utils.data import DataLoader
from torch.utils.tensorboard import SummaryWriter

writer = SummaryWriter()
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step, (x, y) in enumerate(DataLoader(photos(), num_workers=4, pin_memory=True)):
    with torch.autocast("cuda"):
        loss = (model(x.cuda(non_blocking=True)) - y.cuda(non_blocking=True)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss)  # expect: sync-print
    print(f"step {step}: {loss:.3f}")  # expect: sync-print
    writer.add_scalar("loss", loss, step)  # expect: sync-print
    logging.info("loss %s", loss)  # expect: sync-print
    wandb.log({"loss": loss})  # expect: sync-print
    print("step", step, x.shape)
