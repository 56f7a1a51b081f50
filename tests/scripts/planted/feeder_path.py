"""Feeder datasets whose loaders run torch's path."""

import torch
from feeder import DataLoader, ShardDataset
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, Subset


class AsDict(Dataset):
    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, i):
        image, label = self.inner[i]
        return {"image": image, "label": label}


dataset = ShardDataset("shards")
first_half = Subset(dataset, range(100))
loader = DataLoader(AsDict(dataset), batch_size=32, num_workers=4)  # expect: feeder-path
of_part = DataLoader(AsDict(first_half), batch_size=32, num_workers=4)  # expect: feeder-path
single = DataLoader(dataset, batch_size=None, num_workers=4)  # expect: feeder-path
torchs = TorchLoader(first_half, batch_size=32, num_workers=4)  # expect: feeder-path
fast = DataLoader(first_half, batch_size=32, num_workers=4)
print(torch.__version__, loader, of_part, single, torchs, fast)
