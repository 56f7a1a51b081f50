# Transfer learning on cats and dogs. My GPU utilization is only 20 %, what am I doing wrong?
import os

import pytorch_lightning as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
from PIL import Image
from torch.utils.data import DataLoader, Dataset, random_split
from torchvision import transforms
from torchvision.datasets import ImageFolder

BATCH_SIZE = 64
NUM_WORKERS = os.cpu_count() * 2


class TestImages(Dataset):
    def __init__(self, root, transform=None):
        self.root = root
        self.files = sorted(os.listdir(root))
        self.transform = transform

    def __len__(self):
        return len(self.files)

    def __getitem__(self, idx):
        img = Image.open(os.path.join(self.root, self.files[idx])).convert("RGB")
        if self.transform:
            img = self.transform(img)
        img = img.cuda()  # expect: device-in-dataset
        return img, self.files[idx]


class CatsDogsData(pl.LightningDataModule):
    def __init__(self, data_dir="./data", batch_size=BATCH_SIZE):
        super().__init__()
        self.data_dir = data_dir
        self.batch_size = batch_size
        self.train_tf = transforms.Compose([
            transforms.Resize((512, 512)),  # expect: resized-twice
            transforms.RandomHorizontalFlip(),
            transforms.RandomResizedCrop(224),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ])
        self.test_tf = transforms.Compose([
            transforms.Resize(1024),  # expect: resized-twice
            transforms.ToTensor(),
            transforms.Resize((224, 224), antialias=True),
        ])

    def setup(self, stage=None):
        full = ImageFolder(os.path.join(self.data_dir, "train"), transform=self.train_tf)
        n = int(0.9 * len(full))
        self.train_set, self.val_set = random_split(full, [n, len(full) - n])
        self.test_set = TestImages(os.path.join(self.data_dir, "test"), self.test_tf)

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=self.batch_size, shuffle=True)  # expect: num-workers, python-images

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=self.batch_size, num_workers=0)  # expect: num-workers, python-images

    def test_dataloader(self):
        return DataLoader(self.test_set, batch_size=1, num_workers=NUM_WORKERS)  # expect: too-many-workers


class Classifier(pl.LightningModule):
    def __init__(self, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.backbone = torchvision.models.resnet50(weights="DEFAULT")
        self.backbone.fc = nn.Linear(2048, 2)
        self.epoch_losses = []

    def forward(self, x):
        return self.backbone(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        self.log("train_loss", loss)
        self.epoch_losses.append(loss)  # expect: kept-graph
        return loss

    def on_train_epoch_end(self):
        print("mean loss", torch.stack(self.epoch_losses).mean())
        self.epoch_losses = []

    def validation_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("val_loss", loss, prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


if __name__ == "__main__":
    dm = CatsDogsData()
    model = Classifier()
    trainer = pl.Trainer(accelerator="gpu", devices=1, max_epochs=10)
    trainer.fit(model, datamodule=dm)

    # make the submission
    model.cuda()
    model.eval()
    preds = []
    for x, names in dm.test_dataloader():
        out = model(x)  # expect: no-grad
        preds.append((names, out.softmax(1)))
    torch.save(preds, "preds.pt")
