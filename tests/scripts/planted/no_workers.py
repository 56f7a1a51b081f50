import torch
from torch.utils.data import DataLoader as Loader
from torchvision.datasets import ImageFolder

loader = Loader(ImageFolder("train"), batch_size=64, shuffle=True)  # expect: num-workers, python-images
other = Loader(ImageFolder("val"), 64, False, None, None, 0)  # expect: num-workers, python-images
WORKERS = 0
third = Loader(ImageFolder("val"), num_workers=WORKERS)  # expect: num-workers, python-images
fourth = torch.utils.data.DataLoader(ImageFolder("x"), num_workers=2)  # expect: python-images
for x, y in loader:
    print(x.shape)
