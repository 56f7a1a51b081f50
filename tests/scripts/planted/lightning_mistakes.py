import lightning as L
import torch
from torch.utils.data import DataLoader


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.losses = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        noise = torch.randn(4, 4).to(self.device)
        loss = (self.layer(x + noise) - y).mean()
        self.losses.append(loss.item())
        print("loss", loss)
        torch.cuda.empty_cache()
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


loader = DataLoader(photos(), batch_size=4)  # expect: num-workers
L.Trainer(accelerator="gpu", max_epochs=3).fit(Net(), loader)
