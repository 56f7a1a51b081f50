import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(784, 10)

    def forward(self, x):
        return self.net(x.flatten(1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        noise = torch.randn(x.shape, device=self.device)
        loss = torch.nn.functional.cross_entropy(self(x + noise), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("accuracy", (self(x).argmax(1) == y).float().mean().item())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


loader = DataLoader(images(), batch_size=64, num_workers=8, pin_memory=True, shuffle=True)
trainer = pl.Trainer(accelerator="gpu", devices=2, precision="bf16-mixed", max_epochs=5)
trainer.fit(Classifier(), loader)
