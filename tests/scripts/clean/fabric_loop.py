import lightning as L
import torch
from torch.utils.data import DataLoader
from torch.utils.data import DistributedSampler

fabric = L.Fabric(accelerator="cuda", devices=4, precision="bf16-mixed")
fabric.launch()
dataset = images()
loader = fabric.setup_dataloaders(
    DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset), num_workers=4, pin_memory=True)
)
model, optimizer = fabric.setup(*build())
for epoch in range(10):
    for index, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        fabric.backward(loss)
        optimizer.step()
        if index % 50 == 0:
            fabric.print(loss.item())
