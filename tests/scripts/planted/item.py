import torch
from torch.utils.data import DataLoader
from tqdm import tqdm

device = torch.device("cuda")
loader = DataLoader(photos(), batch_size=8, num_workers=4, pin_memory=True)
model = torch.nn.Linear(8, 8).to(device)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
total, right = 0.0, 0
bar = tqdm(loader)
for step, (x, y) in enumerate(bar):
    x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
    with torch.autocast("cuda"):
        out = model(x)
        loss = torch.nn.functional.cross_entropy(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.item() * x.size(0)  # expect: sync-item
    right += (out.argmax(1) == y).sum().item()  # expect: sync-item
    bar.set_postfix(loss=float(loss))  # expect: sync-item
    if step % 10 == 0:
        print(loss.item())
    else:
        print(int(y.numel()), x.shape[0])
