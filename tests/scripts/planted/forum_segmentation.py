import os
import torch
import torch.nn as nn
from torch.utils.data import Dataset, DataLoader
import torchvision.transforms.v2 as v2

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WORKERS = 4 * os.cpu_count()


class Roads(Dataset):
    def __init__(self, files, device):
        self.files, self.device = files, device
        steps = [
            v2.ToImage(),
            v2.Resize(1024),  # expect: resized-twice
            v2.RandomHorizontalFlip(),
            v2.Resize((256, 256)),
            v2.ToDtype(torch.float32, scale=True),
        ]
        self.transform = v2.Compose(steps)

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        image, mask = read_pair(self.files[index])
        image, mask = self.transform(image, mask)
        return image.to(self.device), mask.cuda()  # expect: device-in-dataset, device-in-dataset


class Trainer:
    def __init__(self, model, files):
        self.model = model.to(DEVICE)
        self.files = files
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.criterion = nn.BCEWithLogitsLoss()
        self.history = []
        self.val_loader = DataLoader(Roads(files[:100], DEVICE), batch_size=8)  # expect: num-workers, pin-memory

    def fit(self, epochs):
        for epoch in range(epochs):
            self.model.train()
            running = 0.0
            train_loader = DataLoader(  # expect: loader-in-epoch, pin-memory
                Roads(self.files, DEVICE),
                batch_size=8,
                shuffle=True,
                num_workers=WORKERS,  # expect: too-many-workers
            )
            for images, masks in train_loader:
                self.optimizer.zero_grad()
                out = self.model(images.to(DEVICE))  # expect: blocking-copy
                loss = self.criterion(out, masks)
                loss.backward()
                self.optimizer.step()
                running += loss  # expect: kept-graph
            self.history.append(running)
            self.validate()

    def validate(self):
        self.model.eval()
        total = 0.0
        for images, masks in self.val_loader:
            total += self.criterion(self.model(images), masks).item()  # expect: no-grad
        return total / len(self.val_loader)
