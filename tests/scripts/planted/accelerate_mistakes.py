from accelerate import Accelerator
from torch.utils.data import DataLoader

accelerator = Accelerator()
model, optimizer, loader = accelerator.prepare(*build(), DataLoader(photos()))  # expect: num-workers
total = 0
for epoch in range(2):
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        total += loss.item()
