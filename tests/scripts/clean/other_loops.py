import json

import numpy as np
import torch
from torch.utils.data import DataLoader

for name in ("a", "b"):
    weights = torch.load(name + ".pt")
    print(weights["x"].sum().item())
    torch.save(weights, name + "-again.pt")
    torch.cuda.empty_cache()
for row in np.arange(10):
    print(row.item())
for i in range(3):
    for x in DataLoader(pictures(), batch_size=2, num_workers=1):
        print(x.cuda().mean().item(), json.dumps(x.tolist()))


def backward(tensor):
    return tensor.flip(0)


for t in torch.eye(3):
    print(backward(t).cpu().numpy())
