import torch
from torch.utils.data import DataLoader

loader = DataLoader(frames(), batch_size=1, num_workers=0, pin_memory=True)  # feeder: ignore[num-workers]
model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
# feeder: ignore[pin-memory]
for x, y in loader:
    x = x.cuda()  # feeder: ignore
    y = y.cuda()  # feeder: ignore[blocking-copy, num-workers]
    loss = (model(x) - y).norm()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    # the scheduler needs it in every step
    # feeder: ignore[set-epoch]
    print(
        "loss",
        loss.item(),
    )
