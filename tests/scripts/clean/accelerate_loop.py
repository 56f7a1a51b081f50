import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

accelerator = Accelerator(mixed_precision="bf16")
model, optimizer = make_model()
loader = DataLoader(make_dataset(), batch_size=16, shuffle=True, num_workers=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(3):
    total = 0
    for step, batch in enumerate(loader):
        batch.to(accelerator.device)
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        total += loss.detach()
        if step % 100 == 0:
            accelerator.print(f"{step}: {loss.item()}")
    accelerator.print(f"{epoch}: {total.item() / len(loader)}")
