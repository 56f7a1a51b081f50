# As the CIFAR-10 tutorial of Lightning, on STL-10.
import os

import pandas as pd
import pytorch_lightning as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
from pytorch_lightning.callbacks import LearningRateMonitor, ModelCheckpoint
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric
from torchmetrics.functional import accuracy
from torchvision import transforms

pl.seed_everything(7)
PATH_DATASETS = os.environ.get("PATH_DATASETS", ".")
BATCH_SIZE = 256 if torch.cuda.is_available() else 64
NUM_WORKERS = int(os.cpu_count() / 2)

train_transforms = transforms.Compose([
    transforms.RandomCrop(96, padding=12),
    transforms.RandomHorizontalFlip(),
    transforms.ToTensor(),
])
test_transforms = transforms.Compose([transforms.Resize(112), transforms.CenterCrop(96), transforms.ToTensor()])


class Stl10(pl.LightningDataModule):
    def prepare_data(self):
        torchvision.datasets.STL10(PATH_DATASETS, download=True)

    def setup(self, stage=None):
        self.train_set = torchvision.datasets.STL10(PATH_DATASETS, split="train", transform=train_transforms)
        self.val_set = torchvision.datasets.STL10(PATH_DATASETS, split="test", transform=test_transforms)

    def train_dataloader(self):
        return DataLoader(
            self.train_set, batch_size=BATCH_SIZE, shuffle=True, num_workers=NUM_WORKERS, persistent_workers=True
        )

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=BATCH_SIZE, num_workers=NUM_WORKERS, persistent_workers=True)


class LitResnet(pl.LightningModule):
    def __init__(self, lr=0.05):
        super().__init__()
        self.save_hyperparameters()
        self.model = torchvision.models.resnet18(num_classes=10)
        self.model.maxpool = nn.Identity()
        self.mean_loss = MeanMetric()
        self.outputs = []

    def forward(self, x):
        return F.log_softmax(self.model(x), dim=1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.nll_loss(self(x), y)
        loss = loss + 1e-4 * self.model.fc.weight.abs().sum()
        loss += 1e-4 * self.model.fc.bias.square().sum() * loss
        self.log("train_loss", loss)
        self.mean_loss.update(loss.detach())
        self.outputs.append(loss.detach())
        return loss

    def on_train_epoch_end(self):
        self.log("epoch_loss", torch.stack(self.outputs).mean())
        self.outputs.clear()

    def evaluate(self, batch, stage=None):
        x, y = batch
        logits = self(x)
        loss = F.nll_loss(logits, y)
        self.log(f"{stage}_loss", loss, prog_bar=True)
        self.log(f"{stage}_acc", accuracy(logits.argmax(1), y, "multiclass", num_classes=10), prog_bar=True)

    def validation_step(self, batch, batch_idx):
        self.evaluate(batch, "val")

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9, weight_decay=5e-4)
        scheduler = OneCycleLR(optimizer, 0.1, epochs=self.trainer.max_epochs, steps_per_epoch=5000 // BATCH_SIZE)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


data, model = Stl10(), LitResnet()
trainer = pl.Trainer(
    max_epochs=30,
    accelerator="auto",
    devices=1,
    logger=pl.loggers.CSVLogger(save_dir="logs/"),
    callbacks=[LearningRateMonitor(logging_interval="step"), ModelCheckpoint(monitor="val_acc")],
)
trainer.fit(model, data)
metrics = pd.read_csv(f"{trainer.logger.log_dir}/metrics.csv")
model.eval()
predictions = trainer.predict(model, data.val_dataloader())
sample, _ = next(iter(DataLoader(data.val_set, batch_size=8)))
with torch.no_grad():
    for image in sample:
        print(model(image[None].to(model.device)).argmax(1).item())
