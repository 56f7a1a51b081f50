import numpy as np
import torch
from torch.utils import data


class Arrays(data.Dataset):
    def __init__(self, path):
        self.x = np.load(path)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return torch.from_numpy(self.x[index]), int(index)


loader = data.DataLoader(Arrays("x.npy"), batch_size=8)
for x, _ in loader:
    print(x.mean().item())
