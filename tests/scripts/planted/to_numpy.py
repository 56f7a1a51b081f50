import numpy as np
import torch
from torch.utils.data import DataLoader

model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
predictions, history = [], []
for x, y in DataLoader(photos(), num_workers=4, pin_memory=True):
    target = y.numpy()
    x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
    with torch.autocast("cuda"):
        out = model(x)
        loss = (out - y).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    predictions.append(out.detach().cpu().numpy())  # expect: sync-cpu
    history.extend(out.max(1).values.tolist())  # expect: sync-cpu
    last = loss.detach().to("cpu")  # expect: sync-cpu
    print(np.mean(target), last.item())
